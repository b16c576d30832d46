// The engine's side of `sluice record`: launches and their access sets, written as a trace (trace/recorder.h).
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_TRACE_RECORDING_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_TRACE_RECORDING_H_

#include <span>
#include <utility>
#include <vector>

#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/params.h"
#include "trace/recorder.h"

namespace sluice {

extern trace::Recorder* g_recorder;
inline bool Recording() { return g_recorder != nullptr; }

// The launch's ordinal in the trace. `all`: every parameter byte.
uint64_t RecordLaunch(const Work& work, CUfunction function, const FunctionInfo& info,
                      const libraries::LaunchShape& shape, unsigned shared, uint32_t flags,
                      std::span<const uint64_t> all);

// A graph's launch; `nodes`: the reaches of each node, and where each is known from.
using NodeReaches = std::vector<std::pair<libraries::Reach, trace::AccessSource>>;
void RecordGraphLaunch(const Stream& stream, CUgraphExec executable, std::span<const NodeReaches> nodes);

// Times one launch by GPU events around the driver's call; the duration goes into the trace once they are done.
class LaunchTimer {
 public:
  LaunchTimer(const Stream& stream, uint64_t ordinal, bool on) : stream_(stream.handle), ordinal_(ordinal) {
    if (on) Begin();
  }
  ~LaunchTimer() {
    if (begin_) End();
  }
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;

 private:
  void Begin();
  void End();
  CUstream stream_;
  uint64_t ordinal_;
  CUevent begin_ = nullptr;
};
// Records the durations of launches that are done by now.
void DrainTimers();

// A stream's identity in a trace: its handle.
inline uint64_t TraceStream(const Stream& stream) { return reinterpret_cast<uintptr_t>(stream.handle); }

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_TRACE_RECORDING_H_
