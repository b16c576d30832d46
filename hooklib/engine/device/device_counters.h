// The counters of a device (device_counters.cc), and logs of its work's accesses (device_placement_log.cc).
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_COUNTERS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_COUNTERS_H_

#include <optional>
#include <vector>

#include "hooklib/engine/device/device_streams.h"
#include "hooklib/libraries/extents/torch_kernels.h"

namespace sluice {

namespace client {
class AgentClient;
}

struct Work;

class DeviceCounters : public DeviceStreams {
 public:
  sluice_gpu_counters Counters() SLUICE_TAKES_DEVICE_LOCK;
  // Stores them in the page of the agent. Under the lock, since several threads do: the page never goes back.
  void Publish(client::AgentClient* agent) SLUICE_TAKES_DEVICE_LOCK;
  void LogDriverCounters() SLUICE_TAKES_DEVICE_LOCK;  // at DEBUG: the driver's own totals
  uint64_t Launches() SLUICE_TAKES_DEVICE_LOCK;       // kernels and graphs so far
  void NoteSecond() SLUICE_TAKES_DEVICE_LOCK;         // once a second: the bytes that lately were used
  // Work that is not planned is about to be queued, or was (policy/working_set/use_watch.h).
  void NoteUse(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  // Reads the driver's counts since the last time.
  void CountFaults() SLUICE_DEVICE_LOCKED;
  // Bytes that the driver evicted on its own, and bytes of faults; 0 where it does not count.
  policy::Pressure::Totals BytesMovedByDriver() const SLUICE_DEVICE_LOCKED;
  // At DEBUG: which chunks are where and why, when an iteration began.
  void LogPlacement(const Work& work) SLUICE_DEVICE_LOCKED;
  // A graph whose nodes name these: logged once where they exceed the capacity.
  void LogIfTooLarge(const std::vector<libraries::Reach>& reaches) SLUICE_TAKES_DEVICE_LOCK;
  // Which tracked ranges work touches (execute/access_set.cc).
  void Resolve(const Work& work, AccessSet* set) SLUICE_DEVICE_LOCKED;
  std::optional<memory::Extent> Resolve(const libraries::Reach& reach) SLUICE_DEVICE_LOCKED;

 protected:
  using DeviceStreams::DeviceStreams;
  uint64_t CountLaunches() const SLUICE_DEVICE_LOCKED;
  sluice_gpu_counters CountAll() SLUICE_DEVICE_LOCKED;
  void CountUsed() SLUICE_TAKES_DEVICE_LOCK;
  void StartCounting() SLUICE_DEVICE_LOCKED;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_COUNTERS_H_
