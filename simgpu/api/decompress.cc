// The decompression engine. Data is not decompressed: the output is a stamp of the input, as a kernel's is.
#include "call.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;

namespace simgpu {

// By cuda.h: memory of cuMemAlloc, or memory that was made for it. Managed memory is not.
bool IsDecompressCapable(const Allocation& a) {
  if (a.kind == MemoryKind::kUnmanaged) return true;
  if (a.kind == MemoryKind::kPool)
    return (static_cast<CUmemoryPool>(a.owner)->props.usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0;
  return a.kind == MemoryKind::kMapped && (MappedProperties(a).allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS);
}

}  // namespace simgpu

namespace {

bool IsCapable(uint64_t address, uint64_t bytes) {
  const Allocation* a = simgpu::FindAllocation(address);
  return a != nullptr && simgpu::IsDecompressCapable(*a) && address + bytes <= a->base + a->size;
}

// Where no size is expected.
uint64_t OutputBytes(const CUmemDecompressParams& one) {
  return one.dstNumBytes != 0 ? one.dstNumBytes : 2 * one.srcNumBytes;
}

CUresult Check(const CUmemDecompressParams& one) {
  const bool is_known = one.algo == CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE ||
                        one.algo == CU_MEM_DECOMPRESS_ALGORITHM_SNAPPY || one.algo == CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
  NEED_ARG(is_known && one.srcNumBytes != 0 && one.srcNumBytes <= simgpu::kMaxDecompressedBytes);
  NEED_ARG(OutputBytes(one) <= 2 * simgpu::kMaxDecompressedBytes);
  NEED_ARG(IsCapable(reinterpret_cast<uint64_t>(one.src), one.srcNumBytes));
  NEED_ARG(IsCapable(reinterpret_cast<uint64_t>(one.dst), OutputBytes(one)));
  NEED_ARG(IsCapable(reinterpret_cast<uint64_t>(one.dstActBytes), sizeof(cuuint32_t)));
  return CUDA_SUCCESS;
}

}  // namespace

ENTRY(cuMemBatchDecompressAsync, _ptsz,
      (CUmemDecompressParams * list, size_t count, unsigned int flags, size_t* failed, CUstream s),
      (list, count, flags, failed, s)) {
  BEGIN(Sim().profile().copy_host_ns);
  if (failed != nullptr) *failed = SIZE_MAX;
  NEED_ARG(list != nullptr && count != 0 && flags == 0);
  NEED_STREAM(s);
  if (simgpu::Capturing(stream)) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  for (size_t i = 0; i < count; ++i) {
    const CUresult r = Check(list[i]);
    if (r == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return r;
  }
  for (size_t i = 0; i < count; ++i) {
    Op* op = Sim().NewOp(OpKind::kKernel);
    op->name = "decompression";
    op->duration = simgpu::Nanoseconds(OutputBytes(list[i]), 200);
    op->seed = static_cast<uint64_t>(list[i].algo);
    op->touches = {{reinterpret_cast<uint64_t>(list[i].src), list[i].srcNumBytes, 1, 0},
                   {reinterpret_cast<uint64_t>(list[i].dst), OutputBytes(list[i]), 2, 0},
                   {reinterpret_cast<uint64_t>(list[i].dstActBytes), sizeof(cuuint32_t), 2, 0}};
    const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_KERNEL);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}
