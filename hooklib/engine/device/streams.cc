#include "hooklib/engine/device/streams.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/dispatch/uncancelled.h"
#include "hooklib/engine/device/captures.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/green_contexts.h"
#include "hooklib/engine/device/queueing_threads.h"

namespace sluice {

namespace {

std::atomic<uint64_t> g_generation{1};
std::atomic<uint64_t> g_gates{0};

// A created stream is known by its handle alone, whatever context is current. A default stream is one for each context,
// and a per-thread one also for each thread.
struct StreamKey {
  CUstream handle;
  CUcontext context;
  uint64_t thread;
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
constinit thread_local StreamCache t_cache;

bool IsDefault(CUstream normal) { return normal == CU_STREAM_LEGACY || normal == CU_STREAM_PER_THREAD; }

// Threads are numbered: an address in thread-local storage would come again with the next thread.
std::atomic<uint64_t> g_threads{0};
constinit thread_local uint64_t t_thread = 0;
constinit thread_local bool t_ended = false;

std::atomic<uint32_t> g_queueing_threads{0};
constinit thread_local bool t_queues = false, t_stopped_queueing = false;

// When the thread ends. Takes no lock: exit() may have been called in a signal handler, with locks held below it.
struct QueueingEnd {
  ~QueueingEnd() {
    t_stopped_queueing = true;  // a destructor that runs later may queue
    if (std::exchange(t_queues, false)) g_queueing_threads.fetch_sub(1, std::memory_order_release);
  }
  bool is_registered = false;
};

// Its destructor runs when the thread ends, before the driver's own data of the thread is destroyed.
struct ThreadEnd {
  ~ThreadEnd() {
    t_ended = true;
    EndThreadStreams(t_thread);
  }
  bool is_registered = false;
};
// For destructors that queue behind both of these: glibc calls those of keys (pthread_key_create) behind those of
// thread-local objects, and again where one of them sets a key.
void EndLate(void*) {
  if (std::exchange(t_queues, false)) g_queueing_threads.fetch_sub(1, std::memory_order_release);
  if (t_thread != 0) EndThreadStreams(t_thread);
}
void RegisterLateEnd() {
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t made{};
    return pthread_key_create(&made, EndLate) == 0 ? std::optional(made) : std::nullopt;
  }();
  if (key) pthread_setspecific(*key, &t_thread);
}
void RegisterThreadEnd() {
  if (t_ended) return RegisterLateEnd();
  static thread_local ThreadEnd end;
  end.is_registered = true;
}

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

// The context that a created stream belongs to; null: the driver does not know the stream.
CUcontext ContextOfStream(CUstream stream) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (g_real.cuStreamGetCtx_v2 && g_real.cuStreamGetCtx_v2(stream, &context, &green) == CUDA_SUCCESS && green) {
    // A green context can be made current once it was converted.
    if (g_real.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS) return nullptr;
    NoteGreenContext(context, green);
    return context;
  }
  return g_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

// Whether the stream joins the legacy stream's barrier.
bool IsBlocking(CUstream handle) {
  unsigned flags = CU_STREAM_DEFAULT;
  if (!IsDefault(handle) && g_real.cuStreamGetFlags) {
    RelaxedCapture relaxed;
    g_real.cuStreamGetFlags(handle, &flags);
  }
  return !(flags & CU_STREAM_NON_BLOCKING);
}

}  // namespace

bool OtherThreadsQueue() { return g_queueing_threads.load(std::memory_order_acquire) > (t_queues ? 1U : 0U); }

void ForgetStreamCache() { g_generation.fetch_add(1); }
void ForgetStreamsOf(CUcontext context) {
  MutexLock lock(g_streams_mutex);
  std::erase_if(StreamMap(), [context](const auto& entry) {
    return entry.first.context == context || entry.second->owner == context;
  });
}
void NoteGates() {
  g_gates.fetch_add(1, std::memory_order_release);
  ForgetStreamCache();
}
bool AnyGates() { return g_gates.load(std::memory_order_acquire) != 0; }
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

void EventPool::TakeOver(EventPool* other) {
  free_.insert(free_.end(), other->free_.begin(), other->free_.end());
  other->free_.clear();
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

CUevent EventPool::Record(CUstream stream) {
  CUevent event = Take();
  if (!event || g_real.cuEventRecord(event, stream) == CUDA_SUCCESS) return event;
  // Never kept: where the driver refuses an event once, it would refuse it each time.
  g_real.cuEventDestroy_v2(event);
  return nullptr;
}

bool TransferQueue::Follow(CUstream application, CUstream waiter, EventPool* pool) {
  CUevent after = pool->Take(), before = after ? pool->Record(application) : nullptr;
  const bool ordered = before && g_real.cuStreamWaitEvent(waiter, before, 0) == CUDA_SUCCESS;
  if (before) pool->Give(before);
  if (after) pool->Give(after);  // taken again by Stamp
  return ordered;
}

void TransferQueue::Stamp(uint64_t op, EventPool* pool) {
  newest = op;
  if (CUevent event = pool->Record(stream)) {
    events.emplace_back(op, event);
  } else if (events.empty()) {
    done = op;
  }
}

bool WaitFor(const NumberedEvents& events, uint64_t op, CUstream waiter) {
  const auto it =
      std::lower_bound(events.begin(), events.end(), op, [](const auto& a, uint64_t value) { return a.first < value; });
  if (it == events.end()) return false;
  g_real.cuStreamWaitEvent(waiter, it->second, 0);
  return true;
}

Stream* FindStream(CUstream handle, bool per_thread_default, bool for_work) {
  const CUstream normal = NormalHandle(handle, per_thread_default);
  const bool is_default = IsDefault(normal);
  const uint64_t generation = HandleGeneration();
  StreamCache& cache = t_cache;
  CUcontext owner = nullptr;
  if (is_default && (g_real.cuCtxGetCurrent(&owner) != CUDA_SUCCESS || !owner)) return nullptr;
  if (cache.stream && cache.context == owner && cache.handle == normal && cache.generation == generation)
    return cache.stream;

  const UncancelledScope uncancelled;  // making a stream known may wait
  if (!t_queues) {
    t_queues = true;
    g_queueing_threads.fetch_add(1, std::memory_order_relaxed);
    if (t_stopped_queueing) {
      RegisterLateEnd();
    } else {
      static thread_local QueueingEnd end;
      end.is_registered = true;
    }
  }
  const StreamKey key{normal, owner, normal == CU_STREAM_PER_THREAD ? ThisThread() : 0};
  Stream* found = nullptr;
  {
    MutexLock lock(g_streams_mutex);
    const auto it = StreamMap().find(key);
    if (it != StreamMap().end()) found = it->second;
  }
  if (!found) {
    if (!is_default) {
      if (!MayBeAsked(normal)) return nullptr;
      RelaxedCapture relaxed;
      owner = ContextOfStream(normal);
      if (!owner) return nullptr;
    }
    const ContextScope scope(owner);
    Device* device = CurrentDevice();
    if (!device) return nullptr;
    if (!device->works.load(std::memory_order_relaxed)) NoteDeviceWorks(device);
    const bool blocking = IsBlocking(normal);
    if (normal == CU_STREAM_PER_THREAD) RegisterThreadEnd();
    DeviceLock device_lock(device->mutex);
    Context* const context = device->ContextFor(owner);
    MutexLock lock(g_streams_mutex);
    Stream*& entry = StreamMap()[key];
    if (!entry) {
      entry = device->NewStream(context);
      entry->handle = normal;
      entry->owner = owner;
      entry->thread = key.thread;
      entry->blocking = blocking;
    }
    found = entry;
  }
  if (const uint64_t gates = g_gates.load(std::memory_order_acquire);
      found->gates_seen.load(std::memory_order_relaxed) != gates) {
    if (!for_work) return found;  // not cached: the next work passes them
    DeviceLock lock(found->device->mutex);
    if (!found->device->PassGates(found)) return found;
    found->gates_seen.store(gates, std::memory_order_relaxed);
  }
  cache = {key.context, normal, generation, found};
  return found;
}

void RetireStream(CUstream handle) {
  const CUstream normal = NormalHandle(handle, false);
  if (IsDefault(normal)) return;
  ForgetCapture(normal);
  Stream* stream = nullptr;
  {
    MutexLock lock(g_streams_mutex);
    const auto it = StreamMap().find(StreamKey{normal, nullptr, 0});
    if (it == StreamMap().end()) return;
    stream = it->second;
    StreamMap().erase(it);
  }
  {
    DeviceLock lock(stream->device->mutex);
    stream->device->Retire(stream);
  }
  ForgetStreamCache();
}

void EndThreadStreams(uint64_t thread) {
  if (Devices().empty()) return;  // a forked child
  ForgetCapturesOf(thread);
  std::vector<Stream*> ended;
  {
    MutexLock lock(g_streams_mutex);
    std::erase_if(StreamMap(), [&](const auto& entry) {
      const bool ends = entry.first.thread == thread;
      if (ends) ended.push_back(entry.second);
      return ends;
    });
  }
  for (Stream* const stream : ended) {
    DeviceLock lock(stream->device->mutex);
    stream->device->Retire(stream);
  }
  t_cache = {};
}

uint64_t ThisThread() {
  if (t_thread == 0) t_thread = g_threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return t_thread;
}

void RelaxedCapture::Exchange() {
  if (g_real.cuThreadExchangeStreamCaptureMode) g_real.cuThreadExchangeStreamCaptureMode(&mode_);
}

bool QueryIsCapturing(const Stream& stream) {
  RelaxedCapture relaxed;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // A default stream is the current context's. The legacy stream takes work beside a capture of a non-blocking stream;
  // beside one of a blocking stream the driver answers with an error, and refuses the work.
  std::optional<ContextScope> scope;
  if (IsDefault(stream.handle)) scope.emplace(stream.owner);
  if (g_real.cuStreamIsCapturing(stream.handle, &status) != CUDA_SUCCESS) return true;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace sluice
