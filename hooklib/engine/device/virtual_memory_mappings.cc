// Mappings of VMM memory, their access rights, and contents that move with their handle.
#include <algorithm>
#include <cstring>
#include <new>

#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/virtual_memory_state.h"
#include "hooklib/engine/execute/copy_contents.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice::virtual_memory {

using memory::Extent;
using memory::kChunkBytes;
using memory::Va;

namespace {

constexpr const char* kMappedTwice = "a handle is mapped twice at once";
constexpr const char* kOtherDevice =
    "a handle of one GPU is mapped into a reservation that was made with another GPU's context";
constexpr const char* kIntoUnmanaged =
    "a handle whose contents are managed memory is mapped into a reservation that is not";
constexpr const char* kFromUnmanaged = "a handle of the driver's is mapped into a reservation";
constexpr const char* kInCapture = "contents of a handle would have to be copied while a stream is captured";
constexpr const char* kUnseen = "the reservation was made while no context was current";

bool Overlaps(const Extent& a, const Extent& b) { return a.base < b.end() && b.base < a.end(); }

// Whether the mappings in the range fill it.
bool IsFilled(const Reserved& reserved, Extent range) {
  Va at = range.base;
  for (auto it = reserved.mappings.find(at); it != reserved.mappings.end() && it->first == at && at < range.end(); ++it)
    at += it->second.bytes;
  return range.bytes != 0 && at == range.end();
}

// Whether the range, of whole chunks in the reservation, cuts no mapping.
bool IsUncut(const Reserved& reserved, Extent range) {
  if (range.bytes == 0 || range.base % kChunkBytes || range.bytes % kChunkBytes ||
      range.bytes > reserved.range.end() - range.base)
    return false;
  return std::none_of(reserved.mappings.begin(), reserved.mappings.end(), [&](const auto& entry) {
    const Extent mapped{entry.first, entry.second.bytes};
    return Overlaps(range, mapped) && (mapped.base < range.base || mapped.end() > range.end());
  });
}

}  // namespace

// Contents that are kept where another handle is to be mapped.
CUresult MoveToHost(Reserved* reserved, Physical* physical) {
  std::unique_ptr<char[]> copy(new (std::nothrow) char[physical->contents_bytes]);
  if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const MutexUnlock waiting(g_mutex);
    const RelaxedCapture relaxed;
    ContentsCopies copies;
    for (const Extent& part : reserved->device->WrittenParts({physical->at, physical->contents_bytes})) {
      const CUresult result = copies.CopyToHost(copy.get() + (part.base - physical->at), part.base, part.bytes);
      if (result != CUDA_SUCCESS) return result;
    }
    if (const CUresult result = copies.Await(); result != CUDA_SUCCESS) return result;
  }
  reserved->device->EndContents({physical->at, physical->contents_bytes});
  reserved->kept.erase(physical->at);
  physical->at = 0;
  physical->copy = std::move(copy);
  return CUDA_SUCCESS;
}

