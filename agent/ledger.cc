#include "agent/ledger.h"

#include <algorithm>
#include <bit>

namespace sluice::agent {
namespace {

Bytes MulDiv(Bytes a, uint64_t b, uint64_t c) {
  return c == 0 ? 0 : static_cast<Bytes>(static_cast<unsigned __int128>(a) * b / c);
}
Bytes Minus(Bytes a, Bytes b) { return a > b ? a - b : 0; }

}  // namespace

std::vector<Bytes> ShareOut(Bytes total, const std::vector<Claim>& claims) {
  std::vector<Bytes> out(claims.size(), 0);
  std::vector<size_t> open;
  for (size_t i = 0; i < claims.size(); ++i) {
    if (claims[i].cap > 0 && claims[i].weight > 0) open.push_back(i);
  }
  // A claim that reaches its cap leaves the loop, so there are at most as many rounds as claims.
  while (!open.empty() && total > 0) {
    uint64_t weights = 0;
    for (const size_t i : open) weights += claims[i].weight;
    std::vector<size_t> still;
    Bytes given = 0;
    for (const size_t i : open) {
      const Bytes room = claims[i].cap - out[i];
      const Bytes part = MulDiv(total, claims[i].weight, weights);
      if (part >= room) {
        out[i] += room;
        given += room;
      } else {
        still.push_back(i);
      }
    }
    if (still.size() == open.size()) {  // no claim is capped any more: the last round
      for (const size_t i : open) out[i] += MulDiv(total, claims[i].weight, weights);
      break;
    }
    total -= given;
    open = std::move(still);
  }
  return out;
}

void Ledger::SetGroup(GroupId group, Bytes guaranteed, uint64_t weight) {
  Group& g = groups_[group];
  g.guaranteed = guaranteed;
  g.weight = std::max<uint64_t>(weight, 1);
  g.opportunistic = false;
}

void Ledger::SetOpportunistic(GroupId group, uint64_t weight) {
  SetGroup(group, 0, weight);
  groups_.at(group).opportunistic = true;
}

void Ledger::SetParked(GroupId group, bool parked) {
  const auto it = groups_.find(group);
  if (it != groups_.end()) it->second.parked = parked;
}

void Ledger::RemoveGroup(GroupId group) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  for (const Member* m : it->second.members) members_.erase(MemberId{m->id});
  groups_.erase(it);
}

void Ledger::Vacate(GroupId group) {
  const auto it = groups_.find(group);
  if (it != groups_.end()) it->second.vacant = it->second.members.empty();
}

void Ledger::AddMember(MemberId member, GroupId group) {
  const auto it = groups_.find(group);
  if (it == groups_.end() || members_.contains(member)) return;
  Member& m = members_[member];
  m.id = member;
  m.group = group;
  it->second.members.push_back(&m);
  it->second.vacant = false;
}

void Ledger::RemoveMember(MemberId member) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  std::erase(groups_.at(it->second.group).members, &it->second);
  members_.erase(it);
}

void Ledger::Restore(MemberId member, Bytes held) {
  const auto it = members_.find(member);
  if (it == members_.end() || held == 0) return;
  // The holder claims so; more than the pool has left cannot be true. Of two claims that cannot both be true, the one
  // within its group's guarantee counts.
  const Group& own = groups_.at(it->second.group);
  Bytes of_group = 0;
  for (const Member* m : own.members) of_group += m->exposure;
  const Bytes entitled = std::min(held, Minus(own.guaranteed, of_group));
  if (const Bytes left = Minus(capacity_, exposure()); entitled > left) TakeBorrowed(entitled - left, own);
  held = std::min(held, Minus(capacity_, exposure()));
  it->second.held = held;
  it->second.exposure = std::max(it->second.exposure, held);
}

void Ledger::TakeBorrowed(Bytes bytes, const Group& except) {
  for (auto& [id, g] : groups_) {
    if (&g == &except) continue;
    Bytes exposed = 0;
    for (const Member* m : g.members) exposed += m->exposure;
    Bytes borrowed = std::min(bytes, Minus(exposed, g.guaranteed));
    bytes -= borrowed;
    for (Member* m : g.members) {
      const Bytes taken = std::min(borrowed, m->exposure);
      if (taken == 0) continue;
      borrowed -= taken;
      m->exposure -= taken;
      m->held = std::min(m->held, m->exposure);
      m->budget = std::min(m->budget, m->exposure);
      m->generation = 0;  // it is told its next budget, whatever that is
      m->followed = false;
    }
  }
}

