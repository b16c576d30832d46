// Allocation and free.
#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/graph_memory.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/device/pools.h"
#include "hooklib/engine/device/unmanaged.h"
#include "hooklib/engine/device/virtual_memory.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

namespace {

void RecordAlloc(trace::AllocKind kind, CUresult result, CUdeviceptr pointer, uint64_t bytes, uint64_t stream = 0) {
  if (Recording() && result == CUDA_SUCCESS) g_recorder->Alloc(kind, pointer, bytes, stream);
}

// Memory that the driver makes as the application asked, counted against the budget. `pooled`: it outlives its context.
template <typename Make>
CUresult AllocateUnmanaged(Device* device, uint64_t bytes, CUdeviceptr* pointer, bool pooled, Make make) {
  if (device && !device->ReserveUnmanaged(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make();
  if (device) {
    if (result == CUDA_SUCCESS) {
      CUcontext context = nullptr;
      if (!pooled) CurrentDevice(&context);
      RememberUnmanaged(*pointer, bytes, device, context);
    } else {
      device->ReleaseUnmanaged(bytes);
    }
  }
  return result;
}

template <typename Make>
CUresult Serve(const void* caller, CUdeviceptr* pointer, uint64_t bytes, Make make, const Stream* stream = nullptr,
               bool is_managed = false) {
  Device* device = CurrentDevice();
  if (!device || !pointer || bytes == 0) return make();
  if (const CUresult failure = CurrentFailure(); failure != CUDA_SUCCESS) return failure;
  const CUresult result = !device->managed || CalledFromUnmanagedLibrary(caller)
                              ? AllocateUnmanaged(device, bytes, pointer, stream != nullptr, make)
                              : device->Allocate(bytes, is_managed, pointer, stream ? stream->id : 0);
  const auto kind = is_managed ? trace::AllocKind::kManaged
                    : stream   ? trace::AllocKind::kAsync
                               : trace::AllocKind::kDevice;
  if (result == CUDA_SUCCESS) RecordAlloc(kind, result, *pointer, bytes, stream ? TraceStream(*stream) : 0);
  return result;
}

// Driver 580 frees managed memory in stream order only if it is a pool's (Device::Free). Without a stream it waits for
// the work of the block's context first.
template <typename Real>
CUresult Release(CUdeviceptr pointer, Real real, Stream* stream = nullptr) {
  if (const CUresult failure = CurrentFailure(); failure != CUDA_SUCCESS) return failure;
  if (Recording()) g_recorder->Free(pointer, stream ? TraceStream(*stream) : 0);
  for (const auto& device : Devices()) {
    if (!device->MayHold(pointer)) continue;
    if (!stream) {
      if (const CUresult failure = device->AwaitContextOf(pointer); failure != CUDA_SUCCESS) return failure;
    }
    const bool is_ordered = stream && stream->device == device.get();
    if (stream && !is_ordered) device->NotePeerFree(*stream, pointer);
    const auto result = device->Free(pointer, is_ordered ? stream->id : 0, stream != nullptr);
    if (result && stream && *result == CUDA_SUCCESS) KeepBarrier(stream);
    if (result) return *result;
  }
  // The driver would free the whole reservation, which is managed memory.
  if (virtual_memory::IsUnmapped(pointer)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = ReleaseUnmanaged(pointer, real);
  if (result == CUDA_SUCCESS) graph_memory::NoteFreed(pointer);
  return result;
}

// Stream-ordered. Memory of another device's pool, and of pools that are not served, stays the driver's.
template <typename Real>
CUresult ServeFromPool(const void* caller, CUdeviceptr* pointer, uint64_t bytes, PoolTraits pool, const Stream* stream,
                       Real real) {
  if (!pointer || bytes == 0 || IsCapturing(*stream)) return real();
  if (pool.is_served && (pool.is_managed || pool.device == stream->device->ordinal)) {
    // The engine allocates on the current device, which need not be the stream's.
    if (const CUcontext home = stream->device->PoolContext(stream->owner)) {
      const ContextScope scope(home);
      if (!TakeFrom(pool, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
      const CUresult result = Serve(caller, pointer, bytes, real, stream, pool.is_managed);
      if (result == CUDA_SUCCESS && MayBeTracked(*pointer)) {
        NoteServed(*pointer, bytes, pool, home);
      } else {
        GiveBack(pool, bytes);
      }
      return result;
    }
  }
  Device* const device = !pool.is_known ? stream->device : pool.device < 0 ? nullptr : DeviceByOrdinal(pool.device);
  return AllocateUnmanaged(device, bytes, pointer, true, real);
}

// The driver never gave it out. It answers for the stream then: no such one, or one that captures, where only memory of
// the graph can be freed.
constexpr CUdeviceptr kUnknownPointer = 1;

}  // namespace

namespace entry {

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return Serve(Caller(), pointer, bytes, [&] { return g_real.cuMemAlloc_v2(pointer, bytes); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned element) {
  const void* const caller = Caller();
  // As the driver does: rows at multiples of its texture alignment.
  constexpr size_t kPitch = 512;
  auto real = [&] { return g_real.cuMemAllocPitch_v2(pointer, pitch, width, height, element); };
  if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return real();
  const size_t row = memory::RoundUp(width, kPitch);
  size_t bytes = 0;
  if (row < width || __builtin_mul_overflow(row, height, &bytes)) return real();
  Device* device = CurrentDevice();
  const bool served = device && device->managed && !CalledFromUnmanagedLibrary(caller);
  const CUresult result = Serve(caller, pointer, bytes, real);
  if (result == CUDA_SUCCESS && served) *pitch = row;
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned flags) {
  auto real = [&] { return g_real.cuMemAllocManaged(pointer, bytes, flags); };
  Device* device = CurrentDevice();
  if (!device || !pointer || bytes == 0) return real();
  if (const CUresult failure = CurrentFailure(); failure != CUDA_SUCCESS) return failure;
  CUresult result;
  // Attachment restricts nothing here (advice_entries.cc): memory that begins as the host's alone is served, too.
  const bool is_known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
  if (is_known && device->managed) {
    result = device->Allocate(bytes, true, pointer);
  } else {
    if (device->ExceedsManagedLimit(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = AllocateUnmanaged(device, bytes, pointer, false, real);
  }
  RecordAlloc(trace::AllocKind::kManaged, result, result == CUDA_SUCCESS ? *pointer : 0, bytes);
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return Release(pointer, [&] { return g_real.cuMemFree_v2(pointer); });
}

// Stream-ordered allocation. Outside a capture the engine serves it. The memory is usable at once: if work still uses
// it, then in this very stream, where it was freed. A capture makes graph nodes of it, whose memory is the driver's.
#define SLUICE_ALLOC_ASYNC(name, ptsz, free_name)                                                                \
  CUresult name(CUdeviceptr* pointer, size_t bytes, CUstream handle) {                                           \
    const void* const caller = Caller();                                                                         \
    Stream* stream = FindStream(handle, ptsz);                                                                   \
    auto real = [&] { return RunUnplanned(handle, ptsz, [&] { return g_real.name(pointer, bytes, handle); }); }; \
    if (!stream) return real();                                                                                  \
    return ServeFromPool(caller, pointer, bytes, CurrentPool(stream->device->ordinal), stream, real);            \
  }                                                                                                              \
  CUresult free_name(CUdeviceptr pointer, CUstream handle) {                                                     \
    Stream* stream = FindStream(handle, ptsz);                                                                   \
    const auto free = [&](CUdeviceptr what) {                                                                    \
      return RunUnplanned(handle, ptsz, [&] { return g_real.free_name(what, handle); });                         \
    };                                                                                                           \
    if (stream && !IsCapturing(*stream)) return Release(pointer, [&] { return free(pointer); }, stream);         \
    return free(MayBeTracked(pointer) && FindTracked(pointer) ? kUnknownPointer : pointer);                      \
  }
SLUICE_ALLOC_ASYNC(cuMemAllocAsync, false, cuMemFreeAsync)
SLUICE_ALLOC_ASYNC(cuMemAllocAsync_ptsz, true, cuMemFreeAsync_ptsz)
#undef SLUICE_ALLOC_ASYNC

#define SLUICE_ALLOC_POOL(name, ptsz)                                                                                  \
  CUresult name(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream handle) {                              \
    const void* const caller = Caller();                                                                               \
    Stream* stream = FindStream(handle, ptsz);                                                                         \
    auto real = [&] { return RunUnplanned(handle, ptsz, [&] { return g_real.name(pointer, bytes, pool, handle); }); }; \
    if (!stream) return real();                                                                                        \
    return ServeFromPool(caller, pointer, bytes, FindPool(pool), stream, real);                                        \
  }
SLUICE_ALLOC_POOL(cuMemAllocFromPoolAsync, false)
SLUICE_ALLOC_POOL(cuMemAllocFromPoolAsync_ptsz, true)
#undef SLUICE_ALLOC_POOL

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = g_real.cuMemPoolCreate(pool, properties);
  if (result == CUDA_SUCCESS && properties) NotePool(*pool, TraitsOf(*pool, *properties));
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  // Before the call: another thread may be given the same handle behind it.
  const KnownPool known = TakePool(pool);
  const CUresult result = g_real.cuMemPoolDestroy(pool);
  if (result != CUDA_SUCCESS) {
    PutBackPool(pool, known);
  } else if (Device* const owner = known.use.release_threshold ? DeviceByOrdinal(known.use.device) : nullptr) {
    owner->ReturnKept();
  }
  return result;
}

// The driver counts its own memory; the engine's is added. Freed memory that is kept may serve any allocation, so it
// does not count as the pool's: reserved bytes equal used bytes.
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = g_real.cuMemPoolGetAttribute(pool, attribute, value);
  if (result != CUDA_SUCCESS) return result;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) += UseOf(pool).current;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) += UseOf(pool).used_high;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) += UseOf(pool).reserved_high;
      break;
    default:
      break;
  }
  return result;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = g_real.cuMemPoolSetAttribute(pool, attribute, value);
  if (result == CUDA_SUCCESS &&
      (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH))
    ResetHighUse(pool, attribute);
  if (result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    NoteReleaseThreshold(pool, *static_cast<cuuint64_t*>(value));
    if (Device* const owner = DeviceByOrdinal(FindPool(pool).device)) owner->ReturnKept();
  }
  return result;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t kept) {
  const CUresult result = g_real.cuMemPoolTrimTo(pool, kept);
  Device* const owner = result == CUDA_SUCCESS ? DeviceByOrdinal(FindPool(pool).device) : nullptr;
  if (owner) {
    NoteTrim(pool, kept);
    owner->ReturnKept();
  }
  return result;
}

// Where another GPU may use its memory it stays where it is, as beside cuCtxEnablePeerAccess.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  const CUresult result = g_real.cuMemPoolSetAccess(pool, access, count);
  const PoolTraits traits = FindPool(pool);
  Device* const owner = traits.is_served && !traits.is_managed ? DeviceByOrdinal(traits.device) : nullptr;
  for (size_t i = 0; result == CUDA_SUCCESS && owner && i < count; ++i) {
    const std::optional<CUdevice> user = DeviceOf(access[i].location);
    if (user && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) owner->AddPeer(*user);
  }
  return result;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  const CUresult result = g_real.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
  if (result == CUDA_SUCCESS) NotePool(*pool, kUnknownPool);
  return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  const CUresult result = g_real.cuDeviceGetDefaultMemPool(pool, ordinal);
  if (result == CUDA_SUCCESS) NoteKnownPool(*pool, {ordinal, true});
  return result;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  const CUresult result = g_real.cuDeviceGetMemPool(pool, ordinal);
  if (result == CUDA_SUCCESS) NoteKnownPool(*pool, CurrentPool(ordinal));
  return result;
}
CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
  const CUresult result = g_real.cuDeviceSetMemPool(ordinal, pool);
  // Of a managed pool the call succeeds, and allocations go on as before (H200, driver 580).
  if (result == CUDA_SUCCESS && !FindPool(pool).is_managed) SetCurrentPool(ordinal, pool);
  return result;
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult result = g_real.cuMemGetDefaultMemPool(pool, location, type);
  if (result == CUDA_SUCCESS) NoteKnownPool(*pool, TraitsOf(*location, type));
  return result;
}
CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult result = g_real.cuMemGetMemPool(pool, location, type);
  if (result == CUDA_SUCCESS) NoteKnownPool(*pool, TraitsOf(*location, type));
  return result;
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult result = g_real.cuMemSetMemPool(location, type, pool);
  // Stream-ordered allocation without a pool takes pinned memory.
  const bool is_pinned = location && type == CU_MEM_ALLOCATION_TYPE_PINNED && TraitsOf(*location, type).is_served;
  if (result == CUDA_SUCCESS && is_pinned) SetCurrentPool(location->id, pool);
  return result;
}

}  // namespace entry
}  // namespace sluice
