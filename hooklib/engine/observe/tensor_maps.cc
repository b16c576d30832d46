#include "hooklib/engine/observe/tensor_maps.h"

#include <cstring>
#include <string>
#include <unordered_map>

#include "common/mutex.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

std::array<std::atomic<bool>, 1024> g_tensor_map_begins{};

namespace {

constexpr size_t kMaxMaps = 1 << 14;  // programs make them anew for each call: at this many, all are forgotten

Mutex g_mutex;  // no other lock is taken inside
std::unordered_map<std::string, libraries::Reach>& Maps() SLUICE_REQUIRES(g_mutex) {
  static auto& maps = *new std::unordered_map<std::string, libraries::Reach>();
  return maps;
}

std::string ContentsAt(const void* at) { return {static_cast<const char*>(at), kTensorMapBytes}; }

void RememberMap(const void* map, const libraries::Reach& reach) {
  MutexLock lock(g_mutex);
  if (Maps().size() >= kMaxMaps) Maps().clear();
  Maps()[ContentsAt(map)] = reach;
  uint64_t first;
  std::memcpy(&first, map, sizeof first);
  g_tensor_map_begins[TensorMapSlot(first)].store(true, std::memory_order_relaxed);
}

uint64_t ElementBytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return 4;
    default:
      return 1;  // bytes, and types packed in less
  }
}

// After the driver made it, so that dimensions and strides are within its bounds (2^32, 2^40, rank 5).
CUresult NoteEncoded(CUresult result, const CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                     const void* address, const cuuint64_t* dims, const cuuint64_t* strides) {
  if (result != CUDA_SUCCESS || !map || !dims || rank == 0) return result;
  const auto base = reinterpret_cast<uintptr_t>(address);
  uint64_t bytes = dims[0] * ElementBytes(type);
  for (cuuint32_t i = 1; strides && i < rank; ++i) bytes += (dims[i] - 1) * strides[i - 1];
  try {
    RememberMap(map, {base, base, base + bytes});
  } catch (...) {
    return result;  // no host memory: its words are collected like any others
  }
  return result;
}

}  // namespace

std::optional<libraries::Reach> TensorMapAt(const void* at) {
  MutexLock lock(g_mutex);
  const auto it = Maps().find(ContentsAt(at));
  if (it == Maps().end()) return std::nullopt;
  return it->second;
}

namespace entry {

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return NoteEncoded(g_real.cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, box, steps, interleave,
                                                   swizzle, promotion, fill),
                     map, type, rank, address, dims, strides);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return NoteEncoded(g_real.cuTensorMapEncodeIm2col(map, type, rank, address, dims, strides, lower, upper, channels,
                                                    pixels, steps, interleave, swizzle, promotion, fill),
                     map, type, rank, address, dims, strides);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                     const cuuint64_t* dims, const cuuint64_t* strides, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
  return NoteEncoded(g_real.cuTensorMapEncodeIm2colWide(map, type, rank, address, dims, strides, lower, upper, channels,
                                                        pixels, steps, interleave, mode, swizzle, promotion, fill),
                     map, type, rank, address, dims, strides);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  const std::optional<libraries::Reach> before = map ? TensorMapAt(map) : std::nullopt;
  const CUresult result = g_real.cuTensorMapReplaceAddress(map, address);
  if (result != CUDA_SUCCESS || !before) return result;
  const auto base = reinterpret_cast<uintptr_t>(address);
  try {
    RememberMap(map, {base, base, base + (before->end - before->begin)});
  } catch (...) {
    return result;
  }
  return result;
}

// The same memory by another descriptor.
CUresult cuTensorMapSetAllocationClass(CUtensorMap* map, CUtensorMapAllocClass wanted, CUtensorMapAllocClass* given) {
  const std::optional<libraries::Reach> before = map ? TensorMapAt(map) : std::nullopt;
  const CUresult result = g_real.cuTensorMapSetAllocationClass(map, wanted, given);
  if (result != CUDA_SUCCESS || !before) return result;
  try {
    RememberMap(map, *before);
  } catch (...) {
    return result;
  }
  return result;
}

}  // namespace entry
}  // namespace sluice
