#include "scheduler/extender/cluster_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/extender/node_scores.h"
#include "scheduler/extender/refusal_reasons.h"
#include "scheduler/placement/fragmentation.h"

namespace sluice::scheduler {
namespace {

// Longer than any list or watch is behind a Binding.
constexpr std::chrono::minutes kMaxUnseenReservation{1};

const char* const kUnknown = "the node is not known yet";

}  // namespace

void ClusterState::Invalidate(NodeEntry& entry) {
  entry.worth_policy_number = entry.result_policy_number = 0;
  entry.free.reset();
}

void ClusterState::PutNodeLocked(NodeFacts facts) {
  if (facts.name.empty()) return;
  NodeEntry& entry = EntryOf(facts.name);
  entry.cpu_milli = facts.cpu_milli;
  entry.memory_mib = facts.memory_mib;
  entry.exists = true;
  entry.problem = std::move(facts.problem);
  entry.ledger.SetCards(std::move(facts.cards));
  Invalidate(entry);
}

ClusterState::NodeEntry& ClusterState::EntryOf(const std::string& node) {
  auto [found, added] = nodes_.try_emplace(node);
  if (added) found->second.problem = kUnknown;
  return found->second;
}

ClusterState::NodeEntry* ClusterState::Find(std::string_view node) {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : &found->second;
}

void ClusterState::EraseIfUnused(const std::string& node) {
  const auto found = nodes_.find(node);
  if (found != nodes_.end() && !found->second.exists && found->second.pods == 0) nodes_.erase(found);
}

void ClusterState::PutNode(NodeFacts node) {
  const MutexLock lock(mutex_);
  PutNodeLocked(std::move(node));
}

void ClusterState::KeepNodes(const std::unordered_set<std::string>& names) {
  const MutexLock lock(mutex_);
  std::vector<std::string> gone;
  for (const auto& [name, entry] : nodes_) {
    if (entry.exists && !names.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) RemoveNodeLocked(name);
  nodes_synced_ = true;
}

void ClusterState::RemoveNode(const std::string& name) {
  const MutexLock lock(mutex_);
  RemoveNodeLocked(name);
}

void ClusterState::RemoveNodeLocked(const std::string& name) {
  NodeEntry* const entry = Find(name);
  if (entry == nullptr) return;
  // The node's pods exist until they are deleted; only its cards are gone.
  entry->exists = false;
  entry->ledger.SetCards({});
  entry->problem = "the node is gone";
  Invalidate(*entry);
  EraseIfUnused(name);
}

void ClusterState::Count(NodeEntry& entry, const PodFacts& pod, int sign) {
  entry.pods += sign;
  entry.cpu_milli_used += sign * pod.cpu_milli;
  entry.memory_mib_used += sign * pod.memory_mib;
}

void ClusterState::Attach(const PodFacts& pod) {
  if (pod.node.empty()) return;
  NodeEntry& entry = EntryOf(pod.node);
  Count(entry, pod, 1);
  Invalidate(entry);
  if (pod.containers.empty()) return;
  auto live = MakeLivePod(pod.containers, pod.placement);
  // A placement that does not match the pod (for example one written by hand) counts as none.
  if (!live.ok()) live = MakeLivePod(pod.containers, {});
  if (live.ok())
    entry.ledger.Put(pod.uid, {.name = pod.FullName(), .live = *std::move(live), .admitted = pod.admitted});
}

void ClusterState::Detach(const PodFacts& pod) {
  if (pod.node.empty()) return;
  NodeEntry& entry = EntryOf(pod.node);
  Count(entry, pod, -1);
  Invalidate(entry);
  entry.ledger.Remove(pod.uid);
  EraseIfUnused(pod.node);
}

void ClusterState::PutPodLocked(PodFacts pod) {
  if (pod.uid.empty()) return;
  if (pod.ended) {
    RemovePodLocked(pod.uid);
    return;
  }
  if (!pod.node.empty())
    ReleaseLocked(pod.uid);  // the object itself now counts, and may name other cards than the reservation
  const auto old = pods_.find(pod.uid);
  if (old == pods_.end()) {
    if (!pod.containers.empty()) {
      if (const auto chains = ChainsOf(pod.containers); chains.ok()) {
        for (const Chain& chain : *chains) {
          policies_.RecordRequest({chain.Cards(), chain.UnitsPerCard(), pod.cpu_milli, pod.memory_mib});
        }
      }
    }
  } else if (old->second.node == pod.node && !pod.node.empty()) {
    Count(EntryOf(pod.node), old->second, -1);
  }
  Attach(pod);
  pods_[pod.uid] = std::move(pod);
}

void ClusterState::RemovePodLocked(const std::string& uid) {
  ReleaseLocked(uid);
  const auto found = pods_.find(uid);
  if (found == pods_.end()) return;
  Detach(found->second);
  pods_.erase(found);
}

void ClusterState::KeepPods(const std::unordered_set<std::string>& uids) {
  const MutexLock lock(mutex_);
  std::vector<std::string> gone;
  for (const auto& [uid, pod] : pods_) {
    if (!uids.contains(uid)) gone.push_back(uid);
  }
  for (const std::string& uid : gone) RemovePodLocked(uid);
  ExpireReservations();
  pods_synced_ = true;
}

void ClusterState::PutPod(PodFacts pod) {
  const MutexLock lock(mutex_);
  PutPodLocked(std::move(pod));
  ExpireReservations();
}

void ClusterState::RemovePod(const std::string& uid) {
  const MutexLock lock(mutex_);
  RemovePodLocked(uid);
}

Node ClusterState::FreeOf(const NodeEntry& entry) const {
  Node node = entry.ledger.Free();
  node.cpu_milli_free = entry.cpu_milli - entry.cpu_milli_used;
  node.memory_mib_free = entry.memory_mib - entry.memory_mib_used;
  return node;
}

void ClusterState::RefreshPolicy() {
  std::shared_ptr<const PlacementPolicy> policy = policies_.policy();
  if (policy == policy_) return;
  policy_ = std::move(policy);
  ++policy_number_;
}

const Node& ClusterState::RefreshWorth(NodeEntry& entry) {
  const Node& free = entry.free ? *entry.free : entry.free.emplace(FreeOf(entry));
  if (entry.worth_policy_number == policy_number_) return free;
  entry.worth = policy_->WorthOf(free);
  entry.worth_policy_number = policy_number_;
  return free;
}

const ClusterState::PackResult& ClusterState::PackOn(NodeEntry& entry, const std::vector<Chain>& chains,
                                                     const PodFacts& pod) {
  if (entry.result_policy_number == policy_number_ && entry.requested_cpu_milli == pod.cpu_milli &&
      entry.requested_memory_mib == pod.memory_mib && entry.requested_chains == chains) {
    return entry.pack_result;
  }
  const Node& free = RefreshWorth(entry);
  entry.pack_result =
      PackPod(free, entry.worth, chains, {.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib}, *policy_);
  entry.requested_chains = chains;
  entry.requested_cpu_milli = pod.cpu_milli;
  entry.requested_memory_mib = pod.memory_mib;
  entry.result_policy_number = policy_number_;
  return entry.pack_result;
}

FilterResult ClusterState::Filter(const PodFacts& pod, std::span<const std::string_view> nodes) {
  const MutexLock lock(mutex_);
  FilterResult result;
  result.reason_index.assign(nodes.size(), FilterResult::kFits);
  result.fitting = static_cast<int>(nodes.size());
  if (pod.containers.empty()) return result;
  const auto chains = ChainsOf(pod.containers);
  RefreshPolicy();
  RefusalReasons reasons;
  // Returns an index of a reason, or kFits.
  const auto reason_of = [&](std::string_view name) SLUICE_REQUIRES(mutex_) {
    if (!chains.ok()) return reasons.IndexOf(std::string(chains.status().message()));
    NodeEntry* const entry = Find(name);
    if (entry == nullptr) return reasons.IndexOf(kUnknown);
    if (!entry->problem.empty()) return reasons.IndexOf(entry->problem);
    if (const std::string blocker = entry->ledger.FindBlocker(*chains); !blocker.empty()) {
      return reasons.IndexOf(BlockedBy(blocker));
    }
    const PackResult& pack_result = PackOn(*entry, *chains, pod);
    const auto* const why = std::get_if<PackingFailure>(&pack_result);
    return why == nullptr ? FilterResult::kFits : reasons.IndexOfFailure(*why);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    result.reason_index[i] = reason_of(nodes[i]);
    result.fitting -= result.reason_index[i] != FilterResult::kFits;
  }
  result.reasons = std::move(reasons).Texts();
  return result;
}

std::vector<int> ClusterState::Prioritize(const PodFacts& pod, std::span<const std::string_view> nodes) {
  const MutexLock lock(mutex_);
  std::vector<double> raw(nodes.size(), -std::numeric_limits<double>::infinity());
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok() || chains->empty()) return ScoresOf(raw);
  RefreshPolicy();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeEntry* const entry = Find(nodes[i]);
    if (entry == nullptr || !entry->problem.empty()) continue;
    const auto* const packing = std::get_if<PodPacking>(&PackOn(*entry, *chains, pod));
    if (packing != nullptr) raw[i] = packing->score;
  }
  return ScoresOf(raw);
}

