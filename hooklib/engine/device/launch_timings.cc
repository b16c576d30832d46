#include "hooklib/engine/device/launch_timings.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

constexpr size_t kMaxTimedLaunches = 64, kMaxTimedWaits = 256;
constexpr uint32_t kFetchesPerTimed = 16;

// False: the events cannot be compared (a context that was reset).
bool Elapsed(CUevent from, CUevent to, float* ms) {
  const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
  return elapsed(ms, from, to) == CUDA_SUCCESS;
}

const char* NameOf(policy::GraphStrategy strategy) {
  switch (strategy) {
    case policy::GraphStrategy::kDemandPaging:
      return "demand_paging";
    case policy::GraphStrategy::kFetch:
      return "fetch";
    case policy::GraphStrategy::kRemote:
      return "remote";
    case policy::GraphStrategy::kRemoteLargest:
      return "remote_largest";
    default:
      return "faults";
  }
}

}  // namespace

CUevent LaunchTimings::Begin(Stream* stream) {
  return timed_.size() < kMaxTimedLaunches ? stream->context->timing_events.Record(stream->handle) : nullptr;
}

void LaunchTimings::End(StartedTiming started, Stream* stream) {
  EventPool* const pool = &stream->context->timing_events;
  CUevent end = pool->Record(stream->handle);
  if (!end) {
    pool->Give(started.begin);
    device_->residency.NoteAnswered(started.launch);
    return;
  }
  const bool follows = started.graph.id && tail_.context == stream->context;
  timed_.push_back({stream->context, end, std::move(started), device_->BytesMovedByDriver(),
                    follows ? std::exchange(tail_, {}) : GraphTail{}});
}

void LaunchTimings::Read() {
  while (!timed_.empty() && g_real.cuEventQuery(timed_.front().end) == CUDA_SUCCESS) {
    const TimedLaunch& timed = timed_.front();
    const StartedTiming& started = timed.started;
    float ms = 0;
    const bool is_known = Elapsed(started.begin, timed.end, &ms);
    device_->CountFaults();
    device_->residency.NoteAnswered(started.launch);
    if (is_known && started.graph.id) {
      NoteGraphTail(timed.previous, started.begin);
      NoteGraphTime(started.graph, static_cast<double>(ms));
    } else if (is_known) {
      NoteLaunchTime(timed, static_cast<double>(ms));
    }
    timed.context->timing_events.Give(started.begin);
    timed.context->timing_events.Give(timed.end);
    ReturnEvents(timed.previous);
    timed_.pop_front();
  }
}

void LaunchTimings::NoteLaunchTime(const TimedLaunch& timed, double ms) {
  const policy::LaunchProbe& launch = timed.started.launch;
  policy::Residency& residency = device_->residency;
  SLUICE_LOG(kDebug,
             "probe launch %llx %s used %llu MiB %s and %llu MiB on the GPU in %.3f ms; %.2f MiB were faulted in since "
             "it was queued",
             static_cast<unsigned long long>(launch.id), timed.started.kernel.c_str(),
             static_cast<unsigned long long>(launch.host_bytes >> 20),
             launch.by_faults ? "by faults" : "in host memory",
             static_cast<unsigned long long>(launch.resident_bytes >> 20), ms,
             static_cast<double>(device_->BytesMovedByDriver().faults - timed.moved.faults) / 0x1p20);
  if (!device_->memory_factor.DistortsTimings() &&
      policy::Pressure::Lost(timed.moved, device_->BytesMovedByDriver()) == 0 &&
      residency.NoteMeasured(launch, static_cast<uint64_t>(ms * 1e6)) && !logged_faults_ &&
      device_->budget.prefetch != SLUICE_PREFETCH_OFF) {
    logged_faults_ = true;
    SLUICE_LOG(kWarn,
               "%s: launches touch little of the memory that they name (%.2f GiB in host memory, %.1f ms by faults): "
               "nothing is fetched for such launches from here on; a larger fraction helps if they are slow",
               device_->uuid.c_str(), static_cast<double>(launch.host_bytes) / 0x1p30, ms);
  }
  if (!logged_remote_ && ms > 0 && !launch.by_faults && residency.UsesRemoteAccess(launch)) {
    logged_remote_ = true;
    SLUICE_LOG(kInfo,
               "%s: launches read their operands once (%.1f GB/s from host memory): operands that do not fit, and that "
               "no other launch needs on the GPU, are used in host memory and not fetched",
               device_->uuid.c_str(), static_cast<double>(launch.host_bytes) / 1e6 / ms);
  }
}

// An eviction that is not over by now held the next graph up, at least until that one began.
void LaunchTimings::NoteGraphTail(const GraphTail& tail, CUevent next_begin) {
  float gap = 0, evicting = 0;
  if (!tail.end || !Elapsed(tail.end, next_begin, &gap)) return;
  if (tail.evicted && !Elapsed(tail.end, tail.evicted, &evicting)) evicting = gap;
  const auto ns = [](float ms) { return static_cast<uint64_t>(std::max(0.0, static_cast<double>(ms) * 1e6)); };
  SLUICE_LOG(kDebug, "behind graph %llx %s the next began after %.3f ms, its evictions were done after %.3f ms",
             static_cast<unsigned long long>(tail.graph.id), policy::Describe(tail.graph.strategy),
             static_cast<double>(gap), static_cast<double>(evicting));
  device_->residency.NoteGapAfter(tail.graph, ns(gap), ns(evicting));
}

void LaunchTimings::ReturnEvents(const GraphTail& tail) {
  if (tail.end) tail.context->timing_events.Give(tail.end);
  if (tail.evicted) tail.context->timing_events.Give(tail.evicted);
}

