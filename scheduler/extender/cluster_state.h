// The extender's view of the cluster: nodes with their cards, pods with their reservations. Watches fill it; the
// scheduler's calls read it.
#ifndef SLUICE_SCHEDULER_EXTENDER_CLUSTER_STATE_H_
#define SLUICE_SCHEDULER_EXTENDER_CLUSTER_STATE_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "scheduler/extender/node_facts.h"
#include "scheduler/extender/pod_facts.h"
#include "scheduler/extender/request_log.h"
#include "scheduler/placement/node_ledger.h"
#include "scheduler/placement/pod_packing.h"

namespace sluice::scheduler {

struct FilterResult {
  static constexpr int kFits = -1;
  std::vector<int> reason_index;     // one per node: kFits, or an index into `reasons`
  std::vector<std::string> reasons;  // equal for equal causes, so that the scheduler can count them
  int fitting = 0;
};

// The state of the Binding for which cards were reserved.
// kForeign: another scheduler writes it, some time after it was told the cards.
enum class Binding { kNone, kUnderWay, kDone, kUnknown, kForeign };

struct ClusterFigures {
  int nodes = 0, nodes_without_cards = 0, cards = 0;
  double free_cards = 0;      // free units / 100
  double fragment_cards = 0;  // expected part of free_cards that the next request cannot use
  int reserved_pods = 0;      // bound by this extender; the watch has not shown them bound yet
};

// CPU and memory of a node that no pod has requested.
struct HostRoom {
  bool is_known = false;
  std::int64_t cpu_milli = 0, memory_mib = 0;
};

// Thread-safe: one lock, held for the time of a call, with no I/O under it.
class ClusterState {
 public:
  using Clock = std::chrono::steady_clock;
  explicit ClusterState(PolicyRefresher& policies, std::function<Clock::time_point()> now = Clock::now)
      : policies_(policies), now_(std::move(now)) {}

  // From the watches.
  void PutNode(NodeFacts node);
  void RemoveNode(const std::string& name);
  void PutPod(PodFacts pod);
  void RemovePod(const std::string& uid);
  // The list of nodes or pods is complete. Its objects have been put; all others are gone.
  void KeepNodes(const std::unordered_set<std::string>& names);
  void KeepPods(const std::unordered_set<std::string>& uids);

  FilterResult Filter(const PodFacts& pod, std::span<const std::string_view> nodes);
  // Scores as ScoresOf (node_scores.h), in the order of `nodes`.
  std::vector<int> Prioritize(const PodFacts& pod, std::span<const std::string_view> nodes);

  // Reserves cards on this node for the pod; its binding is then under way. Error, with the reason: the pod does not
  // fit (any more), or it already has a reservation. The reservation lasts until Release, or until the watch shows the
  // pod bound, ended or deleted. If no watch shows the pod, or the binding is foreign, it lasts one minute.
  absl::StatusOr<ContainerCards> Reserve(const PodFacts& pod, const std::string& node);
  // The cards that the pod would get on this node once the pods of `leaving` (uids) have gone and those of `expected`
  // hold their placements. Reserves nothing. Error: the reason why it does not fit then either.
  absl::StatusOr<ContainerCards> PredictPlacement(const PodFacts& pod, const std::string& node,
                                                  const std::set<std::string>& leaving,
                                                  const std::vector<PodFacts>& expected);
  void Release(const std::string& uid);
  void Report(const std::string& uid, Binding outcome);
  // kNone once the watch shows the pod bound.
  Binding BindingOf(const std::string& uid) const;

  // The policy's scores of nodes for a pod without GPUs, by the use of free GPUs that its CPU and memory prevent.
  // -infinity: the node is not known.
  std::vector<double> RateHost(const PodFacts& pod, std::span<const std::string_view> nodes);
  std::vector<HostRoom> RoomOf(std::span<const std::string_view> nodes) const;
  std::optional<PodFacts> FindPod(const std::string& uid) const;
  ClusterFigures Figures() const;
  // Nodes and pods have both been listed.
  bool Synced() const;

