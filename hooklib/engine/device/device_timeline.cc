// Device as memory::Timeline: events behind launches, and the queues that the engine moves memory on.
#include <algorithm>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/stream_discard.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

void PollQueue(TransferQueue* queue, EventPool* pool, uint64_t look) {
  if (queue->looked == look || queue->events.empty()) return;
  queue->looked = look;
  while (!queue->events.empty() && g_real.cuEventQuery(queue->events.front().second) == CUDA_SUCCESS) {
    queue->done = queue->events.front().first;
    pool->Give(queue->events.front().second);
    queue->events.pop_front();
  }
}

}  // namespace

CUstream MakeQueue() {
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

bool TransferQueue::Ready() {
  if (!stream) stream = MakeQueue();
  return stream != nullptr;
}

bool TransferQueue::Follow(CUstream application, EventPool* pool) {
  CUevent before = pool->Take(), after = pool->Take();
  const bool ordered = before && after && g_real.cuEventRecord(before, application) == CUDA_SUCCESS &&
                       g_real.cuStreamWaitEvent(stream, before, 0) == CUDA_SUCCESS;
  if (before) pool->Give(before);
  if (after) pool->Give(after);  // taken again by Stamp
  return ordered;
}

void TransferQueue::Stamp(uint64_t op, EventPool* pool) {
  CUevent event = pool->Take();
  newest = op;
  if (event && g_real.cuEventRecord(event, stream) == CUDA_SUCCESS) {
    events.emplace_back(op, event);
  } else {
    if (event) pool->Give(event);
    if (events.empty()) done = op;
  }
}

bool WaitFor(const std::deque<std::pair<uint64_t, CUevent>>& events, uint64_t op, CUstream waiter) {
  const auto it =
      std::lower_bound(events.begin(), events.end(), op, [](const auto& a, uint64_t value) { return a.first < value; });
  if (it == events.end()) return false;
  g_real.cuStreamWaitEvent(waiter, it->second, 0);
  return true;
}

void Device::Poll(Stream* stream) {
  if (stream->looked == look) return;
  stream->looked = look;
  while (!stream->events.empty() && g_real.cuEventQuery(stream->events.front().second) == CUDA_SUCCESS) {
    stream->completed = std::max(stream->completed, stream->events.front().first);
    stream->context->events.Give(stream->events.front().second);
    stream->events.pop_front();
  }
}

uint64_t Device::DoneUpTo(std::vector<memory::Mark>* marks, bool* told) {
  if (marks->empty()) {
    for (const auto& stream : streams) marks->push_back({stream->id, stream->seq.load(std::memory_order_acquire)});
  }
  uint64_t done = 0;
  *told = true;
  for (const memory::Mark& mark : *marks) {
    const Stream* const stream = StreamById(mark.stream);
    const bool over = !stream || Done(mark);
    done += over ? mark.seq : std::min(mark.seq, stream->completed);
    *told &= over || !stream->per_thread() || mark.seq <= stream->recorded;
  }
  return done;
}

bool Device::Record(Stream* stream) {
  const uint64_t seq = stream->seq.load(std::memory_order_acquire);
  if (seq <= stream->recorded) return true;
  if (stream->destroyed || !stream->context) return false;
  if (IsCapturing(*stream)) return false;
  RelaxedCapture relaxed;
  CUevent event = stream->context->events.Take();
  if (!event) return false;
  if (g_real.cuEventRecord(event, stream->handle) != CUDA_SUCCESS) {
    stream->context->events.Give(event);
    return false;
  }
  stream->recorded = seq;
  stream->events.emplace_back(seq, event);
  return true;
}

bool Device::Done(memory::Mark mark) {
  Stream* stream = StreamById(mark.stream);
  if (!stream || mark.seq <= stream->completed) return true;
  RelaxedCapture relaxed;
  Poll(stream);
  if (mark.seq <= stream->completed) return true;
  // No event covers it (the mark was set on a thread's own stream, or on the legacy stream beside others): ask the
  // stream itself.
  if (mark.seq > stream->recorded && stream->asked != look && !stream->destroyed && !stream->per_thread() &&
      !IsCapturing(*stream)) {
    stream->asked = look;
    const uint64_t seq = stream->seq.load(std::memory_order_acquire);
    if (g_real.cuStreamQuery(stream->handle) == CUDA_SUCCESS) stream->completed = std::max(stream->completed, seq);
  }
  return mark.seq <= stream->completed;
}

bool Device::MarkAll(std::vector<memory::Mark>* marks) {
  RelaxedCapture relaxed;
  const size_t before = marks->size();
  bool other_blocking = false;
  for (const auto& stream : streams) {
    other_blocking |= stream->blocking && !stream->legacy() && !stream->destroyed && stream->context &&
                      stream->seq.load(std::memory_order_relaxed) > stream->completed;
  }
  for (const auto& stream : streams) {
    // With a discard in its order under way, the work that stands behind it.
    const uint64_t seq = stream->seq.load(std::memory_order_acquire) + stream->stream_discarding;
    if (!stream->context || seq <= stream->completed) continue;
    if (seq > stream->recorded) {
      if (stream->per_thread()) {
        stream->mark_wanted.store(true, std::memory_order_release);
      } else if (stream->legacy() && other_blocking) {
        // An event there would make the other streams wait for each other where the application did not; Done() asks
        // instead.
      } else if (!Record(stream.get()) && !stream->destroyed) {
        marks->resize(before);
        return false;
      }
    }
    marks->push_back({stream->id, seq});
  }
  return true;
}

bool Device::InDone(memory::StreamId id, uint64_t op) {
  Stream* stream = StreamById(id);
  if (!stream || op <= stream->in.done) return true;
  RelaxedCapture relaxed;
  PollQueue(&stream->in, &stream->context->events, look);
  return op <= stream->in.done;
}

bool Device::OutDone(memory::StreamId id, uint64_t op) {
  Stream* stream = StreamById(id);
  if (!stream || op <= stream->out.done) return true;
  RelaxedCapture relaxed;
  PollQueue(&stream->out, &stream->context->events, look);
  return op <= stream->out.done;
}

size_t Device::CountOutstanding(Stream* stream) {
  PollQueue(&stream->in, &stream->context->events, look);
  PollQueue(&stream->out, &stream->context->events, look);
  PollQueue(&stream->repopulate, &stream->context->events, look);
  return stream->in.events.size() + stream->out.events.size() + 2 * stream->repopulate.events.size();
}

void Device::Execute(const policy::PlanStep& step, Stream* stream) {
  if (step.empty()) return;
  EventPool* pool = &stream->context->events;
  WithdrawReadMostly(step.drop, ordinal);
  UnadviseAccessedBy(step.unmap, ordinal);
  if (!AdviseReadMostly(step.duplicate, ordinal)) residency.set_read_mostly(false);
  Poll(stream);
  // A prefetch on an idle queue runs on the calling thread for its whole length; behind an unfinished event it is
  // deferred. So both queues wait for the next thing that this stream finishes, if there is one: it is ordered before
  // the launch anyhow.
  const uint64_t soon = stream->events.empty() ? 0 : stream->events.front().first;
  if (step.out_op && stream->out.Ready()) {
    const CUstream begin = senders::Beginning(&stream->out, &stream->context->cells, step.evict);
    residency.set_slow_write_back(begin == stream->out.stream);
    const uint64_t after = begin == stream->out.stream ? std::max(step.out_after, soon) : step.out_after;
    if (after) WaitFor(stream->events, after, begin);
    const CUresult result = senders::Send(&stream->out, begin, &stream->context->cells, pool, step.evict);
    if (result != CUDA_SUCCESS)
      SLUICE_LOG(kDebug, "prefetch of %zu runs to the host failed with %d", step.evict.size(), result);
    stream->out.Stamp(step.out_op, pool);
  }
  if (step.in_op && stream->in.Ready()) {
    bool deferred = step.in_after_out && WaitFor(stream->out.events, step.in_after_out, stream->in.stream);
    if (!deferred && soon) WaitFor(stream->events, soon, stream->in.stream);
    AwaitStreamDiscards(stream, stream->in.stream);
    const CUresult result = FetchRuns(step.fetch, ordinal, stream->in.stream);
    if (result != CUDA_SUCCESS) {
      SLUICE_LOG(kDebug, "prefetch of %zu runs failed with %d; faults will bring them", step.fetch.size(), result);
      residency.NoteNotFetched(step);
    }
    stream->in.Stamp(step.in_op, pool);
  }
}

void Device::Map(const policy::Plan& plan) {
  const uint64_t begin = MonotonicNs();
  AdviseAccessedBy(plan.map_remote, ordinal);
  UnadviseAccessedBy(plan.unmap_remote, ordinal);
  const uint64_t spent = MonotonicNs() - begin;
  map_ns += spent;
  SLUICE_LOG(kDebug, "%zu ranges mapped in host memory, %zu no longer, %zu more to come with their fetch: %.2f ms",
             plan.map_remote.size(), plan.unmap_remote.size(), plan.now.unmap.size() + plan.ahead.unmap.size(),
             static_cast<double>(spent) / 1e6);
}

// The application stream waits, on the GPU, for a transfer of its own; events around the wait tell how long it stood.
void Device::WaitForTransfer(Stream* stream, const TransferQueue& queue, uint64_t op) {
  const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
  while (!waits.empty() && g_real.cuEventQuery(waits.front().end) == CUDA_SUCCESS) {
    const Wait& wait = waits.front();
    float ms = 0;
    if (elapsed(&ms, wait.begin, wait.end) == CUDA_SUCCESS) stall_ns += static_cast<uint64_t>(ms * 1e6);
    wait.context->timers.Give(wait.begin);
    wait.context->timers.Give(wait.end);
    waits.pop_front();
  }
  EventPool* pool = &stream->context->timers;
  const bool timed = waits.size() < 256;
  CUevent begin = timed ? pool->Take() : nullptr, end = timed ? pool->Take() : nullptr;
  if (begin) g_real.cuEventRecord(begin, stream->handle);
  const bool waited = WaitFor(queue.events, op, stream->handle);
  if (end) g_real.cuEventRecord(end, stream->handle);
  if (begin && end && waited) {
    waits.push_back({stream->context, begin, end});
  } else {
    if (begin) pool->Give(begin);
    if (end) pool->Give(end);
  }
}

void Device::ReadProbes() {
  const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
  while (!probes.empty() && g_real.cuEventQuery(probes.front().end) == CUDA_SUCCESS) {
    const Probe& probe = probes.front();
    float ms = 0;
    const bool told = elapsed(&ms, probe.begin, probe.end) == CUDA_SUCCESS;
    CountFaults();
    residency.NoteAnswered(probe.what);
    if (told && probe.way.id) {
      NoteLeft(probe.before, probe.begin);
      NoteWay(probe.way, static_cast<double>(ms));
    } else if (told) {
      SLUICE_LOG(kDebug,
                 "launch %llx %s used %llu MiB %s and %llu MiB on the card in %.3f ms, and %.2f MiB came by faults "
                 "since it was queued",
                 static_cast<unsigned long long>(probe.what.id), probe.name.c_str(),
                 static_cast<unsigned long long>(probe.what.host_bytes >> 20),
                 probe.what.by_faults ? "by faults" : "in host memory",
                 static_cast<unsigned long long>(probe.what.resident_bytes >> 20), static_cast<double>(ms),
                 static_cast<double>(Moved().faults - probe.moved.faults) / 0x1p20);
      if (!pressure.distorts_timing() && policy::Pressure::Lost(probe.moved, Moved()) == 0 &&
          residency.NoteMeasured(probe.what, static_cast<uint64_t>(static_cast<double>(ms) * 1e6)) && !said_faults_ &&
          budget.prefetch != SLUICE_PREFETCH_OFF) {
        said_faults_ = true;
        SLUICE_LOG(
            kWarn,
            "%s: launches touch little of what they name (%.2f GiB that are not on the card, %.1f ms by faults): "
            "nothing is fetched for such launches any more; a larger fraction helps if they are slow",
            uuid.c_str(), static_cast<double>(probe.what.host_bytes) / 0x1p30, static_cast<double>(ms));
      }
      if (!said_host_ && ms > 0 && !probe.what.by_faults && residency.UsesRemoteAccess(probe.what)) {
        said_host_ = true;
        SLUICE_LOG(kInfo,
                   "%s: launches pass once over what they use (%.1f GB/s out of host memory): what of it does not fit, "
                   "and no others need on the card, is used where it lies and not fetched",
                   uuid.c_str(), static_cast<double>(probe.what.host_bytes) / 1e6 / static_cast<double>(ms));
      }
    }
    probe.context->timers.Give(probe.begin);
    probe.context->timers.Give(probe.end);
    GiveBack(probe.before);
    probes.pop_front();
  }
}

// What the graph before one that began then left behind. What is not gone by now held that one up, at least until it
// began.
void Device::NoteLeft(const Left& before, CUevent begin) {
  const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
  float gap = 0, departing = 0;
  if (!before.end || elapsed(&gap, before.end, begin) != CUDA_SUCCESS) return;
  if (before.gone && elapsed(&departing, before.end, before.gone) != CUDA_SUCCESS) departing = gap;
  const auto ns = [](float ms) { return static_cast<uint64_t>(std::max(0.0, static_cast<double>(ms) * 1e6)); };
  SLUICE_LOG(kDebug, "behind graph %llx %s the next began after %.3f ms, what it sent away was gone after %.3f",
             static_cast<unsigned long long>(before.way.id), policy::Describe(before.way.strategy),
             static_cast<double>(gap), static_cast<double>(departing));
  residency.NoteGapAfter(before.way, ns(gap), ns(departing));
}

void Device::GiveBack(const Left& behind) {
  if (behind.end) behind.context->timers.Give(behind.end);
  if (behind.gone) behind.context->timers.Give(behind.gone);
}

Device::Left Device::TakeLeft(const Context* context) {
  return left.context == context ? std::exchange(left, {}) : Left{};
}

// Behind the launch of a graph whose way is timed, and what it sends away.
void Device::SetLeft(const policy::GraphProbe& way, bool HasEvictionsInFlight, Stream* stream) {
  GiveBack(left);
  EventPool* timers = &stream->context->timers;
  // Without a queue nothing was sent, and the event would enter the legacy stream.
  HasEvictionsInFlight &= stream->out.stream != nullptr;
  left = {stream->context, timers->Take(), HasEvictionsInFlight ? timers->Take() : nullptr, way};
  if (left.end) g_real.cuEventRecord(left.end, stream->handle);
  if (left.gone) g_real.cuEventRecord(left.gone, stream->out.stream);
}

void Device::NoteWay(const policy::GraphProbe& probe, double ms) {
  const policy::GraphStrategies& ways = residency.graph_strategies();
  SLUICE_LOG(kDebug, "graph %llx, larger than what can be held, took %.3f ms %s%s",
             static_cast<unsigned long long>(probe.id), ms, policy::Describe(probe.strategy),
             probe.counts ? "" : " (on the way there)");
  if (!residency.NoteMeasured(probe, static_cast<uint64_t>(ms * 1e6))) return;
  std::string all;
  const policy::GraphStrategies::Times times = ways.TimesOf(probe.id);
  for (size_t i = 0; i < policy::kGraphStrategyCount; ++i) {
    char one[128];
    std::snprintf(one, sizeof one, "%s%s %.1f ms", all.empty() ? "" : ", ",
                  policy::Describe(static_cast<policy::GraphStrategy>(i)), static_cast<double>(times[i]) / 1e6);
    if (times[i]) all += one;
  }
  const auto mib = [](uint64_t bytes) { return static_cast<unsigned long long>(bytes >> 20); };
  const policy::GraphRemainder& rest = residency.graph_remainder();
  const settings::LogLevel level = said_way_ ? settings::LogLevel::kDebug : settings::LogLevel::kInfo;
  if (LogEnabled(level)) {
    Log(level,
        "%s: of a graph larger than what can be held the rest is used %s (%s); of that rest, in MiB: %llu loaded by "
        "copies and only read, %llu may be written by kernels, %llu was written while it was a duplicate, %llu without "
        "a living byte, %llu otherwise",
        uuid.c_str(), policy::Describe(ways.Best(probe.id)), all.c_str(), mib(rest.copied), mib(rest.written),
        mib(rest.withdrawn), mib(rest.freed), mib(rest.disabled + rest.evicting_elsewhere));
  }
  said_way_ = true;
}

void Device::PopulateNow(const std::vector<memory::Extent>& runs, Stream* stream) {
  if (stream_discard_owner) PollQueue(&stream_discard_owner->repopulate, &stream_discard_owner->context->events, look);
  if (stream_discard_owner && stream_discard_owner->repopulate.done < stream_discard_op)
    return;  // it may be one of these, whose discard is still to come
  const CUstream queue = Housekeeping(stream->context);
  if (FetchRuns(runs, ordinal, queue) == CUDA_SUCCESS) g_real.cuStreamSynchronize(queue);
}

void Device::EvictAfter(const std::vector<memory::Extent>& runs, uint64_t op, Stream* stream) {
  if (!op || !stream->out.Ready()) return;
  const CUstream begin = senders::Beginning(&stream->out, &stream->context->cells, runs);
  WaitFor(stream->events, stream->recorded, begin);
  senders::Send(&stream->out, begin, &stream->context->cells, &stream->context->events, runs);
  stream->out.Stamp(op, &stream->context->events);
}

}  // namespace sluice
