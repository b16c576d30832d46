#include "hooklib/engine/device/touch_watch.h"

#include "hooklib/engine/config.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {
constexpr uint64_t kLaunchesBetween = 8;  // two looks at the records
}  // namespace

void TouchWatch::Observe(bool at_once) {
  policy::Residency& residency = device_->residency;
  residency.touched().set_enabled(GetConfig().learn && !records_.refused() &&
                                  device_->budget.prefetch != SLUICE_PREFETCH_OFF);
  if (!is_recording_ || (!at_once && residency.launches() < observe_at_)) return;
  observe_at_ = residency.launches() + kLaunchesBetween;
  // The launches' ends first: their faults are recorded by then.
  residency.MarkTouchesOver();
  pages_.clear();
  records_.Drain(&pages_);
  const bool lost = records_.Lost();
  residency.ConcludeTouches(pages_, lost);
  if (lost) {
    ++losses_;
    records_.Start(device_->UuidForDriver());
  }
  if (!residency.touched().leaves_out_any() && !residency.watches_unnamed()) {
    records_.Stop();
    is_recording_ = false;
  }
}

void TouchWatch::Update() {
  policy::Residency& residency = device_->residency;
  if (is_recording_ || (!residency.touched().leaves_out_any() && !residency.watches_unnamed())) return;
  is_recording_ = records_.Start(device_->UuidForDriver());
  if (is_recording_) return;
  SLUICE_LOG(kDebug, "fault_records gpu=%s use=touched_chunks state=refused reason=\"%s\"", device_->uuid.c_str(),
             records_.why().c_str());
  residency.ForgetTouches();
}

void TouchWatch::LogStats() const {
  const policy::TouchStats& stats = device_->residency.touched().stats();
  if (stats.samples == 0) return;
  SLUICE_LOG(kDebug, "touched_chunks gpu=%s samples=%llu touched=%llu untouched=%llu late=%llu losses=%llu",
             device_->uuid.c_str(), static_cast<unsigned long long>(stats.samples),
             static_cast<unsigned long long>(stats.touched), static_cast<unsigned long long>(stats.untouched),
             static_cast<unsigned long long>(stats.late), static_cast<unsigned long long>(losses_));
}

}  // namespace sluice
