#include "hooklib/engine/observe/trace_recording.h"

#include <deque>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

trace::Recorder* g_recorder = nullptr;

namespace {
struct TimedRecord {
  uint64_t ordinal;
  CUevent begin, end;
};
Mutex g_mutex;  // no other lock of the engine is taken inside
std::deque<TimedRecord>& Pending() SLUICE_REQUIRES(g_mutex) {
  static auto& pending = *new std::deque<TimedRecord>();
  return pending;
}
std::vector<CUevent>& FreeEvents() SLUICE_REQUIRES(g_mutex) {
  static auto& free = *new std::vector<CUevent>();
  return free;
}
CUevent TakeEvent() {
  MutexLock lock(g_mutex);
  if (!FreeEvents().empty()) {
    CUevent event = FreeEvents().back();
    FreeEvents().pop_back();
    return event;
  }
  CUevent event = nullptr;
  g_real.cuEventCreate(&event, CU_EVENT_DEFAULT);
  return event;
}
}  // namespace

void LaunchTimer::Begin() {
  if (g_captures.load() > 0) return;
  const RelaxedCapture relaxed;
  begin_ = TakeEvent();
  if (begin_) g_real.cuEventRecord(begin_, stream_);
}

void LaunchTimer::End() {
  const RelaxedCapture relaxed;
  CUevent end = TakeEvent();
  if (!end || g_real.cuEventRecord(end, stream_) != CUDA_SUCCESS) return;
  {
    MutexLock lock(g_mutex);
    Pending().push_back({ordinal_, begin_, end});
    if (Pending().size() < 256) return;
  }
  DrainTimers();
}

void DrainTimers() {
  const RelaxedCapture relaxed;
  MutexLock lock(g_mutex);
  while (!Pending().empty() && g_real.cuEventQuery(Pending().front().end) == CUDA_SUCCESS) {
    const TimedRecord timed = Pending().front();
    Pending().pop_front();
    float ms = 0;
    const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
    if (elapsed(&ms, timed.begin, timed.end) == CUDA_SUCCESS)
      g_recorder->Duration(timed.ordinal, static_cast<uint64_t>(ms * 1e6));
    FreeEvents().push_back(timed.begin);
    FreeEvents().push_back(timed.end);
  }
}

uint64_t RecordLaunch(const Work& work, CUfunction function, const FunctionInfo& info,
                      const libraries::LaunchShape& shape, unsigned shared, uint32_t flags,
                      std::span<const uint64_t> all) {
  const Stream& stream = *work.stream;
  const uint64_t handle = reinterpret_cast<uintptr_t>(function);
  std::vector<trace::Parameter> parameters;
  if (!g_recorder->HasFunction(handle)) {
    for (const auto& parameter : info.parameters) parameters.push_back({parameter.offset, parameter.bytes});
  }
  trace::LaunchRecord launch;
  launch.function = g_recorder->Function(handle, info.name.c_str(), parameters);
  launch.stream = TraceStream(stream);
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = shape.grid[i];
    launch.block[i] = shape.block[i];
  }
  launch.shared_bytes = shared;
  launch.flags = flags;
  launch.words = all;
  std::vector<trace::AccessRange> accesses;
  for (const LibraryRange& range : work.library ? work.library->ranges : std::span<const LibraryRange>()) {
    const auto access = static_cast<trace::Access>((range.read ? 1 : 0) | (range.written ? 2 : 0));
    if (range.bytes) accesses.push_back({range.address, range.bytes, access, trace::AccessSource::kLibrary});
  }
  {
    DeviceLock lock(stream.device->mutex);
    const auto add = [&](const std::optional<memory::Extent>& extent, trace::AccessSource source) {
      if (extent) accesses.push_back({extent->base, extent->bytes, trace::Access::kUnknown, source});
    };
    policy::UnboundedPointer around;
    for (size_t i = 0; i < work.words.size(); ++i) {
      const std::optional<memory::Extent> extent = stream.device->fault_watch.ResolveWord(work, i, &around);
      const bool is_learned = extent && around.block.bytes > extent->bytes;
      add(extent, is_learned ? trace::AccessSource::kLearned : trace::AccessSource::kParameters);
    }
    for (const libraries::Reach& r : work.reaches) add(stream.device->Resolve(r), trace::AccessSource::kStruct);
  }
  launch.accesses = accesses;
  return g_recorder->Launch(launch);
}

void RecordGraphLaunch(const Stream& stream, CUgraphExec executable, std::span<const NodeReaches> nodes) {
  std::vector<std::vector<trace::AccessRange>> accesses(nodes.size());
  {
    DeviceLock lock(stream.device->mutex);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const auto& [reach, source] : nodes[i]) {
        const std::optional<memory::Extent> extent = stream.device->Resolve(reach);
        const auto access = reach.only_read ? trace::Access::kRead : trace::Access::kUnknown;
        if (extent) accesses[i].push_back({extent->base, extent->bytes, access, source});
      }
    }
  }
  g_recorder->GraphLaunch(reinterpret_cast<uintptr_t>(executable), TraceStream(stream), &accesses);
}

}  // namespace sluice
