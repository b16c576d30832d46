// The application's own prefetches and discards of managed memory: under pressure prefetches are hints, and the engine
// follows them as far as the budget allows. Prefetches to the host go to the driver as they are.
//
// A discard says that contents are not needed. The engine keeps those of tracked memory, which CUDA permits. Pages that
// are discarded beside the engine's own transfers, or before a planned prefetch, could lose later writes: an H200 lost
// writes that faulted on discarded pages (docs/lab).
#include <vector>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/device/range_notes.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/library_launches.h"

namespace sluice {

namespace {

// The tracked allocation that holds the whole range.
std::optional<TrackedAddress> BlockOf(CUdeviceptr pointer, size_t bytes) {
  if (!MayBeTracked(pointer)) return std::nullopt;
  const std::optional<TrackedAddress> block = FindTracked(pointer);
  if (block && bytes && bytes <= block->base + block->allocation.bytes - pointer) return block;
  return std::nullopt;
}

// As for memory of cuMemAlloc, which the driver neither prefetches nor discards, and for ranges that reach past their
// allocation: the arena's next bytes are another's.
bool IsRefused(CUdeviceptr pointer, size_t bytes) {
  const std::optional<TrackedAddress> block = FindTracked(pointer);
  if (!block) return IsFreeInArena(pointer);
  return !block->allocation.app_managed || bytes > block->base + block->allocation.bytes - pointer;
}

// The driver never gave it out. It judges the other arguments of a refused prefetch then, in its own order.
constexpr CUdeviceptr kUnknownPointer = 1;

bool IsPlanned(const Stream* stream, int to) {
  return stream && stream->device->ordinal == to && stream->device->active.load(std::memory_order_relaxed) &&
         !IsCapturing(*stream);
}

CUresult Plan(Stream* stream, CUdeviceptr pointer, size_t bytes) {
  NoteQueued();
  const memory::Extent range{pointer, bytes};
  Work work;
  work.stream = stream;
  work.exact = std::span(&range, 1);
  work.read_only = 1;
  const CUresult result = RunWork(work, [] { return CurrentFailure(); });
  KeepBarrier(stream);
  return result;
}

void NotePrefetch(const TrackedAddress& block, CUdeviceptr pointer, size_t bytes, CUmemLocation to) {
  NotePrefetchOf({pointer, bytes}, {block.base, block.allocation.bytes}, to);
}

// `is_known`: the call has no flags that this engine does not know.
template <typename Issue>
CUresult Prefetch(CUstream handle, bool per_thread, CUdeviceptr pointer, size_t bytes, CUmemLocation to, bool is_known,
                  Issue issue) {
  if (IsRefused(pointer, bytes))
    return RunUnplanned(handle, per_thread, [&] { return issue(kUnknownPointer, bytes ? 1 : 0); });
  const auto run = [&] { return issue(pointer, bytes); };
  const std::optional<TrackedAddress> block = BlockOf(pointer, bytes);
  // The driver refuses wrong ranges itself.
  if (!block) return RunUnplanned(handle, per_thread, run);
  Stream* const stream = FindStream(handle, per_thread);
  const bool is_planned = is_known && IsPlanned(stream, DeviceOf(to).value_or(-1)) && block->device == stream->device;
  const CUresult result = is_planned ? Plan(stream, pointer, bytes) : RunUnplanned(handle, per_thread, run);
  if (result == CUDA_SUCCESS) NotePrefetch(*block, pointer, bytes, to);
  return result;
}

// The ranges of a batch call, each with its location where the call has locations.
struct Batch {
  std::vector<CUdeviceptr> pointers;
  std::vector<size_t> sizes, indices;
  std::vector<CUmemLocation> locations;

