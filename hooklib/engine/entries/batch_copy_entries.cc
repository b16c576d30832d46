// Work that copies many ranges by one call.
#include <optional>
#include <vector>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/array_bytes.h"
#include "hooklib/engine/device/block_ends.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/peers.h"
#include "hooklib/engine/execute/copy_sides.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

namespace {

using memory::Extent;

// The ranges of one call, as far as it tells them.
class Batch {
 public:
  // `operation`: its number in the call.
  void Read(CUdeviceptr at, size_t bytes, size_t operation) {
    Add(&reads_, {at, bytes}, operation);
    copies_.push_back({Extent{}, Extent{at, bytes}});
    source_of_ = operation;
  }
  // After Read of the same operation.
  void Write(CUdeviceptr at, size_t bytes, size_t operation) {
    Add(&writes_, {at, bytes}, operation);
    if (source_of_ == operation) copies_.back().first = {at, bytes};
  }
  // From there on, no call says how far.
  void ReadFrom(CUdeviceptr at, size_t operation) { Read(at, RestOfBlock(at), operation); }
  void WriteFrom(CUdeviceptr at, size_t operation) { Write(at, RestOfBlock(at), operation); }

  // `failed`: where the call wants the number of an operation that is refused; may be null.
  template <typename Issue>
  CUresult Run(CUstream handle, bool per_thread, size_t* failed, Issue issue) {
    NoteQueued();
    Stream* const stream = FindStream(handle, per_thread);
    if (!stream || is_impossible_) return issue();
    if (refused_) {
      if (failed) *failed = *refused_;
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!IsCapturing(*stream)) NoteWrites();
    const Access writes = IsCapturing(*stream) ? Access::kAny : Access::kWriteNow;
    for (const Extent& range : reads_) KeepWhereAllocated(stream->device, range, Access::kAny);
    for (const Extent& range : writes_) KeepWhereAllocated(stream->device, range, writes);
    stream->copies.fetch_add(1, std::memory_order_relaxed);
    Work work;
    work.stream = stream;
    work.read_only = reads_.size();
    reads_.insert(reads_.end(), writes_.begin(), writes_.end());
    work.exact = reads_;
    const CUresult result = Queue(work, issue);
    if (result == CUDA_SUCCESS) NoteCopied(stream, copies_);
    NoteAnswer(stream->owner, result);
    return result;
  }

 private:
  static size_t RestOfBlock(CUdeviceptr at) {
    const auto block = MayBeTracked(at) ? FindTracked(at) : std::nullopt;
    return block ? block->base + block->allocation.bytes - at : 0;
  }
  void Add(std::vector<Extent>* list, Extent range, size_t operation) {
    // Larger than any block: the driver refuses it.
    constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
    is_impossible_ |= range.bytes > kMaxBytes;
    if (!refused_ && ReachesPastItsBlock(range)) refused_ = operation;
    if (range.bytes && MayBeTracked(range.base)) list->push_back(range);
  }
  template <typename Issue>
  static CUresult Queue(const Work& work, Issue issue) {
    if (NeedsRunWork(work.stream)) return RunWork(work, issue);
    if (work.stream->device->watches_use.load(std::memory_order_relaxed)) work.stream->device->NoteUse(work);
    return RunCounted(work.stream, issue);
  }
  void NoteWrites() const {
    for (const Extent& range : writes_) {
      if (const auto block = FindTracked(range.base)) block->device->NoteUnplannedWrite(range, false);
    }
  }

