#include "deviceplugin/dra/held_units.h"

#include "deviceplugin/decide/device_id.h"

namespace sluice::deviceplugin::dra {

std::map<std::string, int> HeldUnits::Now() {
  MutexLock lock(mutex_);
  if (is_read_ && held_.empty()) return held_;
  const auto allocations = store_.List();
  if (!allocations.ok()) return held_;
  is_read_ = true;
  held_.clear();
  for (const Allocation& allocation : *allocations) {
    for (const std::string& text : allocation.device_ids) {
      if (const auto id = ParseDeviceId(text); id.ok()) ++held_[id->uuid];
    }
  }
  return held_;
}

}  // namespace sluice::deviceplugin::dra
