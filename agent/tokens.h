// Who may use one card's compute time, and how long: Gemini's contract of request, limit and a sliding window. Pure:
// time is an argument. Not thread-safe.
//
// One holder at a time. Among those who wait, whoever is farthest below its request goes first; when all have theirs,
// what is left follows the requests' proportions, up to each one's limit (work-conserving). Time is charged as kernel
// time that the holder measured, or as wall time where a lease ran out: a holder that died, hung or was stopped loses
// the token, its kernel running or not.
#ifndef SLUICE_AGENT_TOKENS_H_
#define SLUICE_AGENT_TOKENS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::agent {

using Nanos = uint64_t;

// Time used within the last while.
class UsageWindow {
 public:
  // Kept for `keep`, in parts of a four-hundredth of `window`.
  void Charge(Nanos used, Nanos now, Nanos window, Nanos keep);
  Nanos Used(Nanos now, Nanos window) const;  // any window up to `keep`

 private:
  struct Slice {
    Nanos begin, used;
  };
  std::deque<Slice> slices_;
};

class Arbiter {
 public:
  using ClientId = uint64_t;  // a container
  using HolderId = uint64_t;  // one process of it

  struct Policy {
    Nanos window = 10'000'000'000;
    Nanos quantum_min = 1'000'000, quantum_max = 50'000'000;
    uint32_t lease_factor = 4;
    // While working sets exceed the card: shares hold over any such time, and no turn is longer than its part of it.
    Nanos pressure_window = 30'000'000'000;
  };
  struct Action {
    enum class Kind { kGrant, kRevoke } kind;
    HolderId holder;
    uint64_t id;
    Nanos quantum, lease;
  };

  explicit Arbiter(Policy policy) : policy_(policy) {}
  void SetPolicy(Policy policy) { policy_ = policy; }
  // Shares in millionths.
  void SetClient(ClientId client, uint32_t request, uint32_t limit);
  void RemoveClient(ClientId client);
  // The holder died or lost its connection: what it holds is charged by the clock, what it waits for is forgotten.
  void RemoveHolder(HolderId holder, Nanos now);

  void Request(ClientId client, HolderId holder, Nanos burst, Nanos now);
  void Release(HolderId holder, uint64_t id, Nanos used, Nanos burst, Nanos now);
  // The holder does not answer (stopped, or its machine's turn never comes): its lease ends now.
  void Expire(Nanos now);
  // Kernel time that was spent while no token was demanded.
  void Observe(ClientId client, Nanos used, bool has_work, Nanos now);
  // The working sets of those with work together exceed the card, and what changing over costs then.
  void SetPressure(bool exceeded, Nanos switch_cost) { pressure_ = exceeded, switch_cost_ = switch_cost; }

  // Under pressure: whose memory lies on the card together, so that handing the token from one to the other costs
  // nothing; since when it does.
  void SetSeated(std::vector<ClientId> clients, Nanos since) { seated_ = std::move(clients), seated_since_ = since; }

  // Grants and revocations that are due. Call it after every event and at NextWake().
  std::vector<Action> Advance(Nanos now);
  // When something falls due by itself; nullopt: never.
  std::optional<Nanos> NextWake(Nanos now) const;

  // Launches need a token now. A client alone without a limit never does.
  bool Demanded(Nanos now);
  double Share(ClientId client, Nanos now) const;  // of the window
  Nanos QuantumOf(ClientId client) const;
  bool pressure() const { return pressure_; }
  ClientId turn() const { return turn_; }  // who holds the token, or held it last; 0: nobody yet
  std::optional<HolderId> holder() const { return grant_ ? std::optional(grant_->holder) : std::nullopt; }
  bool AnyWaiting() const;
  bool Waits(HolderId holder) const;

 private:
  struct Client {
    uint32_t request = 1000000, limit = 1000000;
    UsageWindow usage;
    Nanos burst = 0;   // smoothed
    Nanos worked = 0;  // when it last had work; 0: never
    Nanos granted = 0;
    std::deque<HolderId> waiting;
  };
  struct Grant {
    ClientId client;
    HolderId holder;
    uint64_t id;
    Nanos since, quantum, until;
  };
  void Burst(Client& c, Nanos burst) const;
  Nanos Room(const Client& c, Nanos now) const;  // time below the limit
  ClientId Choose(Nanos now) const;              // 0: nobody may
  void Take(Nanos now, Nanos used);
  void Charge(Client& c, Nanos used, Nanos now) const;
  // Under pressure turns are long. Somebody who waits and has had little of them need not wait for the end of one that
  // has paid for its change of hands: when the turn of the holder may be ended for it; nullopt: there is nobody such.
  std::optional<Nanos> MayBeEnded(Nanos now) const;
  Nanos Lease(Nanos quantum) const;

  Policy policy_;
  std::map<ClientId, Client> clients_;
  std::optional<Grant> grant_;
  // A lease that ended while kernels went on: charged so far. The rest comes with the late release.
  struct Overdue {
    ClientId client;
    uint64_t id;
    Nanos since, charged;
  };
  std::map<HolderId, Overdue> overdue_;
  ClientId turn_ = 0;
  bool starved_ = false;  // tokens are what holds the shares up
  bool pressure_ = false;
  Nanos switch_cost_ = 0;
  std::vector<ClientId> seated_;
  Nanos seated_since_ = 0;
  bool gave_up_ = false;  // the last holder had no more work
  uint64_t next_id_ = 1;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_TOKENS_H_
