// The path of everything that the application queues: planned if need be, memory moved, then the driver's own call.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_WORK_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_WORK_H_

#include <optional>
#include <span>
#include <vector>

#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/device/nested_calls.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/libraries/extents/torch_kernels.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

// A piece of work about to be queued, and its access set.
struct Work {
  Stream* stream = nullptr;
  std::span<const memory::Extent> exact;      // bytes that it touches for certain (copies, memsets, library calls)
  std::span<const uint64_t> words;            // words that may point at memory that it touches
  std::span<const libraries::Reach> reaches;  // parts of blocks that words point at; each says if it is only read
  bool known = true;                          // everything that it touches is among these
  bool may_write_anywhere = false;            // it may write where none of these shows
  std::optional<size_t> hot_reaches;          // a graph: so many reaches at the start are used by more nodes
  uint64_t id = 0;                            // execution id; 0: nothing is learned of such work
  const FunctionInfo* function = nullptr;     // of the launch of a kernel
  const LibraryCall* library = nullptr;       // the library call that makes it
  size_t read_only = 0;    // so many extents at the start of `exact` are proven to be read and not written
  bool copy = false;       // the others are written by a copy
  size_t overwritten = 0;  // so many at the end of `exact` are overwritten whole, and not read before
  bool waits = false;      // the driver's call returns behind the stream's earlier work
  uint64_t key = 0;        // of a launch for the fast path (policy/steady/launch_fast_path.h); 0: not made
};

// Calls `write` with each address that a stream's own operations write.
template <typename Write>
void ForEachWritten(const CUstreamBatchMemOpParams* list, unsigned count, Write write) {
  for (unsigned i = 0; list && i < count; ++i) {
    const CUstreamBatchMemOpParams& op = list[i];
    if (op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      write(op.writeValue.address);
    if (static_cast<int>(op.operation) == cuda_newer::kStreamOperationAtomicReduction)
      write(CUdeviceptr{op.pad[cuda_newer::kAtomicReductionAddress]});
  }
}

// Whether work on this stream must go through RunWork.
inline bool NeedsRunWork(const Stream* stream) {
  return stream->device->active.load(std::memory_order_relaxed) || g_captures.load(std::memory_order_relaxed) > 0 ||
         stream->mark_wanted.load(std::memory_order_relaxed);
}

// In place of RunWork while everything fits. Work is counted when the driver has it: an event that another thread sets
// meanwhile would be in front of the work and count as behind it.
template <typename Issue>
inline CUresult RunCounted(Stream* stream, Issue issue) {
  const CUresult result = issue();
  stream->seq.fetch_add(1, std::memory_order_release);
  return result;
}

// The application's call queues work that is not planned: it is counted alone (dispatch/engine_hooks.h).
template <typename Issue>
CUresult RunUnplanned(CUstream handle, bool per_thread, Issue issue) {
  void* const queue = BeginCounted(handle, per_thread);
  const CUresult result = issue();
  EndCounted(queue);
  return result;
}

// The stream may become part of a capture with the next call. An event shows the end of its work until then: nothing
// can be asked about a stream that is captured.
void NoteWorkBeforeCapture(Stream* stream) SLUICE_TAKES_DEVICE_LOCK;

// Behind a call in a stream's order that the engine served without the driver. The call joins the legacy
// stream's barrier all the same: in the legacy stream it is one for the blocking streams of the context, and in a
// blocking stream it comes behind the legacy stream's work. An event does the same (an H100 with driver 580:
// experiments/probes/questions_barriers.h). None is recorded where no other stream could tell.
void KeepBarrier(Stream* stream) SLUICE_TAKES_DEVICE_LOCK;

// In steady state, where nothing has moved for two iterations, an event is set behind every so many launches: none is
// needed soon.
inline constexpr uint64_t kSteadyLaunchesPerEvent = 64;

// The two counters are read without the lock.
inline void CountPlannedLaunch(Device* device, bool known) SLUICE_DEVICE_LOCKED {
  const auto increment = [](std::atomic<uint64_t>* counter) {
    counter->store(counter->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  };
  increment(&device->launches_planned);
  if (known) increment(&device->launches_known);
}

// Before and after the driver's call. The constructor returns with stream->order held where End has to release it.
class WorkScope {
 public:
  explicit WorkScope(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  void End(CUresult result) SLUICE_TAKES_DEVICE_LOCK;

  // The driver's call is made under a CallUnderway. Work that is queued from inside another such call is counted only.

  // The fast path (fast_path.cc), for a kernel of which only its words are to be known. True: the launch needs no
  // planning, and EndFastPath is due behind the driver's call, with stream->order held until then. Only while no stream
  // is captured.
  static bool TryFastPath(Stream* stream, uint64_t id, uint64_t key) SLUICE_TRY_ACQUIRE(true, stream->order);
  static void EndFastPath(Stream* stream) SLUICE_RELEASE(stream->order) {
    stream->seq.fetch_add(1, std::memory_order_release);
    stream->order.unlock();
  }

 private:
  // fast_path.cc
  static uint64_t KeyOf(const Work& work);
  static bool ServeFast(Stream* stream, uint64_t id, bool known, uint64_t key) SLUICE_DEVICE_LOCKED;
  void RememberFast(const Work& work, uint64_t key) SLUICE_DEVICE_LOCKED;
  // throttle.cc
  static bool MayThrottle(const Work& work) SLUICE_DEVICE_LOCKED;
  static bool Throttle(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  // work.cc
  void PlanWork(const Work& work, uint64_t key, bool may_move) SLUICE_DEVICE_LOCKED;
  bool CarryOut(const Work& work, const policy::Plan& plan) SLUICE_DEVICE_LOCKED;
  void LockOrder(const Work& work);
  void UnlockOrder();

  Stream* stream_;
  bool ordered_ = false;  // stream_->order is held
  bool capturing_ = false;
  bool follow_up_ = true;  // something is to be done behind the driver's call
  std::vector<memory::Extent> evict_after_;
  uint64_t after_op_ = 0;
  std::optional<StartedTiming> timing_;
};

template <typename Issue>
CUresult RunWork(const Work& work, Issue issue) {
  WorkScope scope(work);
  const CUresult result = [&] {
    const CallUnderway underway;
    return issue();
  }();
  scope.End(result);
  return result;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_WORK_H_
