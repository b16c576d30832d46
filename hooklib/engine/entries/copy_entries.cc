// Copies and memsets: work whose extents are known exactly.
#include <algorithm>
#include <array>
#include <atomic>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/block_ends.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/peers.h"
#include "hooklib/engine/entries/early_returns.h"
#include "hooklib/engine/entries/unplanned.h"
#include "hooklib/engine/execute/copy_contents.h"
#include "hooklib/engine/execute/copy_sides.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/trace_recording.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

namespace {

using memory::Extent;

Extent At(CUdeviceptr base, size_t bytes) { return {base, bytes}; }
Extent At(const void* base, size_t bytes) { return {reinterpret_cast<uintptr_t>(base), bytes}; }
// The destination of a memset; the largest extent where the product wraps, which no block holds.
Extent Values(CUdeviceptr base, size_t count, size_t bytes) {
  return {base, count > UINT64_MAX / bytes ? UINT64_MAX : count * bytes};
}
// The destination of a copy from the host: a batched library call may read its pointers there.
Extent FromHost(CUdeviceptr base, const void* host, size_t bytes) {
  if (MayBeTracked(base) && !MayBeTracked(reinterpret_cast<uintptr_t>(host))) NoteHostCopy(base, host, bytes);
  return {base, bytes};
}
// The source of a copy or memset; kNone: not one range, or a source that the driver may refuse.
enum class Source : uint8_t { kNone, kHost, kDevice, kValue };

// Whether the destination, the first extent, is overwritten whole. Only if the driver will accept the call: a refused
// one must leave the destination as it was.
bool OverwritesWhole(const std::array<Extent, 2>& touched, Source source) {
  const auto holds = [](const Extent& range) {
    const std::optional<TrackedAddress> block = FindTracked(range.base);
    return block && range.bytes <= block->base + block->allocation.bytes - range.base;
  };
  if (source == Source::kNone || touched[0].bytes < memory::kChunkBytes || !holds(touched[0])) return false;
  return source == Source::kDevice ? holds(touched[1]) : source == Source::kValue || touched[1].base != 0;
}

// Larger than any block: the driver refuses it, and it has too many chunks to look at.
bool IsImpossible(const std::array<Extent, 2>& touched) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
  return touched[0].bytes > kMaxBytes || touched[1].bytes > kMaxBytes;
}

// kMayWait: whether the call waits for the stream depends on the copy's sides.
enum class Call : uint8_t { kQueues, kMayWait };

bool IsHost(const Extent& side) {
  if (!side.base || !side.bytes || MayBeTracked(side.base)) return false;
  CUmemorytype type = CU_MEMORYTYPE_HOST;  // the driver does not know pageable memory
  const CUresult known = g_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, side.base);
  return known != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}

// A copy between contexts waits for the work of both.
bool IsCurrent(CUcontext context) {
  CUcontext current = nullptr;
  return g_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && context == current;
}

// Whether the driver's call returns behind the stream's earlier work: with copies to the host, and with copies of more
// than 64 KiB from it (CUDA programming guide, "Asynchronous concurrent execution").
bool WaitsForStream(const std::array<Extent, 2>& touched) {
  constexpr uint64_t kMaxQueuedBytes = 64 << 10;
  return IsHost(touched[0]) || (touched[1].bytes > kMaxQueuedBytes && IsHost(touched[1]));
}

