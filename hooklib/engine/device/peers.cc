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
bool IsPeer(Device* owner, const Device* user) {
  const uint64_t bit = uint64_t{1} << (user->ordinal % 64);
  if (owner->peers_known.load(std::memory_order_acquire) & bit) return owner->peers_that_map.load() & bit;
  RelaxedCapture relaxed;
  int can = 0;
  const CUresult result = g_real.cuDeviceCanAccessPeer(&can, user->ordinal, owner->ordinal);
  if (result == CUDA_SUCCESS && can) {
    owner->AddPeer(user->ordinal);
    owner->peers_that_map.fetch_or(bit);
  }
  owner->peers_known.fetch_or(bit, std::memory_order_release);
  return result == CUDA_SUCCESS && can;
}

}  // namespace

void KeepWhereAllocated(const Device* user, const memory::Extent& range, Access access) {
  const auto devices = Devices();
  const bool may_be =
      devices.size() > 1 && range.bytes != 0 && std::any_of(devices.begin(), devices.end(), [&](const auto& device) {
        return device.get() != user && device->MayHold(range.base);
      });
  if (!may_be) return;
  const std::optional<TrackedAddress> block = FindTracked(range.base);
  if (!block || block->device == user || block->allocation.app_managed || block->allocation.unevictable) return;
  if (IsPeer(block->device, user) && access == Access::kWrite) block->device->NoteWrittenByPeer(range);
}

void KeepWhereAllocated(CUcontext context, const memory::Extent& to, const memory::Extent& from) {
  if (Devices().size() < 2) return;
  std::optional<ContextScope> scope;
  if (context) scope.emplace(context);
  const Device* const user = scope && !scope->is_current() ? nullptr : CurrentDevice();
  if (!user) return;
  KeepWhereAllocated(user, to, Access::kWrite);
  KeepWhereAllocated(user, from, Access::kRead);
}

}  // namespace sluice