namespace {

// Copies the handle's contents to where it is mapped now.
CUresult CopyAndWait(const Physical& physical, Va to) SLUICE_REQUIRES(g_mutex) {
  const MutexUnlock waiting(g_mutex);
  const RelaxedCapture relaxed;
  ContentsCopies copies;
  // Planned, for the new place is memory that a copy overwrites; the application has no rights to it yet.
  if (physical.copy) {
    const CUresult result = copies.CopyFromHost(to, physical.copy.get(), physical.contents_bytes);
    if (result != CUDA_SUCCESS) return result;
  } else {
    for (const Extent& part : physical.device->WrittenParts({physical.at, physical.contents_bytes})) {
      const CUresult result = copies.Copy(to + (part.base - physical.at), part.base, part.bytes);
      if (result != CUDA_SUCCESS) return result;
    }
  }
  return copies.Await();  // then the old place ends
}

CUresult MoveContents(Physical* physical, Va to, Settlement* settlement) SLUICE_REQUIRES(g_mutex) {
  const CUresult done = CopyAndWait(*physical, to);
  if (done == CUDA_SUCCESS) DropContents(physical, settlement);
  return done;
}

// `*reason`: why managed memory cannot serve the mapping; nothing has changed then.
CUresult MapManaged(Reserved* reserved, Extent range, Physical* physical, const char** reason, Settlement* settlement)
    SLUICE_REQUIRES(g_mutex) {
  if (range.base % kChunkBytes || range.bytes % kChunkBytes || range.bytes == 0 || range.bytes > physical->bytes ||
      range.end() > reserved->range.end() || range.end() < range.base || reserved->is_gone || reserved->is_free)
    return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [va, mapping] : reserved->mappings) {
    if (Overlaps(range, {va, mapping.bytes})) return CUDA_ERROR_INVALID_VALUE;
  }
  const bool has_contents = physical->at != 0 || physical->copy;
  const bool stays = physical->at == range.base && physical->contents_bytes == range.bytes;
  if (physical->device != reserved->device) *reason = kOtherDevice;
  if (physical->mappings > 0) *reason = kMappedTwice;
  if (*reason) return CUDA_ERROR_NOT_SUPPORTED;
  std::vector<Physical*> in_the_way;
  for (const auto& [va, other] : reserved->kept) {
    if (!(stays && other == physical) && Overlaps(range, {va, other->contents_bytes})) in_the_way.push_back(other);
  }
  const ContextScope scope(reserved->context);
  if (g_captures.load() > 0 && ((has_contents && !stays) || !in_the_way.empty())) return Refuse(kInCapture);
  for (Physical* const other : in_the_way) {
    if (const CUresult result = MoveToHost(reserved, other); result != CUDA_SUCCESS) return result;
  }
  reserved->device->Map(range, stays);
  if (stays) {
    reserved->kept.erase(range.base);
  } else if (has_contents) {
    if (const CUresult result = MoveContents(physical, range.base, settlement); result != CUDA_SUCCESS) {
      reserved->device->Unmap(range, false);
      return result;
    }
  }
  physical->form = Form::kManaged;
  physical->mappings = 1;
  physical->at = range.base;
  physical->contents_bytes = range.bytes;
  reserved->mappings[range.base] = {physical, range.bytes, {}};
  if (Recording()) g_recorder->Alloc(trace::AllocKind::kDevice, range.base, range.bytes, 0);
  return CUDA_SUCCESS;
}

const UnmanagedReservation* UnmanagedAt(Va va) SLUICE_REQUIRES(g_mutex) {
  const auto& all = TheState().unmanaged;
  auto it = all.upper_bound(va);
  if (it == all.begin()) return nullptr;
  --it;
  return va < it->first + it->second.bytes ? &it->second : nullptr;
}

