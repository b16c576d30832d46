// Keeps on this node what the scheduler extender promised: which card a request gets, so that no pod that was bound
// here is refused here. Joins what the agent tells of the node's pods (sluice/reservation.h) with what kubelet's checkpoint
// says was given out; scheduler/promise_keeper.h decides. Only where an extender is configured.
#ifndef SLUICE_DEVICEPLUGIN_PROMISES_H_
#define SLUICE_DEVICEPLUGIN_PROMISES_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/checkpoint.h"
#include "deviceplugin/packing.h"
#include "scheduler/promise_keeper.h"

namespace sluice::deviceplugin {

struct ToldPod {
  std::vector<scheduler::ContainerUnits> containers;  // those with units, in kubelet's order
  scheduler::ContainerCards placement;                // empty: not placed by the extender
};

// By pod uid. DATA_LOSS: another version, or not of the form in sluice/reservation.h.
absl::StatusOr<std::map<std::string, ToldPod>> ParsePromises(std::string_view json);

// Thread-safe.
class Promises {
 public:
  // How long a request waits for its promise: the agent hears of a pod by the same watch as kubelet, perhaps later.
  static constexpr std::chrono::milliseconds kPatience{200};
  using Checkpoint = absl::StatusOr<std::vector<GivenOut>>;

  explicit Promises(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}

  // The pods of the node that live now. Returns a line for each promise that cannot be kept as it stands.
  std::vector<std::string> Told(std::map<std::string, ToldPod> pods);
  void Given(std::vector<GivenOut> checkpoint);

  // GetPreferredAllocation, like ChooseUnits: units of the card that was promised to a request of this size, or of one
  // where they break no promise. Where there is none the answer does not fit, and MayAllocate refuses it.
  Pack Prefer(const PackRequest& request, const std::map<std::string, int>& numa);

  // Allocate's safety net. What Prefer answered passes, or is refused with the reason that was found then; units that
  // kubelet took without asking (the rest of a NUMA node, an init container's) pass if they break no promise as far as
  // the checkpoint tells, which is read for them alone.
  absl::Status MayAllocate(std::span<const std::string> ids, const std::function<Checkpoint()>& read_checkpoint);

 private:
  struct Answer {
    std::set<std::string> ids;
    absl::Status status;
  };

  void Settle();  // brings the keeper up to told_ and given_
  // Units of each card that no living pod holds, and of `ids` those that one does hold.
  std::map<std::string, int> FreeOf(const std::set<std::string>& cards, std::span<const std::string> ids,
                                    std::map<std::string, int>* held) const;

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, ToldPod> told_;
  std::vector<GivenOut> given_;
  scheduler::PromiseKeeper keeper_;
  std::optional<Answer> answer_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_PROMISES_H_
