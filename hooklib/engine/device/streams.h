// The engine's view of one application stream: how far it is, and the two queues on which the engine moves memory for
// it.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_STREAMS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_STREAMS_H_

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/lock.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct Device;

// Events of one context, reused. Guarded by the device's lock.
class EventPool {
 public:
  explicit EventPool(unsigned flags = CU_EVENT_DISABLE_TIMING) : flags_(flags) {}
  CUevent Take();  // null where the driver gives none
  void Give(CUevent event) { free_.push_back(event); }

 private:
  const unsigned flags_;
  std::vector<CUevent> free_;
};

// A stream for the engine's own work: it joins no barrier of the legacy stream and goes before kernels where the
// hardware offers it. Null: the driver gives none.
CUstream MakeQueue();

// One of the queues of a stream: a non-blocking stream of the engine's own with numbered operations.
struct TransferQueue {
  CUstream stream = nullptr;
  // Of departures (eviction_threads.h): where they begin; the place, plus one, of the cell that tells of them; its
  // newest value.
  CUstream begin = nullptr;
  uint32_t cell = 0, sent = 0;
  uint64_t done = 0;
  uint64_t newest = 0;
  uint64_t looked = 0;  // Device::look when its events were asked
  std::deque<std::pair<uint64_t, CUevent>> events;

  bool Ready();  // has its stream; false where the driver gives none
  // Waits, on the GPU, for all that `application` holds now. By a new event, always: the stream may have been told to
  // wait for others since its newest one was set. False: the driver gives none, or none for the way back.
  bool Follow(CUstream application, EventPool* pool);
  // An event behind what the queue holds now stands for operation `op`. Without one the operation counts as done at
  // once: order is lost for it, bytes are not.
  void Stamp(uint64_t op, EventPool* pool);
};

// `waiter` waits, on the GPU, for the first event that covers `op`. False: nothing to wait for.
bool WaitFor(const std::deque<std::pair<uint64_t, CUevent>>& events, uint64_t op, CUstream waiter);

struct Context;

struct Stream {
  memory::StreamId id = 0;
  CUstream handle = nullptr;  // as the driver's legacy-flavour functions take it: default streams are CU_STREAM_LEGACY,
                              // CU_STREAM_PER_THREAD
  Context* context = nullptr;
  Device* device = nullptr;
  bool blocking = true;  // joins the legacy stream's barrier
  bool destroyed = false;
  std::atomic<uint64_t> seq{0};     // work that the driver has
  std::atomic<uint64_t> copies{0};  // of it, copies and memsets
  memory::Lock order;               // launch and its event stay together while the device is active

  // Guarded by the device's lock.
  uint64_t completed = 0;
  uint64_t looked = 0, asked = 0;        // Device::look when its events, itself, were asked
  uint64_t recorded = 0;                 // newest seq that an event covers
  std::atomic<bool> mark_wanted{false};  // per-thread stream: only its own thread can record on it
  std::deque<std::pair<uint64_t, CUevent>> events;
  TransferQueue in, out;
  TransferQueue
      repopulate;  // discards in its order: what its next work overwrites (overwrites.h), what died (stream_discard.h)
  uint64_t stream_discarding = 0;  // 1 from such a discard of dead bytes until the work that it was for has been queued
  uint64_t last_launch = 0;        // Residency::launches() at its last work that was looked at
  uint64_t stuck_at = 0;           // work and operations done, plus one, when the queues were last waited for in vain

  bool per_thread() const { return handle == CU_STREAM_PER_THREAD; }
  bool legacy() const { return handle == CU_STREAM_LEGACY; }
};

// The state of a stream as the caller named it; null where there is no current context. `per_thread_default`: the
// entry's flavour. About 15 ns when a thread goes on using the same stream.
Stream* FindStream(CUstream handle, bool per_thread_default);
// The application destroys it: call before the driver does.
void RetireStream(CUstream handle);
// Handles may have changed their meaning: what was known by them is asked anew.
void ForgetStreamCache();
// The context is gone: its handles, and its own, may come again and mean something else. Takes the map's lock alone.
void ForgetStreamsOf(CUcontext context);
uint64_t HandleGeneration();

// Lets the engine call the driver while some stream is captured in global mode, which forbids most calls to every
// thread.
extern std::atomic<int> g_captures;
class RelaxedCapture {
 public:
  RelaxedCapture() : active_(g_captures.load(std::memory_order_relaxed) > 0) {
    if (active_) Exchange();
  }
  ~RelaxedCapture() {
    if (active_) Exchange();
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange();
  const bool active_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Whether work given to this stream now is captured instead of run (true also where the driver would refuse to say).
bool AsksIsCapturing(const Stream& stream);
inline bool IsCapturing(const Stream& stream) {
  return g_captures.load(std::memory_order_relaxed) > 0 && AsksIsCapturing(stream);
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_STREAMS_H_