// `touched`: the destination, then the source; extents that are not tracked are left out.
template <typename Issue>
CUresult RunCopy(Stream* stream, std::array<Extent, 2> touched, Source source, Issue issue, Call call = Call::kQueues) {
  const bool copy = source == Source::kHost || source == Source::kDevice;
  const bool is_planned = NeedsRunWork(stream);
  if (!is_planned) {
    // A smaller destination shares its chunk with others in any case.
    constexpr uint64_t kMinNotedBytes = 64 << 10;
    if (touched[0].bytes >= kMinNotedBytes && MayBeTracked(touched[0].base))
      stream->device->NoteUnplannedWrite(touched[0], copy);
  }
  KeepWhereAllocated(stream->device, touched[0], IsCapturing(*stream) ? Access::kAny : Access::kWriteNow);
  KeepWhereAllocated(stream->device, touched[1], Access::kAny);
  stream->copies.fetch_add(1, std::memory_order_relaxed);
  const bool is_watched = !is_planned && stream->device->watches_use.load(std::memory_order_relaxed);
  if (!is_planned && !is_watched) return RunCounted(stream, issue);
  Work work;
  work.stream = stream;
  work.copy = copy;
  work.read_only = touched[1].bytes && MayBeTracked(touched[1].base) ? 1 : 0;
  work.overwritten = is_planned && OverwritesWhole(touched, source) ? 1 : 0;
  work.waits = is_planned && call == Call::kMayWait && stream->legacy() && WaitsForStream(touched);
  std::swap(touched[0], touched[1]);
  size_t n = 0;
  for (const Extent& extent : touched) {
    if (extent.bytes && MayBeTracked(extent.base)) touched[n++] = extent;
  }
  work.exact = std::span(touched.data(), n);
  if (is_planned) return RunWork(work, issue);
  stream->device->NoteUse(work);
  return RunCounted(stream, issue);
}

// The application's call, with `touched` as above.
template <typename Issue>
CUresult Copy(CUstream handle, bool per_thread, const std::array<Extent, 2>& touched, Source source, Issue issue,
              Call call = Call::kQueues) {
  NoteQueued();
  Stream* const stream = FindStream(handle, per_thread);
  if (!stream || IsImpossible(touched)) return issue();
  if (ReachesPastItsBlock(touched[0]) || ReachesPastItsBlock(touched[1])) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = RunCopy(stream, touched, source, issue, call);
  if (result == CUDA_SUCCESS && touched[1].bytes) {
    const std::pair<Extent, Extent> one{touched[0], touched[1]};
    NoteCopied(stream, {&one, 1});
  }
  if (result == CUDA_SUCCESS && call == Call::kMayWait && (IsSynchronous(touched[0]) || IsSynchronous(touched[1]))) {
    RelaxedCapture relaxed;  // another stream's goes on; beside one of a blocking stream no call may wait
    const CUresult waited = g_real.cuStreamSynchronize(stream->handle);
    if (g_captures.load(std::memory_order_relaxed) == 0) result = waited;
  }
  NoteAnswer(stream->owner, result);
  return result;
}

void RecordCopy(CUstream handle, bool per_thread, const Extent& to, const Extent& from) {
  if (!Recording()) return;
  if (Stream* stream = FindStream(handle, per_thread)) {
    uint32_t flags = 0;
    if (!FindTracked(to.base)) flags |= 1;
    if (!FindTracked(from.base)) flags |= 2;
    g_recorder->Copy(TraceStream(*stream), to.base, from.base, to.bytes, flags);
  }
}

void WriteAnything() {
  for (const auto& device : Devices()) device->NoteUnknownWriter();
}

Source ValueFor(CUdeviceptr to, size_t element) { return to % element ? Source::kNone : Source::kValue; }

}  // namespace

bool IsCaptured(CUstream handle, bool per_thread) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return false;
  const Stream* const stream = FindStream(handle, per_thread);
  return stream && !stream->legacy() && QueryIsCapturing(*stream);
}

CUresult QueueUnplanned(CUstream handle, bool per_thread, const std::function<CUresult()>& issue) {
  return Copy(handle, per_thread, {Extent{}, Extent{}}, Source::kNone, [&] { return issue(); });
}

ContentsCopies::ContentsCopies() { g_real.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING); }
ContentsCopies::~ContentsCopies() {
  if (!stream_) return;
  g_real.cuStreamSynchronize(stream_);  // where a copy was refused, others may be under way
  RetireStream(stream_);
  g_real.cuStreamDestroy_v2(stream_);
}

