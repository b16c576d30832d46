// Copies that name arrays without a struct, and batches of 3D copies: each is a copy of copy.cc.
#include "array.h"

namespace {

enum class OperandKind { kHost, kDevice, kArray };

struct End {
  OperandKind kind;
  const void* host = nullptr;
  CUdeviceptr device = 0;
  CUarray array = nullptr;
  size_t offset = 0;
};
End Host(const void* p) { return {OperandKind::kHost, p}; }
End Device(CUdeviceptr p) { return {OperandKind::kDevice, nullptr, p}; }
End Array(CUarray array, size_t offset) { return {OperandKind::kArray, nullptr, 0, array, offset}; }

CUmemorytype TypeOf(OperandKind kind) {
  return kind == OperandKind::kHost     ? CU_MEMORYTYPE_HOST
         : kind == OperandKind::kDevice ? CU_MEMORYTYPE_DEVICE
                                        : CU_MEMORYTYPE_ARRAY;
}

// One row.
CUDA_MEMCPY2D Row(const End& to, const End& from, size_t bytes) {
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = TypeOf(from.kind);
  c.srcHost = from.host;
  c.srcDevice = from.device;
  c.srcArray = from.array;
  c.srcXInBytes = from.offset;
  c.dstMemoryType = TypeOf(to.kind);
  c.dstHost = const_cast<void*>(to.host);
  c.dstDevice = to.device;
  c.dstArray = to.array;
  c.dstXInBytes = to.offset;
  c.WidthInBytes = bytes;
  c.Height = 1;
  return c;
}

template <bool kPerThread>
CUresult Now(const CUDA_MEMCPY2D& c) {
  return kPerThread ? cuMemcpy2D_v2_ptds(&c) : cuMemcpy2D_v2(&c);
}
template <bool kPerThread>
CUresult Later(const CUDA_MEMCPY2D& c, CUstream s) {
  return kPerThread ? cuMemcpy2DAsync_v2_ptsz(&c, s) : cuMemcpy2DAsync_v2(&c, s);
}

// Sizes and offsets are elements of the array, or bytes where there is none.
CUresult FromBatch(const CUDA_MEMCPY3D_BATCH_OP& op, CUDA_MEMCPY3D* c) {
  simgpu::ArrayRows rows;
  uint64_t element = 1;
  for (const CUmemcpy3DOperand* side : {&op.src, &op.dst}) {
    NEED_ARG(side->type == CU_MEMCPY_OPERAND_TYPE_ARRAY || side->type == CU_MEMCPY_OPERAND_TYPE_POINTER);
    if (side->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) continue;
    if (const CUresult r = simgpu::FindArray(side->op.array.array, &rows); r != CUDA_SUCCESS) return r;
    element = rows.element;
  }
  c->WidthInBytes = op.extent.width * element;
  c->Height = op.extent.height;
  c->Depth = op.extent.depth;
  if (op.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    c->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    c->srcArray = op.src.op.array.array;
    c->srcXInBytes = op.src.op.array.offset.x * element;
    c->srcY = op.src.op.array.offset.y;
    c->srcZ = op.src.op.array.offset.z;
  } else {
    c->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    c->srcDevice = op.src.op.ptr.ptr;
    c->srcPitch = op.src.op.ptr.rowLength * element;
    c->srcHeight = op.src.op.ptr.layerHeight;
  }
  if (op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    c->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    c->dstArray = op.dst.op.array.array;
    c->dstXInBytes = op.dst.op.array.offset.x * element;
    c->dstY = op.dst.op.array.offset.y;
    c->dstZ = op.dst.op.array.offset.z;
  } else {
    c->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    c->dstDevice = op.dst.op.ptr.ptr;
    c->dstPitch = op.dst.op.ptr.rowLength * element;
    c->dstHeight = op.dst.op.ptr.layerHeight;
  }
  return CUDA_SUCCESS;
}

}  // namespace

#define ROW_NOW(name, params, arguments, to, from, n) \
  ENTRY(name, _ptds, params, arguments) { return Now<kPerThread>(Row(to, from, n)); }
#define ROW_LATER(name, params, arguments, to, from, n) \
  ENTRY(name, _ptsz, params, arguments) { return Later<kPerThread>(Row(to, from, n), s); }
ROW_NOW(cuMemcpyDtoA_v2, (CUarray a, size_t at, CUdeviceptr p, size_t n), (a, at, p, n), Array(a, at), Device(p), n)
ROW_NOW(cuMemcpyAtoD_v2, (CUdeviceptr p, CUarray a, size_t at, size_t n), (p, a, at, n), Device(p), Array(a, at), n)
ROW_NOW(cuMemcpyHtoA_v2, (CUarray a, size_t at, const void* p, size_t n), (a, at, p, n), Array(a, at), Host(p), n)
ROW_NOW(cuMemcpyAtoH_v2, (void* p, CUarray a, size_t at, size_t n), (p, a, at, n), Host(p), Array(a, at), n)
ROW_NOW(cuMemcpyAtoA_v2, (CUarray a, size_t at, CUarray b, size_t from, size_t n), (a, at, b, from, n), Array(a, at),
        Array(b, from), n)
ROW_LATER(cuMemcpyHtoAAsync_v2, (CUarray a, size_t at, const void* p, size_t n, CUstream s), (a, at, p, n, s),
          Array(a, at), Host(p), n)
ROW_LATER(cuMemcpyAtoHAsync_v2, (void* p, CUarray a, size_t at, size_t n, CUstream s), (p, a, at, n, s), Host(p),
          Array(a, at), n)

ENTRY(cuMemcpy3DBatchAsync, _ptsz,
      (size_t count, CUDA_MEMCPY3D_BATCH_OP* list, size_t* failed, unsigned long long flags, CUstream s),
      (count, list, failed, flags, s)) {
  if (failed != nullptr) *failed = SIZE_MAX;
  NEED_ARG(count != 0 && list != nullptr && flags == 0 && s != nullptr);
  std::vector<CUDA_MEMCPY3D> copies(count);
  {
    BEGIN(0);
    for (size_t i = 0; i < count; ++i) {
      CUresult r = FromBatch(list[i], &copies[i]);
      if (r == CUDA_SUCCESS) r = simgpu::CheckCopy3D(copies[i]);
      if (r == CUDA_SUCCESS) continue;
      if (failed != nullptr) *failed = i;
      return r;
    }
  }
  for (const CUDA_MEMCPY3D& c : copies) {
    const CUresult r = kPerThread ? cuMemcpy3DAsync_v2_ptsz(&c, s) : cuMemcpy3DAsync_v2(&c, s);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

ENTRY(cuMemcpy3DBatchAsync_v2, _ptsz,
      (size_t count, CUDA_MEMCPY3D_BATCH_OP* list, unsigned long long flags, CUstream s), (count, list, flags, s)) {
  return kPerThread ? cuMemcpy3DBatchAsync_ptsz(count, list, nullptr, flags, s)
                    : cuMemcpy3DBatchAsync(count, list, nullptr, flags, s);
}
