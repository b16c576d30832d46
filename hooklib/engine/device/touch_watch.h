// The faults of one device's launches on chunks that are left out of their sets (policy/touched/touch_sampler.h), by
// the driver's records. They are on only while such chunks exist: where nothing faults they cost nothing.
//
// Where the driver gives no records nothing is tried, and launches are taken to touch their operands whole. The
// device's lock is held in all functions.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_TOUCH_WATCH_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_TOUCH_WATCH_H_

#include <cstdint>
#include <vector>

#include "hooklib/engine/device/device_lock.h"
#include "hooklib/engine/observe/fault_records.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct Device;

class TouchWatch {
 public:
  explicit TouchWatch(Device* device) : device_(device) {}

  // Before a launch is planned: hands the faults since the last time to the policy. `at_once`: whatever was asked
  // lately.
  void Observe(bool at_once) SLUICE_DEVICE_LOCKED;
  // Behind planning, before the launch is queued: faults are recorded if any chunk is left out.
  void Update() SLUICE_DEVICE_LOCKED;
  void LogStats() const SLUICE_DEVICE_LOCKED;  // at DEBUG

 private:
  // Many chunks are tried at once, and nothing empties the queue before the next launch is planned.
  static constexpr uint32_t kRecords = 1 << 17;
  Device* const device_;
  FaultRecords records_ SLUICE_BY_DEVICE_LOCK{TheDriverPort(), kRecords};
  std::vector<memory::Va> pages_ SLUICE_BY_DEVICE_LOCK;
  bool is_recording_ SLUICE_BY_DEVICE_LOCK = false;
  uint64_t observe_at_ SLUICE_BY_DEVICE_LOCK = 0;  // launch number
  uint64_t losses_ SLUICE_BY_DEVICE_LOCK = 0;      // looks that found records lost
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_TOUCH_WATCH_H_
