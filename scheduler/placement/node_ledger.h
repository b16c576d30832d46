// One node as the extender sees it: the free units that its agent reports, less the reservations made since.
#ifndef SLUICE_SCHEDULER_PLACEMENT_NODE_LEDGER_H_
#define SLUICE_SCHEDULER_PLACEMENT_NODE_LEDGER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"
#include "scheduler/placement/node_model.h"
#include "scheduler/placement/pod_reservations.h"

namespace sluice::scheduler {

// A card in the node annotation sluice.dev/gpus. `pods` is an optional member that makes the account exact.
struct NodeCard {
  std::string uuid;
  std::string model;
  std::uint64_t memory_bytes = 0;
  int free = 0;
  int numa = -1;
  int nvlink = -1;
  std::optional<std::map<std::string, std::vector<std::string>>> pods;  // container names by pod uid
};

// Cards ordered by uuid, no uuid twice. The error says which part of the annotation's value is wrong.
absl::StatusOr<std::vector<NodeCard>> ParseNodeCards(std::string_view json);

// A live pod with units that is bound to the node, or is about to be bound.
struct PlacedPod {
  std::string name;       // namespace/name, for messages
  LivePod live;           // `reserved` is empty if another scheduler placed the pod; the ledger itself fills `actual`
  bool admitted = false;  // kubelet has admitted it
};

// Not thread-safe.
class NodeLedger {
 public:
  void SetCards(std::vector<NodeCard> cards);
  void Put(const std::string& uid, PlacedPod pod);
  // The pod has ended. An exact annotation that still names the pod keeps counting it: only the annotation says which
  // pod kubelet gave which units.
  void Remove(const std::string& uid);
  bool Holds(const std::string& uid) const { return pods_.contains(uid); }

  const std::vector<NodeCard>& cards() const { return cards_; }
  // Free units per card, in the order of cards(). Where two accounts differ, the smaller one. CPU and memory are unset.
  Node Free() const;
  // The same once these pods have gone. A pod whose cards are not known frees none.
  Node FreeOnceGone(const std::set<std::string>& uids) const;
  // The pod that kubelet must admit before a pod with these chains may be placed here; empty: none. The plugin could
  // not tell the requests of the two apart (see reservation_tracker.h).
  std::string FindBlocker(const std::vector<Chain>& chains) const;

 private:
  // A request that kubelet has not made yet.
  struct WaitingRequest {
    int first = 0;
    int total = 0;
    int split = 1;
    std::string pod;
  };
  struct PodStatus {
    std::string name;
    bool admitted = false;
  };

  void ApplyAnnotation(const std::string& uid);
  void ListWaiting();
  // Units on each card that the annotation cannot include yet.
  std::vector<int> PendingUnits() const;

  std::vector<NodeCard> cards_;
  LivePods pods_;
  std::map<std::string, PodStatus> status_;  // the same uids as pods_
  std::vector<WaitingRequest> waiting_;      // kept up to date, because every filter call asks every node
  bool exact_ = false;                       // every card has `pods`
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_NODE_LEDGER_H_
