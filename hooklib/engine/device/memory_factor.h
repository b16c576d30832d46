// The memory factor of one device: which percent of the budget tracked memory may fill.
//
// Where nothing shows that the driver evicts on its own, the factor follows from the knowledge of accesses. It is
// lowered where launches lose memory to the driver (policy/budget/pressure.h), and where the GPU has less free memory
// than the budget promises. The device's lock is held in all of its functions.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_MEMORY_FACTOR_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_MEMORY_FACTOR_H_

#include <cstdint>
#include <deque>

#include "hooklib/engine/device/device_lock.h"
#include "hooklib/memory/timeline.h"
#include "hooklib/policy/budget/pressure.h"

namespace sluice {

struct Device;

class MemoryFactor {
 public:
  explicit MemoryFactor(Device* device) : device_(device) {}

  uint32_t Percent() const SLUICE_DEVICE_LOCKED;  // in force
  // Held down by losses or by a full GPU: it then applies even while all live memory fits the budget.
  bool IsLowered() const SLUICE_DEVICE_LOCKED { return pressure_.is_lowered() || ceiling_ < 100; }
  // Times of launches measured now are no measure of their kind.
  bool DistortsTimings() const SLUICE_DEVICE_LOCKED { return pressure_.distorts_timing(); }

  // A launch was planned, or served by the fast path (whose losses are left to the next planned one).
  void NotePlannedLaunch(memory::Mark launch) SLUICE_DEVICE_LOCKED;
  void NoteFastLaunch(uint64_t named_bytes) SLUICE_DEVICE_LOCKED {
    part_named_bytes_ += named_bytes;
    ++part_launches_;
  }
  // The budget changed: losses on the way to the new one do not count.
  void Restart() SLUICE_DEVICE_LOCKED { pressure_.Restart(); }

  // Once a second the ceiling is due; the next planned launch asks the driver for it.
  void SetCeilingDue() SLUICE_DEVICE_LOCKED { ceiling_due_ = true; }
  void UpdateCeiling() SLUICE_DEVICE_LOCKED;

 private:
  uint32_t DefaultPercent() const SLUICE_DEVICE_LOCKED;
  // Percent of the budget for which the driver has room beside all other memory; 100 where it does not say.
  uint32_t MeasureCeiling() const SLUICE_DEVICE_LOCKED;
  void LogLowered(uint32_t from, uint32_t to, uint32_t ceiling) SLUICE_DEVICE_LOCKED;

  struct IterationPart {
    memory::Mark last_launch;
    uint64_t named_bytes;  // by its launches
  };
  Device* const device_;
  policy::Pressure pressure_ SLUICE_BY_DEVICE_LOCK;
  std::deque<IterationPart> parts_ SLUICE_BY_DEVICE_LOCK;  // not over yet
  uint64_t part_named_bytes_ SLUICE_BY_DEVICE_LOCK = 0;    // of the newest part, which is not in parts_ yet
  uint32_t part_launches_ SLUICE_BY_DEVICE_LOCK = 0;       // the same
  uint32_t ceiling_ SLUICE_BY_DEVICE_LOCK = 100;           // percent
  bool ceiling_due_ SLUICE_BY_DEVICE_LOCK = false;
  bool logged_lowered_ SLUICE_BY_DEVICE_LOCK = false;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_MEMORY_FACTOR_H_
