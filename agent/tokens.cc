#include "agent/tokens.h"

#include <algorithm>

namespace sluice::agent {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kLeaseExtra = 100 * kMs;
constexpr Nanos kWorkFades = 1000 * kMs;  // no word of work for so long: none
constexpr Nanos kSlices = 400;
constexpr Nanos kPace =
    10;  // limits hold over a tenth of the window too, or a limit of a half would run 5 s and wait 5 s
constexpr Nanos kSwitchShare = 40;  // changing over may cost a fortieth of the quantum
constexpr Nanos kLongLease = 1000 * kMs;
// For the sake of a nap the card's memory changes hands at most so that it costs a quarter of the time. Five tenants of
// which two fit: an eighth would do 4 % more work, and who waits for its memory would wait twice as long.
constexpr Nanos kSeating = 4;
constexpr Nanos kPaid = 8;  // a turn has paid for its change of hands when it lasted so many times as long

Nanos ShareOf(Nanos time, uint32_t millionths) {
  return time / 1000000 * millionths + time % 1000000 * millionths / 1000000;
}

}  // namespace

void UsageWindow::Charge(Nanos used, Nanos now, Nanos window, Nanos keep) {
  if (used == 0) return;
  // Spent over the time before now, not in one instant: spread over the slices that it covers.
  const Nanos slice = std::max<Nanos>(window / kSlices, 1);
  Nanos begin = now > used ? now - used : 0;
  while (used > 0) {
    const Nanos start = begin / slice * slice;
    const Nanos part = std::min(used, start + slice - begin);
    auto it = std::ranges::find_if(slices_, [&](const Slice& s) { return s.begin >= start; });
    if (it == slices_.end() || it->begin != start) it = slices_.insert(it, Slice{start, 0});
    it->used += part;
    used -= part;
    begin += part;
  }
  while (!slices_.empty() && slices_.front().begin + slice + keep < now) slices_.pop_front();
}

Nanos UsageWindow::Used(Nanos now, Nanos window) const {
  const Nanos from = now > window ? now - window : 0;
  Nanos sum = 0;
  for (const Slice& s : slices_) {
    if (s.begin >= from) sum += s.used;
  }
  return sum;
}

void Arbiter::SetClient(ClientId client, uint32_t request, uint32_t limit) {
  Client& c = clients_[client];
  c.request = request;
  c.limit = std::max<uint32_t>(limit, 1);
}

void Arbiter::RemoveClient(ClientId client) {
  if (grant_ && grant_->client == client) grant_.reset();
  std::erase_if(overdue_, [client](const auto& o) { return o.second.client == client; });
  if (turn_ == client) turn_ = 0;
  clients_.erase(client);
}

void Arbiter::Charge(Client& c, Nanos used, Nanos now) const {
  c.usage.Charge(used, now, policy_.window, std::max(policy_.window, policy_.pressure_window));
}

void Arbiter::RemoveHolder(HolderId holder, Nanos now) {
  for (auto& [id, c] : clients_) std::erase(c.waiting, holder);
  overdue_.erase(holder);
  if (!grant_ || grant_->holder != holder) return;
  gave_up_ = true;
  Take(now, now - grant_->since);
}

void Arbiter::Take(Nanos now, Nanos used) {
  if (!grant_) return;
  Charge(clients_.at(grant_->client), used, now);
  grant_.reset();
}

void Arbiter::Expire(Nanos now) {
  if (grant_) grant_->until = now;
}

bool Arbiter::Waits(HolderId holder) const {
  return std::ranges::any_of(
      clients_, [&](const auto& c) { return std::ranges::find(c.second.waiting, holder) != c.second.waiting.end(); });
}

bool Arbiter::AnyWaiting() const {
  return std::ranges::any_of(clients_, [](const auto& c) { return !c.second.waiting.empty(); });
}

void Arbiter::Burst(Client& c, Nanos burst) const {
  if (burst > 0) c.burst = c.burst == 0 ? burst : (c.burst * 7 + burst) / 8;
}

