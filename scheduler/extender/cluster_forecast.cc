// The part of ClusterState that looks ahead: whether a pod will fit once other pods have gone.
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/extender/cluster_state.h"
#include "scheduler/extender/refusal_reasons.h"

namespace sluice::scheduler {

absl::StatusOr<ClusterState::NodeEntry*> ClusterState::EntryWithCards(const std::string& node) {
  NodeEntry* const found = Find(node);
  if (found == nullptr || !found->exists) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": the node is gone"));
  }
  if (!found->problem.empty()) return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", found->problem));
  return found;
}

ContainerCards ClusterState::PlacementOf(const NodeEntry& entry, const PodFacts& pod, const std::vector<Chain>& chains,
                                         const PodPacking& packing) {
  ContainerCards placement;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    std::vector<std::string> cards;
    for (int card : packing.cards[c]) cards.push_back(entry.ledger.cards()[card].uuid);
    for (int container : chains[c].containers) placement[pod.containers[container].name] = cards;
  }
  return placement;
}

absl::StatusOr<ContainerCards> ClusterState::PredictPlacement(const PodFacts& pod, const std::string& node,
                                                              const std::set<std::string>& leaving,
                                                              const std::vector<PodFacts>& expected) {
  const MutexLock lock(mutex_);
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok()) return chains.status();
  const auto entry = EntryWithCards(node);
  if (!entry.ok()) return entry.status();
  Node free = (*entry)->ledger.FreeOnceGone(leaving);
  for (const PodFacts& other : expected) {
    const auto live = MakeLivePod(other.containers, other.placement);
    if (!live.ok() || other.node != node) continue;
    for (std::size_t c = 0; c < live->reserved.size(); ++c) {
      for (std::size_t i = 0; i < free.cards.size(); ++i) {
        const std::string& uuid = (*entry)->ledger.cards()[i].uuid;
        const auto& cards = live->reserved[c];
        if (std::find(cards.begin(), cards.end(), uuid) == cards.end()) continue;
        free.cards[i].free = std::max(0, free.cards[i].free - live->chains[c].UnitsPerCard());
      }
    }
  }
  RefreshPolicy();
  const auto packing = PackPod(free, *chains, {.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib}, *policy_);
  if (const auto* why = std::get_if<PackingFailure>(&packing)) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", RefusalReasons::Text(*why)));
  }
  return PlacementOf(**entry, pod, *chains, std::get<PodPacking>(packing));
}

}  // namespace sluice::scheduler
