// The driver's own counters of the managed memory that it moves: /dev/nvidia-uvm-tools, made for profiling tools.
//
// The driver adds to a page of this process's memory, and reading is reading that page. On an H200 counting costs
// nothing measurable. The same device offers records: those of single moves double the time of faults
// (experiments/probes/fault_events.cu), those of faults (fault_records.h) add a third. Where the device is missing, may
// not be opened or has another layout, nothing is counted and nothing breaks.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_DRIVER_COUNTERS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_DRIVER_COUNTERS_H_

#include <cstdint>
#include <string>

#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice {

class DriverCounters {
 public:
  explicit DriverCounters(const DriverPort& port) : port_(port) {}
  ~DriverCounters();
  DriverCounters(const DriverCounters&) = delete;
  DriverCounters& operator=(const DriverCounters&) = delete;

  // The driver counts from here on, for the card of this UUID, or for all cards where it is null. Tried once; waits for
  // nothing that the GPU does. False where it does not count; why() has the reason.
  bool Open(const unsigned char* uuid);
  bool counting() const { return page_ != nullptr; }
  const std::string& why() const { return why_; }
  uint64_t BytesToDevice() const { return Get(kToDevice); }  // from host memory
  uint64_t BytesToHost() const { return Get(kToHost); }      // from the GPU, for whichever process needed the room
  uint64_t Faults() const { return Get(kFaults); }           // of kernels and copies

 private:
  enum Counter { kToDevice = 0, kToHost = 1, kFaults = 9 };  // places in the page
  uint64_t Get(Counter counter) const { return __atomic_load_n(page_ + counter, __ATOMIC_RELAXED); }
  const DriverPort port_;
  bool tried_ = false;
  client::Descriptor tracker_;
  uint64_t* page_ = nullptr;
  std::string why_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_DRIVER_COUNTERS_H_