  void Add(CUdeviceptr pointer, size_t bytes, const CUmemLocation* location) {
    pointers.push_back(pointer);
    sizes.push_back(bytes);
    if (!location) return;
    indices.push_back(locations.size());
    locations.push_back(*location);
  }
};

struct Locations {
  const CUmemLocation* list = nullptr;
  const size_t* indices = nullptr;
  size_t count = 0;
};

// As the manual asks for: the first range has the first location, and each location begins at a later range.
bool IsInOrder(const Locations& locations, size_t count) {
  if (!locations.list || !locations.indices || locations.count == 0 || locations.count > count) return false;
  for (size_t i = 0; i < locations.count; ++i) {
    if (i == 0 ? locations.indices[0] != 0 : locations.indices[i] <= locations.indices[i - 1]) return false;
  }
  return true;
}

// Splits a batch into tracked ranges and the driver's. False where the driver must judge the call as it is: nothing is
// tracked, or an argument is wrong.
bool Split(const CUdeviceptr* pointers, const size_t* sizes, size_t count, unsigned long long flags,
           const Locations* locations, Batch* tracked, Batch* others) {
  if (!pointers || !sizes || flags) return false;
  if (locations && !IsInOrder(*locations, count)) return false;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    while (locations && at + 1 < locations->count && locations->indices[at + 1] <= i) ++at;
    (BlockOf(pointers[i], sizes[i]) ? tracked : others)
        ->Add(pointers[i], sizes[i], locations ? &locations->list[at] : nullptr);
  }
  return !tracked->pointers.empty();
}

bool Refused(const CUdeviceptr* pointers, const size_t* sizes, size_t count) {
  for (size_t i = 0; pointers && i < count; ++i) {
    if (IsRefused(pointers[i], sizes ? sizes[i] : 0)) return true;
  }
  return false;
}

// Prefetches of tracked memory are planned where they can be; the rest is one call of the driver.
CUresult PrefetchTracked(CUstream handle, bool per_thread, Batch& tracked) {
  Stream* const stream = FindStream(handle, per_thread);
  Batch rest;
  for (size_t i = 0; i < tracked.pointers.size(); ++i) {
    const CUdeviceptr pointer = tracked.pointers[i];
    const std::optional<TrackedAddress> block = BlockOf(pointer, tracked.sizes[i]);
    if (block && IsPlanned(stream, DeviceOf(tracked.locations[i]).value_or(-1)) && block->device == stream->device) {
      const CUresult result = Plan(stream, pointer, tracked.sizes[i]);
      if (result != CUDA_SUCCESS) return result;
    } else {
      rest.Add(pointer, tracked.sizes[i], &tracked.locations[i]);
    }
  }
  if (rest.pointers.empty()) return CUDA_SUCCESS;
  const auto real = per_thread ? g_real.cuMemPrefetchBatchAsync_ptsz : g_real.cuMemPrefetchBatchAsync;
  return RunUnplanned(handle, per_thread, [&] {
    return real(rest.pointers.data(), rest.sizes.data(), rest.pointers.size(), rest.locations.data(),
                rest.indices.data(), rest.locations.size(), 0, handle);
  });
}

template <typename Real>
CUresult PrefetchBatch(CUdeviceptr* pointers, size_t* sizes, size_t count, CUmemLocation* list, size_t* indices,
                       size_t locations_count, unsigned long long flags, CUstream handle, bool per_thread, Real real) {
  if (Refused(pointers, sizes, count)) return CUDA_ERROR_INVALID_VALUE;
  const Locations locations{list, indices, locations_count};
  Batch tracked, others;
  if (!Split(pointers, sizes, count, flags, &locations, &tracked, &others)) {
    return RunUnplanned(handle, per_thread,
                        [&] { return real(pointers, sizes, count, list, indices, locations_count, flags, handle); });
  }
  if (!others.pointers.empty()) {
    const CUresult result = RunUnplanned(handle, per_thread, [&] {
      return real(others.pointers.data(), others.sizes.data(), others.pointers.size(), others.locations.data(),
                  others.indices.data(), others.locations.size(), flags, handle);
    });
    if (result != CUDA_SUCCESS) return result;
  }
  const CUresult result = PrefetchTracked(handle, per_thread, tracked);
  for (size_t i = 0; result == CUDA_SUCCESS && i < tracked.pointers.size(); ++i) {
    if (const auto block = BlockOf(tracked.pointers[i], tracked.sizes[i]))
      NotePrefetch(*block, tracked.pointers[i], tracked.sizes[i], tracked.locations[i]);
  }
  return result;
}

template <typename Real>
CUresult DiscardBatch(CUdeviceptr* pointers, size_t* sizes, size_t count, unsigned long long flags, CUstream handle,
                      bool per_thread, Real real) {
  if (Refused(pointers, sizes, count)) return CUDA_ERROR_INVALID_VALUE;
  Batch tracked, others;
  const bool is_legacy = handle == CU_STREAM_LEGACY || (handle == nullptr && !per_thread);
  if (is_legacy || !Split(pointers, sizes, count, flags, nullptr, &tracked, &others))
    return RunUnplanned(handle, per_thread, [&] { return real(pointers, sizes, count, flags, handle); });
  if (others.pointers.empty()) {
    unsigned stream_flags = 0;
    if (FindStream(handle, per_thread)) return CurrentFailure();
    return (per_thread ? g_real.cuStreamGetFlags_ptsz : g_real.cuStreamGetFlags)(handle, &stream_flags);
  }
  return RunUnplanned(handle, per_thread, [&] {
    return real(others.pointers.data(), others.sizes.data(), others.pointers.size(), flags, handle);
  });
}

}  // namespace

