// One GPU in this process: its memory, its streams, its budget.
//
// It is built in layers, each a class that knows those below it and none above: its state, the container's limit,
// streams, counters, the budget, transfers, memory. This class makes it, and ends contexts.
//
// Lock order: Stream::order, then Device::mutex (the table in engine/README.md has all locks). Neither is held while
// the application's own call runs, except Stream::order around a launch and its event.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_

#include "hooklib/engine/device/device_memory.h"

namespace sluice {

struct Device final : DeviceMemory {
  explicit Device(CUdevice ordinal);

  // The context that memory of a pool is taken in, for a stream of `owner`: it is the device's, and outlives `owner`.
  // The primary context, which the engine retains until ReleasePrimary; where it is not active, one of the engine's
  // own. Null: the driver gives none.
  CUcontext PoolContext(CUcontext owner);
  // Before the application releases or resets the primary context. `anyway`: also where memory of a pool is left there.
  // True: the engine goes on retaining it.
  bool ReleasePrimary(bool anyway) SLUICE_TAKES_DEVICE_LOCK;
  bool RetainsPrimary() const { return retains_primary_.load(std::memory_order_acquire); }
  void ContextEnds(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;  // before it is destroyed
  // Before it may be destroyed, with its memory: its chunks are not evicted or discarded any more, and other
  // contexts' transfers of them are waited for, for two seconds at most. `ends`: it will be, as far as the engine
  // knows. Then transfers leave the memory out from here on, until DropContext, or ContextStays if it was not
  // destroyed. Memory that goes on being used must not be left out: writes to discarded pages would be lost.
  void EndTransfersOf(CUcontext handle, bool ends) SLUICE_TAKES_DEVICE_LOCK;
  void ContextStays(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;
  // Blocks of cuMemAlloc and its like in the context; none of a pool.
  std::vector<CUdeviceptr> BlocksOf(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;
  void DropContext(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;  // it is gone, with everything made in it
  // `peer` may use this GPU's memory from now on: pages stay here and are mapped there instead of moving to and fro.
  void AddPeer(CUdevice peer) SLUICE_TAKES_DEVICE_LOCK;
  // Work of a peer is about to write the range.
  void NoteWrittenByPeer(memory::Extent range) SLUICE_TAKES_DEVICE_LOCK;
  bool HasPeers() const SLUICE_DEVICE_LOCKED { return !peers_.empty(); }
  // The green context is about to be destroyed, while work of its streams may still run.
  void EndGreenContext(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;

 private:
  // For memory of pools; null: it is not active, and no green context is `owner`.
  CUcontext RetainPrimary(CUcontext owner);
  CUcontext OwnContext();
  // Whether another thread gives an arena of the context back to the driver.
  bool ReturnsArenas(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;
  // Whether streams of other contexts fetch, or evict, chunks of these arenas of the context.
  bool IsMovedElsewhere(CUcontext handle, const std::vector<memory::Extent>& arenas,
                        bool by_evictions) SLUICE_TAKES_DEVICE_LOCK;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_
