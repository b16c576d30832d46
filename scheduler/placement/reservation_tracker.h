// The device plugin's side of reservations: which card a request gets when kubelet asks, so that no other pod loses the
// card that the scheduler extender reserved for it.
//
// Kubelet admits pods in any order and does not say for which pod it asks. So a reservation belongs to a request size,
// not to a pod: requests of one size are interchangeable. The extender never lets two pods wait on a node whose chains
// begin with the same size and end with different ones, or split it over different numbers of cards.
#ifndef SLUICE_SCHEDULER_PLACEMENT_RESERVATION_TRACKER_H_
#define SLUICE_SCHEDULER_PLACEMENT_RESERVATION_TRACKER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"
#include "scheduler/placement/node_model.h"
#include "scheduler/placement/pod_reservations.h"

namespace sluice::scheduler {

using CardUnitCounts = std::map<std::string, int>;  // by card uuid

// No I/O, not thread-safe.
class ReservationTracker {
 public:
  // The extender has placed this pod here, by the pod's annotation; kubelet may or may not have admitted it. A second
  // call for the same pod is ignored. Error: chains and placement do not match; the pod then has no reservation.
  absl::Status PodBound(const std::string& pod, const std::vector<ContainerUnits>& containers,
                        const ContainerCards& cards);
  // Kubelet has given the pod units of these cards.
  void PodAdmitted(const std::string& pod, const ContainerCards& cards);
  // The pod has ended, was refused or was deleted.
  void PodRemoved(const std::string& pod);

  // For GetPreferredAllocation: the cards from which to take `size` units, of each the same part. They include the
  // cards of `must_include` (units that the container already has). `free`: available units per card, with must_include
  // counted. `cards`: their number; 0: as a reservation of this size says, else one card up to 100 units and whole
  // cards above. Marks the reservation as used. NotFound: every choice would break a reservation; the message gives the
  // numbers.
  absl::StatusOr<std::vector<std::string>> Choose(const CardUnitCounts& free, const CardUnitCounts& must_include,
                                                  int size, int cards = 0, const CardPlaces& places = {});

  // Whether an unused reservation for a request of this size, on so many cards (0: any number), exists. If not, the
  // pod's annotation may not have arrived.
  bool HasUnused(int size, int cards = 0) const;
  // Units of a card that are reserved and not given out yet.
  int ReservedUnits(const std::string& card) const;

 private:
  struct TrackedReservation : OpenReservation {
    bool used = false;  // Choose returned its cards for a pod that kubelet is admitting
    int given = 0;      // units, of chain.total
  };

  // Rebuilds the list from the live pods, keeping the marks of used reservations.
  void Rebuild();
  bool Fits(const TrackedReservation& reservation, const CardUnitCounts& free) const;
  TrackedReservation* FindUnused(const CardUnitCounts& free, int size, int cards, const CardPlaces& places);
  TrackedReservation* FindStarted(const CardUnitCounts& must_include);
  // Clears one mark of a reservation of the chain's shape: of the one on these cards, else of any.
  void ClearUse(const Chain& chain, const std::vector<std::string>& cards);
  absl::StatusOr<std::vector<std::string>> ChooseUnreserved(const CardUnitCounts& free,
                                                            const CardUnitCounts& must_include, int size, int cards,
                                                            const CardPlaces& places) const;

  LivePods pods_;
  std::vector<TrackedReservation> reservations_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_RESERVATION_TRACKER_H_
