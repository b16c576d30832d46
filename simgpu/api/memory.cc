// Allocation, free, queries about memory, host memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../core/misuse.h"
#include "call.h"
#include "driver_port.h"
#include "ipc.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Sim;
using simgpu::TheDriver;

namespace simgpu {

Allocation* FindAllocation(CUdeviceptr p) { return Sim().memory().Find(p); }

bool FindPinned(uint64_t address, uint64_t* base, uint64_t* size) {
  auto& all = TheDriver().host_memory;
  auto it = all.upper_bound(address);
  if (it == all.begin()) return false;
  --it;
  if (address - it->first >= it->second.first) return false;
  *base = it->first;
  *size = it->second.first;
  return true;
}
bool IsPinned(uint64_t address) {
  uint64_t base, size;
  return FindPinned(address, &base, &size);
}

namespace {
CUresult AllocateIn(Call&, CUcontext context, CUdeviceptr* out, uint64_t bytes, MemoryKind kind) {
  NEED_ARG(out != nullptr && bytes != 0);
  NEED(bytes >> 56 == 0, CUDA_ERROR_OUT_OF_MEMORY);
  const uint64_t size = (bytes + 511) / 512 * 512;
  const uint64_t total = static_cast<uint64_t>(Sim().profile().memory);
  if (kind == MemoryKind::kUnmanaged) {
    if (size > total || !Sim().TakeUnmanaged(context->card, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    // Host memory limits managed memory; a few times the card's size is a plausible limit.
    const uint64_t host = 1ull << 40;
    if (size > host || Sim().memory().managed_requested + size > host) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const uint64_t address = Sim().memory().Reserve(size, kind == MemoryKind::kManaged ? simgpu::kGranuleBytes : 512);
  if (address == 0) {
    if (kind == MemoryKind::kUnmanaged) Sim().GiveUnmanaged(context->card, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation* a = Sim().memory().Add(address, kind == MemoryKind::kManaged ? bytes : size, kind, context->card);
  a->requested = bytes;
  a->owner = context;
  context->memory[address] = a;
  if (kind == MemoryKind::kManaged) Sim().memory().managed_requested += bytes;
  *out = address;
  return CUDA_SUCCESS;
}
}  // namespace

CUmemoryPool PoolOf(const Allocation& a) {
  return static_cast<CUmemoryPool>(a.kind == MemoryKind::kPool ? a.owner : a.pool);
}

CUresult FreeNow(CUdeviceptr p) {
  Allocation* a = FindAllocation(p);
  if (a == nullptr || a->base != p || a->kind == MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t size = (a->size + 511) / 512 * 512;
  if (a->kind == MemoryKind::kManaged) CheckLateRequests(p, a->size);
  if (a->owner != nullptr && a->kind != MemoryKind::kPool) static_cast<CUcontext>(a->owner)->memory.erase(p);
  if (a->kind == MemoryKind::kUnmanaged && a->counted) Sim().GiveUnmanaged(a->card, size);
  auto* const pool = PoolOf(*a);
  if (pool != nullptr && a->counted) {
    if (!a->is_freed) pool->used -= size;
    pool->reserved -= size;
    if (a->kind == MemoryKind::kPool) Sim().GiveUnmanaged(a->card, size);
  }
  if (a->kind == MemoryKind::kManaged) Sim().memory().managed_requested -= a->requested;
  Sim().memory().NoteFreed(*a, Sim().operations());
  {
    SharedState::Lock lock(Sim().state());
    Sim().memory().Remove(a);
  }
  Sim().memory().Unreserve(p, size);
  return CUDA_SUCCESS;
}

}  // namespace simgpu

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  return simgpu::AllocateIn(call, context, out, bytes, MemoryKind::kUnmanaged);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned int element) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(pitch != nullptr && width != 0 && height != 0 && (element == 4 || element == 8 || element == 16));
  NEED(width >> 56 == 0 && height < UINT64_MAX / (width + 511), CUDA_ERROR_OUT_OF_MEMORY);
  *pitch = (width + 511) / 512 * 512;
  return simgpu::AllocateIn(call, context, out, *pitch * height, MemoryKind::kUnmanaged);
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned int flags) {
  BEGIN_UNSAFE(Sim().profile().managed_malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
  return simgpu::AllocateIn(call, context, out, bytes, MemoryKind::kManaged);
}

CUresult cuMemFree_v2(CUdeviceptr p) {
  BEGIN_UNSAFE(Sim().profile().free_host_ns);
  CUcontext context = simgpu::CurrentContext();
  Allocation* a = simgpu::FindAllocation(p);
  if (context == nullptr && a == nullptr) return simgpu::NoContext();  // memory needs none (an H200, driver 580)
  if (p == 0) return CUDA_SUCCESS;
  NEED_ARG(a != nullptr && a->base == p && a->kind != MemoryKind::kMapped && !a->is_freed);
  NEED_ARG(!simgpu::IsOpenedMemory(p));  // another process' memory is closed, not freed.
  // The driver waits for all work of the block's context; of a pool's memory it takes that for done (programming guide,
  // stream-ordered memory allocator).
  Sim().CatchUp(call.lock);
  if (simgpu::PoolOf(*a) != nullptr) {
    Sim().CheckIdle(p, a->size, simgpu::SeenTime(), "freed");
  } else {
    const auto owner = static_cast<CUcontext>(a->owner);
    if (owner != nullptr) context = owner;
    if (context != nullptr) {
      simgpu::WaitFor(call, simgpu::OwnerOf(context), "a context (cuMemFree)");
      for (const simgpu::FencePtr& copy : std::vector<simgpu::FencePtr>(simgpu::OwnerOf(context)->peer_copies))
        Sim().WaitFence(call.lock, copy, "a copy of another context (cuMemFree)");
    }
  }
  return simgpu::FreeNow(p);
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  BEGIN(5000);
  NEED_CONTEXT();
  if (free != nullptr) *free = Sim().FreeBytes(context->card);
  if (total != nullptr) *total = static_cast<size_t>(Sim().profile().memory);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr p) {
  BEGIN(100);
  NEED_CONTEXT();
  uint64_t begin = 0, length = 0;
  if (const Allocation* a = simgpu::FindAllocation(p); a != nullptr) {
    begin = a->base;
    length = a->requested != 0 ? a->requested : a->size;
  } else {
    simgpu::FindPinned(p, &begin, &length);
  }
  NEED(p - begin < length, CUDA_ERROR_NOT_FOUND);
  if (base != nullptr) *base = begin;
  if (size != nullptr) *size = length;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned int flags) {
  BEGIN_UNSAFE(
      static_cast<int64_t>(10000 + (bytes >> 20) * static_cast<size_t>(Sim().profile().host_alloc_ns_per_mib)));
  NEED_CONTEXT();
  NEED_ARG(out != nullptr && bytes != 0);
  const size_t size = (bytes + 4095) / 4096 * 4096;
  void* p = std::aligned_alloc(4096, size);
  NEED(p != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
  std::memset(p, 0, std::min<size_t>(size, 4096));
  TheDriver().host_memory[reinterpret_cast<uint64_t>(p)] = {bytes, flags | 0x80000000u};
  *out = p;
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

CUresult cuMemFreeHost(void* p) {
  BEGIN_UNSAFE(20000);
  NEED_CONTEXT();
  if (p == nullptr) return CUDA_SUCCESS;
  auto it = TheDriver().host_memory.find(reinterpret_cast<uint64_t>(p));
  NEED_ARG(it != TheDriver().host_memory.end() && (it->second.second & 0x80000000u) != 0);
  for (int card = 0; card < Sim().profile().gpus; ++card)
    Sim().WaitContext(call.lock, nullptr, card, "a device (cuMemFreeHost)");
  TheDriver().host_memory.erase(it);
  std::free(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, size_t bytes, unsigned int flags) {
  BEGIN_UNSAFE(
      static_cast<int64_t>(10000 + (bytes >> 20) * static_cast<size_t>(Sim().profile().host_alloc_ns_per_mib)));
  NEED_CONTEXT();
  NEED_ARG(p != nullptr && bytes != 0);
  NEED(!simgpu::IsPinned(reinterpret_cast<uint64_t>(p)), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  TheDriver().host_memory[reinterpret_cast<uint64_t>(p)] = {bytes, flags};
  simgpu::OwnerOf(context)->registered.insert(reinterpret_cast<uint64_t>(p));
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void* p, size_t bytes, unsigned int flags) { return cuMemHostRegister_v2(p, bytes, flags); }

CUresult cuMemHostUnregister(void* p) {
  BEGIN_UNSAFE(20000);
  NEED_CONTEXT();
  auto it = TheDriver().host_memory.find(reinterpret_cast<uint64_t>(p));
  NEED(it != TheDriver().host_memory.end() && (it->second.second & 0x80000000u) == 0,
       CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  for (int card = 0; card < Sim().profile().gpus; ++card) Sim().WaitContext(call.lock, nullptr, card, "a device");
  for (CUcontext c : TheDriver().contexts) c->registered.erase(it->first);
  TheDriver().host_memory.erase(it);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* p, unsigned int flags) {
  BEGIN(100);
  NEED_ARG(out != nullptr && flags == 0);
  NEED_ARG(simgpu::IsPinned(reinterpret_cast<uint64_t>(p)));
  *out = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* p) {
  BEGIN(100);
  NEED_ARG(flags != nullptr);
  auto it = TheDriver().host_memory.find(reinterpret_cast<uint64_t>(p));
  NEED_ARG(it != TheDriver().host_memory.end());
  *flags = it->second.second & 0xFFFFu;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr p) {
  BEGIN(200);
  NEED_ARG(data != nullptr);
  Allocation* a = simgpu::FindAllocation(p);
  // The range of a reserved address is its reservation, by the driver's manual; it has one where nothing is mapped.
  if (uint64_t base = 0, size = 0; simgpu::FindReservation(p, &base, &size)) {
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(data) = base;
        return CUDA_SUCCESS;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<size_t*>(data) = size;
        return CUDA_SUCCESS;
      case CU_POINTER_ATTRIBUTE_MAPPED:
        *static_cast<int*>(data) = a != nullptr;
        return CUDA_SUCCESS;
      default:
        break;
    }
  }
  uint64_t host_base = 0, host_size = 0;
  const bool host = a == nullptr && simgpu::FindPinned(p, &host_base, &host_size);
  NEED_ARG(a != nullptr || host);
  const bool managed = a != nullptr && a->kind == MemoryKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Memory of a pool or a mapping belongs to no context: success, and none (H100, driver 580).
      *static_cast<CUcontext*>(data) = host ? simgpu::CurrentContext()
                                       : a->kind == MemoryKind::kUnmanaged || (managed && a->pool == nullptr)
                                           ? static_cast<CUcontext>(a->owner)
                                           : nullptr;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = p;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<void**>(data) = host || managed ? reinterpret_cast<void*>(p) : nullptr;
      NEED_ARG(host || managed);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = host ? host_base : a->buffer_id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<int*>(data) = managed;  // an H100's driver 580 writes four bytes for each yes or no
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<int*>(data) = managed || (a != nullptr && a->sync_memops);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = host ? 0 : simgpu::DeviceOf(a->card);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<int*>(data) = a != nullptr && a->kind == MemoryKind::kUnmanaged;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      *static_cast<int*>(data) = a != nullptr && simgpu::IsDecompressCapable(*a);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = host ? host_base : a->base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = host ? host_size : (a->requested != 0 ? a->requested : a->size);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<int*>(data) = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<unsigned*>(data) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<void**>(data) = a != nullptr ? simgpu::PoolOf(*a) : nullptr;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<size_t*>(data) = host ? host_size : a->size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(data) = host ? host_base : a->base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<unsigned long long*>(data) = host ? host_base : a->buffer_id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr p) {
  NEED_ARG(count != 0 && attributes != nullptr && data != nullptr);
  for (unsigned i = 0; i < count; ++i) {
    NEED_ARG(data[i] != nullptr);
    const CUresult r = cuPointerGetAttribute(data[i], attributes[i], p);
    if (r == CUDA_SUCCESS) continue;
    if (r != CUDA_ERROR_INVALID_VALUE) return r;
    // An attribute that does not apply to the pointer is empty here, not an error.
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *static_cast<unsigned*>(data[i]) = 0;
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(data[i]) = -2;
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      case CU_POINTER_ATTRIBUTE_MAPPED:
      case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *static_cast<int*>(data[i]) = 0;
        break;
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        // Of an address that the driver does not know, the address; H100, driver 580.
        if (simgpu::FindAllocation(p) == nullptr)
          *static_cast<CUdeviceptr*>(data[i]) = p;
        else
          *static_cast<CUdeviceptr*>(data[i]) = 0;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        break;
      default:
        *static_cast<uint64_t*>(data[i]) = 0;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr p) {
  BEGIN(200);
  Allocation* const a = simgpu::FindAllocation(p);
  NEED_ARG(value != nullptr && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && a != nullptr);
  a->sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
