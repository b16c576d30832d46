// The thread that keeps this node's ResourceSlice equal to the node: it follows the node's snapshots and, by a watch,
// the slices of this driver and node. Kubelet deletes them when a driver stays away, so that they are made again at
// once.
#ifndef SLUICE_DEVICEPLUGIN_DRA_SLICE_PUBLISHER_H_
#define SLUICE_DEVICEPLUGIN_DRA_SLICE_PUBLISHER_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "deviceplugin/dra/held_units.h"
#include "deviceplugin/node_snapshot.h"
#include "kube/client.h"
#include "kube/watcher.h"

namespace sluice::deviceplugin::dra {

inline constexpr char kSlicesPath[] = "/apis/resource.k8s.io/v1/resourceslices";

struct SlicePublisherOptions {
  kube::ClientConfig api;
  std::string node;
  uint64_t reserve = 0;                          // bytes of each card
  std::shared_ptr<SnapshotPublisher> snapshots;  // has one
  std::shared_ptr<HeldUnits> held_units;         // of the device plugin's containers
  bool removes_at_exit = false;                  // delete the slice in the destructor
};

// Thread-safe.
class SlicePublisher {
 public:
  explicit SlicePublisher(SlicePublisherOptions options);
  ~SlicePublisher();

  // Empty, or why the slice does not show the node.
  std::string problem() const;

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  absl::Status PublishOnce();
  // Whether the API server keeps taints. Asks it at most once in kProbeEvery, by a dry run.
  bool KeepsTaints();
  std::string NodeUid();
  void ReportSharing(const kube::Json& stored);

  const SlicePublisherOptions options_;
  kube::Client client_;
  std::string node_uid_;
  bool knows_node_ = false;
  int shares_ = -1;  // the last that was reported; -1: nothing
  Clock::time_point next_probe_{}, written_{}, next_taint_probe_{};
  bool keeps_taints_ = false;

  mutable Mutex mutex_;
  std::map<std::string, kube::Json> slices_ SLUICE_GUARDED_BY(mutex_);  // by name, as the API server has them
  uint64_t events_ SLUICE_GUARDED_BY(mutex_) = 1;                       // of the watch, lists included
  uint64_t events_at_write_ SLUICE_GUARDED_BY(mutex_) = 0;              // when the last write began
  bool is_listed_ SLUICE_GUARDED_BY(mutex_) = false;
  bool changed_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string problem_ SLUICE_GUARDED_BY(mutex_) = "the ResourceSlice is not published yet";

  std::atomic<bool> stopping_ = false;
  std::unique_ptr<kube::Watcher> watcher_;
  std::thread thread_;
};

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_SLICE_PUBLISHER_H_
