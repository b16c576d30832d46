// Synchronous calls that return before their work is done. Thread-safe.
#ifndef SLUICE_HOOKLIB_ENGINE_ENTRIES_EARLY_RETURNS_H_
#define SLUICE_HOOKLIB_ENGINE_ENTRIES_EARLY_RETURNS_H_

#include <array>
#include <optional>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

// Whether a synchronous memset, or copy inside device memory, returns before its work is done: in memory that is
// managed only by the engine. The driver would wait for it (CUDA driver API, "API synchronization behavior"), and a
// program that releases the stream's earlier work behind its call would hang. Then the asynchronous call stands for it.
// A capture may refuse the one and take the other.
bool ReturnsEarly(const std::array<memory::Extent, 2>& touched);

// For a copy without an asynchronous form of its own. No value: the call itself has to be made, as where the driver
// answers CUDA_ERROR_INVALID_VALUE here. cuMemcpy2DUnaligned takes pitches that others refuse (CUDA driver API); a
// refused copy changes nothing.
std::optional<CUresult> QueueInstead(const CUDA_MEMCPY2D* c, bool per_thread);

// Copies of `n` bytes between device memory and an array, from `offset` bytes of its first row on.
inline CUDA_MEMCPY2D RowTo(CUarray array, size_t offset, CUdeviceptr from, size_t n) {
  return {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
          .srcDevice = from,
          .srcPitch = n,
          .dstXInBytes = offset,
          .dstMemoryType = CU_MEMORYTYPE_ARRAY,
          .dstArray = array,
          .WidthInBytes = n,
          .Height = 1};
}
inline CUDA_MEMCPY2D RowFrom(CUarray array, size_t offset, CUdeviceptr to, size_t n) {
  return {.srcXInBytes = offset,
          .srcMemoryType = CU_MEMORYTYPE_ARRAY,
          .srcArray = array,
          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
          .dstDevice = to,
          .dstPitch = n,
          .WidthInBytes = n,
          .Height = 1};
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_ENTRIES_EARLY_RETURNS_H_
