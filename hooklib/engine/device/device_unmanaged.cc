// Device: unmanaged memory that no allocation of the application's names: memory of graphs' own allocation nodes, and
// memory that a context's limits take.
#include <algorithm>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device_memory.h"

namespace sluice {

bool DeviceMemory::ReserveGraphMemory(uint64_t bytes, uint64_t left_by_others) {
  uint64_t more;
  {
    DeviceLock lock(mutex);
    // Graphs that do not run at once share the rest.
    const uint64_t needed = bytes + left_by_others;
    more = needed > graph_memory_bytes_ ? needed - graph_memory_bytes_ : 0;
  }
  if (more == 0) return true;
  if (!ReserveUnmanaged(more)) return false;
  DeviceLock lock(mutex);
  graph_memory_bytes_ += more;
  return true;
}

void DeviceMemory::CountGraphMemory() {
  uint64_t kept = 0;
  RelaxedCapture relaxed;
  if (!g_real.cuDeviceGetGraphMemAttribute ||
      g_real.cuDeviceGetGraphMemAttribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &kept) != CUDA_SUCCESS)
    return;
  {
    DeviceLock lock(mutex);
    if (kept == graph_memory_bytes_) return;
    CountUnmanaged(static_cast<int64_t>(kept - graph_memory_bytes_));
    graph_memory_bytes_ = kept;
    UpdateMode();
  }
  MakeRoom();
}

void DeviceMemory::NoteLimit(CUcontext handle, int64_t change, uint64_t reserved) {
  DeviceLock lock(mutex);
  Context* const context = ContextFor(handle);
  // A limit below its first value gives no room: those bytes are the context's own, which is not counted.
  const auto counted = [&]() SLUICE_DEVICE_LOCKED {
    return static_cast<uint64_t>(std::max<int64_t>(context->raised_limit_bytes, 0));
  };
  const uint64_t before = counted();
  context->raised_limit_bytes += change;
  CountUnmanaged(static_cast<int64_t>(counted() - before - reserved));
  UpdateMode();
}

}  // namespace sluice
