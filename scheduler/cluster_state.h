// The extender's view of the cluster: nodes with their cards, pods with their promises. Filled from watches, asked by
// the scheduler.
#ifndef SCHEDULER_CLUSTER_STATE_H_
#define SCHEDULER_CLUSTER_STATE_H_

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/node_ledger.h"
#include "scheduler/packing.h"
#include "scheduler/pod_facts.h"
#include "scheduler/request_log.h"

namespace sluice::scheduler {

struct FilterResult {
  std::vector<std::string> fitting;
  std::map<std::string, std::string>
      failed;  // node: reason, equal for equal causes, so that the scheduler can count them
};

struct ClusterFigures {
  int nodes = 0, nodes_without_cards = 0, cards = 0;
  double free_cards = 0, fragment_cards = 0;  // sums of units / 100; what the next request cannot use, in expectation
  int reserved_pods = 0;                      // bound by us, not seen bound yet
};

// Thread-safe; one lock, held for the time of a call (no I/O under it).
class ClusterState {
 public:
  explicit ClusterState(PolicyMaker& policies) : policies_(policies) {}

  // From the watches. Objects are the API's JSON.
  void ReplaceNodes(const std::vector<nlohmann::json>& nodes);
  void PutNode(const nlohmann::json& node);
  void RemoveNode(const std::string& name);
  void ReplacePods(const std::vector<nlohmann::json>& pods);
  void PutPod(const nlohmann::json& pod);
  void RemovePod(const std::string& uid);

  FilterResult Filter(const PodFacts& pod, const std::vector<std::string>& nodes);
  // 0..10, in the order of `nodes`: 10 for the best only (the first of equals), so that coarse scores never hide it.
  std::vector<int> Prioritize(const PodFacts& pod, const std::vector<std::string>& nodes);

  // Takes cards for the pod on this node. Error: there is no room (any more), with the reason. The reservation holds
  // until Release, or until the watch shows the pod bound, ended or deleted.
  absl::StatusOr<ContainerCards> Reserve(const PodFacts& pod, const std::string& node);
  void Release(const std::string& uid);

  std::optional<PodFacts> FindPod(const std::string& uid) const;
  ClusterFigures Figures() const;
  bool Synced() const;

 private:
  struct NodeEntry {
    NodeLedger ledger;
    std::string problem;                                   // why it has no cards; empty: it has
    std::int64_t cpu_milli = 0, memory_mib = 0;            // allocatable
    std::int64_t cpu_milli_used = 0, memory_mib_used = 0;  // by pods bound here
    std::optional<Node> free;                              // computed when asked for, until something changes
    // The last answer, kept until node or policy change: filter, prioritize and bind ask the same.
    std::vector<Chain> asked;
    std::int64_t asked_cpu = 0;
    const Policy* asked_policy = nullptr;
    std::variant<Packing, NoRoom> answer;
    bool answered = false;
  };
  using Answer = std::variant<Packing, NoRoom>;

  void Read(NodeEntry& entry, const nlohmann::json& node);
  void PutPodLocked(PodFacts pod);
  void RemovePodLocked(const std::string& uid);
  void Attach(const PodFacts& pod);
  void Detach(const PodFacts& pod);
  NodeEntry& EntryOf(const std::string& node);
  const Answer& Ask(NodeEntry& entry, const std::vector<Chain>& chains, const PodFacts& pod, const Policy& policy);
  void ReleaseLocked(const std::string& uid);
  static void Changed(NodeEntry& entry);
  Node FreeOf(const NodeEntry& entry) const;

  PolicyMaker& policies_;
  mutable std::mutex mutex_;
  std::map<std::string, NodeEntry> nodes_;    // also nodes that only a pod names so far
  std::set<std::string> known_nodes_;         // those that exist
  std::map<std::string, PodFacts> pods_;      // by uid; not ended; unbound ones with units only
  std::map<std::string, PodFacts> reserved_;  // by uid: ours, until seen bound
  std::shared_ptr<const Policy> policy_;      // keeps `asked_policy` alive
  bool nodes_synced_ = false, pods_synced_ = false;
};

}  // namespace sluice::scheduler

#endif  // SCHEDULER_CLUSTER_STATE_H_
