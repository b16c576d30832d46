// The application's own prefetches of managed memory: under pressure they are hints, and the engine follows them as far
// as the budget allows. Prefetches to the host, and advice, go to the driver as they are.
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/library_launches.h"

namespace sluice {

namespace {

template <typename Issue>
CUresult Prefetch(CUstream handle, bool per_thread, CUdeviceptr pointer, size_t bytes, int to, Issue issue) {
  Stream* const stream = MayBeTracked(pointer) ? FindStream(handle, per_thread) : nullptr;
  if (!stream || stream->device->ordinal != to || !stream->device->active.load(std::memory_order_relaxed) ||
      IsCapturing(*stream))
    return RunUnplanned(handle, per_thread, issue);
  const std::optional<TrackedAddress> block = FindTracked(pointer);
  // The driver refuses wrong ranges itself.
  const bool is_whole_in_block =
      block && block->device == stream->device && bytes && bytes <= block->base + block->allocation.bytes - pointer;
  if (!is_whole_in_block) return RunUnplanned(handle, per_thread, issue);
  NoteQueued();
  const memory::Extent range{pointer, bytes};
  Work work;
  work.stream = stream;
  work.exact = std::span(&range, 1);
  work.read_only = 1;
  return RunWork(work, [] { return CUDA_SUCCESS; });
}

}  // namespace

namespace entry {

#define SLUICE_PREFETCH_TO_DEVICE(name, per_thread)                                                                   \
  CUresult name(CUdeviceptr pointer, size_t bytes, CUdevice to, CUstream stream) {                                    \
    return Prefetch(stream, per_thread, pointer, bytes, to, [&] { return g_real.name(pointer, bytes, to, stream); }); \
  }
#define SLUICE_PREFETCH_TO(name, per_thread)                                                            \
  CUresult name(CUdeviceptr pointer, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream) { \
    return Prefetch(stream, per_thread, pointer, bytes, flags ? -1 : DeviceOf(to).value_or(-1),         \
                    [&] { return g_real.name(pointer, bytes, to, flags, stream); });                    \
  }
SLUICE_PREFETCH_TO_DEVICE(cuMemPrefetchAsync, false)
SLUICE_PREFETCH_TO_DEVICE(cuMemPrefetchAsync_ptsz, true)
SLUICE_PREFETCH_TO(cuMemPrefetchAsync_v2, false)
SLUICE_PREFETCH_TO(cuMemPrefetchAsync_v2_ptsz, true)
#undef SLUICE_PREFETCH_TO_DEVICE
#undef SLUICE_PREFETCH_TO

}  // namespace entry
}  // namespace sluice
