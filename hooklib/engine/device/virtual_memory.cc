// Reservations and handles of VMM memory; their mappings are in virtual_memory_mappings.cc.
#include "hooklib/engine/device/virtual_memory.h"

#include <algorithm>
#include <cstring>

#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/ending_contexts.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/device/virtual_memory_state.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice::virtual_memory {
using memory::Extent;
using memory::kChunkBytes;
using memory::Va;
Mutex g_changes, g_mutex;
std::atomic<Va> g_lowest{memory::kNever}, g_highest{0};
State& TheState() {
  static auto& state = *new State;
  return state;
}

namespace {

// Managed memory is slow to make and to free: small reservations are kept for the next ones of their size.
constexpr uint64_t kMaxIdleBytes = uint64_t{256} << 20;
constexpr const char* kFixedAddress = "the reservation is to be at a fixed address";
constexpr const char* kSharing = "memory that a communication library makes is shared by handle";

// No pointer has these bits, neither on x86-64 nor on arm64.
constexpr Handle kOwnHandles = 0x51c3'0000'0000'0000;

// Why VMM memory of this call stays unmanaged; null: it may be managed.
const char* WhyUnmanaged(const void* caller, const Device& device) {
  if (!device.managed) return device.unmanaged_reason;
  if (GetConfig().unmanaged_vmm) return "SLUICE_VMM=unmanaged is set";
  if (CalledFromUnmanagedLibrary(caller) || CalledFromVmmExporter(caller)) return kSharing;
  return nullptr;
}

const char* WhyUnmanagedHandle(const CUmemAllocationProp& properties) {
  constexpr int kFabric = 8;  // CU_MEM_HANDLE_TYPE_FABRIC, which older toolkits lack
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return "the memory is bound to a part of the GPU";
  if (properties.allocFlags.compressionType) return "the memory is compressible";
  if (properties.allocFlags.usage) return "the memory is for sparse arrays";
  if (properties.requestedHandleTypes & kFabric) return "the memory is shared by a fabric of GPUs";
  return nullptr;
}

// Another driver would refuse such requests: it is asked.
bool IsUsual(size_t bytes, const CUmemAllocationProp& properties, unsigned long long flags) {
  return bytes && bytes % kChunkBytes == 0 && flags == 0 && properties.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         !properties.win32HandleMetaData;
}

void DropIdle(uint64_t max_bytes) SLUICE_REQUIRES(g_mutex) {
  State& state = TheState();
  while (!state.idle.empty() && state.idle_bytes > max_bytes) {
    const auto it = state.reservations.find(state.idle.front());
    state.idle.pop_front();
    state.idle_bytes -= AddressBytes(it->second.range.bytes);
    it->second.device->Unreserve(it->first, false);
    state.reservations.erase(it);
  }
}

// `hint`: at this address; 0: at any.
Reserved* TakeIdle(const Device* device, CUcontext context, uint64_t bytes, Va hint) SLUICE_REQUIRES(g_mutex) {
  State& state = TheState();
  for (auto it = state.idle.begin(); it != state.idle.end(); ++it) {
    Reserved& reserved = state.reservations.at(*it);
    if (reserved.range.bytes != bytes || reserved.device != device || reserved.context != context) continue;
    if (hint && reserved.range.base != hint) continue;
    state.idle.erase(it);
    state.idle_bytes -= AddressBytes(bytes);
    return &reserved;
  }
  return nullptr;
}

// In the driver's own form, with its charge.
CUresult CreateUnmanaged(Device* device, Handle* handle, size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long flags) {
  if (!device->ReserveUnmanaged(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = g_real.cuMemCreate(handle, bytes, properties, flags);
  if (result != CUDA_SUCCESS) device->ReleaseUnmanaged(bytes);
  return result;
}

}  // namespace

void LogUnmanaged(const Device& device, const char* reason) {
  static Mutex mutex;
  static auto* const logged SLUICE_PT_GUARDED_BY(mutex) = new std::vector<const char*>;
  {
    MutexLock lock(mutex);
    if (std::any_of(logged->begin(), logged->end(), [&](const char* other) { return !std::strcmp(other, reason); }))
      return;
    logged->push_back(reason);
  }
  NotifyAgent(SLUICE_NOTICE_UNMANAGED_VMM, device.uuid.c_str());
  SLUICE_LOG(kWarn,
             "this process allocates through VMM (cuMemCreate): not oversubscribed, the budget of %s is a hard limit; "
             "the reason: %s",
             settings::HumanBytes(const_cast<Device&>(device).Budget().budget_bytes, 2).c_str(), reason);
}

CUresult Refuse(const char* reason) {
  static Mutex mutex;
  static auto* const logged SLUICE_PT_GUARDED_BY(mutex) = new std::vector<const char*>;
  MutexLock lock(mutex);
  if (std::find(logged->begin(), logged->end(), reason) == logged->end()) {
    logged->push_back(reason);
    SLUICE_LOG(
        kWarn,
        "VMM memory that sluice moves: %s, which is not possible beside other threads that queue work, a capture, "
        "or work that does not end; SLUICE_VMM=unmanaged leaves VMM memory to the driver",
        reason);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

Settlement::~Settlement() {
  for (Device* const device : released) entry::cuDevicePrimaryCtxRelease_v2(device->ordinal);
}

Physical* FindPhysical(Handle handle) {
  const auto it = TheState().handles.find(handle);
  return it == TheState().handles.end() ? nullptr : it->second.get();
}

bool IsEnded(Handle handle) { return (handle >> 48) == (kOwnHandles >> 48) && !FindPhysical(handle); }

Reserved* ReservedAt(Va va) {
  auto& all = TheState().reservations;
  auto it = all.upper_bound(va);
  if (it == all.begin()) return nullptr;
  --it;
  const bool holds = va < it->second.range.end() && (!it->second.is_free || !it->second.kept.empty());
  return holds ? &it->second : nullptr;
}

CUresult Reserve(const void* caller, CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr hint,
                 unsigned long long flags) {
  const auto real = [&] { return g_real.cuMemAddressReserve(pointer, bytes, alignment, hint, flags); };
  CUcontext context = nullptr;
  Device* const device = CurrentDevice(&context);
  if (!device || !pointer || (alignment & (alignment - 1))) return real();
  const char* reason = WhyUnmanaged(caller, *device);
  if (!reason && (!bytes || bytes % kChunkBytes || flags)) reason = "the reservation is no multiple of 2 MiB";
  if (!reason && alignment > kChunkBytes) reason = "the reservation is to be aligned to more than 2 MiB";
  if (!reason) context = device->MemoryContext(context);
  // Reservations outlive contexts. The primary context is retained for them.
  if (!reason && !device->IsOwnedByPrimary(context)) reason = "a reservation was made outside the primary context";
  if (!reason) {
    const PrimaryScope scope(device->ordinal);  // before the locks, as in releases
    MutexLock changes(g_changes);
    MutexLock lock(g_mutex);
    const bool is_first = !HasReservations(device);
    Reserved* reserved = TakeIdle(device, context, bytes, hint);
    if (!reserved && hint) {
      FreeIdleIn({hint, bytes});
      reason = kFixedAddress;
    } else if (!reserved) {
      const ContextScope scope(context);
      Va base = 0;
      Refusal refusal = device->Reserve(context, bytes, &base);
      if (refusal != Refusal::kNone && !TheState().idle.empty()) {
        DropIdle(0);
        refusal = device->Reserve(context, bytes, &base);
      }
      if (refusal == Refusal::kNone) {
        reserved = &TheState().reservations[base];
        reserved->range = {base, bytes};
        g_lowest = std::min(g_lowest.load(), base);
        g_highest = std::max(g_highest.load(), base + bytes);
        reserved->device = device;
        reserved->context = context;
      } else {
        reason = refusal == Refusal::kManagedLimit ? "SLUICE_MANAGED_LIMIT has no room for a reservation"
                                                   : "the driver gave no managed memory for a reservation";
      }
    }
    if (reserved) {
      CUcontext primary = nullptr;
      if (is_first) entry::cuDevicePrimaryCtxRetain(&primary, device->ordinal);
      reserved->is_free = false;
      *pointer = reserved->range.base;
      return CUDA_SUCCESS;
    }
  }
  if (const CUresult result = real(); result != CUDA_SUCCESS) return result;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  const uint64_t size = reason == kFixedAddress ? MoveToHint(pointer, bytes, hint) : bytes;
  if (size == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  TheState().unmanaged[*pointer] = {bytes, reason, size};
  return CUDA_SUCCESS;
}

void Retire(Reserved* reserved, Settlement* settlement) {
  State& state = TheState();
  Device* const device = reserved->device;
  const Extent range = reserved->range;
  if (reserved->is_gone) {
    state.reservations.erase(range.base);
  } else {
    {
      DeviceLock device_lock(device->mutex);
      device->live.ForgetReports(range);  // blocks of the former owner
    }
    // Also a large one passes through the list, so that the oldest is always dropped first.
    state.idle.push_back(range.base);
    state.idle_bytes += AddressBytes(range.bytes);
    DropIdle(kMaxIdleBytes);
    if (!HasReservations(device)) settlement->released.push_back(device);
  }
}

CUresult FreeAddress(CUdeviceptr pointer, size_t bytes) {
  if (Devices().empty()) return g_real.cuMemAddressFree(pointer, bytes);
  Device* device = nullptr;
  {
    Settlement settlement;
    MutexLock changes(g_changes);
    MutexLock lock(g_mutex);
    Reserved* const reserved = ReservedAt(pointer);
    if (!reserved) {
      const auto it = TheState().unmanaged.find(pointer);
      if (it != TheState().unmanaged.end() && it->second.bytes == bytes) bytes = it->second.reserved_bytes;
      const CUresult result = g_real.cuMemAddressFree(pointer, bytes);
      if (result == CUDA_SUCCESS) TheState().unmanaged.erase(pointer);
      return result;
    }
    if (reserved->is_free || reserved->range != Extent{pointer, bytes} || !reserved->mappings.empty())
      return CUDA_ERROR_INVALID_VALUE;
    device = reserved->device;
    reserved->is_free = true;
    if (reserved->kept.empty()) Retire(reserved, &settlement);
  }
  device->ReturnArenas();
  return CUDA_SUCCESS;
}

bool TurnUnmanaged(Reserved* reserved, const char* reason, Settlement* settlement) {
  if (!reserved->mappings.empty() || !reserved->kept.empty() || reserved->is_gone) return false;
  Device* const device = reserved->device;
  const Extent range = reserved->range;
  if (!device->Unreserve(range.base, true)) {
    reserved->is_gone = true;
    return false;
  }
  CUdeviceptr again = 0;
  const uint64_t size = AddressBytes(range.bytes);
  const bool is_given = g_real.cuMemAddressReserve(&again, size, 0, range.base, 0) == CUDA_SUCCESS;
  reserved->is_gone = true;
  if (!HasReservations(device)) settlement->released.push_back(device);
  if (is_given && again != range.base) g_real.cuMemAddressFree(again, size);
  if (!is_given || again != range.base) return false;
  TheState().reservations.erase(range.base);
  TheState().unmanaged[range.base] = {range.bytes, reason, size};
  return true;
}

CUresult Create(const void* caller, Handle* handle, size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long flags) {
  const auto real = [&] { return g_real.cuMemCreate(handle, bytes, properties, flags); };
  // Host-located handles (NCCL's) are no device memory.
  const std::optional<CUdevice> ordinal = properties ? DeviceOf(properties->location) : std::nullopt;
  if (!ordinal) return real();
  EnsureStarted();
  Device* const device = DeviceByOrdinal(*ordinal);
  if (!device || !handle) return real();
  const char* reason = WhyUnmanaged(caller, *device);
  if (!reason) reason = WhyUnmanagedHandle(*properties);
  if (!reason && !IsUsual(bytes, *properties, flags)) reason = "the request is an unusual one";
  auto made = std::make_unique<Physical>();
  made->bytes = bytes;
  made->device = device;
  made->properties = *properties;
  if (reason) {
    const CUresult result = CreateUnmanaged(device, handle, bytes, properties, flags);
    if (result != CUDA_SUCCESS) return result;
    LogUnmanaged(*device, reason);
    made->value = made->real = *handle;
    made->form = Form::kUnmanaged;
  } else {
    if (device->ChargeHandle(bytes) != Refusal::kNone) return CUDA_ERROR_OUT_OF_MEMORY;
    static std::atomic<Handle> next{1};
    made->value = *handle = kOwnHandles + next++;
  }
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  if (made->real) TheState().by_real[made->real] = made.get();
  TheState().handles[made->value] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult MakeUnmanaged(Physical* physical, const char* reason) {
  if (physical->form == Form::kUnmanaged) return CUDA_SUCCESS;
  Device* const device = physical->device;
  if (physical->is_charged) device->ReleaseHandle(physical->bytes);
  const CUresult result = CreateUnmanaged(device, &physical->real, physical->bytes, &physical->properties, 0);
  physical->is_charged = result == CUDA_SUCCESS || device->ChargeHandle(physical->bytes) == Refusal::kNone;
  if (result != CUDA_SUCCESS) return result;
  physical->form = Form::kUnmanaged;
  TheState().by_real[physical->real] = physical;
  LogUnmanaged(*device, reason);
  return CUDA_SUCCESS;
}

void DropContents(Physical* physical, Settlement* settlement) {
  physical->copy.reset();
  const uint64_t bytes = std::exchange(physical->contents_bytes, 0);
  if (!physical->at) return;
  const Va at = std::exchange(physical->at, 0);
  Reserved* const reserved = ReservedAt(at);
  if (!reserved || !reserved->kept.contains(at)) return;
  if (!reserved->is_gone) reserved->device->EndContents({at, bytes});
  reserved->kept.erase(at);
  if (reserved->is_free && reserved->kept.empty()) Retire(reserved, settlement);
}

void DestroyIfUnused(Physical* physical, Settlement* settlement) {
  if (physical->references > 0 || physical->mappings > 0) return;
  DropContents(physical, settlement);
  if (physical->form == Form::kUnmanaged) {
    physical->device->ReleaseUnmanaged(physical->bytes);
    TheState().by_real.erase(physical->real);
  } else if (physical->is_charged) {
    physical->device->ReleaseHandle(physical->bytes);
  }
  TheState().handles.erase(physical->value);
}

CUresult Release(Handle handle) {
  if (Devices().empty()) return g_real.cuMemRelease(handle);
  Settlement settlement;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  Physical* const physical = FindPhysical(handle);
  if (IsEnded(handle)) return CUDA_ERROR_INVALID_VALUE;
  if (!physical) return g_real.cuMemRelease(handle);
  if (physical->references == 0) return CUDA_ERROR_INVALID_VALUE;  // only its mappings keep it
  // The lock is held: the driver may give the value to another thread's cuMemCreate at once.
  if (physical->real) {
    const CUresult result = g_real.cuMemRelease(physical->real);
    if (result != CUDA_SUCCESS) return result;
  }
  --physical->references;
  DestroyIfUnused(physical, &settlement);
  return CUDA_SUCCESS;
}

CUresult GetProperties(CUmemAllocationProp* properties, Handle handle) {
  if (!Devices().empty()) {
    MutexLock lock(g_mutex);
    if (IsEnded(handle)) return CUDA_ERROR_INVALID_VALUE;
    if (const Physical* const physical = FindPhysical(handle)) {
      if (!properties) return CUDA_ERROR_INVALID_VALUE;
      if (!physical->real) {
        *properties = physical->properties;
        return CUDA_SUCCESS;
      }
      handle = physical->real;
    }
  }
  return g_real.cuMemGetAllocationPropertiesFromHandle(properties, handle);
}

CUresult DriverHandle(Handle handle, const char* use, Handle* unmanaged) {
  *unmanaged = handle;
  if (Devices().empty()) return CUDA_SUCCESS;
  Settlement settlement;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  if (IsEnded(handle)) return CUDA_ERROR_INVALID_VALUE;
  Physical* const physical = FindPhysical(handle);
  if (!physical) return CUDA_SUCCESS;
  if (const CUresult result = ConvertToUnmanaged(physical, use, &settlement); result != CUDA_SUCCESS) return result;
  *unmanaged = physical->real;
  return CUDA_SUCCESS;
}

}  // namespace sluice::virtual_memory
