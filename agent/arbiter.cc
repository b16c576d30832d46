#include "agent/arbiter.h"

#include <algorithm>

namespace sluice::agent {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kLeaseExtra = 100 * kMs;
constexpr Nanos kMaxLeaseSlack = 1000 * kMs;  // of a lease beyond two quanta
constexpr Nanos kIdleTimeout = 1000 * kMs;    // a client without a sign of work for so long has none
// Shares and limits are judged over a tenth of the window: a limit of a half would else run 5 s and wait 5 s.
constexpr Nanos kPeriodsPerWindow = 10;
constexpr Nanos kMinQuantumSwitches = 40;  // under pressure: a switch costs at most a fortieth of a quantum
// A client that pauses may cost switches, but at most a quarter of the time. With five clients of which two fit, an
// eighth would do 4 % more work and double the waiting time of the clients that are not resident.
constexpr Nanos kMinResidentSwitches = 4;
constexpr Nanos kMinSliceSwitches = 8;  // a time slice has paid for its switch when it lasted so many times as long

}  // namespace

void Arbiter::SetClient(ClientId client, uint32_t request, uint32_t limit) {
  Client& c = clients_[client];
  if (c.request != request) enforcement_.Forget(client);
  c.request = request;
  c.limit = std::max<uint32_t>(limit, 1);
  c.opportunistic = c.held = false;
}

void Arbiter::SetOpportunistic(ClientId client, uint32_t weight, uint32_t limit) {
  const auto it = clients_.find(client);
  const bool held = it == clients_.end() || it->second.held;  // a new one has no memory yet
  SetClient(client, weight, limit);
  clients_.at(client).opportunistic = true;
  clients_.at(client).held = held;
}

void Arbiter::SetHeld(ClientId client, bool held) {
  const auto it = clients_.find(client);
  if (it != clients_.end()) it->second.held = held;
}

// A client that waits for a token or holds it has work, however long that takes.
bool Arbiter::HasWork(ClientId id, const Client& c, Nanos now) const {
  const bool held = grant_ && grant_->client == id;
  return held || !c.waiting.empty() || (c.worked != 0 && now - c.worked <= kIdleTimeout);
}

bool Arbiter::MustYield(Nanos now) const {
  if (!grant_ || !clients_.at(grant_->client).opportunistic) return false;
  if (clients_.at(grant_->client).held) return true;
  return std::ranges::any_of(clients_, [&](const auto& entry) {
    const Client& c = entry.second;
    return !c.opportunistic && !c.waiting.empty() && MayRun(c, now);
  });
}

void Arbiter::RemoveClient(ClientId client) {
  if (grant_ && grant_->client == client) grant_.reset();
  std::erase_if(overruns_, [client](const auto& o) { return o.second.client == client; });
  if (current_ == client) current_ = 0;
  clients_.erase(client);
  enforcement_.Forget(client);
}

void Arbiter::Charge(Client& c, Nanos used, Nanos now) const {
  c.usage.Charge(used, now, policy_.window, std::max(policy_.window, policy_.pressure_window));
}

void Arbiter::RemoveHolder(HolderId holder, Nanos now) {
  for (auto& [id, c] : clients_) std::erase(c.waiting, holder);
  overruns_.erase(holder);
  if (!grant_ || grant_->holder != holder) return;
  released_idle_ = true;
  EndGrant(now, now - grant_->since);
}

void Arbiter::EndGrant(Nanos now, Nanos used) {
  if (!grant_) return;
  Charge(clients_.at(grant_->client), used, now);
  grant_.reset();
}

void Arbiter::Expire(Nanos now) {
  if (grant_) grant_->until = now;
}

bool Arbiter::IsWaiting(HolderId holder) const {
  return std::ranges::any_of(
      clients_, [&](const auto& c) { return std::ranges::find(c.second.waiting, holder) != c.second.waiting.end(); });
}

Nanos Arbiter::LastGrant(ClientId client) const {
  const auto it = clients_.find(client);
  return it == clients_.end() ? 0 : it->second.granted;
}

bool Arbiter::AnyWaiting() const {
  return std::ranges::any_of(clients_, [](const auto& c) { return !c.second.waiting.empty(); });
}

void Arbiter::Smooth(Client& c, Nanos burst) {
  if (burst > 0) c.burst = c.burst == 0 ? burst : (c.burst * 7 + burst) / 8;
}

void Arbiter::Request(ClientId client, HolderId holder, Nanos burst, Nanos now) {
  const auto it = clients_.find(client);
  if (it == clients_.end()) return;
  Smooth(it->second, burst);
  it->second.worked = now;
  if (std::ranges::find(it->second.waiting, holder) == it->second.waiting.end()) it->second.waiting.push_back(holder);
}

