// Device as memory::Timeline: which work of its streams is done, by events behind launches and transfers.
#include <algorithm>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device_streams.h"
#include "hooklib/engine/device/failures.h"

namespace sluice {

namespace {

// Whether the event's work is over: it is done, or the context has failed, and nothing in it will ever be done.
bool IsReached(CUevent event, CUcontext context) {
  const CUresult result = g_real.cuEventQuery(event);
  if (result == CUDA_SUCCESS) return true;
  NoteAnswer(context, result);
  return EndsContext(result);
}

}  // namespace

void DeviceStreams::PollQueue(TransferQueue* queue, EventPool* pool) {
  if (queue->polled_in == poll_epoch || queue->events.empty()) return;
  queue->polled_in = poll_epoch;
  while (!queue->events.empty() && IsReached(queue->events.front().second, nullptr)) {
    queue->done = queue->events.front().first;
    pool->Give(queue->events.front().second);
    queue->events.pop_front();
  }
}

void DeviceStreams::PollEvents(Stream* stream) {
  if (stream->polled_in == poll_epoch) return;
  stream->polled_in = poll_epoch;
  if (stream->events.empty()) return;
  if (stream == stream->context->peer_frees) return PollPeerFrees(stream);
  const ContextScope scope(stream->context->handle);
  while (!stream->events.empty() && IsReached(stream->events.front().second, stream->context->handle)) {
    stream->completed = std::max(stream->completed, stream->events.front().first);
    stream->context->events.Give(stream->events.front().second);
    stream->events.pop_front();
  }
}

// An event can be queried with any context current. It may have ended with its own.
void DeviceStreams::PollPeerFrees(Stream* stream) {
  while (!stream->events.empty() && g_real.cuEventQuery(stream->events.front().second) != CUDA_ERROR_NOT_READY) {
    stream->completed = std::max(stream->completed, stream->events.front().first);
    g_real.cuEventDestroy_v2(stream->events.front().second);
    stream->events.pop_front();
  }
}

uint64_t DeviceStreams::CompletedWork(std::vector<memory::Mark>* marks, bool* all_seen) {
  if (marks->empty()) {
    for (const auto& stream : streams) marks->push_back({stream->id, stream->seq.load(std::memory_order_acquire)});
  }
  uint64_t done = 0;
  *all_seen = true;
  for (const memory::Mark& mark : *marks) {
    const Stream* const stream = StreamById(mark.stream);
    const bool is_over = !stream || Done(mark);
    done += is_over ? mark.seq : std::min(mark.seq, stream->completed);
    *all_seen &= is_over || !stream->per_thread() || mark.seq <= stream->recorded;
  }
  return done;
}

bool DeviceStreams::RecordEvent(Stream* stream) {
  const uint64_t seq = stream->seq.load(std::memory_order_acquire);
  if (seq <= stream->recorded) return true;
  if (stream->destroyed || !stream->context) return false;
  // On another thread the handle names that thread's stream.
  if (stream->per_thread() && stream->thread != ThisThread()) return false;
  if (IsCapturing(*stream)) return false;
  RelaxedCapture relaxed;
  const ContextScope scope(stream->context->handle);
  CUevent event = scope.is_current() ? stream->context->events.Record(stream->handle) : nullptr;
  if (!event) return false;
  stream->recorded = seq;
  stream->events.emplace_back(seq, event);
  return true;
}

bool DeviceStreams::Done(memory::Mark mark) {
  Stream* stream = StreamById(mark.stream);
  if (!stream || mark.seq <= stream->completed) return true;
  RelaxedCapture relaxed;
  PollEvents(stream);
  if (mark.seq <= stream->completed) return true;
  // No event covers it (the mark was set on a thread's own stream, or on the legacy stream beside others): the stream
  // itself is queried.
  if (mark.seq > stream->recorded && stream->queried_in != poll_epoch && !stream->destroyed && !stream->per_thread() &&
      !IsCapturing(*stream)) {
    stream->queried_in = poll_epoch;
    const uint64_t seq = stream->seq.load(std::memory_order_acquire);
    const ContextScope scope(stream->context->handle);
    if (scope.is_current()) {
      const CUresult result = g_real.cuStreamQuery(stream->handle);
      NoteAnswer(stream->context->handle, result);
      if (result == CUDA_SUCCESS || EndsContext(result)) stream->completed = std::max(stream->completed, seq);
    }
  }
  return mark.seq <= stream->completed;
}

bool DeviceStreams::MarkAll(std::vector<memory::Mark>* marks) {
  RelaxedCapture relaxed;
  const size_t before = marks->size();
  bool other_blocking = false;
  for (const auto& stream : streams) {
    other_blocking |= stream->blocking && !stream->legacy() && !stream->destroyed && stream->context &&
                      stream->seq.load(std::memory_order_relaxed) > stream->completed;
  }
  for (const auto& stream : streams) {
    // With a discard in its order under way, the mark covers the work behind the discard too.
    const uint64_t seq = stream->seq.load(std::memory_order_acquire) + stream->pending_discard_work;
    if (!stream->context || seq <= stream->completed) continue;
    if (seq > stream->recorded) {
      if (stream->per_thread()) {
        stream->mark_wanted.store(true, std::memory_order_release);
      } else if (stream->legacy() && other_blocking) {
        // An event there would make the other streams wait for each other where the application did not; Done()
        // queries instead.
      } else if (!RecordEvent(stream.get()) && !stream->destroyed) {
        marks->resize(before);
        return false;
      }
    }
    marks->push_back({stream->id, seq});
  }
  return true;
}

bool DeviceStreams::InDone(memory::StreamId id, uint64_t op) {
  Stream* stream = StreamById(id);
  if (!stream || op <= stream->fetch_queue.done) return true;
  RelaxedCapture relaxed;
  PollQueue(&stream->fetch_queue, &stream->context->events);
  return op <= stream->fetch_queue.done;
}

bool DeviceStreams::OutDone(memory::StreamId id, uint64_t op) {
  Stream* stream = StreamById(id);
  if (!stream || op <= stream->evict_queue.done) return true;
  RelaxedCapture relaxed;
  PollQueue(&stream->evict_queue, &stream->context->events);
  return op <= stream->evict_queue.done;
}

size_t DeviceStreams::CountOutstanding(Stream* stream) {
  PollQueue(&stream->fetch_queue, &stream->context->events);
  PollQueue(&stream->evict_queue, &stream->context->events);
  PollQueue(&stream->discard_queue, &stream->context->events);
  return stream->fetch_queue.events.size() + stream->evict_queue.events.size() +
         2 * stream->discard_queue.events.size();
}

}  // namespace sluice
