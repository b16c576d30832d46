// Values that streams write and wait for: no range may be reused before, and a duplicate of the range ends. The driver
// refuses them in managed memory, where copies, memsets and waits for other words do the same.
#include <algorithm>

#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/block_ends.h"
#include "hooklib/engine/entries/unplanned.h"
#include "hooklib/engine/entries/value_nodes.h"
#include "hooklib/engine/execute/stream_values.h"
#include "hooklib/engine/execute/value_cells.h"
#include "hooklib/engine/execute/value_waits.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

namespace {

// A destination of work that is not planned.
void WriteOne(CUdeviceptr to, size_t bytes) {
  const std::optional<TrackedAddress> block = FindTracked(to);
  if (block) block->device->NoteUnplannedWrite({to, bytes}, false);
}
void WriteValues(const CUstreamBatchMemOpParams* list, unsigned count) {
  ForEachWritten(list, count, [](CUdeviceptr at) { WriteOne(at, 8); });
}

CUresult FillWord(CUstream stream, bool per_thread, CUdeviceptr at, unsigned value) {
  return (per_thread ? entry::cuMemsetD32Async_ptsz : entry::cuMemsetD32Async)(at, value, 1, stream);
}

// Both halves of 64 bits at once, by a copy: others read the word meanwhile. Where this process can pin no memory, one
// behind the other.
CUresult FillValue(CUstream handle, bool per_thread, CUdeviceptr at, uint64_t value, size_t bytes) {
  const Stream* const stream = FindStream(handle, per_thread);
  if (bytes == 8 && stream) {
    const auto copy = per_thread ? entry::cuMemcpyHtoDAsync_v2_ptsz : entry::cuMemcpyHtoDAsync_v2;
    CUresult result = value_cells::Send(*stream, handle, per_thread, value,
                                        [&](const void* from) { return copy(at, from, sizeof value, handle); });
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
    result = FillWord(handle, per_thread, at + 4, static_cast<unsigned>(value >> 32));
    if (result != CUDA_SUCCESS) return result;
  }
  return FillWord(handle, per_thread, at, static_cast<unsigned>(value));
}

// A wait in managed memory. In a graph no call replaces it: it fails as the driver says, and the log says why.
template <typename Real>
CUresult AwaitValue(CUstream handle, bool per_thread, const value_waits::Awaited& awaited, Real real) {
  const Stream* const stream = FindStream(handle, per_thread);
  if (stream && awaited.address % (awaited.is_wide ? 8 : 4) == 0 && !IsCapturing(*stream)) {
    const CUresult result =
        RunUnplanned(handle, per_thread, [&] { return value_waits::Queue(*stream, handle, per_thread, awaited); });
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  }
  const CUresult result = real();
  if (result == CUDA_ERROR_INVALID_VALUE) LogWaitRefused();
  return result;
}

bool IsNarrow(const CUstreamBatchMemOpParams& op) {
  return op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
}

constexpr unsigned kMaxBatch = 256;

bool IsKnownToDriver(CUdeviceptr at) {
  CUmemorytype type{};
  return g_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CUDA_SUCCESS;
}

// The driver refuses other batches before it queues anything of them.
bool IsTaken(const CUstreamBatchMemOpParams* list, unsigned count) {
  if (!list || count > kMaxBatch) return false;
  return std::all_of(list, list + count, [](const CUstreamBatchMemOpParams& op) {
    if (IsWrite(op) || IsWait(op))
      return op.writeValue.address % (IsNarrow(op) ? 4 : 8) == 0 &&
             (NamesManaged(op) || IsKnownToDriver(op.writeValue.address));
    return op.operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || op.operation == CU_STREAM_MEM_OP_BARRIER;
  });
}

template <typename Real>
CUresult OneByOne(CUstream stream, bool per_thread, unsigned count, CUstreamBatchMemOpParams* list, Real real) {
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& op = list[i];
    const uint64_t value = IsNarrow(op) ? op.writeValue.value : op.writeValue.value64;
    CUresult result;
    if (!NamesManaged(op)) {
      result = real(1, &list[i]);
    } else if (IsWrite(op)) {
      result = FillValue(stream, per_thread, op.writeValue.address, value, IsNarrow(op) ? 4 : 8);
    } else {
      result = AwaitValue(stream, per_thread, {op.waitValue.address, value, op.waitValue.flags, !IsNarrow(op)},
                          [&] { return real(1, &list[i]); });
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// The driver refuses it, wherever the block lies here.
bool IsRefused(CUdeviceptr at, size_t bytes) { return ReachesPastItsBlock({at, bytes}) || IsOfPool(at); }
bool AnyIsRefused(const CUstreamBatchMemOpParams* list, unsigned count) {
  const auto is_refused = [](const CUstreamBatchMemOpParams& op) {
    return (IsWrite(op) || IsWait(op)) && IsRefused(op.writeValue.address, sizeof(cuuint32_t));
  };
  return list && std::any_of(list, list + count, is_refused);
}

// A call of one write, which is captured.
CUresult CaptureWrite(CUstream stream, bool per_thread, CUdeviceptr at, uint64_t value, unsigned flags, size_t bytes,
                      const std::function<CUresult()>& real) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = bytes == 4 ? CU_STREAM_MEM_OP_WRITE_VALUE_32 : CU_STREAM_MEM_OP_WRITE_VALUE_64;
  op.writeValue.address = at;
  op.writeValue.value64 = value;
  op.writeValue.flags = flags;
  return CaptureValues(stream, per_thread, 1, &op, real);
}

}  // namespace

namespace entry {

#define SLUICE_WRITE_VALUE_OF(name, type, bytes, flavour)                                            \
  CUresult name(CUstream stream, CUdeviceptr at, type value, unsigned flags) {                       \
    const void* const caller = Caller();                                                             \
    if (IsRefused(at, bytes)) return CUDA_ERROR_INVALID_VALUE;                                       \
    const bool is_captured = IsCaptured(stream, flavour);                                            \
    const auto real = [&] {                                                                          \
      return QueueUnplanned(stream, flavour, [&] { return g_real.name(stream, at, value, flags); }); \
    };                                                                                               \
    if (is_captured && (IsManagedHere(at) || !CalledFromUnmanagedLibrary(caller)))                   \
      return CaptureWrite(stream, flavour, at, value, flags, bytes, real);                           \
    if (IsManagedHere(at) && at % (bytes) == 0) return FillValue(stream, flavour, at, value, bytes); \
    if (!is_captured) WriteOne(at, bytes);                                                           \
    return real();                                                                                   \
  }
#define SLUICE_WRITE_VALUE(name, type, bytes)     \
  SLUICE_WRITE_VALUE_OF(name, type, bytes, false) \
  SLUICE_WRITE_VALUE_OF(name##_ptsz, type, bytes, true)
SLUICE_WRITE_VALUE(cuStreamWriteValue32, cuuint32_t, 4)
SLUICE_WRITE_VALUE(cuStreamWriteValue32_v2, cuuint32_t, 4)
SLUICE_WRITE_VALUE(cuStreamWriteValue64, cuuint64_t, 8)
SLUICE_WRITE_VALUE(cuStreamWriteValue64_v2, cuuint64_t, 8)

#define SLUICE_BATCH_OF_VALUES_OF(name, flavour)                                                   \
  CUresult name(CUstream stream, unsigned count, CUstreamBatchMemOpParams* list, unsigned flags) { \
    const void* const caller = Caller();                                                           \
    if (AnyIsRefused(list, count)) return CUDA_ERROR_INVALID_VALUE;                                \
    const bool is_captured = IsCaptured(stream, flavour);                                          \
    const auto real = [&](unsigned n, CUstreamBatchMemOpParams* from) {                            \
      if (!is_captured) WriteValues(from, n);                                                      \
      return QueueUnplanned(stream, flavour, [&] { return g_real.name(stream, n, from, flags); }); \
    };                                                                                             \
    if (flags || count > kMaxBatch) return real(count, list);                                      \
    if (is_captured && (AnyNamesManaged(list, count) || !CalledFromUnmanagedLibrary(caller)))      \
      return CaptureValues(stream, flavour, count, list, [&] { return real(count, list); });       \
    if (!AnyNamesManaged(list, count) || !IsTaken(list, count)) return real(count, list);          \
    return OneByOne(stream, flavour, count, list, real);                                           \
  }
#define SLUICE_BATCH_OF_VALUES(name)     \
  SLUICE_BATCH_OF_VALUES_OF(name, false) \
  SLUICE_BATCH_OF_VALUES_OF(name##_ptsz, true)
SLUICE_BATCH_OF_VALUES(cuStreamBatchMemOp)
SLUICE_BATCH_OF_VALUES(cuStreamBatchMemOp_v2)

#define SLUICE_WAIT_VALUE_OF(name, type, flavour)                                                  \
  CUresult name(CUstream stream, CUdeviceptr at, type value, unsigned flags) {                     \
    const auto real = [&] {                                                                        \
      return RunUnplanned(stream, flavour, [&] { return g_real.name(stream, at, value, flags); }); \
    };                                                                                             \
    if (IsRefused(at, sizeof(type))) return CUDA_ERROR_INVALID_VALUE;                              \
    if (!IsManagedHere(at)) return real();                                                         \
    return AwaitValue(stream, flavour, {at, value, flags, sizeof(type) == 8}, real);               \
  }
#define SLUICE_WAIT_VALUE(name, type)     \
  SLUICE_WAIT_VALUE_OF(name, type, false) \
  SLUICE_WAIT_VALUE_OF(name##_ptsz, type, true)
SLUICE_WAIT_VALUE(cuStreamWaitValue32, cuuint32_t)
SLUICE_WAIT_VALUE(cuStreamWaitValue32_v2, cuuint32_t)
SLUICE_WAIT_VALUE(cuStreamWaitValue64, cuuint64_t)
SLUICE_WAIT_VALUE(cuStreamWaitValue64_v2, cuuint64_t)

}  // namespace entry
}  // namespace sluice
