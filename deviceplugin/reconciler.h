// Keeps the board true: asks NVML and pod-resources, installs the library, writes CDI specs, collects what nothing
// refers to.
#ifndef SLUICE_DEVICEPLUGIN_RECONCILER_H_
#define SLUICE_DEVICEPLUGIN_RECONCILER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "deviceplugin/decide/card_inventory.h"
#include "deviceplugin/grpc/pod_resources.h"
#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/metrics.h"
#include "deviceplugin/node_snapshot.h"
#include "deviceplugin/nvml/bounded_nvml.h"

namespace sluice::deviceplugin {

struct KeeperParts {
  Config config;
  std::string kubelet_dir;
  std::shared_ptr<NvmlApi> nvml;  // not bounded yet
  std::shared_ptr<Board> board;
  std::shared_ptr<Metrics> metrics;
};

// Two threads: one works in passes, one waits for NVML's events. All calls are thread-safe.
class Keeper {
 public:
  explicit Keeper(KeeperParts parts);
  ~Keeper();

  // True once the first pass is done: before that an empty list would tell kubelet that running containers' cards are
  // gone.
  bool WaitFirstPass(std::chrono::milliseconds patience);
  void Reconfigure(const Config& config);
  void Wake();
  std::chrono::steady_clock::time_point last_pass() const { return last_pass_.load(); }
  // NVML calls that hang: the process must not wait for their threads at its end.
  int stuck() const { return nvml_.lost(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Work();
  void Listen();
  void Pass();
  void AskNvml();
  void AskKubelet();
  void RestoreAllocations();
  void PrepareLibrary();
  void PrepareDriverAccess(Snapshot* snapshot);
  void Collect();
  void Report(const Inventory& inventory);
  CardRules Rules() const;

  const std::string kubelet_dir_;
  BoundedNvml nvml_;
  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Metrics> metrics_;

  std::mutex mutex_;  // guards what is below, up to the blank line
  std::condition_variable changed_;
  bool stopping_ = false, woken_ = false, first_done_ = false, open_ = false;
  std::vector<NvmlEvent> events_;
  std::optional<Config> new_config_;

  // Of the working thread alone.
  Config config_;
  CardBook book_;
  AllocationStore store_;
  std::optional<PodResources> pod_resources_;
  std::string lib_dir_, lib_problem_;
  std::string access_note_, reported_access_;
  std::vector<std::string> cdi_in_use_;
  bool may_remove_cdi_ = false;
  Clock::time_point next_collect_{};
  Inventory reported_;
  std::string reported_state_;

  std::atomic<Clock::time_point> last_pass_{Clock::now()};
  std::thread worker_, listener_;
};

// The folder of shim and engine: the setting, else ../lib beside this program.
std::string LibrarySource(const Config& config);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_RECONCILER_H_
