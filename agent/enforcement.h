// Decides whether clients need tokens to get their requests. The driver's own time slices are equal among contexts with
// work, and cost less than tokens: so tokens are for clients of which one takes the time of another. Pure.
//
//  - A client is starved when it lacks time, and another one exceeds its request. Both are judged since both have work.
//  - Loads change from one second to the next. Where tokens leave the GPU idle for half of the time and the client took
//    no more with them, it did not want more: the next suspicion must last eight times as long, one of half its due a
//    window.
//  - Where the requests are equal, tokens are left out for a trial. It ends as soon as a client is starved. Each next
//    one comes later.
//  - Without tokens use is estimated. Events around kernels of processes that run at the same time include the others'
//    time slices. So figures are scaled to the time that passed, and during a trial launches are multiplied with the
//    time that one took under tokens.
#ifndef SLUICE_AGENT_ENFORCEMENT_H_
#define SLUICE_AGENT_ENFORCEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "agent/usage_window.h"

namespace sluice::agent {

class Enforcement {
 public:
  static constexpr Nanos kMinJudged = 100'000'000;  // hooks write their figures so often
  using ClientId = uint64_t;
  struct Worker {  // a client with work
    ClientId id;
    uint32_t request;  // millionths
    const UsageWindow* usage;
    Nanos running;  // under a grant that lasts: charged at its end
  };

  // Whether tokens are needed. `tokens`: they are demanded for another reason.
  bool Update(const std::vector<Worker>& workers, bool tokens, Nanos window, Nanos now);
  // The time to charge for `launches` without a token, by the hook's estimate.
  Nanos TimeToCharge(ClientId client, Nanos estimated, uint64_t launches, Nanos window, Nanos now);
  void Forget(ClientId client) { accounts_.erase(client); }
  // When the next Update is due; nullopt: not by time.
  std::optional<Nanos> NextUpdate(Nanos now) const;

 private:
  struct Account {
    bool works = false;
    Nanos seen = 0;          // has work since
    Nanos began = 0;         // the first use after that was known; 0: none yet
    bool fair = false;       // the driver gave it its share, in a trial
    uint32_t wanted = 0;     // the part of its request that it took under tokens
    Nanos wanted_until = 0;  // before that it is not owed more
    UsageWindow launches;    // a count, not a time
    uint64_t uncharged = 0;  // launches
    double launch_ns = 0;    // under tokens; 0: unknown
  };
  bool NoteWork(const std::vector<Worker>& workers, Nanos window, Nanos now);  // true: a client begins
  struct Suspicion {
    ClientId client;
    double part;  // of the time, that it had
  };
  // A client that lacks time of which another one has too much; nullopt: none.
  std::optional<Suspicion> Starved(const std::vector<Worker>& workers, bool equal, Nanos window, Nanos now) const;
  void JudgeSpareTime(const std::vector<Worker>& workers, Nanos window, Nanos now);
  void Begin(Nanos now);
  void End(Nanos now);
  void BeginTrial(const std::vector<Worker>& workers, Nanos window, Nanos now);

  std::map<ClientId, Account> accounts_;
  bool on_ = false;
  Nanos on_since_ = 0, off_since_ = 0;
  Nanos trial_ = 0;                     // when the last one began; 0: none
  Nanos wait_ = 0;                      // with tokens, before a trial
  std::optional<Suspicion> suspicion_;  // for which tokens began
  Nanos patience_ = kMinJudged;         // a client lacks time for so long before tokens begin
  Nanos overlapping_since_ = 0;  // clients work at the same time, so that estimates do not tell them apart; 0: they do
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ENFORCEMENT_H_