void Ledger::Update(MemberId member, const Report& report) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  MemberView& m = it->second;
  m.held = report.held;
  m.wanted = report.wanted;
  if (m.generation != 0 && report.generation >= m.generation) {
    // It follows the budget in force: from now on it only shrinks to it, so it may still hold no more than it holds
    // now.
    m.followed = true;
    m.exposure = std::max(m.budget, std::min(m.held, m.exposure));
  }
}

void Ledger::SetGroupTargets() {
  std::vector<Group*> all;
  std::vector<Bytes> base, want;
  // The guarantees exceed the capacity. Vacant groups yield first: their pods have ended while their folders remain,
  // and their units were given out again. They must not shrink groups with members.
  const bool exceeded = guaranteed() > capacity_;
  const auto guarantee = [&](const Group& g) { return exceeded && g.vacant ? 0 : g.guaranteed; };
  Bytes guarantees = 0;
  for (const auto& [id, g] : groups_) guarantees += guarantee(g);
  for (auto& [id, g] : groups_) {
    if (g.opportunistic) continue;
    all.push_back(&g);
    // They still exceed it (the GPU's capacity shrank, or allocations overlap while one ends): all shrink in
    // proportion.
    base.push_back(guarantees > capacity_ ? MulDiv(capacity_, guarantee(g), guarantees) : guarantee(g));
    Bytes w = 0;
    for (const Member* m : g.members) w += m->wanted;
    want.push_back(w);
  }
  if (policy_.lending == Lending::kEven) {
    std::vector<Claim> claims;
    claims.reserve(all.size());
    for (const Group* g : all) claims.push_back({g->members.empty() ? 0 : capacity_, g->weight});
    const std::vector<Bytes> parts = ShareOut(capacity_, claims);
    for (size_t i = 0; i < all.size(); ++i) all[i]->target = parts[i];
    return;
  }
  Bytes owned = 0;
  for (const Bytes b : base) owned += b;
  if (policy_.lending == Lending::kOff) {
    for (size_t i = 0; i < all.size(); ++i) all[i]->target = all[i]->parked ? std::min(base[i], want[i]) : base[i];
    return SetOpportunisticTargets(capacity_ - owned);
  }
  Bytes kept = 0, pool = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Bytes floor = all[i]->parked ? 0 : MulDiv(base[i], policy_.floor_percent, 100);
    all[i]->target = std::min(base[i], std::max(want[i], floor));
    kept += all[i]->target;
    pool += base[i] - all[i]->target;
  }
  if (policy_.lending == Lending::kAll) pool = capacity_ - kept;
  std::vector<Claim> borrowers, owners;
  for (size_t i = 0; i < all.size(); ++i) {
    borrowers.push_back({all[i]->parked ? 0 : Minus(want[i], all[i]->target), all[i]->weight});
  }
  const std::vector<Bytes> borrowed = ShareOut(pool, borrowers);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i]->target += borrowed[i];
    pool -= borrowed[i];
  }
  // Opportunistic groups come behind the borrowers, and also get memory outside all guarantees.
  const Bytes outside = policy_.lending == Lending::kAll ? 0 : capacity_ - owned;
  SetOpportunisticTargets(pool + outside);
  Bytes taken = 0;
  for (const auto& [id, g] : groups_) taken += g.opportunistic ? g.target : 0;
  pool -= Minus(taken, outside);
  for (size_t i = 0; i < all.size(); ++i) {
    const Bytes missing = all[i]->parked ? 0 : Minus(base[i], all[i]->target);
    owners.push_back({missing, missing});
  }
  // Memory that no group borrows stays with its owners.
  const std::vector<Bytes> back = ShareOut(pool, owners);
  for (size_t i = 0; i < all.size(); ++i) all[i]->target += back[i];
}

// In proportion to weights. Where that is less than the minimum, the youngest gets nothing, and the others its part.
void Ledger::SetOpportunisticTargets(Bytes left) {
  std::vector<Group*> groups;
  std::vector<Claim> claims;
  for (auto& [id, g] : groups_) {
    if (!g.opportunistic) continue;
    g.target = 0;
    Bytes want = 0;
    for (const Member* m : g.members) want += m->wanted;
    if (g.parked) {  // it holds these, and no minimum makes it run
      g.target = std::min(want, left);
      left -= g.target;
      continue;
    }
    if (want == 0) continue;
    groups.push_back(&g);
    claims.push_back({std::max(want, opportunistic_min()), g.weight});
  }
  for (; !groups.empty(); groups.pop_back(), claims.pop_back()) {
    const std::vector<Bytes> parts = ShareOut(left, claims);
    if (std::ranges::any_of(parts, [this](Bytes part) { return part < opportunistic_min(); })) continue;
    for (size_t i = 0; i < groups.size(); ++i) groups[i]->target = parts[i];
    return;
  }
}