void Arbiter::Request(ClientId client, HolderId holder, Nanos burst, Nanos now) {
  const auto it = clients_.find(client);
  if (it == clients_.end()) return;
  Burst(it->second, burst);
  it->second.worked = now;
  if (std::ranges::find(it->second.waiting, holder) == it->second.waiting.end()) it->second.waiting.push_back(holder);
}

void Arbiter::Release(HolderId holder, uint64_t id, Nanos used, Nanos burst, Nanos now) {
  if (const auto late = overdue_.find(holder); late != overdue_.end() && late->second.id == id) {
    // Its kernels ran on beyond the lease, and are paid for all the same.
    const Nanos all = std::min(used, now - late->second.since);
    if (all > late->second.charged) Charge(clients_.at(late->second.client), all - late->second.charged, now);
    overdue_.erase(late);
    return;
  }
  if (!grant_ || grant_->holder != holder || grant_->id != id) return;
  Client& c = clients_.at(grant_->client);
  Burst(c, burst);
  gave_up_ = c.waiting.empty();
  // More than the time that passed cannot have been used: a client's word alone is no measure.
  Take(now, std::min(used, now - grant_->since));
}

void Arbiter::Observe(ClientId client, Nanos used, bool has_work, Nanos now) {
  const auto it = clients_.find(client);
  if (it == clients_.end()) return;
  if (has_work) it->second.worked = now;
  if (!grant_ || grant_->client != client) Charge(it->second, used, now);
}

Nanos Arbiter::Room(const Client& c, Nanos now) const {
  if (c.limit >= 1000000) return UINT64_MAX;
  Nanos room = UINT64_MAX;
  for (const Nanos window : {policy_.window, policy_.window / kPace}) {
    const Nanos most = ShareOf(window, c.limit), used = c.usage.Used(now, window);
    room = std::min(room, most > used ? most - used : 0);
  }
  return room;
}

Nanos Arbiter::QuantumOf(ClientId client) const {
  const Client& c = clients_.at(client);
  const Nanos turn = std::clamp(c.burst, policy_.quantum_min, policy_.quantum_max);
  if (!pressure_) return turn;
  // Memory changes hands with the token: longer turns, the longer the more that costs, up to the share of the window.
  const Nanos share = ShareOf(policy_.pressure_window, c.request), wanted = switch_cost_ * kSwitchShare;
  // Turns of half the share, or that grow from one to the next, would leave some windows with too little for somebody.
  return std::max(turn, wanted > share / 4 ? share : wanted);
}

Nanos Arbiter::Lease(Nanos quantum) const {
  return std::min(quantum * policy_.lease_factor, quantum * 2 + kLongLease) + kLeaseExtra;
}

Arbiter::ClientId Arbiter::Choose(Nanos now) const {
  // By use in proportion to the request, those below it first. Judged over a tenth of the window: what holds over every
  // such time holds over the whole, and a tenant that wakes takes its share at once instead of running alone until half
  // a window is made good.
  const Nanos recent = policy_.window / kPace;
  // Who naps between two bursts leaves the card to one whose memory is there, until that memory has paid for its
  // coming.
  const bool keep = pressure_ && gave_up_ && now - seated_since_ < switch_cost_ * kSeating;
  ClientId best = 0;
  bool best_seated = false, best_owed = false;
  double best_rank = 0;
  Nanos best_granted = 0;
  for (const auto& [id, c] : clients_) {
    if (c.waiting.empty() || Room(c, now) == 0) continue;
    const auto used = static_cast<double>(c.usage.Used(now, recent));
    const auto due = static_cast<double>(ShareOf(recent, std::max<uint32_t>(c.request, 1)));
    // Under pressure in turn: each turn is as long as its share of the window, and none may follow itself.
    const bool owed = !pressure_ && used < due;
    const double rank = pressure_ ? 0 : used / due;
    const bool earlier = rank < best_rank || (rank == best_rank && c.granted < best_granted);
    const bool seated = keep && std::ranges::find(seated_, id) != seated_.end();
    if (best == 0 || (seated && !best_seated) ||
        (seated == best_seated && ((owed && !best_owed) || (owed == best_owed && earlier)))) {
      best = id;
      best_seated = seated;
      best_owed = owed;
      best_rank = rank;
      best_granted = c.granted;
    }
  }
  return best;
}

