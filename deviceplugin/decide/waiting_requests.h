// Which request kubelet makes now, and over how many cards its units are to be split.
//
// Kubelet asks for a number of units and does not say for which pod: 100 units are one whole card, or a half of each of
// two. The agent's list of the node's pods (sluice/reservation.h) has the number of cards of each container. Kubelet
// admits pods in the order in which its watch shows them, and the agent's watch shows them in the same order. So the
// request is that of the first pod whose next container asks for as many units. Only pods that start at the same moment
// and split equal units differently depend on it (also where kubelet refused one without a question, for too few
// units). The extender keeps such pods apart, and CheckStart refuses a container that got another's share.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_WAITING_REQUESTS_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_WAITING_REQUESTS_H_

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "deviceplugin/decide/reservations.h"
#include "deviceplugin/host/checkpoint.h"

namespace sluice::deviceplugin {

// Thread-safe.
class WaitingRequests {
 public:
  using Checkpoint = Reservations::Checkpoint;
  // How long a request waits for its pod: the agent hears of it by the same watch as kubelet, perhaps later.
  static constexpr std::chrono::milliseconds kMaxWait = Reservations::kMaxWait;

  explicit WaitingRequests(std::chrono::milliseconds max_wait = kMaxWait) : max_wait_(max_wait) {}

  void SetPods(const std::map<std::string, BoundPod>& pods) SLUICE_EXCLUDES(mutex_);
  void SetCheckpoint(const std::vector<CheckpointEntry>& checkpoint) SLUICE_EXCLUDES(mutex_);

  // For GetPreferredAllocation: the number of cards for `size` units; 0: not known. `node_cards`: how many the node
  // has; units that these cannot split wait for no pod. The checkpoint is read only where a pod splits as many units.
  int CardsFor(int size, int node_cards, const std::function<Checkpoint()>& read_checkpoint) SLUICE_EXCLUDES(mutex_);
  // What GetPreferredAllocation answered to the request of the last CardsFor.
  void SetAnswer(std::vector<std::string> ids, int cards) SLUICE_EXCLUDES(mutex_);
  // For Allocate: the same number for these devices. Kubelet takes some without asking: those of a pod's init
  // container, or the rest of a NUMA node.
  int CardsOf(std::span<const std::string> ids, const std::function<Checkpoint()>& read_checkpoint)
      SLUICE_EXCLUDES(mutex_);

  // For PreStartContainer: refuses a container whose devices are on another number of cards than it asks for.
  // Containers of pods that the agent has not named pass.
  absl::Status CheckStart(std::span<const std::string> ids, const Checkpoint& checkpoint) const SLUICE_EXCLUDES(mutex_);

 private:
  struct Pod {
    uint64_t order = 0;
    std::vector<scheduler::ContainerUnits> containers;
    std::set<std::string> asked;  // containers for which CardsFor or CardsOf answered
  };
  struct Candidate {
    uint64_t order = 0;
    std::string uid;
    const scheduler::ContainerUnits* container = nullptr;
  };

  // Which container of a pod may be the next: the first one that was neither given units nor asked for, the first one
  // without units if it was not asked for, or the first one without units. Kubelet writes its checkpoint after each
  // container, so kExact is right just after a read of it, and kLoose where the last container may be missing in it.
  enum class Rule { kLoose, kExact, kAgain };

  // The next container of each pod, if it asks for `size` units, in kubelet's order.
  std::vector<Candidate> Find(int size, Rule rule) const SLUICE_REQUIRES(mutex_);
  // Marks the first as asked. 0: there is none.
  int Take(const std::vector<Candidate>& candidates) SLUICE_REQUIRES(mutex_);
  int Next(int size, Rule rule) SLUICE_REQUIRES(mutex_);
  bool HasSplit(int size) const SLUICE_REQUIRES(mutex_);  // a container with so many units over several cards
  void Apply(const std::vector<CheckpointEntry>& checkpoint) SLUICE_REQUIRES(mutex_);

  const std::chrono::milliseconds max_wait_;
  mutable Mutex mutex_;
  Condition changed_;
  bool has_agent_ SLUICE_GUARDED_BY(mutex_) = false;
  std::map<std::string, Pod> pods_ SLUICE_GUARDED_BY(mutex_);                     // by uid
  std::map<std::string, std::set<std::string>> given_ SLUICE_GUARDED_BY(mutex_);  // containers by pod uid
  struct Answer {
    std::vector<std::string> ids;  // sorted
    int cards = 0;
  };
  std::optional<Answer> answer_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_WAITING_REQUESTS_H_