absl::StatusOr<ContainerCards> ClusterState::Reserve(const PodFacts& pod, const std::string& node) {
  const MutexLock lock(mutex_);
  if (reserved_.contains(pod.uid)) {
    return absl::FailedPreconditionError(absl::StrCat("pod ", pod.FullName(), ": another binding of it is under way"));
  }
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok()) return chains.status();
  const auto found = EntryWithCards(node);
  if (!found.ok()) return found.status();
  NodeEntry& entry = **found;
  if (const std::string blocker = entry.ledger.FindBlocker(*chains); !blocker.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", BlockedBy(blocker)));
  }
  RefreshPolicy();
  const PackResult& pack_result = PackOn(entry, *chains, pod);
  if (const auto* why = std::get_if<PackingFailure>(&pack_result)) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", RefusalReasons::Text(*why)));
  }
  ContainerCards placement = PlacementOf(entry, pod, *chains, std::get<PodPacking>(pack_result));
  PodFacts reserved = pod;
  reserved.node = node;
  reserved.placement = placement;
  Attach(reserved);
  reserved_.emplace(pod.uid, ReservedPod{std::move(reserved), now_()});
  return placement;
}

void ClusterState::Release(const std::string& uid) {
  const MutexLock lock(mutex_);
  ReleaseLocked(uid);
}

