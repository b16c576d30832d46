#include "hooklib/engine/execute/stream_discard.h"

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {
// Long enough for streams that take turns, launch by launch, not to wait for each other.
constexpr uint64_t kAloneFor = 256;
}  // namespace

bool WorksAlone(Stream* stream) {
  Device* const device = stream->device;
  const uint64_t now = device->residency.launches();
  if (device->HasPeers()) return false;
  for (const auto& other : device->streams) {
    if (other.get() == stream || !other->context) continue;
    const uint64_t seq = other->seq.load(std::memory_order_acquire);
    if (seq == 0) continue;
    if (other->last_launch != 0 && now - other->last_launch < kAloneFor) return false;
    if (seq > other->completed && !device->Done({other->id, seq})) return false;
  }
  return true;
}

void DiscardInStream(const policy::Plan& plan, Stream* stream) {
  if (plan.stream_discard.empty()) return;
  Device* const device = stream->device;
  TransferQueue* const queue = &stream->repopulate;
  EventPool* const pool = &stream->context->events;
  // Where anything fails the dead bytes only stay where they are: too many are held, and later fetched for nothing.
  if (!queue->Ready() || !queue->Follow(stream->handle, pool)) return;
  if (!QueueDiscard(plan.stream_discard, queue->stream))
    SLUICE_LOG(kDebug, "discard of %zu runs failed", plan.stream_discard.size());
  queue->Stamp(queue->newest + 1, pool);
  WaitFor(queue->events, queue->newest, stream->handle);
  if (stream->in.Ready()) WaitFor(queue->events, queue->newest, stream->in.stream);
  device->stream_discard_owner = stream;
  device->stream_discard_op = queue->newest;
  stream->stream_discarding = 1;
}

void AwaitStreamDiscards(Stream* stream, CUstream waiter) {
  const Device* const device = stream->device;
  const Stream* const stream_discard_owner = device->stream_discard_owner;
  if (!stream_discard_owner || stream_discard_owner == stream ||
      stream_discard_owner->repopulate.done >= device->stream_discard_op)
    return;
  WaitFor(stream_discard_owner->repopulate.events, device->stream_discard_op, waiter);
}

}  // namespace sluice
