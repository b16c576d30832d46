#include "uvm_tools.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "identity.h"

namespace simgpu {
namespace {

constexpr unsigned long kInit = 56, kInitLong = 76, kEnableRecords = 58, kDisableRecords = 59, kEnableCounters = 60,
                        kDisableCounters = 61;
constexpr uint32_t kInvalidArgument = 31, kNotSupported = 86;
constexpr unsigned kFault = 3;  // type of a record

struct InitArguments {
  uint64_t queue, records, page;
  uint8_t uuid[16];
  uint32_t all, space, status;
};
struct Flags {
  uint64_t bits;
  uint32_t status;
};
// Of a queue: the reader is at get, the writer at put.
struct Control {
  uint32_t get_ahead, get_behind, put_ahead, put_behind;
  uint64_t dropped[64];
};

bool IsSetTo(const char* what) {
  const char* value = std::getenv("SIMGPU_UVM_TOOLS");
  return value != nullptr && std::strcmp(value, what) == 0;
}

}  // namespace

int UvmTools::Open() {
  if (IsSetTo("0")) {
    errno = ENOENT;
    return -1;
  }
  return eventfd(0, EFD_CLOEXEC);  // a descriptor that the caller can close
}

int UvmTools::Control(int device, unsigned long request, void* argument) {
  const auto tracker = trackers_.find(device);
  switch (request) {
    case kInit:
    case kInitLong: {
      auto* init = static_cast<InitArguments*>(argument);
      init->status = kInvalidArgument;
      const bool power_of_two = (init->records & (init->records - 1)) == 0;
      if (init->page == 0 || !power_of_two || (init->queue == 0) != (init->records == 0)) return 0;
      init->status = kNotSupported;
      if (init->queue != 0 && IsSetTo("counters")) return 0;
      Tracker made{reinterpret_cast<uint64_t*>(init->page),
                   reinterpret_cast<char*>(init->queue),
                   static_cast<uint32_t>(init->records),
                   request == kInit ? 64u : 72u,
                   {},
                   init->all != 0,
                   0};
      std::memcpy(made.uuid, init->uuid, sizeof made.uuid);
      trackers_[device] = made;  // a descriptor that was closed and given again begins anew
      init->status = 0;
      return 0;
    }
    case kEnableRecords:
    case kDisableRecords:
    case kEnableCounters:
    case kDisableCounters: {
      auto* flags = static_cast<Flags*>(argument);
      const bool records = request == kEnableRecords || request == kDisableRecords;
      const bool right = tracker != trackers_.end() && (tracker->second.queue != nullptr) == records;
      flags->status = right ? 0 : kInvalidArgument;
      if (!right) return 0;
      uint64_t& enabled = tracker->second.enabled;
      const bool on = request == kEnableRecords || request == kEnableCounters;
      enabled = on ? enabled | flags->bits : enabled & ~flags->bits;
      return 0;
    }
    default:
      errno = EINVAL;
      return -1;
  }
}

bool UvmTools::IsOf(const Tracker& tracker, int card) {
  uint8_t uuid[16];
  UuidBytes(card, uuid);
  return tracker.all || std::memcmp(uuid, tracker.uuid, sizeof uuid) == 0;
}

void UvmTools::Count(int card, Counter counter, uint64_t amount) {
  for (auto& [device, tracker] : trackers_) {
    if (tracker.queue == nullptr && (tracker.enabled >> counter & 1) != 0 && IsOf(tracker, card))
      __atomic_fetch_add(tracker.page + counter, amount, __ATOMIC_RELAXED);
  }
}

bool UvmTools::Records(int card) const {
  for (const auto& [device, tracker] : trackers_) {
    if (tracker.queue != nullptr && (tracker.enabled >> kFault & 1) != 0 && IsOf(tracker, card)) return true;
  }
  return false;
}

void UvmTools::RecordFault(int card, uint64_t address) {
  for (auto& [device, tracker] : trackers_) {
    if (tracker.queue == nullptr || (tracker.enabled >> kFault & 1) == 0 || !IsOf(tracker, card)) continue;
    auto* control = reinterpret_cast<struct Control*>(tracker.page);
    const uint32_t at = control->put_behind, next = (at + 1) & (tracker.records - 1);
    if (next == __atomic_load_n(&control->get_behind, __ATOMIC_ACQUIRE)) {
      __atomic_fetch_add(&control->dropped[kFault], 1, __ATOMIC_RELAXED);
      continue;
    }
    char* record = tracker.queue + uint64_t{at} * tracker.record_bytes;
    std::memset(record, 0, tracker.record_bytes);
    *record = kFault;
    std::memcpy(record + 8, &address, sizeof address);
    control->put_ahead = next;
    __atomic_store_n(&control->put_behind, next, __ATOMIC_RELEASE);
  }
}

}  // namespace simgpu
