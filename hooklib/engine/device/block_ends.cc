#include "hooklib/engine/device/block_ends.h"

#include <atomic>
#include <optional>

#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/virtual_memory.h"

namespace sluice {

bool ReachesPastItsBlock(memory::Extent range) {
  // The driver rounds its blocks up to so much.
  constexpr uint64_t kBlockUnit = 512;
  if (range.bytes == 0) return false;
  for (const auto& device : Devices()) {
    if (!device->MayHold(range.base)) continue;
    DeviceLock lock(device->mutex);
    memory::Va base = 0;
    if (const memory::Allocation* const block = device->live.Find(range.base, &base)) {
      if (range.bytes > base + memory::RoundUp(block->bytes, kBlockUnit) - range.base) return true;
      if (!block->mapped) return false;
      lock.Unlock();
      return virtual_memory::LacksRights(range);
    }
    if (device->residency.chunks().InArena(range.base)) return true;
  }
  return virtual_memory::IsUnmapped(range.base);
}

namespace {
std::atomic<bool> g_any_synchronous{false};
}  // namespace

bool IsSynchronous(memory::Extent range) {
  if (!g_any_synchronous.load(std::memory_order_relaxed) || !MayBeTracked(range.base)) return false;
  const std::optional<TrackedAddress> block = FindTracked(range.base);
  return block && block->allocation.sync_memops;
}
void NoteSynchronousBlock() { g_any_synchronous.store(true, std::memory_order_relaxed); }

}  // namespace sluice
