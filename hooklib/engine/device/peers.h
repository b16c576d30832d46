// Memory of one GPU that copies and memsets of another GPU use.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_

#include "hooklib/engine/device/device.h"
#include "hooklib/memory/types.h"

namespace sluice {

enum class Access : uint8_t { kRead, kWrite };

// Before a copy or memset of `user` is queued, or becomes a node of a graph. Without peer access it is legal, too, and
// the driver moves managed memory to the copying GPU then, beyond that GPU's budget (two H200s, driver 580). So the
// memory stays where it was allocated, and the user maps it; where it cannot, the memory still moves. The application's
// own managed memory moves as it would without the hook. Takes the lock of the memory's device. Thread-safe.
void KeepWhereAllocated(const Device* user, const memory::Extent& range, Access access);
// The same for a node in the context; null: the current one.
void KeepWhereAllocated(CUcontext context, const memory::Extent& to, const memory::Extent& from);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_
