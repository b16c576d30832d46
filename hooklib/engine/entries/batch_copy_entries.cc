// Work that copies many ranges by one call.
#include <vector>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/execute/copy_sides.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

namespace {

using memory::Extent;

// The ranges of one call, as far as it tells them.
class Batch {
 public:
  void Read(CUdeviceptr at, size_t bytes) { Add(&reads_, {at, bytes}); }
  void Write(CUdeviceptr at, size_t bytes) { Add(&writes_, {at, bytes}); }
  // It also writes somewhere else.
  void WriteAnywhere() { is_known_ = false; }

  template <typename Issue>
  CUresult Run(CUstream handle, bool per_thread, Issue issue) {
    NoteQueued();
    Stream* const stream = FindStream(handle, per_thread);
    if (!stream || is_refused_) return issue();
    if (!IsCapturing(*stream)) NoteWrites();
    stream->copies.fetch_add(1, std::memory_order_relaxed);
    Work work;
    work.stream = stream;
    work.read_only = reads_.size();
    reads_.insert(reads_.end(), writes_.begin(), writes_.end());
    work.exact = reads_;
    if (NeedsRunWork(stream)) return RunWork(work, issue);
    if (stream->device->watches_use.load(std::memory_order_relaxed)) stream->device->NoteUse(work);
    return RunCounted(stream, issue);
  }

 private:
  void Add(std::vector<Extent>* list, Extent range) {
    // Larger than any block: the driver refuses it.
    constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
    is_refused_ |= range.bytes > kMaxBytes;
    if (range.bytes && MayBeTracked(range.base)) list->push_back(range);
  }
  void NoteWrites() const {
    for (const Extent& range : writes_) {
      if (const auto block = FindTracked(range.base)) block->device->NoteUnplannedWrite(range, false);
    }
    if (is_known_) return;
    for (const auto& device : Devices()) device->NoteUnknownWriter();
  }

  std::vector<Extent> reads_, writes_;
  bool is_known_ = true, is_refused_ = false;
};

Batch Copies(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* bytes, size_t count) {
  Batch batch;
  for (size_t i = 0; to && from && bytes && i < count; ++i) {
    batch.Read(from[i], bytes[i]);
    batch.Write(to[i], bytes[i]);
  }
  return batch;
}

Extent SideOf(const CUmemcpy3DOperand& operand, const CUextent3D& extent) {
  const auto& at = operand.op.ptr;
  return Side3D(at.ptr, at.rowLength ? at.rowLength : extent.width, at.layerHeight, 0, 0, 0, extent.width,
                extent.height, extent.depth);
}

Batch Copies3D(const CUDA_MEMCPY3D_BATCH_OP* list, size_t count) {
  Batch batch;
  for (size_t i = 0; list && i < count; ++i) {
    const bool is_plain =
        list[i].src.type == CU_MEMCPY_OPERAND_TYPE_POINTER && list[i].dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER;
    if (!is_plain) {
      batch.WriteAnywhere();  // beside an array, lengths count elements of its size
      continue;
    }
    const Extent from = SideOf(list[i].src, list[i].extent), to = SideOf(list[i].dst, list[i].extent);
    batch.Read(from.base, from.bytes);
    batch.Write(to.base, to.bytes);
  }
  return batch;
}

Batch Decompressions(const CUmemDecompressParams* list, size_t count) {
  Batch batch;
  for (size_t i = 0; list && i < count; ++i) {
    batch.Read(reinterpret_cast<uintptr_t>(list[i].src), list[i].srcNumBytes);
    batch.Write(reinterpret_cast<uintptr_t>(list[i].dst), list[i].dstNumBytes);
    batch.Write(reinterpret_cast<uintptr_t>(list[i].dstActBytes), list[i].dstActBytes ? sizeof(cuuint32_t) : 0);
  }
  return batch;
}

}  // namespace

namespace entry {

#define SLUICE_BATCH(name, parameters, arguments, batch)                            \
  CUresult name parameters {                                                        \
    return (batch).Run(stream, false, [&] { return g_real.name arguments; });       \
  }                                                                                 \
  CUresult name##_ptsz parameters {                                                 \
    return (batch).Run(stream, true, [&] { return g_real.name##_ptsz arguments; }); \
  }
SLUICE_BATCH(cuMemcpyBatchAsync,
             (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
              size_t* idxs, size_t numAttrs, size_t* failIdx, CUstream stream),
             (dsts, srcs, sizes, count, attrs, idxs, numAttrs, failIdx, stream), Copies(dsts, srcs, sizes, count))
SLUICE_BATCH(cuMemcpyBatchAsync_v2,
             (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
              size_t* idxs, size_t numAttrs, CUstream stream),
             (dsts, srcs, sizes, count, attrs, idxs, numAttrs, stream), Copies(dsts, srcs, sizes, count))
SLUICE_BATCH(cuMemcpy3DBatchAsync,
             (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx, unsigned long long flags,
              CUstream stream),
             (numOps, opList, failIdx, flags, stream), Copies3D(opList, numOps))
SLUICE_BATCH(cuMemcpy3DBatchAsync_v2,
             (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags, CUstream stream),
             (numOps, opList, flags, stream), Copies3D(opList, numOps))
SLUICE_BATCH(cuMemcpy3DWithAttributesAsync,
             (CUDA_MEMCPY3D_BATCH_OP * operation, unsigned long long flags, CUstream stream),
             (operation, flags, stream), Copies3D(operation, 1))
SLUICE_BATCH(cuMemBatchDecompressAsync,
             (CUmemDecompressParams * list, size_t count, unsigned flags, size_t* failed, CUstream stream),
             (list, count, flags, failed, stream), Decompressions(list, count))

}  // namespace entry
}  // namespace sluice
