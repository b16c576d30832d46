// One launch's admission to the GPU (tokens.h).
#ifndef SLUICE_HOOKLIB_COMPUTE_LAUNCH_TOKEN_H_
#define SLUICE_HOOKLIB_COMPUTE_LAUNCH_TOKEN_H_

#include <optional>

#include "hooklib/dispatch/uncancelled.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/device/nested_calls.h"

namespace sluice {

// Admits one launch, and ends with it. While nothing is demanded it is one relaxed load. `id_of` is called only where
// its answer is needed.
class LaunchToken {
 public:
  template <typename IdOf>
  LaunchToken(Stream* stream, IdOf id_of) : stream_(stream) {
    if (stream->device->tokens.wanted() && !CallUnderway::IsNested() && !IsCapturing(*stream)) {
      uncancelled_.emplace();
      time_slices_ = &stream->device->tokens.time_slices();
      launch_ = time_slices_->Enter(id_of());
    }
  }
  ~LaunchToken() { End(); }
  LaunchToken(const LaunchToken&) = delete;
  LaunchToken& operator=(const LaunchToken&) = delete;

  // The driver's call, measured if need be.
  template <typename Issue>
  CUresult Run(Issue issue) {
    if (!time_slices_) return issue();
    const CallUnderway underway;
    Begin();
    const CUresult result = issue();
    End();
    return result;
  }
  // The same for a call that launches on several devices.
  void Begin() {
    if (time_slices_)
      time_slices_->BeginLaunch(&launch_, stream_, stream_->device->active.load(std::memory_order_relaxed));
  }
  void End() {
    if (time_slices_) time_slices_->EndLaunch(&launch_, stream_);
  }

 private:
  std::optional<UncancelledScope> uncancelled_;  // it may wait for a time slice
  Stream* const stream_;
  compute::TimeSlices* time_slices_ = nullptr;
  compute::TimeSlices::Launch launch_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_COMPUTE_LAUNCH_TOKEN_H_