  std::vector<Extent> reads_, writes_;
  std::vector<std::pair<Extent, Extent>> copies_;  // destination, none if it is an array; source
  std::optional<size_t> source_of_;                // operation of the newest
  bool is_impossible_ = false;
  std::optional<size_t> refused_;
};

Batch Copies(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* bytes, size_t count) {
  Batch batch;
  for (size_t i = 0; to && from && bytes && i < count; ++i) {
    batch.Read(from[i], bytes[i], i);
    batch.Write(to[i], bytes[i], i);
  }
  return batch;
}

// In bytes where both sides are memory, in the array's elements beside an array; 0: of an unknown size.
uint64_t UnitOf(const CUDA_MEMCPY3D_BATCH_OP& copy) {
  uint64_t unit = 1;
  for (const CUmemcpy3DOperand* side : {&copy.src, &copy.dst}) {
    if (side->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) continue;
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    const bool is_known = g_real.cuArray3DGetDescriptor_v2 && side->op.array.array &&
                          g_real.cuArray3DGetDescriptor_v2(&shape, side->op.array.array) == CUDA_SUCCESS;
    unit = is_known ? ElementBytes(shape) : 0;
  }
  return unit;
}

Extent SideOf(const CUmemcpy3DOperand& operand, const CUextent3D& extent, uint64_t unit) {
  const auto& at = operand.op.ptr;
  return Side3D(at.ptr, (at.rowLength ? at.rowLength : extent.width) * unit, at.layerHeight, 0, 0, 0,
                extent.width * unit, extent.height, extent.depth);
}

Batch Copies3D(const CUDA_MEMCPY3D_BATCH_OP* list, size_t count) {
  Batch batch;
  for (size_t i = 0; list && i < count; ++i) {
    const uint64_t unit = UnitOf(list[i]);
    for (const CUmemcpy3DOperand* side : {&list[i].src, &list[i].dst}) {
      if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
      const Extent range = SideOf(*side, list[i].extent, unit);
      const bool is_source = side == &list[i].src;
      if (unit) {
        is_source ? batch.Read(range.base, range.bytes, i) : batch.Write(range.base, range.bytes, i);
      } else {
        is_source ? batch.ReadFrom(range.base, i) : batch.WriteFrom(range.base, i);
      }
    }
  }
  return batch;
}

// The expected size of the output is a hint that may be absent.
Batch Decompressions(const CUmemDecompressParams* list, size_t count) {
  Batch batch;
  for (size_t i = 0; list && i < count; ++i) {
    batch.Read(reinterpret_cast<uintptr_t>(list[i].src), list[i].srcNumBytes, i);
    batch.Write(reinterpret_cast<uintptr_t>(list[i].dstActBytes), list[i].dstActBytes ? sizeof(cuuint32_t) : 0, i);
    const auto to = reinterpret_cast<uintptr_t>(list[i].dst);
    if (list[i].dstNumBytes) {
      batch.Write(to, list[i].dstNumBytes, i);
    } else {
      batch.WriteFrom(to, i);
    }
  }
  return batch;
}

}  // namespace

namespace entry {

#define SLUICE_BATCH(name, parameters, arguments, batch, failed)                              \
  CUresult name parameters {                                                                  \
    return (batch).Run(stream, false, (failed), [&] { return g_real.name arguments; });       \
  }                                                                                           \
  CUresult name##_ptsz parameters {                                                           \
    return (batch).Run(stream, true, (failed), [&] { return g_real.name##_ptsz arguments; }); \
  }
SLUICE_BATCH(cuMemcpyBatchAsync,
             (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
              size_t* idxs, size_t numAttrs, size_t* failIdx, CUstream stream),
             (dsts, srcs, sizes, count, attrs, idxs, numAttrs, failIdx, stream), Copies(dsts, srcs, sizes, count),
             failIdx)
SLUICE_BATCH(cuMemcpyBatchAsync_v2,
             (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
              size_t* idxs, size_t numAttrs, CUstream stream),
             (dsts, srcs, sizes, count, attrs, idxs, numAttrs, stream), Copies(dsts, srcs, sizes, count), nullptr)
SLUICE_BATCH(cuMemcpy3DBatchAsync,
             (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx, unsigned long long flags,
              CUstream stream),
             (numOps, opList, failIdx, flags, stream), Copies3D(opList, numOps), failIdx)
SLUICE_BATCH(cuMemcpy3DBatchAsync_v2,
             (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags, CUstream stream),
             (numOps, opList, flags, stream), Copies3D(opList, numOps), nullptr)
SLUICE_BATCH(cuMemcpy3DWithAttributesAsync,
             (CUDA_MEMCPY3D_BATCH_OP * operation, unsigned long long flags, CUstream stream),
             (operation, flags, stream), Copies3D(operation, 1), nullptr)
SLUICE_BATCH(cuMemBatchDecompressAsync,
             (CUmemDecompressParams * list, size_t count, unsigned flags, size_t* failed, CUstream stream),
             (list, count, flags, failed, stream), Decompressions(list, count), failed)

}  // namespace entry
}  // namespace sluice
