// On which pages kernels fault: records that the driver writes to a queue of this process while they are enabled
// (/dev/nvidia-uvm-tools).
//
// On an H200 faults take a third longer meanwhile. A record is there as soon as the launch is over. It names the page
// that was touched, and not the pages that the driver brought with it; pages that were resident already have no record
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
  static constexpr uint32_t kRecords = 1 << 15;
  // `records`: how many the driver keeps at a time, a power of two. An H200 writes 4,769 for 64 MiB of faults.
  explicit FaultRecords(const DriverPort& port, uint32_t records = kRecords) : port_(port), records_(records) {}
  ~FaultRecords();
  FaultRecords(const FaultRecords&) = delete;
  FaultRecords& operator=(const FaultRecords&) = delete;

  // The driver records from here on, for the card of this UUID, or for all cards where it is null. False where it does
  // not: why() has the reason, and it is not asked again.
  bool Start(const unsigned char* uuid);
  void Stop();
  // Appends the pages of new records. Records beyond the queue's room are lost.
  void Drain(std::vector<uint64_t>* pages);
  // Whether any record was lost since Start.
  bool Lost() const;
  bool refused() const { return refused_; }
  const std::string& why() const { return why_; }

 private:
  struct Control;
  bool Open(const unsigned char* uuid);
  const DriverPort port_;
  const uint32_t records_;
  bool refused_ = false;
  client::Descriptor tracker_;
  Control* control_ = nullptr;
  char* queue_ = nullptr;
  size_t record_bytes_ = 0;
  uint64_t lost_at_start_ = 0;
  std::string why_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_FAULT_RECORDS_H_
