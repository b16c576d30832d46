// Device: the state of contexts and streams.
#include "hooklib/engine/device/device_streams.h"

#include <algorithm>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/green_contexts.h"
#include "hooklib/engine/device/peer_copies.h"

namespace sluice {

Context* DeviceStreams::ContextFor(CUcontext handle) {
  std::unique_ptr<Context>& entry = contexts[handle];
  if (!entry) {
    entry = std::make_unique<Context>();
    entry->handle = handle;
    entry->device = device_;
    entry->managed = std::make_unique<memory::ArenaAllocator>(&fences);
    entry->unevictable = std::make_unique<memory::ArenaAllocator>(&fences);
    peer_copies::NoteContext(MemoryContext(handle));
    if (IsGreenContext(handle)) InheritFromPrimary(entry.get());
  }
  return entry.get();
}

void DeviceStreams::InheritFromPrimary(Context* green) {
  RelaxedCapture relaxed;
  const auto it = contexts.find(MemoryContext(green->handle));
  if (it == contexts.end() || it->second.get() == green) return;
  Context* const primary = it->second.get();
  green->events.TakeOver(&primary->events);
  green->timing_events.TakeOver(&primary->timing_events);
  if (primary->spare_cells.empty()) return;
  const eviction_threads::CellPage& page = primary->spare_cells.back();
  green->eviction_cells = {page.host, page.device};
  primary->spare_cells.pop_back();
}

Context* DeviceStreams::OwnerOf(memory::Va block, bool is_unevictable) {
  for (const auto& [handle, context] : contexts) {
    const auto& arenas = is_unevictable ? context->unevictable_arenas : context->managed_arenas;
    const auto it = arenas.upper_bound(block);
    if (it != arenas.begin() && block < std::prev(it)->first + std::prev(it)->second) return context.get();
  }
  return nullptr;
}

CUcontext DeviceStreams::MemoryContext(CUcontext current) {
  if (!IsGreenContext(current)) return current;
  if (const CUcontext known = PrimaryOfGreen(current)) return known;
  CUcontext primary = nullptr;
  if (g_real.cuDevicePrimaryCtxRetain(&primary, ordinal) != CUDA_SUCCESS) return current;
  // The green context keeps the primary one alive.
  if (g_real.cuDevicePrimaryCtxRelease_v2) g_real.cuDevicePrimaryCtxRelease_v2(ordinal);
  NotePrimaryOfGreen(current, primary);
  return primary;
}

CUstream DeviceStreams::Housekeeping(Context* context) {
  if (!context->housekeeping) g_real.cuStreamCreate(&context->housekeeping, CU_STREAM_NON_BLOCKING);
  return context->housekeeping;
}

bool DeviceStreams::IsPartOf(const Context& context, CUcontext handle) {
  return context.handle == handle || MemoryContext(context.handle) == handle;
}

std::optional<CUresult> DeviceStreams::Gate(CUcontext handle, CUevent event) {
  DeviceLock lock(mutex);
  for (const auto& stream : streams) {
    if (!stream->context || !stream->handle || stream->destroyed || !IsPartOf(*stream->context, handle)) continue;
    if (IsCapturing(*stream)) return std::nullopt;
  }
  RelaxedCapture relaxed;
  const ContextScope scope(handle);
  if (!scope.is_current()) return std::nullopt;
  Context* const context = ContextFor(handle);
  if (!context->gate_stream) context->gate_stream = MakeQueueStream();
  const CUresult result = g_real.cuStreamWaitEvent(context->gate_stream, event, 0);
  if (result != CUDA_SUCCESS) return result;
  const CUevent gate = context->events.Record(context->gate_stream);
  if (!gate) return CUDA_ERROR_OUT_OF_MEMORY;
  if (context->gate) context->events.Give(context->gate);  // the new one is behind it
  context->gate = gate;
  ++context->gates;
  NoteGates();
  return CUDA_SUCCESS;
}

bool DeviceStreams::PassGates(Stream* stream) {
  if (!stream->context || !stream->handle || stream->destroyed) return true;
  const auto primary = contexts.find(MemoryContext(stream->context->handle));
  const std::pair<Context*, uint64_t*> gates[] = {
      {stream->context, &stream->gates},
      {primary != contexts.end() ? primary->second.get() : nullptr, &stream->primary_gates}};
  for (const auto& [context, passed] : gates) {
    if (!context || *passed == context->gates) continue;
    if (IsCapturing(*stream)) return false;
    *passed = context->gates;
    const ContextScope scope(stream->context->handle);
    RelaxedCapture relaxed;
    if (scope.is_current() && g_real.cuStreamWaitEvent(stream->handle, context->gate, 0) == CUDA_SUCCESS)
      stream->seq.fetch_add(1, std::memory_order_release);
  }
  return true;
}

Stream* DeviceStreams::StreamById(memory::StreamId id) {
  if (id == 0 || id > streams.size()) return nullptr;
  Stream* stream = streams[id - 1].get();
  return stream->context ? stream : nullptr;
}

const unsigned char* DeviceStreams::UuidForDriver() const { return Devices().size() > 1 ? raw_uuid_ : nullptr; }

Stream* DeviceStreams::NewStream(Context* context) {
  constexpr size_t kMaxAttempts = 16;
  RelaxedCapture relaxed;
  ++poll_epoch;
  for (size_t i = 0; i < std::min(retired_.size(), kMaxAttempts); ++i) {
    Stream* const stream = retired_[i];
    if (!IsOver(stream) || (stream->context != context && BelongsToContext(stream))) continue;
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(i));
    // Its number, and so its marks and its predictor, go on: numbers of work only grow.
    stream->context = context;
    stream->completed = stream->recorded = stream->seq.load(std::memory_order_relaxed);
    stream->destroyed = false;
    stream->mark_wanted.store(false, std::memory_order_relaxed);
    stream->done_at_failed_wait = 0;
    stream->gates = stream->primary_gates = 0;
    stream->gates_seen.store(0, std::memory_order_relaxed);
    return stream;
  }
  // Streams whose work goes on for long are looked at last.
  if (retired_.size() > kMaxAttempts)
    std::rotate(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(kMaxAttempts), retired_.end());
  streams.push_back(std::make_unique<Stream>());
  Stream* const stream = streams.back().get();
  stream->id = static_cast<memory::StreamId>(streams.size());
  stream->context = context;
  stream->device = device_;
  return stream;
}

