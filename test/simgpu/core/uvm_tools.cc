#include "uvm_tools.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "identity.h"

namespace simgpu {
namespace {

constexpr unsigned long kInit = 56, kEnable = 60;
constexpr uint32_t kInvalidArgument = 31;

struct InitArguments {
  uint64_t queue, records, page;
  uint8_t uuid[16];
  uint32_t all, space, status;
};
struct EnableArguments {
  uint64_t counters;
  uint32_t status;
};

}  // namespace

int UvmTools::Open() {
  const char* there = std::getenv("SIMGPU_UVM_TOOLS");
  if (there != nullptr && std::strcmp(there, "0") == 0) {
    errno = ENOENT;
    return -1;
  }
  return eventfd(0, EFD_CLOEXEC);  // a descriptor that the caller can close
}

int UvmTools::Control(int device, unsigned long request, void* argument) {
  const auto tracker = trackers_.find(device);
  if (request == kInit) {
    auto* init = static_cast<InitArguments*>(argument);
    init->status = kInvalidArgument;
    if (init->records != 0 || init->page == 0) return 0;  // queues of records are not simulated
    Tracker made{reinterpret_cast<uint64_t*>(init->page), {}, init->all != 0, 0};
    std::memcpy(made.uuid, init->uuid, sizeof made.uuid);
    trackers_[device] = made;
    init->status = 0;
    return 0;
  }
  if (request == kEnable) {
    auto* enable = static_cast<EnableArguments*>(argument);
    enable->status = tracker == trackers_.end() ? kInvalidArgument : 0;
    if (enable->status == 0) tracker->second.enabled |= enable->counters;
    return 0;
  }
  errno = EINVAL;
  return -1;
}

void UvmTools::Count(int card, Counter counter, uint64_t amount) {
  for (auto& [device, tracker] : trackers_) {
    uint8_t uuid[16];
    UuidBytes(card, uuid);
    if ((tracker.enabled >> counter & 1) == 0) continue;
    if (tracker.all || std::memcmp(uuid, tracker.uuid, sizeof uuid) == 0)
      __atomic_fetch_add(tracker.page + counter, amount, __ATOMIC_RELAXED);
  }
}

}  // namespace simgpu
