// On which pages kernels fault: records that the driver writes to a queue of this process while they are asked for
// (/dev/nvidia-uvm-tools). On an H200 faults take a third longer meanwhile; a record is there as soon as the launch is
// over, names the page that was touched and not those that came beside it, and says nothing of what was there already
// (experiments/probes/fault_events.cu). Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_FAULT_RECORDS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_FAULT_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice {

class FaultRecords {
 public:
  explicit FaultRecords(const KernelSide& kernel) : kernel_(kernel) {}
  ~FaultRecords();
  FaultRecords(const FaultRecords&) = delete;
  FaultRecords& operator=(const FaultRecords&) = delete;

  // The driver records from here on, of the card of this UUID, or of all where there is none. False where it does not:
  // why() says why, and it is not asked again.
  bool Start(const unsigned char* uuid);
  void Stop();
  // Appends the pages of the records that have come. What the queue had no room for is lost.
  void Drain(std::vector<uint64_t>* pages);
  // Whether any was lost since Start.
  bool Lost() const;
  bool refused() const { return refused_; }
  const std::string& why() const { return why_; }

 private:
  struct Control;
  bool Open(const unsigned char* uuid);
  const KernelSide kernel_;
  bool refused_ = false;
  client::Descriptor device_;
  Control* control_ = nullptr;
  char* queue_ = nullptr;
  size_t record_bytes_ = 0;
  uint64_t lost_ = 0;  // at Start
  std::string why_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_FAULT_RECORDS_H_
