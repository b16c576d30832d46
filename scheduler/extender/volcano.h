// Answers Volcano's scheduler plugin `extender`, so that Volcano places shares of GPUs on cards that have room.
//
// Volcano decides in sessions: it allocates pods in memory, gives all of a gang's back if the gang does not fit, and
// binds the others by itself. So cards are reserved at `allocate`, and freed at `deallocate`. The pod gets the cards
// as its annotation before Volcano binds it.
#ifndef SLUICE_SCHEDULER_EXTENDER_VOLCANO_H_
#define SLUICE_SCHEDULER_EXTENDER_VOLCANO_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "scheduler/extender/extender.h"

namespace sluice::scheduler {

// Thread-safe. Bodies are JSON as Volcano 1.15 sends them; 400 with the reason if one is not.
class VolcanoCalls {
 public:
  explicit VolcanoCalls(Extender& extender) : extender_(extender) {}

  // {"task", "node"}: whether a card of the node has room now. Volcano may evict pods to make room where none has.
  Reply Predicate(const std::string& body);
  // {"task"}: a pod was put on a node, in Volcano's memory. An error makes Volcano take it back.
  Reply Allocate(const std::string& body);
  // {"task"}: it was taken back, or a running pod is to be evicted.
  Reply Deallocate(const std::string& body);
  // Ends the session.
  Reply SessionClose(const std::string& body);

 private:
  struct Task;
  absl::Status AllocateTask(const Task& task);
  // The pod waits for units that evicted pods hold: nothing is reserved yet.
  absl::Status Expect(const PodFacts& pod, const std::string& node);
  absl::Status ReserveFor(const PodFacts& pod, const Task& task);

  Extender& extender_;
  Mutex mutex_;
  std::set<std::string> leaving_ SLUICE_GUARDED_BY(mutex_);             // uids of bound pods that Volcano evicts
  std::map<std::string, PodFacts> expected_ SLUICE_GUARDED_BY(mutex_);  // by uid, with node and cards; of this session
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_VOLCANO_H_
