// Grants the compute time of one GPU by tokens: Gemini's contract of request, limit and a sliding window. Pure: time is
// an argument. Not thread-safe.
//
// One process holds the token at a time. Of the clients that wait, the one farthest below its request goes first. Once
// all have their requests, the rest is shared in proportion to the requests, up to each limit (work-conserving). A
// client is charged the kernel time that its process measured, or wall time where a lease ran out. A holder that ended,
// hangs or is stopped loses the token, even while its kernel runs.
//
// Opportunistic clients get the token while no other client waits for it. They lose it as soon as one does.
#ifndef SLUICE_AGENT_ARBITER_H_
#define SLUICE_AGENT_ARBITER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/enforcement.h"
#include "agent/usage_window.h"

namespace sluice::agent {

class Arbiter {
 public:
  using ClientId = uint64_t;  // a container
  using HolderId = uint64_t;  // one of its processes

  struct Policy {
    Nanos window = 10'000'000'000;
    Nanos quantum_min = 1'000'000, quantum_max = 50'000'000;
    uint32_t lease_factor = 4;
    // Replaces `window` under pressure; a client's share of it bounds its time slice.
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
  // No guarantee; `weight`, in millionths, decides among opportunistic clients. It needs a token for each launch,
  // also where none is demanded.
  void SetOpportunistic(ClientId client, uint32_t weight, uint32_t limit);
  // A held client is not granted anything, and loses a grant: it has no memory to work in. A new opportunistic one is
  // held.
  void SetHeld(ClientId client, bool held);
  void RemoveClient(ClientId client);
  // The holder ended or lost its connection: a grant is charged by the clock, a request is forgotten.
  void RemoveHolder(HolderId holder, Nanos now);

  void Request(ClientId client, HolderId holder, Nanos burst, Nanos now);
  void Release(HolderId holder, uint64_t id, Nanos used, Nanos burst, Nanos now);
  // The holder does not answer (it is stopped, or gets no CPU time): its lease ends now.
  void Expire(Nanos now);
  // Kernel time that was spent without a token, and launches with or without one.
  void Observe(ClientId client, Nanos used, uint64_t launches, bool has_work, Nanos now);
  // Pressure: the working sets of the clients with work exceed the GPU's memory together, and a switch between them
  // costs so much.
  void SetPressure(bool exceeded, Nanos switch_cost) { pressure_ = exceeded, switch_cost_ = switch_cost; }

  // Under pressure: the clients whose working sets are resident together since `since`. Switching between them is free.
  void SetResident(std::vector<ClientId> clients, Nanos since) {
    resident_ = std::move(clients), resident_since_ = since;
  }

  // Grants and revocations that are due. Call it after every event and at NextWake().
  std::vector<Action> Advance(Nanos now);
  // When an action falls due without an event; nullopt: never.
  std::optional<Nanos> NextWake(Nanos now) const;

  // Launches need a token now. A client that is alone and has no limit needs none.
  bool NeedsTokens(Nanos now);
  // Why the last NeedsTokens() said yes, for people; empty: it said no.
  std::string_view reason() const { return reason_; }
  double Share(ClientId client, Nanos now) const;  // of the window
  Nanos QuantumOf(ClientId client) const;
  bool pressure() const { return pressure_; }
  ClientId current() const { return current_; }  // holds the token, or held it last; 0: none so far
  std::optional<HolderId> holder() const { return grant_ ? std::optional(grant_->holder) : std::nullopt; }
  Nanos LastGrant(ClientId client) const;  // when; 0: never
  bool AnyWaiting() const;
  bool IsWaiting(HolderId holder) const;

 private:
  struct Client {
    uint32_t request = 1000000, limit = 1000000;
    bool opportunistic = false, held = false;
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
  static void Smooth(Client& c, Nanos burst);
  Nanos TimeBelowLimit(const Client& c, Nanos now) const;
  ClientId NextClient(Nanos now) const;  // 0: none may run
  // Of the opportunistic clients, or of the others.
  ClientId NextOf(bool opportunistic, Nanos now) const;
  bool MayRun(const Client& c, Nanos now) const { return !c.held && TimeBelowLimit(c, now) > 0; }
  bool HasWork(ClientId id, const Client& c, Nanos now) const;
  bool MustYield(Nanos now) const;  // an opportunistic client has the token, and may not keep it
  void EndGrant(Nanos now, Nanos used);
  void Charge(Client& c, Nanos used, Nanos now) const;
  // Time slices are long under pressure, but a slice that has paid for its switch ends early for a client with little
  // use. Returns when the current grant may end for such a client; nullopt: none waits.
  std::optional<Nanos> EarliestEnd(Nanos now) const;
  Nanos Lease(Nanos quantum) const;

  Policy policy_;
  std::map<ClientId, Client> clients_;
  std::optional<Grant> grant_;
  // A lease that ended while kernels ran on: charged so far. The late release brings the rest.
  struct Overrun {
    ClientId client;
    uint64_t id;
    Nanos since, charged;
  };
  std::map<HolderId, Overrun> overruns_;
  ClientId current_ = 0;
  Enforcement enforcement_;
  bool pressure_ = false;
  Nanos switch_cost_ = 0;
  std::vector<ClientId> resident_;
  Nanos resident_since_ = 0;
  std::string_view reason_;
  bool released_idle_ = false;  // the last holder released the token for lack of work
  uint64_t next_id_ = 1;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ARBITER_H_
