#include "hooklib/engine/observe/fault_records.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace sluice {

namespace {
constexpr unsigned kFaultType = 3;
constexpr size_t kLongRecordBytes = 72, kShortRecordBytes = 64, kAddressOffset = 8;
constexpr size_t kPageBytes = 4096;
}  // namespace

struct FaultRecords::Control {
  uint32_t get_ahead, get_behind, put_ahead, put_behind;
  uint64_t dropped[64];  // by type
};

FaultRecords::~FaultRecords() {
  tracker_.Close();
  if (control_) munmap(control_, kPageBytes);
  if (queue_) munmap(queue_, records_ * kLongRecordBytes);
}

bool FaultRecords::Open(const unsigned char* uuid) {
  if (tracker_.fd() >= 0) return true;
  static_assert(sizeof(Control) == 528);
  control_ = static_cast<Control*>(uvm_tools::SharedPages(kPageBytes));
  queue_ = static_cast<char*>(uvm_tools::SharedPages(records_ * kLongRecordBytes));
  if (!control_ || !queue_) {
    why_ = "no memory for its queue";
    return false;
  }
  uvm_tools::InitArguments arguments{};
  arguments.queue = reinterpret_cast<uint64_t>(queue_);
  arguments.queue_records = records_;
  arguments.page = reinterpret_cast<uint64_t>(control_);
  record_bytes_ = kLongRecordBytes;
  tracker_ = client::Descriptor(uvm_tools::Open(port_, uvm_tools::kInitLong, arguments, uuid, &why_));
  if (tracker_.fd() >= 0) return true;
  record_bytes_ = kShortRecordBytes;  // 535 knows no others
  tracker_ = client::Descriptor(uvm_tools::Open(port_, uvm_tools::kInit, arguments, uuid, &why_));
  return tracker_.fd() >= 0;
}

bool FaultRecords::Start(const unsigned char* uuid) {
  if (refused_) return false;
  if (!Open(uuid)) {
    refused_ = true;
    return false;
  }
  if (!uvm_tools::SetFlags(port_, tracker_, uvm_tools::kEnableRecords, uint64_t{1} << kFaultType)) {
    why_ = "it records no faults";
    refused_ = true;
    return false;
  }
  std::vector<uint64_t> before;
  Drain(&before);
  lost_at_start_ = __atomic_load_n(&control_->dropped[kFaultType], __ATOMIC_RELAXED);
  return true;
}

void FaultRecords::Stop() {
  uvm_tools::SetFlags(port_, tracker_, uvm_tools::kDisableRecords, uint64_t{1} << kFaultType);
}

void FaultRecords::Drain(std::vector<uint64_t>* pages) {
  uint32_t at = control_->get_behind;
  const uint32_t end = __atomic_load_n(&control_->put_behind, __ATOMIC_ACQUIRE);
  for (; at != end; at = (at + 1) & (records_ - 1)) {
    const char* const record = queue_ + size_t{at} * record_bytes_;
    if (static_cast<unsigned char>(*record) != kFaultType) continue;
    uint64_t address;
    std::memcpy(&address, record + kAddressOffset, sizeof address);
    address = address / kPageBytes * kPageBytes;
    if (pages->empty() || pages->back() != address) pages->push_back(address);
  }
  __atomic_store_n(&control_->get_ahead, end, __ATOMIC_RELAXED);
  __atomic_store_n(&control_->get_behind, end, __ATOMIC_RELEASE);
}

bool FaultRecords::Lost() const {
  return __atomic_load_n(&control_->dropped[kFaultType], __ATOMIC_RELAXED) != lost_at_start_;
}

}  // namespace sluice
