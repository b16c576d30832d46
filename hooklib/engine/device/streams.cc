#include "hooklib/engine/device/streams.h"

#include <map>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"

namespace sluice {

std::atomic<int> g_captures{0};

namespace {

std::atomic<uint64_t> g_generation{1};

struct Key {
  CUcontext context;
  CUstream handle;
  const void* thread;  // per-thread default streams: whose
  auto operator<=>(const Key&) const = default;
};

std::mutex g_mutex;  // guards the map only; taken before no other lock
std::map<Key, Stream*>& Map() {
  static auto& map = *new std::map<Key, Stream*>();
  return map;
}

struct Cache {
  CUcontext context = nullptr;
  CUstream handle = nullptr;
  uint64_t generation = 0;
  Stream* stream = nullptr;
};
thread_local Cache t_cache;
thread_local char t_identity;

CUstream Normal(CUstream handle, bool per_thread_default) {
  if (handle == nullptr) return per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  return handle;
}

}  // namespace

void ForgetStreamCache() { g_generation.fetch_add(1); }
void ForgetStreamsOf(CUcontext context) {
  std::lock_guard lock(g_mutex);
  std::erase_if(Map(), [context](const auto& entry) { return entry.first.context == context; });
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

Stream* FindStream(CUstream handle, bool per_thread_default) {
  CUcontext context = nullptr;
  if (g_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return nullptr;
  const CUstream normal = Normal(handle, per_thread_default);
  const uint64_t generation = HandleGeneration();
  Cache& cache = t_cache;
  if (cache.stream && cache.context == context && cache.handle == normal && cache.generation == generation)
    return cache.stream;

  Device* device = CurrentDevice();
  if (!device) return nullptr;
  if (g_captures.load(std::memory_order_relaxed) > 0 && normal != CU_STREAM_LEGACY && normal != CU_STREAM_PER_THREAD) {
    // A stream that is first met while it is captured (XLA's): questions about it other than this one invalidate the
    // capture, in relaxed mode too (seen with driver 580). Nothing is run on it now, so nothing need be known of it.
    RelaxedCapture relaxed;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (g_real.cuStreamIsCapturing(normal, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE)
      return nullptr;
  }
  CUcontext owner = context;
  if (normal != CU_STREAM_LEGACY && normal != CU_STREAM_PER_THREAD && g_real.cuStreamGetCtx) {
    // A stream may be used while another context is current; what the engine makes for it belongs to its own.
    RelaxedCapture relaxed;
    if (g_real.cuStreamGetCtx(normal, &owner) != CUDA_SUCCESS) return nullptr;
    if (owner != context) return nullptr;
  }
  const Key key{owner, normal, normal == CU_STREAM_PER_THREAD ? &t_identity : nullptr};
  Stream* found = nullptr;
  {
    std::lock_guard lock(g_mutex);
    Stream*& entry = Map()[key];
    found = entry;
  }
  if (!found) {
    auto made = std::make_unique<Stream>();
    made->handle = normal;
    made->device = device;
    unsigned flags = CU_STREAM_DEFAULT;
    if (normal == CU_STREAM_PER_THREAD) {
      flags = CU_STREAM_DEFAULT;
    } else if (normal != CU_STREAM_LEGACY && g_real.cuStreamGetFlags) {
      RelaxedCapture relaxed;
      g_real.cuStreamGetFlags(normal, &flags);
    }
    made->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    std::lock_guard device_lock(device->mutex);
    made->context = device->ContextFor(owner);
    std::lock_guard lock(g_mutex);
    Stream*& entry = Map()[key];
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
    std::lock_guard lock(g_mutex);
    Map().erase(Key{stream->context->handle, stream->handle, nullptr});
  }
  {
    std::lock_guard lock(stream->device->mutex);
    stream->device->Record(stream);  // what is queued still runs; the event outlives the stream
    stream->destroyed = true;
  }
  ForgetStreamCache();
}

void RelaxedCapture::Exchange() {
  if (g_real.cuThreadExchangeStreamCaptureMode) g_real.cuThreadExchangeStreamCaptureMode(&mode_);
}

bool AsksIsCapturing(const Stream& stream) {
  if (stream.legacy()) return true;  // nothing enters the legacy stream while any capture is active
  RelaxedCapture relaxed;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (g_real.cuStreamIsCapturing(stream.handle, &status) != CUDA_SUCCESS) return true;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace sluice