CUresult UnmapManaged(Reserved* reserved, Extent range, Settlement* settlement) SLUICE_REQUIRES(g_mutex) {
  if (!IsUncut(*reserved, range)) return CUDA_ERROR_INVALID_VALUE;  // there may be addresses without a mapping
  for (auto it = reserved->mappings.lower_bound(range.base); it != reserved->mappings.end() && it->first < range.end();
       it = reserved->mappings.erase(it)) {
    const Extent mapped{it->first, it->second.bytes};
    Physical* const physical = it->second.physical;
    const bool keeps = physical->references > 0 && !reserved->is_gone;
    if (Recording()) g_recorder->Free(mapped.base);
    if (!reserved->is_gone) reserved->device->Unmap(mapped, keeps);
    physical->mappings = 0;
    if (keeps) {
      reserved->kept[mapped.base] = physical;
    } else {
      physical->at = 0;
      physical->contents_bytes = 0;
    }
    DestroyIfUnused(physical, settlement);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Map(CUdeviceptr pointer, size_t bytes, size_t offset, Handle handle, unsigned long long flags) {
  if (Devices().empty()) return g_real.cuMemMap(pointer, bytes, offset, handle, flags);
  Settlement settlement;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  if (IsEnded(handle)) return CUDA_ERROR_INVALID_VALUE;
  Physical* const physical = FindPhysical(handle);
  Reserved* reserved = ReservedAt(pointer);
  const bool is_unmanaged = !physical || physical->form == Form::kUnmanaged;
  const char* reason = kFromUnmanaged;
  if (reserved && !is_unmanaged) {
    if (flags != 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;                 // as the driver's manual says
    if (offset != 0 || bytes != physical->bytes) return CUDA_ERROR_NOT_SUPPORTED;  // as driver 580 answers
    reason = nullptr;
    const CUresult result = MapManaged(reserved, {pointer, bytes}, physical, &reason, &settlement);
    if (!reason) return result;
  }
  if (physical && physical->form == Form::kManaged) {
    if (!reserved && !UnmanagedAt(pointer)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ConvertToUnmanaged(physical, reserved ? reason : kIntoUnmanaged, &settlement);
    if (result != CUDA_SUCCESS) return result;
    reserved = ReservedAt(pointer);  // it may have become unmanaged with the handle
  }
  if (reserved) {
    if (const CUresult result = ConvertToUnmanaged(reserved, reason, &settlement); result != CUDA_SUCCESS)
      return result;
  }
  if (physical) {
    const UnmanagedReservation* const unmanaged = UnmanagedAt(pointer);
    const char* const reason = unmanaged && unmanaged->reason ? unmanaged->reason : kUnseen;
    if (const CUresult result = MakeUnmanaged(physical, reason); result != CUDA_SUCCESS) return result;
  }
  const CUresult result = g_real.cuMemMap(pointer, bytes, offset, physical ? physical->real : handle, flags);
  if (result == CUDA_SUCCESS && physical) {
    ++physical->mappings;
    TheState().unmanaged_mappings[pointer] = physical;
  }
  return result;
}

CUresult Unmap(CUdeviceptr pointer, size_t bytes) {
  if (Devices().empty()) return g_real.cuMemUnmap(pointer, bytes);
  Settlement settlement;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  if (Reserved* const reserved = ReservedAt(pointer)) return UnmapManaged(reserved, {pointer, bytes}, &settlement);
  const CUresult result = g_real.cuMemUnmap(pointer, bytes);
  if (result != CUDA_SUCCESS) return result;
  auto& mapped = TheState().unmanaged_mappings;
  for (auto it = mapped.lower_bound(pointer); it != mapped.end() && it->first < pointer + bytes;
       it = mapped.erase(it)) {
    --it->second->mappings;
    DestroyIfUnused(it->second, &settlement);
  }
  return result;
}

CUresult Retain(const void* caller, Handle* handle, void* address) {
  if (!Devices().empty() && handle) {
    MutexLock changes(g_changes);
    MutexLock lock(g_mutex);
    const Va va = reinterpret_cast<uintptr_t>(address);
    if (Reserved* const reserved = ReservedAt(va)) {
      auto it = reserved->mappings.upper_bound(va);
      if (it == reserved->mappings.begin() || va >= std::prev(it)->first + std::prev(it)->second.bytes)
        return CUDA_ERROR_INVALID_VALUE;
      // Such a library would export the handle. It takes other memory, as it does where this is memory of cuMemAlloc.
      if (CalledFromUnmanagedLibrary(caller)) return CUDA_ERROR_INVALID_VALUE;
      Physical* const physical = std::prev(it)->second.physical;
      ++physical->references;
      *handle = physical->value;
      return CUDA_SUCCESS;
    }
    const CUresult result = g_real.cuMemRetainAllocationHandle(handle, address);
    if (result == CUDA_SUCCESS) {
      const auto known = TheState().by_real.find(*handle);
      if (known != TheState().by_real.end()) {
        ++known->second->references;
        *handle = known->second->value;
      }
    }
    return result;
  }
  return g_real.cuMemRetainAllocationHandle(handle, address);
}

CUresult SetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const auto real = [&] { return g_real.cuMemSetAccess(pointer, bytes, access, count); };
  if (Devices().empty()) return real();
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  Reserved* const reserved = ReservedAt(pointer);
  if (!reserved) return real();
  if (!access || count == 0 || !IsFilled(*reserved, {pointer, bytes})) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const unsigned flags = access[i].flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!DeviceByOrdinal(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
  }
  for (size_t i = 0; i < count; ++i) {
    const CUdevice device = access[i].location.id;
    for (auto it = reserved->mappings.find(pointer); it != reserved->mappings.end() && it->first < pointer + bytes;
         ++it) {
      auto& all = it->second.access;
      std::erase_if(all, [device](const auto& one) { return one.first == device; });
      if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) all.emplace_back(device, access[i].flags);
    }
    if (device != reserved->device->ordinal && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      reserved->device->AddPeer(device);
  }
  return CUDA_SUCCESS;
}

CUresult GetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
  if (!Devices().empty()) {
    MutexLock lock(g_mutex);
    if (const Reserved* const reserved = ReservedAt(pointer)) {
      auto it = reserved->mappings.upper_bound(pointer);
      if (!flags || !location || it == reserved->mappings.begin() ||
          pointer >= std::prev(it)->first + std::prev(it)->second.bytes)
        return CUDA_ERROR_INVALID_VALUE;
      *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
      for (const auto& [device, granted] : std::prev(it)->second.access) {
        if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == device) *flags = granted;
      }
      return CUDA_SUCCESS;
    }
  }
  return g_real.cuMemGetAccess(flags, location, pointer);
}

bool IsUnmapped(CUdeviceptr pointer) {
  if (pointer < g_lowest.load(std::memory_order_relaxed) || pointer >= g_highest.load(std::memory_order_relaxed) ||
      Devices().empty())
    return false;
  MutexLock lock(g_mutex);
  auto& all = TheState().reservations;
  auto it = all.upper_bound(pointer);
  if (it == all.begin()) return false;
  --it;
  const Reserved& reserved = it->second;
  if (pointer >= reserved.range.end()) return false;
  const auto mapping = reserved.mappings.upper_bound(pointer);
  return mapping == reserved.mappings.begin() ||
         pointer >= std::prev(mapping)->first + std::prev(mapping)->second.bytes;
}

bool LacksRights(Extent range) {
  MutexLock lock(g_mutex);
  const Reserved* const reserved = ReservedAt(range.base);
  if (!reserved) return false;
  auto it = reserved->mappings.upper_bound(range.base);
  if (it != reserved->mappings.begin()) --it;
  for (; it != reserved->mappings.end() && it->first < range.end(); ++it) {
    if (it->first + it->second.bytes > range.base && it->second.access.empty()) return true;
  }
  return false;
}

std::optional<MappedRange> Find(CUdeviceptr pointer) {
  MutexLock lock(g_mutex);
  const Reserved* const reserved = ReservedAt(pointer);
  if (!reserved) return std::nullopt;
  auto it = reserved->mappings.upper_bound(pointer);
  if (it == reserved->mappings.begin()) return std::nullopt;
  --it;
  if (pointer >= it->first + it->second.bytes) return std::nullopt;
  return MappedRange{{it->first, it->second.bytes}, reserved->range, it->second.physical->value};
}

std::optional<Extent> FindReservation(CUdeviceptr pointer) {
  if (Devices().empty()) return std::nullopt;
  MutexLock lock(g_mutex);
  const Reserved* const reserved = ReservedAt(pointer);
  return reserved && !reserved->is_free ? std::optional(reserved->range) : std::nullopt;
}

void ForgetReservationsOf(CUcontext context) {
  if (Devices().empty()) return;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  State& state = TheState();
  for (auto it = state.reservations.begin(); it != state.reservations.end();) {
    Reserved& reserved = it->second;
    if (reserved.context != context || reserved.is_gone) {
      ++it;
      continue;
    }
    reserved.is_gone = true;
    for (auto& [va, mapping] : reserved.mappings) {
      reserved.device->Unmap({va, mapping.bytes}, false);
      mapping.physical->at = 0;
    }
    for (const auto& [va, physical] : reserved.kept) {
      reserved.device->EndContents({va, physical->contents_bytes});
      physical->at = 0;
      physical->contents_bytes = 0;
    }
    reserved.kept.clear();
    reserved.device->Unreserve(it->first, false, true);
    if (std::erase(state.idle, it->first)) state.idle_bytes -= AddressBytes(reserved.range.bytes);
    if (reserved.is_free) {
      it = state.reservations.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace sluice::virtual_memory