 private:
  using PackResult = std::variant<PodPacking, PackingFailure>;
  struct NodeEntry {
    NodeLedger ledger;
    bool exists = false;                         // false: only a pod names the node so far, or the node was deleted
    std::string problem;                         // why it has no cards; empty: it has
    std::int64_t cpu_milli = 0, memory_mib = 0;  // allocatable
    int pods = 0;                                // bound here, including pods without units
    std::int64_t cpu_milli_used = 0, memory_mib_used = 0;  // by these pods
    std::optional<Node> free;                              // computed on demand, dropped on every change
    // The worth of `free` and the last packing, with the number of the policy that made each (0: none). Filter,
    // prioritize and bind ask the same question.
    std::uint64_t worth_policy_number = 0, result_policy_number = 0;
    NodeWorth worth;
    std::vector<Chain> requested_chains;
    std::int64_t requested_cpu_milli = 0, requested_memory_mib = 0;
    PackResult pack_result;
  };
  struct ReservedPod {
    PodFacts pod;
    Clock::time_point at;
    Binding binding = Binding::kUnderWay;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  void PutNodeLocked(NodeFacts facts) SLUICE_REQUIRES(mutex_);
  void RemoveNodeLocked(const std::string& name) SLUICE_REQUIRES(mutex_);
  void PutPodLocked(PodFacts pod) SLUICE_REQUIRES(mutex_);
  void RemovePodLocked(const std::string& uid) SLUICE_REQUIRES(mutex_);
  static void Count(NodeEntry& entry, const PodFacts& pod, int sign);
  void Attach(const PodFacts& pod) SLUICE_REQUIRES(mutex_);
  void Detach(const PodFacts& pod) SLUICE_REQUIRES(mutex_);
  NodeEntry& EntryOf(const std::string& node) SLUICE_REQUIRES(mutex_);
  // nullptr: not known.
  NodeEntry* Find(std::string_view node) SLUICE_REQUIRES(mutex_);
  // Erases an entry that neither exists as a node nor holds a pod.
  void EraseIfUnused(const std::string& node) SLUICE_REQUIRES(mutex_);
  // The node, if it exists and its cards are known.
  absl::StatusOr<NodeEntry*> EntryWithCards(const std::string& node) SLUICE_REQUIRES(mutex_);
  static ContainerCards PlacementOf(const NodeEntry& entry, const PodFacts& pod, const std::vector<Chain>& chains,
                                    const PodPacking& packing);
  void RefreshPolicy() SLUICE_REQUIRES(mutex_);
  const PackResult& PackOn(NodeEntry& entry, const std::vector<Chain>& chains, const PodFacts& pod)
      SLUICE_REQUIRES(mutex_);
  void ReleaseLocked(const std::string& uid) SLUICE_REQUIRES(mutex_);
  void ExpireReservations() SLUICE_REQUIRES(mutex_);
  static void Invalidate(NodeEntry& entry);
  Node FreeOf(const NodeEntry& entry) const;
  // The node's free cards; their worth is then the policy's.
  const Node& RefreshWorth(NodeEntry& entry) SLUICE_REQUIRES(mutex_);

  PolicyRefresher& policies_;
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, NodeEntry, Hash, std::equal_to<>> nodes_ SLUICE_GUARDED_BY(mutex_);
  // By uid: pods that have not ended.
  std::map<std::string, PodFacts> pods_ SLUICE_GUARDED_BY(mutex_);
  // By uid, until the watch shows the pod bound.
  std::map<std::string, ReservedPod> reserved_ SLUICE_GUARDED_BY(mutex_);
  std::shared_ptr<const PlacementPolicy> policy_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t policy_number_ SLUICE_GUARDED_BY(mutex_) = 0;  // counts changes of policy_, from 1 on
  bool nodes_synced_ SLUICE_GUARDED_BY(mutex_) = false;
  bool pods_synced_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_CLUSTER_STATE_H_