namespace entry {

#define SLUICE_PREFETCH_TO_DEVICE(name, per_thread)                                                      \
  CUresult name(CUdeviceptr pointer, size_t bytes, CUdevice to, CUstream stream) {                       \
    return Prefetch(stream, per_thread, pointer, bytes, LocationOf(to), true,                            \
                    [&](CUdeviceptr at, size_t length) { return g_real.name(at, length, to, stream); }); \
  }
#define SLUICE_PREFETCH_TO(name, per_thread)                                                                    \
  CUresult name(CUdeviceptr pointer, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream) {         \
    return Prefetch(stream, per_thread, pointer, bytes, to, flags == 0,                                         \
                    [&](CUdeviceptr at, size_t length) { return g_real.name(at, length, to, flags, stream); }); \
  }
SLUICE_PREFETCH_TO_DEVICE(cuMemPrefetchAsync, false)
SLUICE_PREFETCH_TO_DEVICE(cuMemPrefetchAsync_ptsz, true)
SLUICE_PREFETCH_TO(cuMemPrefetchAsync_v2, false)
SLUICE_PREFETCH_TO(cuMemPrefetchAsync_v2_ptsz, true)
#undef SLUICE_PREFETCH_TO_DEVICE
#undef SLUICE_PREFETCH_TO

// A discard with a prefetch is the prefetch, for tracked memory.
#define SLUICE_PREFETCH_BATCH(name, per_thread)                                                                     \
  CUresult name(CUdeviceptr* pointers, size_t* sizes, size_t count, CUmemLocation* list, size_t* indices,           \
                size_t locations, unsigned long long flags, CUstream stream) {                                      \
    return PrefetchBatch(pointers, sizes, count, list, indices, locations, flags, stream, per_thread, g_real.name); \
  }
SLUICE_PREFETCH_BATCH(cuMemPrefetchBatchAsync, false)
SLUICE_PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz, true)
SLUICE_PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync, false)
SLUICE_PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz, true)
#undef SLUICE_PREFETCH_BATCH

#define SLUICE_DISCARD_BATCH(name, per_thread)                                                                   \
  CUresult name(CUdeviceptr* pointers, size_t* sizes, size_t count, unsigned long long flags, CUstream stream) { \
    return DiscardBatch(pointers, sizes, count, flags, stream, per_thread, g_real.name);                         \
  }
SLUICE_DISCARD_BATCH(cuMemDiscardBatchAsync, false)
SLUICE_DISCARD_BATCH(cuMemDiscardBatchAsync_ptsz, true)
#undef SLUICE_DISCARD_BATCH

}  // namespace entry
}  // namespace sluice
