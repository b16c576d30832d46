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
  // Whoever reaches its cap leaves the round; at most one round a claim.
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
    if (still.size() == open.size()) {  // nobody is capped any more: the last round
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
}

void Ledger::RemoveGroup(GroupId group) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  for (const MemberId m : it->second.members) members_.erase(m);
  groups_.erase(it);
}

void Ledger::Vacate(GroupId group) {
  const auto it = groups_.find(group);
  if (it != groups_.end()) it->second.vacant = it->second.members.empty();
}

void Ledger::AddMember(MemberId member, GroupId group) {
  const auto it = groups_.find(group);
  if (it == groups_.end() || members_.contains(member)) return;
  it->second.members.push_back(member);
  it->second.vacant = false;
  members_[member].group = group;
}

void Ledger::RemoveMember(MemberId member) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  std::erase(groups_[it->second.group].members, member);
  members_.erase(it);
}

void Ledger::Restore(MemberId member, Bytes held) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  // It is the holder's word: more than the card has left cannot be true.
  held = std::min(held, Minus(capacity_, exposure()));
  it->second.held = held;
  it->second.exposure = std::max(it->second.exposure, held);
}

void Ledger::Tell(MemberId member, const Report& report) {
  const auto it = members_.find(member);
  if (it == members_.end()) return;
  MemberView& m = it->second;
  m.held = report.held;
  m.wanted = report.wanted;
  if (m.generation != 0 && report.generation >= m.generation) {
    // It follows the budget in force: from now on it only shrinks to it, so what it holds is all that it may still
    // hold.
    m.followed = true;
    m.exposure = std::max(m.budget, std::min(m.held, m.exposure));
  }
}

std::map<GroupId, Bytes> Ledger::GroupTargets() const {
  std::vector<GroupId> ids;
  std::vector<Bytes> base, want, target;
  // Promised more than there is: first by allocations of pods that have ended and whose folders are still there (the
  // same units were given again), which must not shrink the living.
  const bool only_living = guaranteed() > capacity_;
  const auto promised = [&](const Group& g) { return only_living && g.vacant ? 0 : g.guaranteed; };
  Bytes guarantees = 0;
  for (const auto& [id, g] : groups_) guarantees += promised(g);
  for (const auto& [id, g] : groups_) {
    ids.push_back(id);
    // Still more (a card that shrank, allocations that overlap while one ends): everyone gives in proportion.
    base.push_back(guarantees > capacity_ ? MulDiv(capacity_, promised(g), guarantees) : promised(g));
    Bytes w = 0;
    for (const MemberId m : g.members) w += members_.at(m).wanted;
    want.push_back(w);
  }
  std::map<GroupId, Bytes> out;
  if (policy_.lending == Lending::kEven) {
    std::vector<Claim> claims;
    for (const GroupId id : ids)
      claims.push_back({groups_.at(id).members.empty() ? 0 : capacity_, groups_.at(id).weight});
    const std::vector<Bytes> parts = ShareOut(capacity_, claims);
    for (size_t i = 0; i < ids.size(); ++i) out[ids[i]] = parts[i];
    return out;
  }
  if (policy_.lending == Lending::kOff) {
    for (size_t i = 0; i < ids.size(); ++i) out[ids[i]] = base[i];
    return out;
  }
  Bytes kept = 0, pool = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    target.push_back(std::min(base[i], std::max(want[i], MulDiv(base[i], policy_.floor_percent, 100))));
    kept += target[i];
    pool += base[i] - target[i];
  }
  if (policy_.lending == Lending::kAll) pool = capacity_ - kept;
  std::vector<Claim> borrowers, owners;
  for (size_t i = 0; i < ids.size(); ++i) borrowers.push_back({Minus(want[i], target[i]), groups_.at(ids[i]).weight});
  const std::vector<Bytes> borrowed = ShareOut(pool, borrowers);
  for (size_t i = 0; i < ids.size(); ++i) {
    target[i] += borrowed[i];
    pool -= borrowed[i];
    owners.push_back({Minus(base[i], target[i]), Minus(base[i], target[i])});
  }
  // What nobody borrows stays with its owners.
  const std::vector<Bytes> back = ShareOut(pool, owners);
  for (size_t i = 0; i < ids.size(); ++i) out[ids[i]] = target[i] + back[i];
  return out;
}

