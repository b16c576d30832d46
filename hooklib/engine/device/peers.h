// Memory of one GPU that copies and memsets of another GPU use.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_

#include <span>
#include <utility>

#include "hooklib/engine/device/device.h"
#include "hooklib/memory/types.h"

namespace sluice {

// kWriteNow: the work is queued next. Pages that it makes count where they are made.
enum class Access : uint8_t { kAny, kWriteNow };

// Before a copy or memset of `user` is queued, or becomes a node of a graph. Without peer access it is legal, too, and
// the driver moves managed memory to the copying GPU then, beyond that GPU's budget (two H200s, driver 580). So the
// memory stays where it was allocated, and the user maps it; where it cannot, the memory still moves. Ranges of the
// application's own managed memory are no reason for this. Takes the lock of the memory's device. Thread-safe.
void KeepWhereAllocated(Device* user, const memory::Extent& range, Access access);
// The same for a node in the context; null: of any GPU that works.
void KeepWhereAllocated(CUcontext context, const memory::Extent& to, const memory::Extent& from);

// Behind copies of the stream out of device memory, destination and source of each: notes those that are work of
// another context (peer_copies.h). No effect for others, and in a capture. Takes the locks of the memory's devices. On
// the thread of a per-thread default stream.
void NoteCopied(Stream* stream, std::span<const std::pair<memory::Extent, memory::Extent>> copies);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_PEERS_H_
