// The extender's view of the cluster: nodes with their cards, pods with their reservations. Filled from watches, asked
// by the scheduler.
#ifndef SLUICE_SCHEDULER_EXTENDER_CLUSTER_STATE_H_
#define SLUICE_SCHEDULER_EXTENDER_CLUSTER_STATE_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/extender/pod_facts.h"
#include "scheduler/extender/request_log.h"
#include "scheduler/placement/node_ledger.h"
#include "scheduler/placement/pod_packing.h"

namespace sluice::scheduler {

struct FilterResult {
  static constexpr int kFits = -1;
  std::vector<int> verdicts;         // one a node: kFits, or which of the reasons
  std::vector<std::string> reasons;  // equal for equal causes, so that the scheduler can count them
  int fitting = 0;
};

// What is known of a Binding that cards were reserved for.
enum class Binding { kNone, kUnderWay, kDone, kUnknown };

struct ClusterFigures {
  int nodes = 0, nodes_without_cards = 0, cards = 0;
  double free_cards = 0, fragment_cards = 0;  // sums of units / 100; what the next request cannot use, in expectation
  int reserved_pods = 0;                      // bound by us, not seen bound yet
};

// Thread-safe; one lock, held for the time of a call (no I/O under it).
class ClusterState {
 public:
  using Clock = std::chrono::steady_clock;
  explicit ClusterState(PolicyMaker& policies, std::function<Clock::time_point()> now = Clock::now)
      : policies_(policies), now_(std::move(now)) {}

  // From the watches. Objects are the API's JSON.
  void ReplaceNodes(const std::vector<nlohmann::json>& nodes);
  void PutNode(const nlohmann::json& node);
  void RemoveNode(const std::string& name);
  void ReplacePods(const std::vector<nlohmann::json>& pods);
  void PutPod(const nlohmann::json& pod);
  void PutPod(PodFacts pod);
  void RemovePod(const std::string& uid);

  FilterResult Filter(const PodFacts& pod, std::span<const std::string_view> nodes);
  // 0..10, in the order of `nodes`: 10 for the best only (the first of equals), so that coarse scores never hide it.
  std::vector<int> Prioritize(const PodFacts& pod, std::span<const std::string_view> nodes);

  // Takes cards for the pod on this node; the binding is under way then. Error: there is no room (any more), or there
  // is a reservation for this pod already, with the reason. The reservation holds until Release, or until the watch
  // shows the pod bound, ended or deleted; for a pod that no watch shows, a minute.
  absl::StatusOr<ContainerCards> Reserve(const PodFacts& pod, const std::string& node);
  void Release(const std::string& uid);
  void Report(const std::string& uid, Binding outcome);
  Binding BindingOf(const std::string& uid) const;  // until the watch shows it

  std::optional<PodFacts> FindPod(const std::string& uid) const;
  ClusterFigures Figures() const;
  bool Synced() const;

 private:
  struct NodeEntry {
    NodeLedger ledger;
    bool exists = false;                                   // false: so far only a pod names it, or it is gone
    std::string problem;                                   // why it has no cards; empty: it has
    std::int64_t cpu_milli = 0, memory_mib = 0;            // allocatable
    int pods = 0;                                          // bound here, those without units too
    std::int64_t cpu_milli_used = 0, memory_mib_used = 0;  // by them
    std::optional<Node> free;                              // computed when asked for, until something changes
    // Of `free`, by the policy of that number; and the last answer: filter, prioritize and bind ask the same.
    std::uint64_t worth_by = 0, answer_by = 0;  // 0: none
    Worth worth;
    std::vector<Chain> asked;
    std::int64_t asked_cpu = 0, asked_memory = 0;
    std::variant<Packing, NoRoom> answer;
  };
  using Answer = std::variant<Packing, NoRoom>;
  struct Reserved {
    PodFacts pod;
    Clock::time_point at;
    Binding binding = Binding::kUnderWay;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  void Read(NodeEntry& entry, const nlohmann::json& node);
  void RemoveNodeLocked(const std::string& name);
  void PutPodLocked(PodFacts pod);
  void RemovePodLocked(const std::string& uid);
  static void Count(NodeEntry& entry, const PodFacts& pod, int sign);
  void Attach(const PodFacts& pod);
  void Detach(const PodFacts& pod);
  NodeEntry& EntryOf(const std::string& node);
  // Nullptr: not known.
  NodeEntry* Find(std::string_view node);
  void Forget(const std::string& node);  // what neither exists nor holds a pod
  void TakePolicy();
  const Answer& Ask(NodeEntry& entry, const std::vector<Chain>& chains, const PodFacts& pod);
  void ReleaseLocked(const std::string& uid);
  void TrimReserved();
  static void Changed(NodeEntry& entry);
  Node FreeOf(const NodeEntry& entry) const;

  PolicyMaker& policies_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, NodeEntry, Hash, std::equal_to<>> nodes_;
  std::map<std::string, PodFacts> pods_;      // by uid; not ended
  std::map<std::string, Reserved> reserved_;  // by uid: ours, until seen bound
  std::shared_ptr<const Policy> policy_;
  std::uint64_t policy_number_ = 0;  // of policy_, from 1 on
  bool nodes_synced_ = false, pods_synced_ = false;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_CLUSTER_STATE_H_
