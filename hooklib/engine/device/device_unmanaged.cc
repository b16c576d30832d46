// Plain memory that no allocation of the application's names: what graphs allocate by nodes of their own, and what a
// context's limits cost.
#include <algorithm>
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/device.h"

namespace sluice {

bool Device::TakeGraphMemory(uint64_t bytes) {
  uint64_t more;
  {
    std::lock_guard lock(mutex);
    more = bytes > graph_memory_ ? bytes - graph_memory_ : 0;  // graphs that do not run at once share it
  }
  if (more == 0) return true;
  if (!TakeUnmanaged(more)) return false;
  std::lock_guard lock(mutex);
  graph_memory_ += more;
  return true;
}

void Device::CountGraphMemory() {
  uint64_t kept = 0;
  RelaxedCapture relaxed;
  if (!g_real.cuDeviceGetGraphMemAttribute ||
      g_real.cuDeviceGetGraphMemAttribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &kept) != CUDA_SUCCESS)
    return;
  {
    std::lock_guard lock(mutex);
    if (kept == graph_memory_) return;
    plain.fetch_add(kept - graph_memory_);
    graph_memory_ = kept;
    UpdateMode();
  }
  MakeRoom();
}

void Device::MakeRoom() {
  constexpr uint64_t kSlice = uint64_t{256} << 20;
  constexpr timespec kPause{0, 100'000};
  // The first look closes the fence that what was used lately leaves behind. What is in use for longer is the
  // follower's to send away.
  for (int in_vain = 0; in_vain < 5 && g_captures.load() == 0 && OverCapacity();) {
    if (Evict(kSlice) > 0) continue;
    ++in_vain;
    nanosleep(&kPause, nullptr);
  }
  if (OverCapacity()) WakeFollower();
}

void Device::NoteLimit(CUcontext handle, int64_t change, uint64_t taken) {
  std::lock_guard lock(mutex);
  Context* const context = ContextFor(handle);
  // Lower than at first gives nobody room: that is the context's own, which is not counted.
  const auto counted = [&] { return static_cast<uint64_t>(std::max<int64_t>(context->limits, 0)); };
  const uint64_t before = counted();
  context->limits += change;
  plain.fetch_add(counted() - before - taken);
  UpdateMode();
}

}  // namespace sluice
