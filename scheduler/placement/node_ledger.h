// One node as the extender sees it: what its agent says is free, and what was reserved since.
#ifndef SLUICE_SCHEDULER_PLACEMENT_NODE_LEDGER_H_
#define SLUICE_SCHEDULER_PLACEMENT_NODE_LEDGER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"
#include "scheduler/placement/node_model.h"
#include "scheduler/placement/pod_reservations.h"

namespace sluice::scheduler {

// A card in the node annotation sluice.dev/gpus. `pods`: units by pod uid, an optional member that makes the account
// exact.
struct NodeCard {
  std::string uuid;
  std::string model;
  std::uint64_t memory_bytes = 0;
  int free = 0;
  int numa = -1;
  std::optional<std::map<std::string, std::vector<std::string>>> pods;  // containers by pod uid
};

// Error: what is wrong with the annotation's value. Cards ordered by uuid, no uuid twice.
absl::StatusOr<std::vector<NodeCard>> ParseNodeCards(std::string_view json);

// A live pod with units that is bound to the node (or that we are about to bind).
struct PlacedPod {
  std::string name;       // namespace/name, for people
  LivePod live;           // reserved is empty where somebody else placed it; `actual` is the ledger's own
  bool admitted = false;  // kubelet has acknowledged it
};

class NodeLedger {
 public:
  void SetCards(std::vector<NodeCard> cards);
  void Put(const std::string& uid, PlacedPod pod);
  // The pod has ended. As long as an exact annotation names it, it counts: what kubelet gave to whom is known only from
  // there.
  void Remove(const std::string& uid);
  bool Holds(const std::string& uid) const { return pods_.contains(uid); }

  const std::vector<NodeCard>& cards() const { return cards_; }
  // Free units a card, in the order of cards(); where two accounts differ, the smaller. CPU and memory are not set.
  Node Free() const;
  // The pod that must be admitted before one with these chains may be placed here; empty: none. The plugin could not
  // tell their requests apart (see reservation_tracker.h).
  std::string Blocks(const std::vector<Chain>& chains) const;

 private:
  // A request that kubelet has not made yet.
  struct Waiting {
    int first = 0;
    int total = 0;
    std::string pod;
  };
  struct About {
    std::string name;
    bool admitted = false;
  };

  void LearnActual(const std::string& uid);
  void NoteWaiting();
  // Units on each card that the annotation cannot count yet.
  std::vector<int> PendingExact() const;

  std::vector<NodeCard> cards_;
  LivePods pods_;
  std::map<std::string, About> about_;  // the same uids
  std::vector<Waiting> waiting_;        // kept, because every filter call asks every node
  bool exact_ = false;                  // every card has `pods`
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_NODE_LEDGER_H_
