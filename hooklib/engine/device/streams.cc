#include "hooklib/engine/device/streams.h"

#include <algorithm>
#include <map>
#include <memory>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"

namespace sluice {

std::atomic<int> g_captures{0};

namespace {

std::atomic<uint64_t> g_generation{1};

struct StreamKey {
  CUcontext context;
  CUstream handle;
  const void* thread;  // of a per-thread default stream: whose
  auto operator<=>(const StreamKey&) const = default;
};

// Guards the map only. Taken with a device's lock held, or alone; no other lock is taken inside.
Mutex g_streams_mutex;
std::map<StreamKey, Stream*>& StreamMap() SLUICE_REQUIRES(g_streams_mutex) {
  static auto& map = *new std::map<StreamKey, Stream*>();
  return map;
}

struct StreamCache {
  CUcontext context = nullptr;
  CUstream handle = nullptr;
  uint64_t generation = 0;
  Stream* stream = nullptr;
};
thread_local StreamCache t_cache;
thread_local char t_identity;

CUstream NormalHandle(CUstream handle, bool per_thread_default) {
  if (handle == nullptr) return per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  return handle;
}

// Whether the stream may be asked anything. Where it is first met while it is captured (XLA's), questions other than
// this one invalidate the capture, in relaxed mode too (seen with driver 580). Nothing runs on it then, so nothing need
// be known of it.
bool MayBeAsked(CUstream handle) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return true;
  RelaxedCapture relaxed;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return g_real.cuStreamIsCapturing(handle, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

std::unique_ptr<Stream> MakeStream(CUstream handle, Device* device) {
  auto made = std::make_unique<Stream>();
  made->handle = handle;
  made->device = device;
  unsigned flags = CU_STREAM_DEFAULT;
  if (!made->per_thread() && !made->legacy() && g_real.cuStreamGetFlags) {
    RelaxedCapture relaxed;
    g_real.cuStreamGetFlags(handle, &flags);
  }
  made->blocking = !(flags & CU_STREAM_NON_BLOCKING);
  return made;
}

}  // namespace

void ForgetStreamCache() { g_generation.fetch_add(1); }
void ForgetStreamsOf(CUcontext context) {
  MutexLock lock(g_streams_mutex);
  std::erase_if(StreamMap(), [context](const auto& entry) { return entry.first.context == context; });
}
uint64_t HandleGeneration() { return g_generation.load(std::memory_order_acquire); }

CUevent EventPool::Take() {
  if (!free_.empty()) {
    CUevent event = free_.back();
    free_.pop_back();
    return event;
  }
  CUevent event = nullptr;
  return g_real.cuEventCreate(&event, flags_) == CUDA_SUCCESS ? event : nullptr;
}

CUstream MakeQueueStream() {
  CUstream stream = nullptr;
  int least = 0, greatest = 0;
  if (g_real.cuCtxGetStreamPriorityRange) g_real.cuCtxGetStreamPriorityRange(&least, &greatest);
  if (g_real.cuStreamCreateWithPriority &&
      g_real.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest) == CUDA_SUCCESS) {
    return stream;
  }
  g_real.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  return stream;
}

bool TransferQueue::HasStream() {
  if (!stream) stream = MakeQueueStream();
  return stream != nullptr;
}

bool TransferQueue::Follow(CUstream application, EventPool* pool) {
  CUevent before = pool->Take(), after = pool->Take();
  const bool ordered = before && after && g_real.cuEventRecord(before, application) == CUDA_SUCCESS &&
                       g_real.cuStreamWaitEvent(stream, before, 0) == CUDA_SUCCESS;
  if (before) pool->Give(before);
  if (after) pool->Give(after);  // taken again by Stamp
  return ordered;
}

void TransferQueue::Stamp(uint64_t op, EventPool* pool) {
  CUevent event = pool->Take();
  newest = op;
  if (event && g_real.cuEventRecord(event, stream) == CUDA_SUCCESS) {
    events.emplace_back(op, event);
  } else {
    if (event) pool->Give(event);
    if (events.empty()) done = op;
  }
}

bool WaitFor(const NumberedEvents& events, uint64_t op, CUstream waiter) {
  const auto it =
      std::lower_bound(events.begin(), events.end(), op, [](const auto& a, uint64_t value) { return a.first < value; });
  if (it == events.end()) return false;
  g_real.cuStreamWaitEvent(waiter, it->second, 0);
  return true;
}

Stream* FindStream(CUstream handle, bool per_thread_default) {
  CUcontext context = nullptr;
  if (g_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return nullptr;
  const CUstream normal = NormalHandle(handle, per_thread_default);
  const uint64_t generation = HandleGeneration();
  StreamCache& cache = t_cache;
  if (cache.stream && cache.context == context && cache.handle == normal && cache.generation == generation)
    return cache.stream;

  Device* device = CurrentDevice();
  if (!device) return nullptr;
  CUcontext owner = context;
  if (normal != CU_STREAM_LEGACY && normal != CU_STREAM_PER_THREAD) {
    if (!MayBeAsked(normal)) return nullptr;
    if (g_real.cuStreamGetCtx) {
      // A stream may be used while another context is current; the engine's queues for it belong to its own.
      RelaxedCapture relaxed;
      if (g_real.cuStreamGetCtx(normal, &owner) != CUDA_SUCCESS) return nullptr;
      if (owner != context) return nullptr;
    }
  }
  const StreamKey key{owner, normal, normal == CU_STREAM_PER_THREAD ? &t_identity : nullptr};
  Stream* found = nullptr;
  {
    MutexLock lock(g_streams_mutex);
    found = StreamMap()[key];
  }
  if (!found) {
    auto made = MakeStream(normal, device);
    DeviceLock device_lock(device->mutex);
    made->context = device->ContextFor(owner);
    MutexLock lock(g_streams_mutex);
    Stream*& entry = StreamMap()[key];
    if (!entry) {
      device->streams.push_back(std::move(made));
      entry = device->streams.back().get();
      entry->id = static_cast<memory::StreamId>(device->streams.size());
    }
    found = entry;
  }
  cache = {context, normal, generation, found};
  return found;
}

void RetireStream(CUstream handle) {
  Stream* stream = FindStream(handle, false);
  if (!stream || stream->legacy() || stream->per_thread()) return;
  {
    MutexLock lock(g_streams_mutex);
    StreamMap().erase(StreamKey{stream->context->handle, stream->handle, nullptr});
  }
  {
    DeviceLock lock(stream->device->mutex);
    stream->device->RecordEvent(stream);  // its queued work still runs; the event outlives the stream
    stream->destroyed = true;
  }
  ForgetStreamCache();
}

void RelaxedCapture::Exchange() {
  if (g_real.cuThreadExchangeStreamCaptureMode) g_real.cuThreadExchangeStreamCaptureMode(&mode_);
}

bool QueryIsCapturing(const Stream& stream) {
  if (stream.legacy()) return true;  // nothing enters the legacy stream while any capture is active
  RelaxedCapture relaxed;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (g_real.cuStreamIsCapturing(stream.handle, &status) != CUDA_SUCCESS) return true;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace sluice
