#include "hooklib/engine/device/peers.h"

#include <algorithm>
#include <optional>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/streams.h"

namespace sluice {

namespace {

// Whether the user maps memory of the owner. Asked once for each two GPUs. Two threads may ask at once: none goes on
// before the advice is given.
bool IsPeer(Device* owner, Device* user) {
  const uint64_t bit = BitOf(*user);
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

void NoteCopied(Stream* stream, const memory::Extent& to, const memory::Extent& from) {
  if (to.bytes == 0 || from.bytes == 0) return;
  if (Devices().size() < 2 && !stream->device->had_several_contexts.load(std::memory_order_relaxed)) return;
  const std::optional<TrackedAddress> source = FindTracked(from.base), destination = FindTracked(to.base);
  if (!source || !destination || IsCapturing(*stream)) return;
  source->device->NotePeerCopy(*stream, from.base);
  const bool reaches = source->device == destination->device ||
                       (source->device->reaches.load(std::memory_order_relaxed) & BitOf(*destination->device));
  if (!reaches) destination->device->NotePeerCopy(*stream, to.base);
}

}  // namespace sluice
