#include "hooklib/engine/device/graph_memory.h"

#include <algorithm>
#include <atomic>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"

namespace sluice::graph_memory {

namespace {

Mutex g_mutex;  // guards the map; no other lock is taken inside
Blocks& Left() SLUICE_REQUIRES(g_mutex) {
  static auto& blocks = *new Blocks();
  return blocks;
}
std::atomic<bool> g_any_left{false};  // some graph has left memory once

uint64_t LeftByOthers(CUdevice gpu, const Blocks& own) {
  if (!g_any_left.load(std::memory_order_acquire)) return 0;
  uint64_t bytes = 0;
  {
    MutexLock lock(g_mutex);
    for (const auto& [block, where] : Left()) {
      if (where.first == gpu && !own.contains(block)) bytes += where.second;
    }
  }
  // A reset may have ended blocks that were never freed.
  cuuint64_t used = UINT64_MAX;
  if (bytes && g_real.cuDeviceGetGraphMemAttribute)
    g_real.cuDeviceGetGraphMemAttribute(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
  return std::min<uint64_t>(bytes, used);
}

}  // namespace

bool Reserve(const Needs& needs) {
  return std::all_of(needs.peaks.begin(), needs.peaks.end(), [&needs](const auto& peak) {
    Device* const device = DeviceByOrdinal(peak.first);
    return !device || device->ReserveGraphMemory(peak.second, LeftByOthers(peak.first, needs.left));
  });
}

void NoteLaunched(const Needs& needs) {
  if (!needs.left.empty()) g_any_left.store(true, std::memory_order_release);
  if (!g_any_left.load(std::memory_order_acquire)) return;
  MutexLock lock(g_mutex);
  for (const CUdeviceptr block : needs.freed) Left().erase(block);
  for (const auto& [block, where] : needs.left) Left()[block] = where;
}

void NoteFreed(CUdeviceptr block) {
  if (!g_any_left.load(std::memory_order_acquire)) return;
  MutexLock lock(g_mutex);
  Left().erase(block);
}

void CountAgain(const BytesByGpu& peaks) {
  for (const auto& [gpu, bytes] : peaks) {
    if (Device* const device = DeviceByOrdinal(gpu)) device->CountGraphMemory();
  }
}

}  // namespace sluice::graph_memory
