// The engine's state of a CUDA context; it ends with the context.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_CONTEXT_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_CONTEXT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/engine/device/device_lock.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/execute/eviction_threads.h"
#include "hooklib/memory/arena_allocator.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct Context {
  CUcontext handle = nullptr;
  Device* device = nullptr;
  EventPool events;
  EventPool timing_events{CU_EVENT_DEFAULT};
  // Managed memory; device memory for small allocations (Device::AllocateUnevictable).
  std::unique_ptr<memory::ArenaAllocator> managed SLUICE_BY_DEVICE_LOCK, unevictable SLUICE_BY_DEVICE_LOCK;
  int arenas_returning SLUICE_BY_DEVICE_LOCK = 0;  // to the driver, which is being called
  bool is_ending SLUICE_BY_DEVICE_LOCK = false;    // its arenas are not returned: the driver frees them
  std::map<memory::Va, uint64_t> managed_arenas SLUICE_BY_DEVICE_LOCK, unevictable_arenas SLUICE_BY_DEVICE_LOCK;
  bool has_surplus SLUICE_BY_DEVICE_LOCK = false;         // a free may have left arenas that are wholly free
  CUstream housekeeping SLUICE_BY_DEVICE_LOCK = nullptr;  // populates and discards
  // Gates (DeviceStreams::Gate): how many there were, and an event behind all of them, on a stream of its own.
  uint64_t gates SLUICE_BY_DEVICE_LOCK = 0;
  CUevent gate SLUICE_BY_DEVICE_LOCK = nullptr;
  CUstream gate_stream SLUICE_BY_DEVICE_LOCK = nullptr;
  // Its queues carry transfers that no application stream asked for.
  Stream* engine_stream SLUICE_BY_DEVICE_LOCK = nullptr;
  // Work of other GPUs' streams in which memory of this context was freed; null: none was.
  Stream* peer_frees SLUICE_BY_DEVICE_LOCK = nullptr;
  eviction_threads::CellPage eviction_cells SLUICE_BY_DEVICE_LOCK;
  std::vector<eviction_threads::CellPage> spare_cells SLUICE_BY_DEVICE_LOCK;  // of its green contexts that ended
  int64_t raised_limit_bytes SLUICE_BY_DEVICE_LOCK = 0;  // by which its limits (heap, printf, stacks) were raised
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_CONTEXT_H_