void LaunchTimings::RecordGraphTail(const policy::GraphProbe& graph, bool evicts, Stream* stream) {
  ReturnEvents(tail_);
  EventPool* const pool = &stream->context->timing_events;
  // Without a queue nothing was evicted, and the event would enter the legacy stream.
  evicts &= stream->evict_queue.stream != nullptr;
  tail_ = {stream->context, pool->Record(stream->handle), evicts ? pool->Record(stream->evict_queue.stream) : nullptr,
           graph};
}

void LaunchTimings::NoteGraphTime(const policy::GraphProbe& graph, double ms) {
  const auto id = static_cast<unsigned long long>(graph.id);
  SLUICE_LOG(kDebug, "graph_time graph=%llx strategy=%s ms=%.3f counts=%d", id, NameOf(graph.strategy), ms,
             graph.counts);
  if (!device_->residency.NoteMeasured(graph, static_cast<uint64_t>(ms * 1e6))) return;
  const policy::GraphStrategies& strategies = device_->residency.graph_strategies();
  const policy::GraphStrategy best = strategies.Best(graph.id);
  std::string logfmt, sentence;
  const policy::GraphStrategies::Times times = strategies.TimesOf(graph.id);
  for (size_t i = 0; i < policy::kGraphStrategyCount; ++i) {
    if (!times[i]) continue;
    const auto strategy = static_cast<policy::GraphStrategy>(i);
    char ms_text[32];
    std::snprintf(ms_text, sizeof ms_text, "%.1f", static_cast<double>(times[i]) / 1e6);
    logfmt += std::string(" ") + NameOf(strategy) + "_ms=" + ms_text;
    sentence += std::string(sentence.empty() ? "" : ", ") + policy::Describe(strategy) + " " + ms_text + " ms";
  }
  SLUICE_LOG(kDebug, "graph_choice graph=%llx best=%s%s", id, NameOf(best), logfmt.c_str());
  if (logged_graph_) return;
  logged_graph_ = true;
  const auto mib = [](uint64_t bytes) { return static_cast<unsigned long long>(bytes >> 20); };
  const policy::GraphRemainder& rest = device_->residency.graph_remainder();
  SLUICE_LOG(kInfo,
             "%s: the part of a graph that does not fit is used %s (%s); of this part, %llu MiB were loaded by copies "
             "and are only read, kernels may write %llu, %llu were written while duplicates, %llu have no live bytes, "
             "%llu are none of these",
             device_->uuid.c_str(), policy::Describe(best), sentence.c_str(), mib(rest.copied), mib(rest.written),
             mib(rest.withdrawn), mib(rest.freed), mib(rest.disabled + rest.evicting_elsewhere));
}

void LaunchTimings::WaitForTransfer(Stream* stream, const TransferQueue& queue, uint64_t op) {
  while (!waits_.empty() && g_real.cuEventQuery(waits_.front().end) == CUDA_SUCCESS) {
    const TransferWait& wait = waits_.front();
    float ms = 0;
    if (Elapsed(wait.begin, wait.end, &ms)) stall_ns_ += static_cast<uint64_t>(ms * 1e6);
    wait.context->timing_events.Give(wait.begin);
    wait.context->timing_events.Give(wait.end);
    waits_.pop_front();
  }
  EventPool* const pool = &stream->context->timing_events;
  const bool is_timed = waits_.size() < kMaxTimedWaits;
  CUevent begin = is_timed ? pool->Record(stream->handle) : nullptr;
  const bool waited = WaitFor(queue.events, op, stream->handle);
  CUevent end = begin ? pool->Record(stream->handle) : nullptr;
  if (begin && end && waited) {
    waits_.push_back({stream->context, begin, end});
  } else {
    if (begin) pool->Give(begin);
    if (end) pool->Give(end);
  }
}

CUevent LaunchTimings::BeginFetch(uint64_t bytes, uint64_t content_bytes, Stream* stream) {
  if (fetch_.context) {
    if (g_real.cuEventQuery(fetch_.end) != CUDA_SUCCESS) return nullptr;
    float ms = 0;
    if (Elapsed(fetch_.begin, fetch_.end, &ms))
      device_->residency.link().NoteFetch(fetch_.bytes, static_cast<uint64_t>(std::max(0.0F, ms) * 1e6F));
    fetch_.context->timing_events.Give(fetch_.begin);
    fetch_.context->timing_events.Give(fetch_.end);
    fetch_ = {};
  }
  // Memory without contents moves nothing.
  if (bytes < policy::LinkModel::kMinFetchBytes || bytes != content_bytes) return nullptr;
  return fetches_++ % kFetchesPerTimed ? nullptr : stream->context->timing_events.Record(stream->fetch_queue.stream);
}

void LaunchTimings::EndFetch(CUevent begin, uint64_t bytes, Stream* stream) {
  if (!begin) return;
  EventPool* const pool = &stream->context->timing_events;
  CUevent end = pool->Record(stream->fetch_queue.stream);
  if (end) {
    fetch_ = {stream->context, begin, end, bytes};
  } else {
    pool->Give(begin);
  }
}

void LaunchTimings::ForgetContext(const Context* context) {
  if (fetch_.context == context) fetch_ = {};
  std::erase_if(waits_, [context](const TransferWait& wait) { return wait.context == context; });
  std::erase_if(timed_, [context](const TimedLaunch& timed) { return timed.context == context; });
  if (tail_.context == context) tail_ = {};
}

}  // namespace sluice
