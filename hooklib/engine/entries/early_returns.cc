#include "hooklib/engine/entries/early_returns.h"

#include <algorithm>
#include <atomic>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/block_ends.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/execute/copy_sides.h"

namespace sluice {

namespace {

// Device memory that is not the engine's: a module's variables, memory of graphs.
bool IsDevice(CUdeviceptr at) {
  CUmemorytype type{};
  unsigned is_managed = 0, is_synchronous = 0;
  return g_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE &&
         g_real.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at) == CUDA_SUCCESS &&
         !is_managed &&
         g_real.cuPointerGetAttribute(&is_synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) == CUDA_SUCCESS &&
         !is_synchronous;
}

}  // namespace

bool ReturnsEarly(const std::array<memory::Extent, 2>& touched) {
  if (g_captures.load(std::memory_order_relaxed) != 0) return false;
  return std::all_of(touched.begin(), touched.end(), [](const memory::Extent& side) {
    if (!side.base) return true;
    if (!MayBeTracked(side.base)) return IsDevice(side.base);
    const std::optional<TrackedAddress> block = FindTracked(side.base);
    return block && !block->allocation.app_managed && !IsSynchronous(side);
  });
}

std::optional<CUresult> QueueInstead(const CUDA_MEMCPY2D* c, bool per_thread) {
  if (!c || !ReturnsEarly(Sides(c))) return std::nullopt;
  const CUresult result = per_thread ? entry::cuMemcpy2DAsync_v2_ptsz(c, CU_STREAM_PER_THREAD)
                                     : entry::cuMemcpy2DAsync_v2(c, CU_STREAM_LEGACY);
  return result == CUDA_ERROR_INVALID_VALUE ? std::nullopt : std::optional(result);
}

}  // namespace sluice
