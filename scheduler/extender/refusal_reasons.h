// Why nodes are refused, as texts for the scheduler.
#ifndef SLUICE_SCHEDULER_EXTENDER_REFUSAL_REASONS_H_
#define SLUICE_SCHEDULER_EXTENDER_REFUSAL_REASONS_H_

#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/placement/pod_packing.h"

namespace sluice::scheduler {

// Collects the reasons of one filter call. Equal causes get one text for all nodes, because the scheduler counts equal
// reasons ("3 no single card has 60 units free, the largest has 50"). Not thread-safe.
class RefusalReasons {
 public:
  // Index of the reason in Texts().
  int IndexOf(const std::string& text);
  // Failures of one cause share an index; their text has the largest numbers of all nodes.
  int IndexOfFailure(const PackingFailure& why);

  std::vector<std::string> Texts() &&;
  // The text for one node.
  static std::string Text(const PackingFailure& why);

 private:
  struct MergedFailure {
    int index = 0;
    int largest = 0;
    int with_room = 0;  // cards
  };
  using FailureKey = std::tuple<int, int, bool>;  // units, cards, only_jointly

  static std::string Text(const FailureKey& key, const MergedFailure& merged);

  std::vector<std::string> texts_;
  std::unordered_map<std::string, int> index_by_text_;
  std::map<FailureKey, MergedFailure> failures_;
};

// The pod must wait for another one (NodeLedger::FindBlocker).
std::string BlockedBy(const std::string& pod);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_REFUSAL_REASONS_H_