void Ledger::SetMemberTargets(const Group& group) const {
  if (group.members.empty()) return;
  Bytes left = group.target;
  if (policy_.lending == Lending::kEven) {
    for (Member* m : group.members) m->target = 0;
  } else {
    std::vector<Claim> need;
    need.reserve(group.members.size());
    for (const Member* m : group.members) need.push_back({m->wanted, 1});
    const std::vector<Bytes> first = ShareOut(group.target, need);
    for (size_t i = 0; i < group.members.size(); ++i) {
      group.members[i]->target = first[i];
      left -= first[i];
    }
  }
  // The rest in parts of a power of two: a thousand processes that arrive one by one change each part ten times, not a
  // thousand times.
  const Bytes part = left / std::bit_ceil(group.members.size());
  for (Member* m : group.members) m->target += part;
}

std::vector<Ledger::Change> Ledger::Plan() {
  SetGroupTargets();
  const auto small = [&](Bytes a, Bytes b) { return (a > b ? a - b : b - a) < policy_.step; };

  // Budgets fall first, which frees memory as soon as the holders follow.
  Bytes exposed = 0;
  for (auto& [id, g] : groups_) {
    SetMemberTargets(g);
    for (Member* m : g.members) {
      m->before = m->budget;
      m->budget = std::min(m->budget, m->target);
      if (m->generation == 0) m->exposure = std::max(m->exposure, m->budget);
      exposed += m->exposure;
    }
  }
  // Then they rise, owners below their guarantee before borrowers, and opportunistic groups last, within the free bytes
  // of the pool and of the group.
  enum class Pass : uint8_t { kOwners, kBorrowers, kOpportunistic };
  Bytes free = Minus(capacity_, exposed);
  bool waiting = false;
  for (const Pass pass : {Pass::kOwners, Pass::kBorrowers, Pass::kOpportunistic}) {
    for (auto& [gid, g] : groups_) {
      if (g.opportunistic != (pass == Pass::kOpportunistic)) continue;
      const bool all = pass != Pass::kOwners || policy_.lending == Lending::kEven;
      const Bytes group_cap = all ? g.target : std::min(g.target, g.guaranteed);
      Bytes group_exposure = 0;
      for (const Member* m : g.members) group_exposure += m->exposure;
      for (Member* m : g.members) {
        const Bytes t = m->target;
        if (t <= m->budget) continue;
        // A holder may grow again within its exposure without using free bytes.
        const Bytes owned = std::min(t, m->exposure);
        const Bytes room = std::min(free, Minus(group_cap, group_exposure));
        const Bytes to = std::min(t, std::max(owned, m->exposure) + room);
        if (to < t) waiting = true;
        if (to <= m->budget || (to < t && small(to, m->budget))) continue;
        m->budget = to;
        if (to > m->exposure) {
          free -= to - m->exposure;
          group_exposure += to - m->exposure;
          m->exposure = to;
        }
      }
    }
    if (pass == Pass::kOwners) waiting = false;
  }

  std::vector<Change> changes;
  settled_ = !waiting;
  for (auto& [id, g] : groups_) {
    for (Member* m : g.members) {
      if (m->budget != m->before || m->generation == 0) {
        m->generation = next_generation_++;
        m->followed = false;
        changes.push_back({m->id, m->budget, m->generation});
      }
      if (m->overdue() > 0) settled_ = false;
    }
  }
  return changes;
}

const Ledger::MemberView* Ledger::Find(MemberId member) const {
  const auto it = members_.find(member);
  return it == members_.end() ? nullptr : &it->second;
}

Bytes Ledger::guaranteed() const {
  Bytes sum = 0;
  for (const auto& [id, g] : groups_) sum += g.guaranteed;
  return sum;
}
Bytes Ledger::budgets() const {
  Bytes sum = 0;
  for (const auto& [id, m] : members_) sum += m.budget;
  return sum;
}
Bytes Ledger::exposure() const {
  Bytes sum = 0;
  for (const auto& [id, m] : members_) sum += m.exposure;
  return sum;
}
Bytes Ledger::held() const {
  Bytes sum = 0;
  for (const auto& [id, m] : members_) sum += m.held;
  return sum;
}
Bytes Ledger::budget(GroupId group) const {
  const auto it = groups_.find(group);
  Bytes sum = 0;
  if (it != groups_.end()) {
    for (const Member* m : it->second.members) sum += m->budget;
  }
  return sum;
}
Bytes Ledger::lent() const {
  Bytes sum = 0;
  for (const auto& [id, g] : groups_) {
    Bytes has = 0;
    for (const Member* m : g.members) has += m->budget;
    sum += Minus(has, g.guaranteed);
  }
  return sum;
}

}  // namespace sluice::agent
