// Discards: at once, and in a stream's order of freed ranges and of ranges that the next work overwrites.
//
// A discard must have taken effect before anything populates the range again, else it drops later writes. The
// driver's call for it returns, and lets its stream go on, before that (docs/design/driver.md). So the engine makes the
// request below that call itself (requests.h). Where it cannot, freed ranges are written back.
//
// Freed ranges. A discard that is executed at once has to wait for all work that was queued when its range was freed.
// A host that runs ahead has needed the room several times by then. On a convolution net's training at a third of its
// live bytes every second victim was a free chunk, evicted and fetched again for nothing. In a stream's order the
// discard takes its place behind the last use, with no wait on the host. Work that may write the range again must come
// later:
// - on this stream it does, because the stream waits for the discard;
// - other streams that begin to work meanwhile wait for it too;
// - nothing else may. The range still belongs to an allocation whose owner reported it as unused
//   (Residency::RemoveLive), so it is not given out, and no other GPU maps it.
// Other streams are made to wait for work that the application did not order before theirs. So this is done only where
// one stream of the device works alone.
//
// Overwritten ranges. A call, a copy or a memset may overwrite a range whole. The range is populated empty before: by a
// discard and a prefetch in the order of the application's stream. Policy decides for which chunks.
//
// The device's lock is held in all of these, and the stream's order where work is about to be queued.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_DISCARDS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_DISCARDS_H_

#include "hooklib/engine/device/device.h"

namespace sluice {

// Whether a discard can take its place in a stream's order: by an eviction thread, or by the driver's thread for host
// functions.
bool MayDiscardInOrder();
// Whether no other stream of the device has anything queued, nor has had for hundreds of launches.
bool WorksAlone(Stream* stream) SLUICE_DEVICE_LOCKED;
// Whether an event set on the stream now stands behind everything that its next work waits for.
bool IsOrderKnown(Stream* stream) SLUICE_DEVICE_LOCKED;

// Finds out how discards are made, once: by one of a block of its own.
void TryDiscard();
// Discards the plan's free chunks of which no queued work could touch anything.
void DiscardNow(const policy::Plan& plan, Stream* stream) SLUICE_DEVICE_LOCKED;
// Queues the plan's discards of freed ranges; the stream and its fetches wait for them on the GPU.
void DiscardFreed(const policy::Plan& plan, Stream* stream) SLUICE_DEVICE_LOCKED;
// Queues the discard and the prefetch of the plan's overwritten ranges, and the stream's wait for them.
void Repopulate(const policy::Plan& plan, Stream* stream) SLUICE_DEVICE_LOCKED;

// `waiter` (the stream itself, or one of its queues) waits for discards of another stream that are not done.
void AwaitDiscards(Stream* stream, CUstream waiter) SLUICE_DEVICE_LOCKED;
inline void AwaitDiscards(Stream* stream) SLUICE_DEVICE_LOCKED {
  if (stream->device->discard_owner) AwaitDiscards(stream, stream->handle);
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_DISCARDS_H_
