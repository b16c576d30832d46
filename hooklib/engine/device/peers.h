// Memory of one GPU that another GPU uses.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_

#include "hooklib/engine/device/device.h"
#include "hooklib/memory/types.h"

namespace sluice {

// Before a copy of `user`, or one of a graph between GPUs, has its side queued. A copy beside peer access that the
// program has not enabled is legal, and the driver moves managed memory to the copying GPU then, beyond that GPU's
// budget (an H200, driver 580). So the memory stays where it was allocated, and the user maps it. The application's own
// managed memory moves as it would without the hook. Takes the lock of the memory's device. Thread-safe.
void KeepWhereAllocated(const Device* user, const memory::Extent& side);
void KeepWhereAllocated(const memory::Extent& to, const memory::Extent& from);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_
