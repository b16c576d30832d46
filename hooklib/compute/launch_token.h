// One launch's turn on the card (tokens.h).
#ifndef SLUICE_HOOKLIB_COMPUTE_LAUNCH_TOKEN_H_
#define SLUICE_HOOKLIB_COMPUTE_LAUNCH_TOKEN_H_

#include "hooklib/engine/device/device.h"

namespace sluice {

// One launch's turn. While nothing is demanded it is one relaxed load. `what` is called only where its answer is
// needed.
class Turn {
 public:
  template <typename What>
  Turn(Stream* stream, What what) : stream_(stream) {
    if (stream->device->tokens.wanted() && !IsCapturing(*stream)) {
      turns_ = &stream->device->tokens.turns();
      launch_ = turns_->Enter(what());
    }
  }
  ~Turn() {
    if (turns_) turns_->End(&launch_, stream_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // The driver's call, measured if need be.
  template <typename Issue>
  CUresult Run(Issue issue) {
    if (!turns_) return issue();
    turns_->Begin(&launch_, stream_, stream_->device->active.load(std::memory_order_relaxed));
    const CUresult result = issue();
    turns_->End(&launch_, stream_);
    return result;
  }

 private:
  Stream* const stream_;
  compute::TimeSlices* turns_ = nullptr;
  compute::TimeSlices::Launch launch_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_COMPUTE_LAUNCH_TOKEN_H_
