// The application's view of memory: sizes agree on the fraction, and tracked memory looks like device memory.
#include <cstring>

#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/block_ends.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/pools.h"
#include "hooklib/engine/device/virtual_memory.h"
#include "hooklib/engine/engine.h"

namespace sluice {

namespace {

// The application's own block around the address: of VMM memory, one mapping of several side by side.
memory::Extent BlockOf(const TrackedAddress& tracked, CUdeviceptr pointer) {
  const memory::Extent whole{tracked.base, tracked.allocation.bytes};
  if (!tracked.allocation.mapped) return whole;
  const auto mapping = virtual_memory::Find(pointer);
  return mapping ? mapping->range : whole;
}

// Attributes that differ for VMM memory.
std::optional<CUresult> AnswerMapped(CUpointer_attribute attribute, CUdeviceptr pointer, void* data) {
  const auto mapping = virtual_memory::Find(pointer);
  if (!mapping) return std::nullopt;
  auto put = [&](auto value) {
    std::memcpy(data, static_cast<const void*>(&value), sizeof(decltype(value)));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    // The range is the reservation (cuda.h), and the mapping a part of it.
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(static_cast<CUdeviceptr>(mapping->reservation.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(static_cast<size_t>(mapping->reservation.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(static_cast<CUdeviceptr>(mapping->range.base));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(static_cast<size_t>(mapping->range.bytes));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put(static_cast<unsigned long long>(mapping->id));
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(CUcontext{});  // it belongs to none: success, as an H100's driver 580 answers
    default:
      return std::nullopt;
  }
}

// Of an address that is in no block: in a reservation it has a range, and that nothing is mapped there; all else is
// asked about memory.
CUresult AnswerUnmapped(CUpointer_attribute attribute, CUdeviceptr pointer, void* data) {
  const auto reservation = virtual_memory::FindReservation(pointer);
  if (!reservation) return CUDA_ERROR_INVALID_VALUE;
  auto put = [&](auto value) {
    std::memcpy(data, static_cast<const void*>(&value), sizeof(decltype(value)));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(static_cast<CUdeviceptr>(reservation->base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(static_cast<size_t>(reservation->bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(0u);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The driver rounds its blocks up to so much.
constexpr uint64_t kBlockUnit = 512;

// Writes one attribute of a tracked pointer; nothing: the driver's answer is right. Yes and no are four bytes (an H100
// with driver 580).
std::optional<CUresult> Answer(const TrackedAddress& tracked, CUpointer_attribute attribute, CUdeviceptr pointer,
                               void* data) {
  const bool app_managed = tracked.allocation.app_managed;
  if (tracked.allocation.mapped) {
    if (const auto answer = AnswerMapped(attribute, pointer, data)) return answer;
  }
  auto put = [&](auto value) {
    std::memcpy(data, static_cast<const void*>(&value), sizeof(decltype(value)));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (app_managed) return std::nullopt;
      put(nullptr);
      return CUDA_ERROR_INVALID_VALUE;  // as for cuMemAlloc's memory
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(static_cast<unsigned>(app_managed));
    // A block counts as a mapping of its own, as in MAPPING_BASE_ADDR: the arena's would outlive it.
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(static_cast<unsigned long long>(tracked.allocation.id));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(static_cast<CUdeviceptr>(tracked.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(static_cast<size_t>(tracked.allocation.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(1u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(static_cast<int>(tracked.device->ordinal));
    // None of these works on memory that moves.
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(0u);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      if (app_managed) return std::nullopt;
      return put(static_cast<unsigned>(tracked.allocation.sync_memops));  // the driver's, of managed memory, is 1
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!tracked.allocation.stream_ordered) return std::nullopt;
      return put(CUcontext{});  // it belongs to its pool: success, as an H100's driver 580 answers
    // Of the block's, not the arena's mapping.
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(static_cast<CUdeviceptr>(tracked.base));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(static_cast<size_t>(app_managed ? tracked.allocation.bytes
                                                 : memory::RoundUp(tracked.allocation.bytes, kBlockUnit)));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(static_cast<unsigned long long>(0));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(tracked.allocation.stream_ordered ? PoolOf(tracked.base) : nullptr);
    default:
      return std::nullopt;
  }
}

CUresult MemInfo(size_t* free_bytes, size_t* total_bytes, CUresult (*real)(size_t*, size_t*)) {
  Device* device = CurrentDevice();
  if (!device || (!free_bytes && !total_bytes)) return real(free_bytes, total_bytes);
  size_t card_free = 0, card_total = 0;
  const CUresult result = real(&card_free, &card_total);
  if (result != CUDA_SUCCESS) return result;
  uint64_t total = 0, left = 0;
  device->View(&total, free_bytes ? &left : nullptr);
  if (total_bytes) *total_bytes = total;  // the driver takes either as null
  if (free_bytes) *free_bytes = left;
  return CUDA_SUCCESS;
}

}  // namespace

namespace entry {

CUresult cuInit(unsigned flags) {
  const CUresult result = g_real.cuInit(flags);
  if (result == CUDA_SUCCESS) EnsureStarted();
  return result;
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return MemInfo(free_bytes, total_bytes, g_real.cuMemGetInfo_v2);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  const CUresult result = g_real.cuDeviceTotalMem_v2(bytes, ordinal);
  if (result != CUDA_SUCCESS) return result;
  EnsureStarted();
  if (Device* device = DeviceByOrdinal(ordinal)) {
    uint64_t total = 0;
    device->View(&total, nullptr);
    *bytes = total;
  }
  return result;
}

// Memory that moves can be pinned by no other device, has no file descriptor, and is not decompressed into by hardware.
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  const void* const caller = Caller();
  const CUresult result = g_real.cuDeviceGetAttribute(value, attribute, ordinal);
  const bool needs_fixed_memory = attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED ||
                                  attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED ||
                                  attribute == CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK ||
                                  attribute == CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH ||
                                  static_cast<int>(attribute) == cuda_newer::kDmaBufMmapSupported ||
                                  static_cast<int>(attribute) == cuda_newer::kRdmaOfLocalizedMemory;
  if (result != CUDA_SUCCESS || !value || !needs_fixed_memory) return result;
  const Device* const device = DeviceByOrdinal(ordinal);
  // NCCL and others keep memory of their own, which stays the driver's.
  if (device && device->managed && !CalledFromUnmanagedLibrary(caller)) *value = 0;
  return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  const auto tracked = FindTracked(pointer);
  if (!tracked) {
    if (IsFreeInArena(pointer)) return CUDA_ERROR_NOT_FOUND;
    return g_real.cuMemGetAddressRange_v2(base, bytes, pointer);
  }
  CUcontext current = nullptr;
  if (g_real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current) return CUDA_ERROR_INVALID_CONTEXT;
  const memory::Extent block = BlockOf(*tracked, pointer);
  if (base) *base = block.base;
  if (bytes) *bytes = block.bytes;
  return CUDA_SUCCESS;
}

// As for cuMemAlloc's memory: the question is for managed memory alone.
CUresult cuMemGetLocationInfo(CUdeviceptr pointer, size_t bytes, size_t summary, size_t sampling, CUmemLocation* out) {
  const auto tracked = FindTracked(pointer);
  if (tracked && !tracked->allocation.app_managed) return CUDA_ERROR_INVALID_VALUE;
  return g_real.cuMemGetLocationInfo(pointer, bytes, summary, sampling, out);
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (data) {
    if (const auto tracked = FindTracked(pointer)) {
      if (const auto answer = Answer(*tracked, attribute, pointer, data)) return *answer;
    } else if (IsFreeInArena(pointer)) {
      return AnswerUnmapped(attribute, pointer, data);
    }
  }
  return g_real.cuPointerGetAttribute(data, attribute, pointer);
}

// Copies and memsets of the engine's (copy_entries.cc) heed it.
CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const auto tracked = MayBeTracked(pointer) ? FindTracked(pointer) : std::nullopt;
  if (!tracked && IsFreeInArena(pointer)) return CUDA_ERROR_INVALID_VALUE;
  if (!tracked || tracked->allocation.app_managed) return g_real.cuPointerSetAttribute(value, attribute, pointer);
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  unsigned set = 0;
  std::memcpy(&set, value, sizeof set);
  DeviceLock lock(tracked->device->mutex);
  memory::Va base = 0;
  if (memory::Allocation* const allocation = tracked->device->live.Find(pointer, &base))
    allocation->sync_memops = set != 0;
  if (set != 0) NoteSynchronousBlock();
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
  // As of a pointer that the driver never gave out.
  constexpr CUdeviceptr kUnknown = 1;
  if (IsFreeInArena(pointer)) {
    const CUresult result = g_real.cuPointerGetAttributes(count, attributes, data, kUnknown);
    for (unsigned i = 0; result == CUDA_SUCCESS && attributes && data && i < count; ++i) {
      if (data[i]) AnswerUnmapped(attributes[i], pointer, data[i]);
    }
    return result;
  }
  const CUresult result = g_real.cuPointerGetAttributes(count, attributes, data, pointer);
  if (result != CUDA_SUCCESS || !attributes || !data) return result;
  const auto tracked = FindTracked(pointer);
  if (!tracked) return result;
  for (unsigned i = 0; i < count; ++i) {
    if (!data[i]) continue;
    // This call reports an attribute without a value as a null, not as an error.
    if (Answer(*tracked, attributes[i], pointer, data[i]) == CUDA_ERROR_INVALID_VALUE)
      std::memset(data[i], 0, sizeof(void*));
  }
  return result;
}

}  // namespace entry
}  // namespace sluice
