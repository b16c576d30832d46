// GPU events around launches and waits of one device, and the decisions that their times settle.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_LAUNCH_TIMINGS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_LAUNCH_TIMINGS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "hooklib/engine/device/context.h"
#include "hooklib/policy/budget/pressure.h"
#include "hooklib/policy/plan.h"

namespace sluice {

// A launch that is to be timed, between its begin event and its end event.
struct StartedTiming {
  policy::LaunchProbe launch;  // with bytes in host memory
  policy::GraphProbe graph;    // or a graph larger than the capacity
  std::string kernel;          // name
  CUevent begin;
};

// The device's lock is held in all of its functions.
class LaunchTimings {
 public:
  explicit LaunchTimings(Device* device) : device_(device) {}

  // An event in front of the launch. Null: too many launches are timed already, or the driver gives no event.
  CUevent Begin(Stream* stream) SLUICE_DEVICE_LOCKED;
  // An event behind the launch; its time is read when the launch is done.
  void End(StartedTiming started, Stream* stream) SLUICE_DEVICE_LOCKED;
  // Hands the times of launches that are done to residency.
  void Read() SLUICE_DEVICE_LOCKED;
  bool empty() const SLUICE_DEVICE_LOCKED { return timed_.empty(); }

  // Events behind a timed graph and behind its evictions; the next timed graph of the context reads them.
  void RecordGraphTail(const policy::GraphProbe& graph, bool evicts, Stream* stream) SLUICE_DEVICE_LOCKED;

  // The application stream waits, on the GPU, for an operation of one of its queues. Events around the wait tell how
  // long the stream stood.
  void WaitForTransfer(Stream* stream, const TransferQueue& queue, uint64_t op) SLUICE_DEVICE_LOCKED;
  // Events around one of many fetches, on its queue, for the link model. Null: this one is not timed.
  CUevent BeginFetch(uint64_t bytes, uint64_t content_bytes, Stream* stream) SLUICE_DEVICE_LOCKED;
  void EndFetch(CUevent begin, uint64_t bytes, Stream* stream) SLUICE_DEVICE_LOCKED;
  uint64_t stall_ns() const SLUICE_DEVICE_LOCKED { return stall_ns_; }  // of all such waits that are over

  void ForgetContext(const Context* context) SLUICE_DEVICE_LOCKED;

 private:
  struct TransferWait {
    Context* context;
    CUevent begin, end;
  };
  struct TimedFetch {
    Context* context = nullptr;
    CUevent begin = nullptr, end = nullptr;
    uint64_t bytes = 0;
  };
  struct GraphTail {
    Context* context = nullptr;
    CUevent end = nullptr, evicted = nullptr;
    policy::GraphProbe graph;
  };
  struct TimedLaunch {
    Context* context;
    CUevent end;
    StartedTiming started;
    policy::Pressure::Totals moved;  // when it was queued
    GraphTail previous;              // of a graph: the tail of the graph before it
  };
  void NoteGraphTail(const GraphTail& tail, CUevent next_begin) SLUICE_DEVICE_LOCKED;
  void NoteGraphTime(const policy::GraphProbe& graph, double ms) SLUICE_DEVICE_LOCKED;
  void NoteLaunchTime(const TimedLaunch& timed, double ms) SLUICE_DEVICE_LOCKED;
  static void ReturnEvents(const GraphTail& tail) SLUICE_DEVICE_LOCKED;

  Device* const device_;
  std::deque<TimedLaunch> timed_ SLUICE_BY_DEVICE_LOCK;
  std::deque<TransferWait> waits_ SLUICE_BY_DEVICE_LOCK;
  GraphTail tail_ SLUICE_BY_DEVICE_LOCK;
  TimedFetch fetch_ SLUICE_BY_DEVICE_LOCK;
  uint32_t fetches_ SLUICE_BY_DEVICE_LOCK = 0;  // that could have been timed
  uint64_t stall_ns_ SLUICE_BY_DEVICE_LOCK = 0;
  bool logged_faults_ SLUICE_BY_DEVICE_LOCK = false, logged_remote_ SLUICE_BY_DEVICE_LOCK = false;
  bool logged_graph_ SLUICE_BY_DEVICE_LOCK = false;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_LAUNCH_TIMINGS_H_
