// Memory pools of the application: which of them the engine serves.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_POOLS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_POOLS_H_

#include <optional>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// The engine serves memory of pools of pinned device memory that no other process can open, and of managed pools. All
// other memory stays the driver's: host pools are written by the CPU, and memory of pools with a handle type is
// exported.
struct PoolTraits {
  CUdevice device = -1;  // whose memory it is, or that a managed pool prefers; -1: no device's
  bool is_served = false;
  bool is_managed = false;        // served on the stream's device, as the application's managed memory
  bool is_known = true;           // false: nothing is known of it, and its memory counts on the stream's device
  uint64_t max_bytes = 0;         // 0: no bound
  CUmemoryPool handle = nullptr;  // null: the device's default pool
};
inline constexpr PoolTraits kUnknownPool{-1, false, false, false};

// Bytes that the engine served from a pool. The driver's own counts do not hold them.
struct PoolUse {
  uint64_t current = 0;
  // Since their last reset: the application resets each alone. Freed memory is not counted as the pool's.
  uint64_t used_high = 0, reserved_high = 0;
  uint64_t most = 0;  // in use at once, since the pool was trimmed
  uint64_t release_threshold = 0;
  CUdevice device = -1;
};

// All thread-safe.
PoolTraits TraitsOf(CUmemoryPool pool, const CUmemPoolProps& properties);  // of a pool that was made with them
PoolTraits TraitsOf(const CUmemLocation& location, CUmemAllocationType type);
void NotePool(CUmemoryPool pool, PoolTraits traits);       // of a new handle: replaces earlier notes of it
void NoteKnownPool(CUmemoryPool pool, PoolTraits traits);  // of a pool that may have been noted with more detail
// Before a pool is destroyed: all that is known of its handle is taken away, and put back where the driver refuses.
struct KnownPool {
  std::optional<PoolTraits> traits;
  PoolUse use;
  std::vector<CUdevice> current_of;
};
KnownPool TakePool(CUmemoryPool pool);
void PutBackPool(CUmemoryPool pool, const KnownPool& known);
// A default pool is known by its handle, whichever call gave that out.
PoolTraits FindPool(CUmemoryPool pool);
// The pool that cuMemAllocAsync takes memory from on the device.
void SetCurrentPool(CUdevice device, CUmemoryPool pool);
PoolTraits CurrentPool(CUdevice device);  // the default pool, where the application set none

// Before a block of the size is served: false where the pool would exceed its largest size. If true, NoteServed or
// GiveBack must follow.
bool TakeFrom(const PoolTraits& pool, uint64_t bytes);
void GiveBack(const PoolTraits& pool, uint64_t bytes);
// A block that was served from the pool, in memory of the context `home`, until ForgetServed. Its pool may be destroyed
// before it.
void NoteServed(CUdeviceptr block, uint64_t bytes, const PoolTraits& pool, CUcontext home);
void ForgetServed(CUdeviceptr block);
CUmemoryPool PoolOf(CUdeviceptr block);  // null: served from none
bool AnyServedIn(CUcontext home);
PoolUse UseOf(CUmemoryPool pool);
void ResetHighUse(CUmemoryPool pool, CUmemPool_attribute mark);  // one of the two marks
void NoteReleaseThreshold(CUmemoryPool pool, uint64_t bytes);
void NoteTrim(CUmemoryPool pool, uint64_t kept);  // by cuMemPoolTrimTo
// Freed bytes that the driver would keep for the device's pools: as much as was in use at once, up to the release
// threshold (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
uint64_t KeptByPools(CUdevice device);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_POOLS_H_
