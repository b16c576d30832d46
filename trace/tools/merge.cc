#include "merge.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "trace/recorder.h"

namespace sluice::trace {
namespace {

void WriteLaunch(Recorder& recorder, const Trace& trace, const Launch& launch) {
  const Function& function = trace.functions[launch.function];
  LaunchRecord record;
  record.function = recorder.Function(launch.function, function.name.c_str(), function.parameters);
  record.stream = launch.stream;
  std::copy(std::begin(launch.grid), std::end(launch.grid), record.grid);
  std::copy(std::begin(launch.block), std::end(launch.block), record.block);
  record.shared_bytes = launch.shared_bytes;
  record.flags = launch.flags;
  record.words = launch.words;
  record.accesses = launch.accesses;
  const uint64_t at = recorder.Launch(record);
  if (launch.duration_ns != 0) recorder.Duration(at, launch.duration_ns);
  if (!launch.has_truth) return;
  std::vector<AccessRange> pages;
  pages.reserve(launch.truth.size());
  for (const Range& range : launch.truth)
    pages.push_back({range.address, range.bytes, range.access, AccessSource::kParameters});
  recorder.Truth(at, pages);
}

void WriteEvent(Recorder& recorder, const Trace& trace, const Event& e) {
  switch (e.type) {
    case Type::kAlloc:
      return recorder.Alloc(static_cast<AllocKind>(e.c), e.a, e.b, e.d, static_cast<uint32_t>(e.e));
    case Type::kFree:
      return recorder.Free(e.a, e.b);
    case Type::kReport:
      return recorder.Report(e.a, static_cast<int64_t>(e.b), static_cast<uint32_t>(e.c));
    case Type::kLaunch:
      return WriteLaunch(recorder, trace, trace.launches[e.a]);
    case Type::kCopy:
      return recorder.Copy(e.a, e.b, e.c, e.d, static_cast<uint32_t>(e.e));
    case Type::kSet:
      return recorder.Set(e.a, e.b, e.c, e.d);
    case Type::kStreamCreate:
      return recorder.StreamCreate(e.a, static_cast<uint32_t>(e.b));
    case Type::kStreamDestroy:
      return recorder.StreamDestroy(e.a);
    case Type::kEventRecord:
      return recorder.EventRecord(e.a, e.b);
    case Type::kStreamWaitEvent:
      return recorder.StreamWaitEvent(e.a, e.b);
    case Type::kEventSync:
      return recorder.EventSync(e.a);
    case Type::kStreamSync:
      return recorder.StreamSync(e.a);
    case Type::kDeviceSync:
      return recorder.DeviceSync();
    case Type::kCaptureBegin:
      return recorder.CaptureBegin(e.a, static_cast<uint32_t>(e.b));
    case Type::kCaptureEnd:
      return recorder.CaptureEnd(e.a, e.b);
    case Type::kGraphInstantiate:
      return recorder.GraphInstantiate(e.a, e.b);
    case Type::kGraphLaunch: {
      const GraphLaunch& launch = trace.graph_launches[e.c];
      return recorder.GraphLaunch(e.a, e.b, launch.has_nodes ? &launch.nodes : nullptr);
    }
    case Type::kStep:
      return recorder.Step(trace.step_names[e.a].c_str());
    case Type::kWorkingSet:
      return recorder.WorkingSet(static_cast<uint32_t>(e.a), e.b, e.c);
    default:
      return;
  }
}

uint64_t ReadClock(void* at) { return *static_cast<uint64_t*>(at); }

}  // namespace

absl::Status Write(const Trace& trace, const std::string& to, const std::function<bool(const Event&)>& keep) {
  uint64_t clock = 0;
  Recorder recorder(to, trace.flags);
  recorder.UseClock(ReadClock, &clock);
  for (const auto& [key, value] : trace.meta) recorder.Meta(key.c_str(), value.c_str());
  for (const Event& event : trace.events) {
    if (keep != nullptr && !keep(event)) continue;
    clock = event.time_ns;
    WriteEvent(recorder, trace, event);
  }
  recorder.Finish();
  const absl::StatusOr<Trace> back = Load(to);
  if (!back.ok()) return back.status();
  return back->complete ? absl::OkStatus() : absl::DataLossError(absl::StrCat(to, ": was not written completely"));
}

absl::Status Cut(const std::string& from, const std::string& to, int steps) {
  const absl::StatusOr<Trace> trace = Load(from);
  if (!trace.ok()) return trace.status();
  if (trace->step_names.size() < static_cast<size_t>(steps)) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, ": has ", trace->step_names.size(), " steps, fewer than ", steps));
  }
  int seen = 0;
  return Write(*trace, to, [&seen, steps](const Event& event) {
    seen += event.type == Type::kStep ? 1 : 0;
    return seen <= steps;
  });
}

absl::Status MarkSteps(const std::string& from, const std::string& to, int launches, double pace,
                       const std::string& kernel) {
  absl::StatusOr<Trace> trace = Load(from);
  if (!trace.ok()) return trace.status();
  if (!trace->step_names.empty())
    return absl::InvalidArgumentError(absl::StrCat(from, ": has ", trace->step_names.size(), " steps already"));
  std::vector<Event> events;
  events.reserve(trace->events.size());
  size_t place = 0;  // of the newest step that may begin; 0: none
  int behind = 0;    // launches
  const auto end_step = [&] {
    if (place == 0 || behind < launches) return;
    const uint64_t number = trace->step_names.size();
    events.insert(events.begin() + static_cast<std::ptrdiff_t>(place),
                  {.type = Type::kStep, .time_ns = events[place - 1].time_ns, .a = number});
    trace->step_names.push_back(absl::StrCat("step ", number));
  };
  const auto begins = [&](const Event& event) {
    if (kernel.empty()) return event.type == Type::kDeviceSync;
    return event.type == Type::kLaunch &&
           trace->functions[trace->launches[event.a].function].name.find(kernel) != std::string::npos;
  };
  for (Event event : trace->events) {
    event.time_ns = static_cast<uint64_t>(static_cast<double>(event.time_ns) * pace);
    const bool may_begin = begins(event);
    if (may_begin) end_step();
    if (event.type == Type::kDeviceSync) events.push_back(event);  // the step begins behind it
    if (may_begin) {
      behind = 0;
      place = events.size();
    }
    if (event.type != Type::kDeviceSync) events.push_back(event);
    if (event.type == Type::kLaunch || event.type == Type::kGraphLaunch) ++behind;
  }
  end_step();
  if (trace->step_names.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": ", trace->step_names.size(),
                                                   kernel.empty() ? " synchronizations" : " launches of the kernel",
                                                   " with ", launches, " launches behind them, fewer than 2"));
  }
  trace->events = std::move(events);
  return Write(*trace, to, nullptr);
}

}  // namespace sluice::trace
