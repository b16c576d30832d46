// Brings the node to the state that the configuration asks for, and publishes its findings as a NodeSnapshot. One pass
// reads NVML and pod-resources, installs the hook library, writes CDI specs and removes directories that nothing refers
// to.
#ifndef SLUICE_DEVICEPLUGIN_RECONCILER_H_
#define SLUICE_DEVICEPLUGIN_RECONCILER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "deviceplugin/decide/card_inventory.h"
#include "deviceplugin/grpc/pod_resources.h"
#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/metrics.h"
#include "deviceplugin/node_snapshot.h"
#include "deviceplugin/nvml/bounded_nvml.h"

namespace sluice::deviceplugin {

struct ReconcilerOptions {
  Config config;
  std::string kubelet_dir;
  std::shared_ptr<NvmlApi> nvml;  // calls may hang: the reconciler bounds them
  std::shared_ptr<SnapshotPublisher> snapshots;
  std::shared_ptr<Metrics> metrics;
};

// Two threads: one runs the passes, one waits for NVML's events. Thread-safe.
class Reconciler {
 public:
  explicit Reconciler(ReconcilerOptions options);
  ~Reconciler();

  // Waits for the first pass; false after `timeout`. Before the first pass an empty device list would tell kubelet that
  // the GPUs of running containers are gone.
  bool WaitForFirstPass(std::chrono::milliseconds timeout);
  void Reconfigure(const Config& config);
  void Wake();
  std::chrono::steady_clock::time_point last_pass() const { return last_pass_.load(); }
  // NVML calls that hang. If there are any, the process must exit without waiting for their threads.
  int stuck_calls() const { return nvml_.stuck_calls(); }

 private:
  using Clock = std::chrono::steady_clock;

  void RunPasses();
  void RunEvents();
  void RunPass();
  void AwaitNextPass();
  bool NvmlIsOpen();
  void SetNvmlOpen(bool open);
  void ReadNvml();
  void ReadPodResources();
  void RestoreAllocations();
  void PrepareHookLibrary();
  void PrepareDriverAccess(NodeSnapshot* snapshot);
  void ExplainMissingNvml(Inventory* inventory);
  void CollectUnreferenced();
  void Report(const Inventory& inventory);
  CardRules RulesFromConfig() const;

  const std::string kubelet_dir_;
  BoundedNvml nvml_;
  const std::shared_ptr<SnapshotPublisher> snapshots_;
  const std::shared_ptr<Metrics> metrics_;

  Mutex mutex_;
  Condition changed_;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  bool woken_ SLUICE_GUARDED_BY(mutex_) = false;
  bool first_pass_done_ SLUICE_GUARDED_BY(mutex_) = false;
  bool nvml_open_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<NvmlEvent> events_ SLUICE_GUARDED_BY(mutex_);
  std::optional<Config> next_config_ SLUICE_GUARDED_BY(mutex_);

  // Used by the pass thread only.
  Config config_;
  CardInventory inventory_;
  AllocationStore store_;
  std::optional<PodResources> pod_resources_;
  std::string lib_dir_, lib_problem_;
  std::string access_note_, reported_access_;
  std::vector<std::string> cdi_in_use_;
  bool may_remove_cdi_ = false;
  int pci_gpus_ = 0;
  Clock::time_point next_collect_{};
  Inventory reported_;
  std::string reported_state_;

  std::atomic<Clock::time_point> last_pass_{Clock::now()};
  std::thread pass_thread_, event_thread_;
};

// The folder of kubelet's pods, where the configuration names none.
std::string DefaultPodsDir(const std::string& kubelet_dir);

// The folder that holds shim and engine: the setting, else ../lib beside this program.
std::string HookLibrarySource(const Config& config);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_RECONCILER_H_
