// What died while work that may have touched it is still queued: discarded in the order of the stream that queued it.
//
// A discard that is executed at once has to wait for all that was queued when its range died, and by then a host that
// is far ahead has needed the room several times: on a convolution net's training at a third of its live bytes every
// second victim was a dead chunk, sent away and fetched again for nothing. In a stream's order it takes its place
// behind the last use, with no wait on the host. What may write the range again must come later. It does on this
// stream, which waits for the discard; on others if they begin to work meanwhile, since their work waits then, too; and
// nobody else may: the range still belongs to an allocation whose owner reported that he does not use it
// (Residency::RemoveLive), so it is given to nobody, and no other card has been told of it. Other streams are made to
// wait for work that the application did not order before theirs, which is why it is done only where one stream of the
// device works alone. The device's lock is held in all of this.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_STREAM_DISCARD_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_STREAM_DISCARD_H_

#include "hooklib/engine/device/device.h"

namespace sluice {

// Whether no other stream of the device has anything queued, nor has had for hundreds of launches.
bool WorksAlone(Stream* stream);
// Queues the discards of `plan.stream_discard`, for which the stream and its fetches wait on the GPU.
void DiscardInStream(const policy::Plan& plan, Stream* stream);
// `waiter` (the stream itself, or one of its queues) waits for what was reaped for another stream and is not over.
void AwaitStreamDiscards(Stream* stream, CUstream waiter);
inline void AwaitStreamDiscards(Stream* stream) {
  if (stream->device->stream_discard_owner) AwaitStreamDiscards(stream, stream->handle);
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_STREAM_DISCARD_H_