// Found as no work of the application's: the copies wait for no event that its context awaits.
CUresult ContentsCopies::Copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  const auto issue = [&] { return g_real.cuMemcpyDtoDAsync_v2(to, from, bytes, stream_); };
  Stream* const stream = stream_ ? FindStream(stream_, false, false) : nullptr;
  return stream ? RunCopy(stream, {At(to, bytes), At(from, bytes)}, Source::kDevice, issue) : issue();
}

CUresult ContentsCopies::CopyFromHost(CUdeviceptr to, const void* from, size_t bytes) {
  const auto issue = [&] { return g_real.cuMemcpyHtoDAsync_v2(to, from, bytes, stream_); };
  Stream* const stream = stream_ ? FindStream(stream_, false, false) : nullptr;
  return stream ? RunCopy(stream, {FromHost(to, from, bytes), At(from, bytes)}, Source::kHost, issue) : issue();
}

CUresult ContentsCopies::CopyToHost(void* to, CUdeviceptr from, size_t bytes) {
  return g_real.cuMemcpyDtoHAsync_v2(to, from, bytes, stream_);
}

CUresult ContentsCopies::Await() { return g_real.cuStreamSynchronize(stream_ ? stream_ : CU_STREAM_LEGACY); }

namespace entry {

// SLUICE_COPY(name, parameters, arguments, stream, per-thread flavour, source, destination extent, source extent, call)
#define SLUICE_COPY(name, parameters, arguments, stream, flavour, origin, to, from, call)                  \
  CUresult name parameters {                                                                               \
    RecordCopy(stream, flavour, to, from);                                                                 \
    return Copy(stream, flavour, {to, from}, Source::origin, [&] { return g_real.name arguments; }, call); \
  }
#define SLUICE_COPY_SYNC(name, parameters, arguments, origin, to, from)                      \
  SLUICE_COPY(name, parameters, arguments, nullptr, false, origin, to, from, Call::kMayWait) \
  SLUICE_COPY(name##_ptds, parameters, arguments, nullptr, true, origin, to, from, Call::kMayWait)
#define SLUICE_COPY_ASYNC(name, parameters, arguments, origin, to, from)                   \
  SLUICE_COPY(name, parameters, arguments, stream, false, origin, to, from, Call::kQueues) \
  SLUICE_COPY(name##_ptsz, parameters, arguments, stream, true, origin, to, from, Call::kQueues)

// A synchronous copy that may be inside device memory.
#define SLUICE_COPY_INSIDE(name, flavour, asynchronous, stream)                                      \
  CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t n) {                                        \
    if (ReturnsEarly({At(dst, n), At(src, n)})) return entry::asynchronous(dst, src, n, stream);     \
    RecordCopy(nullptr, flavour, At(dst, n), At(src, n));                                            \
    const auto issue = [&] { return g_real.name(dst, src, n); };                                     \
    return Copy(nullptr, flavour, {At(dst, n), At(src, n)}, Source::kDevice, issue, Call::kMayWait); \
  }
SLUICE_COPY_INSIDE(cuMemcpy, false, cuMemcpyAsync, CU_STREAM_LEGACY)
SLUICE_COPY_INSIDE(cuMemcpy_ptds, true, cuMemcpyAsync_ptsz, CU_STREAM_PER_THREAD)
SLUICE_COPY_INSIDE(cuMemcpyDtoD_v2, false, cuMemcpyDtoDAsync_v2, CU_STREAM_LEGACY)
SLUICE_COPY_INSIDE(cuMemcpyDtoD_v2_ptds, true, cuMemcpyDtoDAsync_v2_ptsz, CU_STREAM_PER_THREAD)
SLUICE_COPY_ASYNC(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream),
                  kDevice, At(dst, n), At(src, n))
SLUICE_COPY_SYNC(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void* src, size_t n), (dst, src, n), kHost,
                 FromHost(dst, src, n), At(src, n))
SLUICE_COPY_ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void* src, size_t n, CUstream stream),
                  (dst, src, n, stream), kHost, FromHost(dst, src, n), At(src, n))