void Arbiter::Release(HolderId holder, uint64_t id, Nanos used, Nanos burst, Nanos now) {
  if (const auto late = overruns_.find(holder); late != overruns_.end() && late->second.id == id) {
    // Kernels that ran beyond the lease are charged too.
    const Nanos all = std::min(used, now - late->second.since);
    if (all > late->second.charged) Charge(clients_.at(late->second.client), all - late->second.charged, now);
    overruns_.erase(late);
    return;
  }
  if (!grant_ || grant_->holder != holder || grant_->id != id) return;
  Client& c = clients_.at(grant_->client);
  Smooth(c, burst);
  released_idle_ = c.waiting.empty();
  // The clock bounds the client's claim: more than the time that passed cannot have been used.
  EndGrant(now, std::min(used, now - grant_->since));
}

void Arbiter::Observe(ClientId client, Nanos used, uint64_t launches, bool has_work, Nanos now) {
  const auto it = clients_.find(client);
  if (it == clients_.end()) return;
  if (has_work) it->second.worked = now;
  const Nanos spent = enforcement_.TimeToCharge(client, used, launches, policy_.window, now);
  if (!grant_ || grant_->client != client) Charge(it->second, spent, now);
}

Nanos Arbiter::TimeBelowLimit(const Client& c, Nanos now) const {
  if (c.limit >= kWhole) return UINT64_MAX;
  Nanos time = UINT64_MAX;
  for (const Nanos window : {policy_.window, policy_.window / kPeriodsPerWindow}) {
    const Nanos allowed = ShareOf(window, c.limit), used = c.usage.Used(now, window);
    time = std::min(time, allowed > used ? allowed - used : 0);
  }
  return time;
}

Nanos Arbiter::QuantumOf(ClientId client) const {
  const Client& c = clients_.at(client);
  const Nanos burst = std::clamp(c.burst, policy_.quantum_min, policy_.quantum_max);
  if (!pressure_ || c.opportunistic) return burst;
  // Memory moves with the token, so slices grow with the cost of a switch, up to the share of the window. A slice of
  // half the share, or one that grows from grant to grant, would leave some windows with too little for a client.
  const Nanos share = ShareOf(policy_.pressure_window, c.request), wanted = switch_cost_ * kMinQuantumSwitches;
  return std::max(burst, wanted > share / 4 ? share : wanted);
}

Nanos Arbiter::Lease(Nanos quantum) const {
  return std::min(quantum * policy_.lease_factor, quantum * 2 + kMaxLeaseSlack) + kLeaseExtra;
}

Arbiter::ClientId Arbiter::NextClient(Nanos now) const {
  const ClientId guaranteed = NextOf(false, now);
  return guaranteed != 0 ? guaranteed : NextOf(true, now);
}

Arbiter::ClientId Arbiter::NextOf(bool opportunistic, Nanos now) const {
  // Order: use in proportion to the request, clients below their request first. Use is judged over a tenth of the
  // window: a share that holds over every tenth also holds over the whole. A client that wakes gets its share at once.
  // Over the whole window it would run alone until half a window is made good.
  const Nanos recent = policy_.window / kPeriodsPerWindow;
  // A client that pauses between bursts leaves the GPU to one whose memory is resident, until that memory has paid for
  // its fetch.
  const bool prefer_resident =
      pressure_ && released_idle_ && now - resident_since_ < switch_cost_ * kMinResidentSwitches;
  ClientId best = 0;
  bool best_resident = false, best_owed = false;
  double best_rank = 0;
  Nanos best_granted = 0;
  for (const auto& [id, c] : clients_) {
    if (c.opportunistic != opportunistic || c.waiting.empty() || !MayRun(c, now)) continue;
    const auto used = static_cast<double>(c.usage.Used(now, recent));
    const auto due = static_cast<double>(ShareOf(recent, std::max<uint32_t>(c.request, 1)));
    // Under pressure clients go round-robin: each slice is as long as the share of the window.
    const bool owed = !pressure_ && used < due;
    const double rank = pressure_ ? 0 : used / due;
    const bool earlier = rank < best_rank || (rank == best_rank && c.granted < best_granted);
    const bool resident = prefer_resident && std::ranges::find(resident_, id) != resident_.end();
    if (best == 0 || (resident && !best_resident) ||
        (resident == best_resident && ((owed && !best_owed) || (owed == best_owed && earlier)))) {
      best = id;
      best_resident = resident;
      best_owed = owed;
      best_rank = rank;
      best_granted = c.granted;
    }
  }
  return best;
}

