#include "hooklib/engine/device/peers.h"

#include <optional>

#include "hooklib/engine/device/devices.h"

namespace sluice {

namespace {

std::optional<TrackedAddress> BlockOf(const memory::Extent& side) {
  return side.bytes && MayBeTracked(side.base) ? FindTracked(side.base) : std::nullopt;
}

void Keep(const TrackedAddress& block, const Device* user) {
  if (block.device != user && !block.allocation.app_managed) block.device->AddPeer(user->ordinal);
}

}  // namespace

void KeepWhereAllocated(const Device* user, const memory::Extent& side) {
  if (!g_several_devices_work.load(std::memory_order_relaxed)) return;
  if (const auto block = BlockOf(side)) Keep(*block, user);
}

void KeepWhereAllocated(const memory::Extent& to, const memory::Extent& from) {
  if (Devices().size() < 2) return;
  const auto target = BlockOf(to), source = BlockOf(from);
  if (!target || !source) return;
  Keep(*target, source->device);
  Keep(*source, target->device);
}

}  // namespace sluice