SLUICE_COPY_SYNC(cuMemcpyDtoH_v2, (void* dst, CUdeviceptr src, size_t n), (dst, src, n), kNone, At(dst, n), At(src, n))
SLUICE_COPY_ASYNC(cuMemcpyDtoHAsync_v2, (void* dst, CUdeviceptr src, size_t n, CUstream stream), (dst, src, n, stream),
                  kNone, At(dst, n), At(src, n))
SLUICE_COPY_ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream),
                  (dst, src, n, stream), kDevice, At(dst, n), At(src, n))
#define SLUICE_COPY_PEER(name, flavour, asynchronous, stream)                                      \
  CUresult name(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n) {        \
    if (IsCurrent(to) && IsCurrent(from) && ReturnsEarly({At(dst, n), At(src, n)}))                \
      return entry::asynchronous(dst, to, src, from, n, stream);                                   \
    RecordCopy(nullptr, flavour, At(dst, n), At(src, n));                                          \
    const auto issue = [&] { return g_real.name(dst, to, src, from, n); };                         \
    return Copy(nullptr, flavour, {At(dst, n), At(src, n)}, Source::kNone, issue, Call::kMayWait); \
  }
SLUICE_COPY_PEER(cuMemcpyPeer, false, cuMemcpyPeerAsync, CU_STREAM_LEGACY)
SLUICE_COPY_PEER(cuMemcpyPeer_ptds, true, cuMemcpyPeerAsync_ptsz, CU_STREAM_PER_THREAD)
SLUICE_COPY_ASYNC(cuMemcpyPeerAsync,
                  (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream stream),
                  (dst, to, src, from, n, stream), kNone, At(dst, n), At(src, n))
SLUICE_COPY_ASYNC(cuMemcpyWithAttributesAsync,
                  (CUdeviceptr dst, CUdeviceptr src, size_t n, CUmemcpyAttributes* attributes, CUstream stream),
                  (dst, src, n, attributes, stream), kNone, At(dst, n), At(src, n))
#define SLUICE_COPY_ARRAY(name, flavour, parameters, arguments, row, to, from)       \
  CUresult name parameters {                                                         \
    RecordCopy(nullptr, flavour, to, from);                                          \
    const CUDA_MEMCPY2D one = row;                                                   \
    if (const auto queued = QueueInstead(&one, flavour)) return *queued;             \
    const auto issue = [&] { return g_real.name arguments; };                        \
    return Copy(nullptr, flavour, {to, from}, Source::kNone, issue, Call::kMayWait); \
  }
#define SLUICE_COPY_TO_ARRAY(name, flavour)                                                                        \
  SLUICE_COPY_ARRAY(name, flavour, (CUarray dst, size_t offset, CUdeviceptr src, size_t n), (dst, offset, src, n), \
                    RowTo(dst, offset, src, n), Extent{}, At(src, n))
#define SLUICE_COPY_FROM_ARRAY(name, flavour)                                                                      \
  SLUICE_COPY_ARRAY(name, flavour, (CUdeviceptr dst, CUarray src, size_t offset, size_t n), (dst, src, offset, n), \
                    RowFrom(src, offset, dst, n), At(dst, n), Extent{})
SLUICE_COPY_TO_ARRAY(cuMemcpyDtoA_v2, false)
SLUICE_COPY_TO_ARRAY(cuMemcpyDtoA_v2_ptds, true)
SLUICE_COPY_FROM_ARRAY(cuMemcpyAtoD_v2, false)
SLUICE_COPY_FROM_ARRAY(cuMemcpyAtoD_v2_ptds, true)
// The host's side may be the application's managed memory.
SLUICE_COPY_SYNC(cuMemcpyHtoA_v2, (CUarray dst, size_t offset, const void* src, size_t n), (dst, offset, src, n), kNone,
                 Extent{}, At(src, n))
SLUICE_COPY_ASYNC(cuMemcpyHtoAAsync_v2, (CUarray dst, size_t offset, const void* src, size_t n, CUstream stream),
                  (dst, offset, src, n, stream), kNone, Extent{}, At(src, n))
