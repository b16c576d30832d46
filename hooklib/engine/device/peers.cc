#include "hooklib/engine/device/peers.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/peer_copies.h"
#include "hooklib/engine/device/streams.h"

namespace sluice {

namespace {

// Whether the user maps memory of the owner. Asked once for each two GPUs. Two threads may ask at once: none goes on
// before the advice is given.
bool IsPeer(Device* owner, Device* user) {
  const uint64_t bit = uint64_t{1} << (user->ordinal % 64);
  if (owner->peers_known.load(std::memory_order_acquire) & bit) return owner->peers_that_map.load() & bit;
  // The owner may have no work of its own. Pages that it has discarded must be made again before another GPU writes
  // them.
  NoteDeviceWorks(owner);
  NoteDeviceWorks(user);
  RelaxedCapture relaxed;
  int can = 0;
  if (!g_real.cuDeviceCanAccessPeer ||
      g_real.cuDeviceCanAccessPeer(&can, user->ordinal, owner->ordinal) != CUDA_SUCCESS)
    return false;
  if (can) {
    owner->AddPeer(user->ordinal);
    owner->peers_that_map.fetch_or(bit);
  }
  owner->peers_known.fetch_or(bit, std::memory_order_release);
  return can != 0;
}

// The block of an address, for cuMemFree.
struct Freed {
  Device* device = nullptr;
  CUcontext context = nullptr;  // null: no block of cuMemAlloc and its like
  bool app_managed = false;
};

Freed FreedAt(CUdeviceptr address) {
  for (const auto& device : Devices()) {
    Freed found{device.get()};
    if (device->MayHold(address)) found.context = device->ContextOfBlock(address, &found.app_managed);
    if (found.context) return found;
  }
  return {};
}

bool IsHostMemory(const memory::Extent& range) {
  RelaxedCapture relaxed;
  CUmemorytype type = CU_MEMORYTYPE_HOST;  // the driver does not know pageable memory
  const CUresult known = g_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range.base);
  return known != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}

}  // namespace

void KeepWhereAllocated(Device* user, const memory::Extent& range, Access access) {
  const auto devices = Devices();
  const bool may_be =
      devices.size() > 1 && range.bytes != 0 && std::any_of(devices.begin(), devices.end(), [&](const auto& device) {
        return device.get() != user && device->MayHold(range.base);
      });
  if (!may_be) return;
  const std::optional<TrackedAddress> block = FindTracked(range.base);
  if (!block || block->device == user || block->allocation.app_managed || block->allocation.unevictable) return;
  if (IsPeer(block->device, user) && access == Access::kWriteNow) block->device->NoteWrittenByPeer(range);
}

void KeepWhereAllocated(CUcontext context, const memory::Extent& to, const memory::Extent& from) {
  const auto devices = Devices();
  if (devices.size() < 2) return;
  const auto keep = [&](Device* user) {
    KeepWhereAllocated(user, to, Access::kAny);
    KeepWhereAllocated(user, from, Access::kAny);
  };
  if (!context) {
    for (const auto& device : devices) {
      if (device->works.load(std::memory_order_relaxed)) keep(device.get());
    }
    return;
  }
  Device* user = nullptr;
  {
    const ContextScope scope(context);
    if (scope.is_current()) user = CurrentDevice();
  }
  if (user) keep(user);
}

void NoteCopied(Stream* stream, std::span<const std::pair<memory::Extent, memory::Extent>> copies) {
  if (!peer_copies::g_several_contexts.load(std::memory_order_relaxed) || IsCapturing(*stream)) return;
  CUcontext owner = nullptr;
  std::vector<CUcontext> noted;
  const auto note = [&](CUcontext context) {
    if (context == owner || std::find(noted.begin(), noted.end(), context) != noted.end()) return;
    noted.push_back(context);
    peer_copies::Note(context, *stream, owner);
  };
  for (const auto& [to, from] : copies) {
    if (from.bytes == 0 || (!MayBeTracked(from.base) && !MayBeTracked(to.base))) continue;
    if (!owner) owner = stream->device->MemoryContext(stream->owner);
    const Freed destination = FreedAt(to.base);
    Freed source = FreedAt(from.base);
    if (source.context) {
      note(source.context);
    } else if (destination.context && destination.context != owner && !IsHostMemory(from)) {
      source = {stream->device, owner};  // memory of a pool, mapped, or a module's: taken for the stream's context's
    } else {
      continue;
    }
    const bool is_apart = destination.context && !destination.app_managed && destination.device != source.device &&
                          !peer_copies::HasAccess(source.context, destination.context);
    if (is_apart) note(destination.context);
  }
}

}  // namespace sluice