std::optional<Nanos> Arbiter::MayBeEnded(Nanos now) const {
  if (!pressure_ || !grant_) return std::nullopt;
  const bool rested = std::ranges::any_of(clients_, [&](const auto& entry) {
    const auto& [id, c] = entry;
    if (id == grant_->client || c.waiting.empty() || Room(c, now) == 0) return false;
    // Its last turn is long ago, and it used less than half of what it may: it wakes, or begins. Those that always work
    // have used theirs, and change at the ends of turns.
    const Nanos share = ShareOf(policy_.pressure_window, c.request);
    return (c.granted == 0 || now - c.granted >= share) && c.usage.Used(now, policy_.pressure_window) < share / 2;
  });
  if (!rested) return std::nullopt;
  // A holder that had the card before tokens were demanded has had its time too. What it used then is known from
  // samples.
  const Nanos least = std::min(switch_cost_ * kPaid, policy_.pressure_window / 4);
  const bool had = clients_.at(grant_->client).usage.Used(now, least) >= least / 2;
  return had ? now : grant_->since + least;
}

std::vector<Arbiter::Action> Arbiter::Advance(Nanos now) {
  std::vector<Action> out;
  if (const auto end = MayBeEnded(now); end && now >= *end) Expire(now);
  if (grant_ && now >= grant_->until) {
    out.push_back({Action::Kind::kRevoke, grant_->holder, grant_->id, 0, 0});
    overdue_[grant_->holder] = {grant_->client, grant_->id, grant_->since, now - grant_->since};
    gave_up_ = false;
    Take(now, now - grant_->since);
  }
  if (grant_) return out;
  const ClientId id = Choose(now);
  if (id == 0) return out;
  Client& c = clients_.at(id);
  const Nanos quantum = std::max<Nanos>(std::min(QuantumOf(id), Room(c, now)), 1);
  const Nanos lease = Lease(quantum);
  grant_ = Grant{id, c.waiting.front(), next_id_++, now, quantum, now + lease};
  c.waiting.pop_front();
  c.granted = now;
  turn_ = id;
  out.push_back({Action::Kind::kGrant, grant_->holder, grant_->id, quantum, lease});
  return out;
}

std::optional<Nanos> Arbiter::NextWake(Nanos now) const {
  if (grant_) return std::min(grant_->until, MayBeEnded(now).value_or(grant_->until));
  // Somebody waits below whose limit is no room: time itself makes some.
  for (const auto& [id, c] : clients_) {
    if (!c.waiting.empty()) return now + std::max<Nanos>(policy_.window / kSlices / kPace, kMs);
  }
  return std::nullopt;
}

bool Arbiter::Demanded(Nanos now) {
  size_t working = 0;
  bool limited = false, starving = false;
  Nanos busy = 0;
  const Nanos recent = policy_.window / kPace;
  for (const auto& [id, c] : clients_) {
    // Who waits for a token, or holds it, has work, however long that takes.
    const bool held = grant_ && grant_->client == id;
    if (!held && c.waiting.empty() && (c.worked == 0 || now - c.worked > kWorkFades)) continue;
    ++working;
    limited |= c.limit < 1000000;
    const Nanos used = c.usage.Used(now, policy_.window);
    starving |= used < ShareOf(policy_.window, c.request) / 100 * 95;
    busy += c.usage.Used(now, recent) + (held ? std::min(now - grant_->since, recent) : 0);  // charged at its end
  }
  // Less than its request is no one's fault where the card has time to spare. And once tokens have given everyone
  // theirs, they are what keeps it so: as long as the card is full.
  starved_ = working >= 2 && (starving || starved_) && busy >= recent / 10 * (starved_ ? 5 : 8);
  if (limited) return true;
  // Under pressure the token also says whose memory is on the card: it is taken by whoever works, be it one alone.
  if (pressure_) return working > 0;
  return starved_;
}

double Arbiter::Share(ClientId client, Nanos now) const {
  const auto it = clients_.find(client);
  return it == clients_.end()
             ? 0
             : static_cast<double>(it->second.usage.Used(now, policy_.window)) / static_cast<double>(policy_.window);
}

}  // namespace sluice::agent