bool DeviceStreams::BelongsToContext(Stream* stream) {
  if (!stream->context) return false;
  PollEvents(stream);
  return !stream->events.empty() || stream->fetch_queue.stream || stream->evict_queue.stream ||
         stream->discard_queue.stream;
}

void DeviceStreams::Retire(Stream* stream) {
  if (stream->destroyed) return;
  RecordEvent(stream);  // its queued work still runs; the event outlives the stream
  stream->destroyed = true;
  retired_.push_back(stream);
}

void DeviceStreams::NotePeerFree(const Stream& stream, memory::Va address) {
  RelaxedCapture relaxed;
  CUevent event = nullptr;
  {
    const ContextScope scope(stream.owner);
    if (!scope.is_current() || g_real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
    g_real.cuEventRecord(event, stream.handle);
  }
  DeviceLock lock(mutex);
  memory::Va base = 0;
  const memory::Allocation* const allocation = live.Find(address, &base);
  Context* const context = allocation ? OwnerOf(base, allocation->unevictable) : nullptr;
  if (context) {
    Stream*& peer = context->peer_frees;
    if (!peer) {
      peer = NewStream(context);
      peer->handle = nullptr;  // the driver has none: the context must not wait for this work
      peer->blocking = false;
    }
    peer->recorded = peer->seq.fetch_add(1, std::memory_order_release) + 1;
    peer->events.emplace_back(peer->recorded, event);
  } else {
    g_real.cuEventDestroy_v2(event);
  }
}

bool DeviceStreams::IsOver(Stream* stream) {
  const uint64_t seq = stream->seq.load(std::memory_order_acquire);
  if (!stream->context) return true;
  return Done({stream->id, seq}) && CountOutstanding(stream) == 0 && discard_owner != stream &&
         stream->pending_discard_work == 0;
}

bool DeviceStreams::IsIdle(const Context* context) {
  RelaxedCapture relaxed;
  // A gate's own stream has work while it is shut.
  for (const auto& [handle, part] : contexts) {
    if (part->gate && IsPartOf(*part, context->handle) && g_real.cuEventQuery(part->gate) == CUDA_ERROR_NOT_READY)
      return false;
  }
  if (peer_copies::AnyPending(context->handle)) return false;
  return std::all_of(streams.begin(), streams.end(), [&](const auto& stream) SLUICE_DEVICE_LOCKED {
    const bool is_elsewhere = !stream->context || !stream->handle || !IsPartOf(*stream->context, context->handle);
    return is_elsewhere || Done({stream->id, stream->seq.load(std::memory_order_acquire)});
  });
}

}  // namespace sluice
