// Advice and attachment of the application's managed memory. Both name ranges of an arena here: advice ends with the
// allocation that it was given for, and the whole allocation is the application's.
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/device/range_notes.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

namespace {

// The driver never gave it out. It judges the other arguments then, in its own order.
constexpr CUdeviceptr kUnknownPointer = 1;

template <typename Advise>
CUresult Advised(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location, Advise advise) {
  const auto tracked = MayBeTracked(pointer) ? FindTracked(pointer) : std::nullopt;
  // As for cuMemAlloc's memory, for memory that was freed, and for addresses behind an allocation.
  if (tracked ? !tracked->allocation.app_managed || bytes > tracked->base + tracked->allocation.bytes - pointer
              : IsFreeInArena(pointer))
    return advise(kUnknownPointer, bytes ? 1 : 0);
  const CUresult result = advise(pointer, bytes);
  if (result == CUDA_SUCCESS && tracked) {
    tracked->device->NoteAdvice({pointer, bytes}, advice, location);
    NoteAdviceOf({pointer, bytes}, {tracked->base, tracked->allocation.bytes}, advice, location);
  }
  return result;
}

// The driver attaches whole allocations only. Where the GPU and the CPU may use managed memory at the same time, which
// the engine requires, attachment restricts nothing: of a tracked block it is checked, and no call is made.
template <typename Attach>
CUresult AttachTo(CUstream stream, bool per_thread, CUdeviceptr pointer, size_t bytes, unsigned flags, Attach attach) {
  const auto tracked = MayBeTracked(pointer) ? FindTracked(pointer) : std::nullopt;
  if (!tracked && IsFreeInArena(pointer)) return CUDA_ERROR_INVALID_VALUE;
  // Of a stream that is not there the driver says so.
  Stream* const queue = tracked ? FindStream(stream, per_thread) : nullptr;
  if (!queue) return RunUnplanned(stream, per_thread, attach);
  const memory::Allocation& allocation = tracked->allocation;
  const bool is_whole = pointer == tracked->base && (bytes == 0 || bytes == allocation.bytes);
  const bool is_single = flags == CU_MEM_ATTACH_SINGLE;
  const bool is_known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || is_single;
  const bool is_legacy = stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
  if (!allocation.app_managed || !is_whole || !is_known || (is_single && is_legacy)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = RunUnplanned(stream, per_thread, [] { return CurrentFailure(); });
  if (queue->legacy()) KeepBarrier(queue);  // in another stream it does not wait for the legacy one
  return result;
}

}  // namespace

namespace entry {

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device) {
  return Advised(pointer, bytes, advice, LocationOf(device),
                 [&](CUdeviceptr at, size_t length) { return g_real.cuMemAdvise(at, length, advice, device); });
}
CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return Advised(pointer, bytes, advice, location,
                 [&](CUdeviceptr at, size_t length) { return g_real.cuMemAdvise_v2(at, length, advice, location); });
}
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags) {
  return AttachTo(stream, false, pointer, bytes, flags,
                  [&] { return g_real.cuStreamAttachMemAsync(stream, pointer, bytes, flags); });
}
CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags) {
  return AttachTo(stream, true, pointer, bytes, flags,
                  [&] { return g_real.cuStreamAttachMemAsync_ptsz(stream, pointer, bytes, flags); });
}

}  // namespace entry
}  // namespace sluice