SLUICE_COPY_SYNC(cuMemcpyAtoH_v2, (void* dst, CUarray src, size_t offset, size_t n), (dst, src, offset, n), kNone,
                 At(dst, n), Extent{})
SLUICE_COPY_ASYNC(cuMemcpyAtoHAsync_v2, (void* dst, CUarray src, size_t offset, size_t n, CUstream stream),
                  (dst, src, offset, n, stream), kNone, At(dst, n), Extent{})

#define SLUICE_COPY_BOX(name, argument, sides, stream, flavour, call)                                \
  {                                                                                                  \
    return Copy(stream, flavour, sides(argument), Source::kNone, [&] { return g_real.name; }, call); \
  }
#define SLUICE_BOX_SYNC(name, asynchronous, type, sides)                                    \
  CUresult name##_ptds(const type* c) {                                                     \
    if (ReturnsEarly(sides(c))) return entry::asynchronous##_ptsz(c, CU_STREAM_PER_THREAD); \
    SLUICE_COPY_BOX(name##_ptds(c), c, sides, nullptr, true, Call::kMayWait)                \
  }                                                                                         \
  CUresult name(const type* c) {                                                            \
    if (ReturnsEarly(sides(c))) return entry::asynchronous(c, CU_STREAM_LEGACY);            \
    SLUICE_COPY_BOX(name(c), c, sides, nullptr, false, Call::kMayWait)                      \
  }
#define SLUICE_BOX_ASYNC(name, type, sides)                                                               \
  CUresult name(const type* c, CUstream s) SLUICE_COPY_BOX(name(c, s), c, sides, s, false, Call::kQueues) \
  CUresult name##_ptsz(const type* c, CUstream s) SLUICE_COPY_BOX(name##_ptsz(c, s), c, sides, s, true, Call::kQueues)
SLUICE_BOX_SYNC(cuMemcpy2D_v2, cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, Sides)
SLUICE_BOX_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, Sides)
SLUICE_BOX_SYNC(cuMemcpy3D_v2, cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, Sides3D)
SLUICE_BOX_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, Sides3D)
SLUICE_BOX_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, Sides3D)
// It waits for other contexts' work, too.
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* c)
    SLUICE_COPY_BOX(cuMemcpy3DPeer(c), c, Sides3D, nullptr, false, Call::kMayWait)
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* c)
    SLUICE_COPY_BOX(cuMemcpy3DPeer_ptds(c), c, Sides3D, nullptr, true, Call::kMayWait)
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* c) {
  if (const auto queued = QueueInstead(c, false)) return *queued;
  SLUICE_COPY_BOX(cuMemcpy2DUnaligned_v2(c), c, Sides, nullptr, false, Call::kMayWait)
}
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* c) {
  if (const auto queued = QueueInstead(c, true)) return *queued;
  SLUICE_COPY_BOX(cuMemcpy2DUnaligned_v2_ptds(c), c, Sides, nullptr, true, Call::kMayWait)
}