std::optional<Nanos> Arbiter::EarliestEnd(Nanos now) const {
  if (!pressure_ || !grant_ || clients_.at(grant_->client).opportunistic) return std::nullopt;
  const bool rested = std::ranges::any_of(clients_, [&](const auto& entry) {
    const auto& [id, c] = entry;
    if (id == grant_->client || c.opportunistic || c.waiting.empty() || !MayRun(c, now)) return false;
    // Its last slice is long ago and it used less than half of its share: it wakes, or begins. A client that always
    // works has used its share, and waits for the end of the slice.
    const Nanos share = ShareOf(policy_.pressure_window, c.request);
    return (c.granted == 0 || now - c.granted >= share) && c.usage.Used(now, policy_.pressure_window) < share / 2;
  });
  if (!rested) return std::nullopt;
  // A holder that had the GPU before tokens were demanded has had its time too: its use is known from samples.
  const Nanos minimum = std::min(switch_cost_ * kMinSliceSwitches, policy_.pressure_window / 4);
  const bool had_time = clients_.at(grant_->client).usage.Used(now, minimum) >= minimum / 2;
  return had_time ? now : grant_->since + minimum;
}

std::vector<Arbiter::Action> Arbiter::Advance(Nanos now) {
  std::vector<Action> out;
  if (const auto end = EarliestEnd(now); end && now >= *end) Expire(now);
  if (MustYield(now)) Expire(now);
  if (grant_ && now >= grant_->until) {
    out.push_back({Action::Kind::kRevoke, grant_->holder, grant_->id, 0, 0});
    overruns_[grant_->holder] = {grant_->client, grant_->id, grant_->since, now - grant_->since};
    released_idle_ = false;
    EndGrant(now, now - grant_->since);
  }
  if (grant_) return out;
  const ClientId id = NextClient(now);
  if (id == 0) return out;
  Client& c = clients_.at(id);
  // Launches that an opportunistic client has queued are waited for by one that wakes, so it queues little.
  const bool others = std::ranges::any_of(clients_, [&](const auto& other) {
    return !other.second.opportunistic && HasWork(other.first, other.second, now);
  });
  const Nanos most = c.opportunistic && others ? policy_.quantum_min : QuantumOf(id);
  const Nanos quantum = std::max<Nanos>(std::min(most, TimeBelowLimit(c, now)), 1);
  const Nanos lease = Lease(quantum);
  grant_ = Grant{id, c.waiting.front(), next_id_++, now, quantum, now + lease};
  c.waiting.pop_front();
  c.granted = now;
  if (!c.opportunistic) current_ = id;
  out.push_back({Action::Kind::kGrant, grant_->holder, grant_->id, quantum, lease});
  return out;
}

std::optional<Nanos> Arbiter::NextWake(Nanos now) const {
  if (grant_) return std::min(grant_->until, EarliestEnd(now).value_or(grant_->until));
  // A client waits at its limit: the passing of time lets it run again.
  for (const auto& [id, c] : clients_) {
    if (!c.waiting.empty())
      return now + std::max<Nanos>(policy_.window / UsageWindow::kSlicesPerWindow / kPeriodsPerWindow, kMs);
  }
  return enforcement_.NextUpdate(now);
}

bool Arbiter::NeedsTokens(Nanos now) {
  std::vector<Enforcement::Worker> workers;
  bool limited = false, opportunistic = false;
  for (const auto& [id, c] : clients_) {
    if (!HasWork(id, c, now)) continue;
    if (c.opportunistic) {
      opportunistic |= !c.held;
      continue;
    }
    limited |= c.limit < kWhole;
    workers.push_back({id, c.request, &c.usage, grant_ && grant_->client == id ? now - grant_->since : 0});
  }
  // While an opportunistic client works, the others' first launches must be seen at once, so that it yields.
  // Under pressure the token also decides whose memory is resident: a client that works needs it, even if alone.
  const bool pressed = pressure_ && !workers.empty();
  const bool tokens = limited || opportunistic || pressed;
  const bool enforced = enforcement_.Update(workers, tokens, policy_.window, now);
  reason_ = pressed         ? "the working sets exceed its memory"
            : limited       ? "a container that works has a compute limit"
            : opportunistic ? "an opportunistic container works"
            : enforced      ? "containers did not get their compute requests, or it is measured whether they do"
                            : "";
  return tokens || enforced;
}

double Arbiter::Share(ClientId client, Nanos now) const {
  const auto it = clients_.find(client);
  return it == clients_.end()
             ? 0
             : static_cast<double>(it->second.usage.Used(now, policy_.window)) / static_cast<double>(policy_.window);
}

}  // namespace sluice::agent
