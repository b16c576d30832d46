// The engine's view of one application stream: how far it is, and the queues on which the engine moves memory for it.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_STREAMS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_STREAMS_H_

#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/engine/device/device_lock.h"
#include "hooklib/memory/lock.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct Context;
struct Device;

// Events of one context, reused. The context is current at each call but Give (ContextScope).
class EventPool {
 public:
  explicit EventPool(unsigned flags = CU_EVENT_DISABLE_TIMING) : flags_(flags) {}
  CUevent Take() SLUICE_DEVICE_LOCKED;  // null where the driver gives none
  // Takes an event and records it on a stream of this context. Null: the driver refused.
  CUevent Record(CUstream stream) SLUICE_DEVICE_LOCKED;
  void Give(CUevent event) SLUICE_DEVICE_LOCKED { free_.push_back(event); }
  void TakeOver(EventPool* other) SLUICE_DEVICE_LOCKED;  // the events of a green context outlive it

 private:
  const unsigned flags_;
  std::vector<CUevent> free_ SLUICE_BY_DEVICE_LOCK;
};

// A stream for the engine's own work: it joins no barrier of the legacy stream, and goes before kernels where the
// hardware offers priorities. Null: the driver gives none.
CUstream MakeQueueStream();

// Operations by ascending number, with events behind them.
using NumberedEvents = std::deque<std::pair<uint64_t, CUevent>>;

// One of the queues of a stream: a non-blocking stream of the engine's own with numbered operations.
struct TransferQueue {
  CUstream stream SLUICE_BY_DEVICE_LOCK = nullptr;
  // Of evictions by threads (eviction_threads.h): the stream where they begin; the number, plus one, of the cell that
  // counts them; the cell's newest value.
  CUstream entry SLUICE_BY_DEVICE_LOCK = nullptr;
  uint32_t cell SLUICE_BY_DEVICE_LOCK = 0, newest_cell_value SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t done SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t newest SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t polled_in SLUICE_BY_DEVICE_LOCK = 0;  // Device::poll_epoch
  NumberedEvents events SLUICE_BY_DEVICE_LOCK;

  bool HasStream() SLUICE_DEVICE_LOCKED;  // makes it at the first call; false where the driver gives none
  // `waiter`, the queue's stream or its entry, waits on the GPU for all that `application` holds now. Always by a new
  // event: the stream may wait for others since its newest one. False: no event, or none for the way back.
  bool Follow(CUstream application, CUstream waiter, EventPool* pool) SLUICE_DEVICE_LOCKED;
  // An event behind all that the queue holds stands for operation `op`. Without one its order is lost, bytes are not.
  void Stamp(uint64_t op, EventPool* pool) SLUICE_DEVICE_LOCKED;
};

// `waiter` waits, on the GPU, for the first event that covers `op`. False: nothing to wait for.
bool WaitFor(const NumberedEvents& events, uint64_t op, CUstream waiter);

struct Stream {
  memory::StreamId id = 0;
  // As the driver's legacy-flavour functions take it: default streams are CU_STREAM_LEGACY, CU_STREAM_PER_THREAD.
  CUstream handle = nullptr;
  Context* context = nullptr;  // null once it is gone; written with the device's lock held
  CUcontext owner = nullptr;   // the driver's handle of that context
  uint64_t thread = 0;         // ThisThread() of a per-thread default stream
  Device* device = nullptr;
  bool blocking = true;             // joins the legacy stream's barrier
  std::atomic<uint64_t> seq{0};     // work that the driver has
  std::atomic<uint64_t> copies{0};  // of it, copies and memsets
  // Keeps a launch and its event together while the device is active.
  memory::Lock order SLUICE_ACQUIRED_BEFORE(g_device_lock);
  std::atomic<uint64_t> gates_seen{0};               // all gates of the process when it last passed its context's
  uint64_t gates SLUICE_BY_DEVICE_LOCK = 0;          // of its context that it has passed
  uint64_t primary_gates SLUICE_BY_DEVICE_LOCK = 0;  // of a green context's primary one
  std::atomic<bool> mark_wanted{false};              // per-thread stream: only its own thread can record on it

  // The application destroyed the stream, or its thread ended. The work that it holds still runs.
  bool destroyed SLUICE_BY_DEVICE_LOCK = false;
  uint64_t completed SLUICE_BY_DEVICE_LOCK = 0;  // of seq
  // Device::poll_epoch when its events, and the stream itself, were queried.
  uint64_t polled_in SLUICE_BY_DEVICE_LOCK = 0, queried_in SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t recorded SLUICE_BY_DEVICE_LOCK = 0;  // newest seq that an event covers
  NumberedEvents events SLUICE_BY_DEVICE_LOCK;
  TransferQueue fetch_queue SLUICE_BY_DEVICE_LOCK, evict_queue SLUICE_BY_DEVICE_LOCK;
  // Discards in the stream's order: of ranges that its next work overwrites, and of freed ones (discards.h).
  TransferQueue discard_queue SLUICE_BY_DEVICE_LOCK;
  // 1 from a discard of freed ranges until the work that it was for has been queued.
  uint64_t pending_discard_work SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t last_launch SLUICE_BY_DEVICE_LOCK = 0;  // Residency::launches() at its last planned work
  // Work and operations done, plus one, when a wait for its queues last ran out.
  uint64_t done_at_failed_wait SLUICE_BY_DEVICE_LOCK = 0;

  bool per_thread() const { return handle == CU_STREAM_PER_THREAD; }
  bool legacy() const { return handle == CU_STREAM_LEGACY; }
};

// The state of a stream as the caller named it, in whatever context. `per_thread_default`: the entry's flavour. Null
// where a default stream is named without a current context, and for a stream that is first met while it is captured.
// `for_work`: it passes gates first. About 15 ns when a thread goes on using the same stream.
Stream* FindStream(CUstream handle, bool per_thread_default, bool for_work = true);
// The application destroys it, with whatever context current: call before the driver does.
void RetireStream(CUstream handle);
// The thread with this number ends: so do its per-thread default streams.
void EndThreadStreams(uint64_t thread);
// A number of the calling thread that no other thread ever has.
uint64_t ThisThread();
// Handles may have changed their meaning: cached streams are looked up anew.
void ForgetStreamCache();
// The context is gone: its handles, and its own, may mean something else. Takes the map's lock alone.
void ForgetStreamsOf(CUcontext context);
uint64_t HandleGeneration();
void NoteGates();  // a context has a new one (DeviceStreams::Gate): streams pass it when they are found next

// Open captures (captures.h).
extern std::atomic<int> g_captures;
// Lets the engine call the driver while some stream is captured in global mode, which forbids most calls to every
// thread. A capture that begins meanwhile waits for the devices' locks (AwaitEngineCalls). So with such a lock held the
// mode is exchanged beside open captures alone; the lock must not be released and taken again before this ends.
class RelaxedCapture {
 public:
  RelaxedCapture() : active_(g_captures.load(std::memory_order_relaxed) > 0 || !HeldDeviceLocks::IsAny()) {
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
bool QueryIsCapturing(const Stream& stream);
inline bool IsCapturing(const Stream& stream) {
  return g_captures.load(std::memory_order_relaxed) > 0 && QueryIsCapturing(stream);
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_STREAMS_H_