void ClusterState::Report(const std::string& uid, Binding outcome) {
  const MutexLock lock(mutex_);
  if (const auto found = reserved_.find(uid); found != reserved_.end()) found->second.binding = outcome;
}

Binding ClusterState::BindingOf(const std::string& uid) const {
  const MutexLock lock(mutex_);
  const auto found = reserved_.find(uid);
  return found == reserved_.end() ? Binding::kNone : found->second.binding;
}

void ClusterState::ReleaseLocked(const std::string& uid) {
  const auto found = reserved_.find(uid);
  if (found == reserved_.end()) return;
  Detach(found->second.pod);
  reserved_.erase(found);
}

// Drops the reservation of a pod that was fetched for its bind and deleted while no watch ran: no event will report it.
// Drops reservations, too, whose scheduler did not bind the pod.
void ClusterState::ExpireReservations() {
  std::vector<std::string> lost;
  for (const auto& [uid, reserved] : reserved_) {
    if (now_() - reserved.at < kMaxUnseenReservation) continue;
    if (!pods_.contains(uid) || reserved.binding == Binding::kForeign) lost.push_back(uid);
  }
  for (const std::string& uid : lost) ReleaseLocked(uid);
}

std::vector<double> ClusterState::RateHost(const PodFacts& pod, std::span<const std::string_view> nodes) {
  const MutexLock lock(mutex_);
  RefreshPolicy();
  std::vector<double> raw(nodes.size(), -std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeEntry* const entry = Find(nodes[i]);
    if (entry == nullptr || !entry->exists) continue;
    const Node& free = RefreshWorth(*entry);
    const Request host{.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib};
    raw[i] = policy_->Rate(free, entry->worth, host, {}).node;
  }
  return raw;
}

std::vector<HostRoom> ClusterState::RoomOf(std::span<const std::string_view> nodes) const {
  const MutexLock lock(mutex_);
  std::vector<HostRoom> rooms(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto found = nodes_.find(nodes[i]);
    if (found == nodes_.end() || !found->second.exists) continue;
    const NodeEntry& entry = found->second;
    rooms[i] = {true, entry.cpu_milli - entry.cpu_milli_used, entry.memory_mib - entry.memory_mib_used};
  }
  return rooms;
}

std::optional<PodFacts> ClusterState::FindPod(const std::string& uid) const {
  const MutexLock lock(mutex_);
  const auto found = pods_.find(uid);
  if (found == pods_.end()) return std::nullopt;
  return found->second;
}

ClusterFigures ClusterState::Figures() const {
  const RequestMix mix = policies_.mix();
  const MutexLock lock(mutex_);
  ClusterFigures figures;
  for (const auto& [name, entry] : nodes_) {
    if (!entry.exists) continue;
    ++figures.nodes;
    figures.nodes_without_cards += entry.ledger.cards().empty();
    const Node node = FreeOf(entry);
    figures.cards += static_cast<int>(node.cards.size());
    figures.free_cards += node.FreeUnits() / static_cast<double>(kUnitsPerCard);
    figures.fragment_cards += ExpectedFragment(node, mix) / kUnitsPerCard;
  }
  figures.reserved_pods = static_cast<int>(reserved_.size());
  return figures;
}

bool ClusterState::Synced() const {
  const MutexLock lock(mutex_);
  return nodes_synced_ && pods_synced_;
}

}  // namespace sluice::scheduler
