// What the driver itself counts of the managed memory that it moves: /dev/nvidia-uvm-tools, made for profiling tools.
// The driver adds to a page of this process' memory, and reading is reading that page. On an H200 counting costs
// nothing that can be measured; the records of single moves, which the same device offers, double the time of faults
// (experiments/probes/fault_events.cu), those of faults, which fault_records.h reads, add a third. Where the device is
// not there, may not be opened or speaks another language, nothing is counted and nothing breaks.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_DRIVER_COUNTERS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_DRIVER_COUNTERS_H_

#include <cstdint>
#include <string>

#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice {

class DriverCounts {
 public:
  explicit DriverCounts(const KernelSide& kernel) : kernel_(kernel) {}
  ~DriverCounts();
  DriverCounts(const DriverCounts&) = delete;
  DriverCounts& operator=(const DriverCounts&) = delete;

  // The driver counts from here on, for the card of this UUID, or for all where there is none. Tried once; waits for
  // nothing that the GPU does. False where it does not count; why() says why.
  bool Open(const unsigned char* uuid);
  bool counting() const { return page_ != nullptr; }
  const std::string& why() const { return why_; }
  uint64_t ToCard() const { return Get(kToCard); }  // bytes, from host memory
  uint64_t ToHost() const { return Get(kToHost); }  // bytes, from the card, whoever took their place
  uint64_t Faults() const { return Get(kFaults); }  // of kernels and copies

 private:
  enum Counter { kToCard = 0, kToHost = 1, kFaults = 9 };  // places in the page
  uint64_t Get(Counter counter) const { return __atomic_load_n(page_ + counter, __ATOMIC_RELAXED); }
  const KernelSide kernel_;
  bool tried_ = false;
  client::Descriptor device_;
  uint64_t* page_ = nullptr;
  std::string why_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_DRIVER_COUNTERS_H_