// memsets. `element` bytes a value.
#define SLUICE_SET_1D(name, value_type, element)                                                         \
  CUresult name##_v2(CUdeviceptr dst, value_type v, size_t n) {                                          \
    if (ReturnsEarly({At(dst, n), {}})) return entry::name##Async(dst, v, n, CU_STREAM_LEGACY);          \
    return Copy(                                                                                         \
        nullptr, false, {Values(dst, n, element), {}}, ValueFor(dst, element),                           \
        [&] { return g_real.name##_v2(dst, v, n); }, Call::kMayWait);                                    \
  }                                                                                                      \
  CUresult name##_v2_ptds(CUdeviceptr dst, value_type v, size_t n) {                                     \
    if (ReturnsEarly({At(dst, n), {}})) return entry::name##Async_ptsz(dst, v, n, CU_STREAM_PER_THREAD); \
    return Copy(                                                                                         \
        nullptr, true, {Values(dst, n, element), {}}, ValueFor(dst, element),                            \
        [&] { return g_real.name##_v2_ptds(dst, v, n); }, Call::kMayWait);                               \
  }                                                                                                      \
  CUresult name##Async(CUdeviceptr dst, value_type v, size_t n, CUstream s) {                            \
    return Copy(s, false, {Values(dst, n, element), {}}, ValueFor(dst, element),                         \
                [&] { return g_real.name##Async(dst, v, n, s); });                                       \
  }                                                                                                      \
  CUresult name##Async_ptsz(CUdeviceptr dst, value_type v, size_t n, CUstream s) {                       \
    return Copy(s, true, {Values(dst, n, element), {}}, ValueFor(dst, element),                          \
                [&] { return g_real.name##Async_ptsz(dst, v, n, s); });                                  \
  }
SLUICE_SET_1D(cuMemsetD8, unsigned char, 1)
SLUICE_SET_1D(cuMemsetD16, unsigned short, 2)
SLUICE_SET_1D(cuMemsetD32, unsigned int, 4)

#define SLUICE_SET_2D(name, value_type, element)                                                                   \
  CUresult name##_v2(CUdeviceptr dst, size_t pitch, value_type v, size_t w, size_t h) {                            \
    if (ReturnsEarly({At(dst, 0), {}})) return entry::name##Async(dst, pitch, v, w, h, CU_STREAM_LEGACY);          \
    return Copy(                                                                                                   \
        nullptr, false, {Rows(dst, pitch, w * (element), h), {}}, Source::kNone,                                   \
        [&] { return g_real.name##_v2(dst, pitch, v, w, h); }, Call::kMayWait);                                    \
  }                                                                                                                \
  CUresult name##_v2_ptds(CUdeviceptr dst, size_t pitch, value_type v, size_t w, size_t h) {                       \
    if (ReturnsEarly({At(dst, 0), {}})) return entry::name##Async_ptsz(dst, pitch, v, w, h, CU_STREAM_PER_THREAD); \
    return Copy(                                                                                                   \
        nullptr, true, {Rows(dst, pitch, w * (element), h), {}}, Source::kNone,                                    \
        [&] { return g_real.name##_v2_ptds(dst, pitch, v, w, h); }, Call::kMayWait);                               \
  }                                                                                                                \
  CUresult name##Async(CUdeviceptr dst, size_t pitch, value_type v, size_t w, size_t h, CUstream s) {              \
    return Copy(s, false, {Rows(dst, pitch, w * (element), h), {}}, Source::kNone,                                 \
                [&] { return g_real.name##Async(dst, pitch, v, w, h, s); });                                       \
  }                                                                                                                \
  CUresult name##Async_ptsz(CUdeviceptr dst, size_t pitch, value_type v, size_t w, size_t h, CUstream s) {         \
    return Copy(s, true, {Rows(dst, pitch, w * (element), h), {}}, Source::kNone,                                  \
                [&] { return g_real.name##Async_ptsz(dst, pitch, v, w, h, s); });                                  \
  }
SLUICE_SET_2D(cuMemsetD2D8, unsigned char, 1)
SLUICE_SET_2D(cuMemsetD2D16, unsigned short, 2)
SLUICE_SET_2D(cuMemsetD2D32, unsigned int, 4)

// `writes`: notes its destinations.
#define SLUICE_COUNTED(name, parameters, arguments, writes, stream, flavour)       \
  CUresult name parameters {                                                       \
    if (!IsCaptured(stream, flavour)) (writes);                                    \
    return QueueUnplanned(stream, flavour, [&] { return g_real.name arguments; }); \
  }
#define SLUICE_COUNTED_ASYNC(name, parameters, arguments, writes)    \
  SLUICE_COUNTED(name, parameters, arguments, writes, stream, false) \
  SLUICE_COUNTED(name##_ptsz, parameters, arguments, writes, stream, true)
SLUICE_COUNTED_ASYNC(cuFabricCpyBatchAsync,
                     (size_t count, CUDA_FABRIC_COPY_BATCH_OP* list, unsigned long long flags, CUstream stream),
                     (count, list, flags, stream), WriteAnything())

}  // namespace entry
}  // namespace sluice
