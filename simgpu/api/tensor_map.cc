// Descriptors of tensors.
#include <cstring>

#include "call.h"

namespace {

// Drivers require an alignment of 64 bytes. The type of CUDA 13's header is aligned to 128.
bool Aligned(const CUtensorMap* map) { return map != nullptr && reinterpret_cast<uintptr_t>(map) % 64 == 0; }

// Opaque, as the real one is: none of its words is the address.
CUresult EncodeTensorMap(CUtensorMap* map, int kind, CUtensorMapDataType type, cuuint32_t rank, void* address,
                         const cuuint64_t* dims, const cuuint64_t* strides) {
  NEED_ARG(Aligned(map) && address != nullptr && dims != nullptr && rank >= 1 && rank <= 5);
  NEED_ARG(rank == 1 || strides != nullptr);
  cuuint64_t words[sizeof *map / sizeof(cuuint64_t)] = {~reinterpret_cast<uintptr_t>(address)};
  words[1] = static_cast<cuuint64_t>(kind) << 16 | static_cast<cuuint64_t>(type) << 8 | rank;
  for (cuuint32_t i = 0; i < rank; ++i) words[2 + i] = dims[i];
  for (cuuint32_t i = 1; i < rank; ++i) words[8 + i] = strides[i - 1];
  std::memcpy(static_cast<void*>(map), words, sizeof words);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  BEGIN(200);
  return EncodeTensorMap(map, 0, type, rank, address, dims, strides);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  BEGIN(200);
  NEED_ARG(rank >= 3 && lower != nullptr && upper != nullptr && channels <= 256 && pixels <= 1024);
  return EncodeTensorMap(map, 1, type, rank, address, dims, strides);
}

// Exists only for later cards than the simulated one. A test of descriptors needs it all the same.
CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                     const cuuint64_t* dims, const cuuint64_t* strides, int, int, cuuint32_t channels,
                                     cuuint32_t pixels, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapIm2ColWideMode, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill) {
  BEGIN(200);
  NEED_ARG(rank >= 3 && channels <= 256 && pixels <= 1024);
  return EncodeTensorMap(map, 2, type, rank, address, dims, strides);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  BEGIN(200);
  NEED_ARG(Aligned(map) && address != nullptr);
  const cuuint64_t word = ~reinterpret_cast<uintptr_t>(address);
  std::memcpy(static_cast<void*>(map), &word, sizeof word);
  return CUDA_SUCCESS;
}

}  // extern "C"
