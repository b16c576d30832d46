// What the scheduler reserved, kept on the node: which card a request gets when kubelet asks, so that no reservation of
// another pod is broken.
//
// Kubelet admits pods in any order and does not say for which pod it asks. So a reservation belongs to a size, not to a
// pod: requests of one size are interchangeable, and the extender lets no two pods wait on a node whose chains begin
// alike and end differently. No I/O, not thread-safe.
#ifndef SLUICE_SCHEDULER_PLACEMENT_RESERVATION_TRACKER_H_
#define SLUICE_SCHEDULER_PLACEMENT_RESERVATION_TRACKER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"
#include "scheduler/placement/pod_reservations.h"

namespace sluice::scheduler {

using CardUnitCounts = std::map<std::string, int>;  // by card uuid

class ReservationTracker {
 public:
  // A pod that the extender has placed here: bound, from its annotation, whether kubelet has admitted it yet or not. A
  // second call for the same pod is ignored. Error (the pod is then as if never reserved): chains or placement that do
  // not go together.
  absl::Status Bound(const std::string& pod, const std::vector<ContainerUnits>& containers,
                     const ContainerCards& cards);
  // Kubelet has given it devices, by pod-resources: these cards.
  void Admitted(const std::string& pod, const ContainerCards& cards);
  // The pod has ended, was refused or deleted.
  void Gone(const std::string& pod);

  // GetPreferredAllocation: the cards to take `size` units from, `must_include` (units that the container has already)
  // among them. `free`: units available on each card, those of must_include counted. A reservation that is used is
  // remembered as used. NotFound: nothing can hold the request without breaking a reservation, with the reason.
  absl::StatusOr<std::vector<std::string>> Choose(const CardUnitCounts& free, const CardUnitCounts& must_include,
                                                  int size);

  // Whether a reservation for a request of this size waits: if not, and an extender is configured, its annotation may
  // not have been seen yet.
  bool Waits(int size) const;
  // Units of a card that are reserved and not given out.
  int Reserved(const std::string& card) const;

 private:
  struct Seat : Slot {
    bool used = false;  // kubelet was told these cards, for some pod that is being admitted
    int given = 0;      // units, of chain.total
  };

  // Computes the seats anew from the pods that live, keeping what is used.
  void Reseat();
  bool Holds(const Seat& seat, const CardUnitCounts& free) const;
  Seat* FindWaiting(const CardUnitCounts& free, int size);
  Seat* FindStarted(const CardUnitCounts& must_include);
  // Forgets one use of the chain's kind: that of these cards, else any.
  void EndUse(const Chain& chain, const std::vector<std::string>& cards);
  absl::StatusOr<std::vector<std::string>> ChooseUnreserved(const CardUnitCounts& free,
                                                            const CardUnitCounts& must_include, int size) const;

  LivePods pods_;
  std::vector<Seat> seats_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_RESERVATION_TRACKER_H_