void Ledger::MemberTargets(const Group& group, Bytes total, std::map<MemberId, Bytes>* targets) const {
  if (group.members.empty()) return;
  std::vector<Claim> need;
  for (const MemberId m : group.members) {
    need.push_back({policy_.lending == Lending::kEven ? 0 : members_.at(m).wanted, 1});
  }
  const std::vector<Bytes> first = ShareOut(total, need);
  Bytes left = total;
  for (const Bytes b : first) left -= b;
  // The rest in parts of a power of two: a thousand processes that arrive one by one change everybody's part ten times,
  // not a thousand.
  const Bytes part = left / std::bit_ceil(group.members.size());
  for (size_t i = 0; i < group.members.size(); ++i) (*targets)[group.members[i]] = first[i] + part;
}

Bytes Ledger::GroupExposure(const Group& group) const {
  Bytes sum = 0;
  for (const MemberId m : group.members) sum += members_.at(m).exposure;
  return sum;
}

std::vector<Ledger::Change> Ledger::Plan() {
  const std::map<GroupId, Bytes> group_targets = GroupTargets();
  std::map<MemberId, Bytes> targets;
  for (const auto& [id, g] : groups_) MemberTargets(g, group_targets.at(id), &targets);

  std::map<MemberId, Bytes> before;
  for (const auto& [id, m] : members_) before[id] = m.budget;
  const auto small = [&](Bytes a, Bytes b) { return (a > b ? a - b : b - a) < policy_.step; };

  // Down first: it costs nobody anything and opens room once it is followed.
  for (auto& [id, m] : members_) {
    const Bytes t = targets[id];
    m.budget = std::min(m.budget, t);
    if (m.generation == 0) m.exposure = std::max(m.exposure, m.budget);
  }
  // Then up, owners below their guarantee before borrowers, within what is free on the card and in the group.
  Bytes free = Minus(capacity_, exposure());
  bool waiting = false;
  for (const bool borrowers : {false, true}) {
    for (auto& [gid, g] : groups_) {
      const bool all = borrowers || policy_.lending == Lending::kEven;
      const Bytes group_cap = all ? group_targets.at(gid) : std::min(group_targets.at(gid), g.guaranteed);
      Bytes group_exposure = GroupExposure(g);
      for (const MemberId id : g.members) {
        MemberView& m = members_.at(id);
        const Bytes t = targets[id];
        if (t <= m.budget) continue;
        // Within its exposure a holder may grow again for nothing: that room is its own already.
        const Bytes owned = std::min(t, m.exposure);
        const Bytes room = std::min(free, Minus(group_cap, group_exposure));
        const Bytes to = std::min(t, std::max(owned, m.exposure) + room);
        if (to < t) waiting = true;
        if (to <= m.budget || (to < t && small(to, m.budget))) continue;
        m.budget = to;
        if (to > m.exposure) {
          free -= to - m.exposure;
          group_exposure += to - m.exposure;
          m.exposure = to;
        }
      }
    }
    if (!borrowers) waiting = false;
  }

  std::vector<Change> changes;
  settled_ = !waiting;
  for (auto& [id, m] : members_) {
    if (m.budget != before[id] || m.generation == 0) {
      m.generation = next_generation_++;
      m.followed = false;
      changes.push_back({id, m.budget, m.generation});
    }
    if (m.debt() > 0) settled_ = false;
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
Bytes Ledger::lent() const {
  Bytes sum = 0;
  for (const auto& [id, g] : groups_) {
    Bytes has = 0;
    for (const MemberId m : g.members) has += members_.at(m).budget;
    sum += Minus(has, g.guaranteed);
  }
  return sum;
}

}  // namespace sluice::agent
