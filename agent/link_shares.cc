#include "agent/link_shares.h"

#include <algorithm>
#include <utility>

namespace sluice::agent {
namespace {

constexpr uint64_t kPlanNs = 500'000'000;
constexpr double kSlowdown = 0.04;  // of a neighbour by opportunistic containers
// Of the link: use below it is none, and an opportunistic container gets so much at least.
constexpr double kMinPart = 0.01;
constexpr double kFull = 0.9;      // of the link in use: the others are metered too
constexpr double kKept = 0.7;      // of a use that ends, from plan to plan: a burst that returns finds its room
constexpr double kHeadroom = 1.1;  // shares may exceed the known capacity, so that a larger one is seen

}  // namespace

void LinkShares::SetCapacity(Bytes per_s, bool exact) {
  if (per_s == nominal_ && exact == exact_) return;
  nominal_ = capacity_ = std::max<Bytes>(per_s, 1);
  exact_ = exact;
}

void LinkShares::Remove(GroupId group) {
  seen_.erase(group);
  used_.erase(group);
  rates_.erase(group);
}

bool LinkShares::Plan(const std::vector<Member>& members, uint64_t now_ns) {
  if (now_ns - planned_ns_ < kPlanNs) return false;
  planned_ns_ = now_ns;
  double sum = 0, used = 0;
  for (const Member& m : members) {
    const auto seen = static_cast<double>(std::exchange(seen_[m.group], 0));
    double& use = used_[m.group];
    use = std::max(seen, use * kKept);
    sum += seen;
    if (!m.opportunistic) used += use;
  }
  // The figures are the processes' own, so they count within bounds.
  if (!exact_) capacity_ = std::clamp(static_cast<Bytes>(std::min(sum, 1e15)), capacity_, 4 * nominal_);
  const std::map<GroupId, Bytes> before = std::exchange(rates_, {});
  ShareAmong(members, used);
  ShareOpportunistic(members, used);
  return std::ranges::any_of(members, [&](const Member& m) {
    const auto old = before.find(m.group);
    const Bytes was = old == before.end() ? 0 : old->second, is = Rate(m.group);
    return (was == 0) != (is == 0) || std::max(was, is) - std::min(was, is) > was / 8;
  });
}

void LinkShares::ShareAmong(const std::vector<Member>& members, double used) {
  if (used < kFull * static_cast<double>(capacity_)) return;
  std::vector<GroupId> groups;
  std::vector<Claim> claims;
  for (const Member& m : members) {
    const double use = used_[m.group];
    if (m.opportunistic || use < kMinPart * static_cast<double>(capacity_)) continue;
    groups.push_back(m.group);
    claims.push_back({static_cast<Bytes>(use * 1.25), m.weight});
  }
  if (groups.size() < 2) return;
  const auto total = static_cast<Bytes>(kHeadroom * static_cast<double>(capacity_));
  const std::vector<Bytes> parts = ShareOut(total, claims);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (parts[i] < claims[i].cap) rates_[groups[i]] = parts[i];
  }
}

void LinkShares::ShareOpportunistic(const std::vector<Member>& members, double used) {
  const double part = used / static_cast<double>(capacity_);
  if (part < kMinPart) return;
  const double left = std::max(std::min(kSlowdown / (part + kSlowdown), 1 - part), kMinPart);
  uint64_t weights = 0;
  for (const Member& m : members) weights += m.opportunistic ? m.weight : 0;
  for (const Member& m : members) {
    if (!m.opportunistic) continue;
    rates_[m.group] = static_cast<Bytes>(left * static_cast<double>(capacity_) * static_cast<double>(m.weight) /
                                         static_cast<double>(weights));
  }
}

Bytes LinkShares::Rate(GroupId group) const {
  const auto it = rates_.find(group);
  return it == rates_.end() ? 0 : it->second;
}

}  // namespace sluice::agent
