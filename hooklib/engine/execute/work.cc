#include "hooklib/engine/execute/work.h"

#include <algorithm>
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/overwrites.h"
#include "hooklib/engine/execute/stream_discard.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {
// The driver takes more than 32 and fewer than 128 deferred prefetches before it blocks the caller (facts.md); we hold
// back earlier, outside all locks, so that a caller blocked in the driver never keeps other threads from launching what
// it waits for.
constexpr size_t kMaxOutstanding = 28;
// In one queue: from here on the driver could block the caller, who holds locks then and may be the very thread that
// the stream waits for.
constexpr size_t kFull = 32;
// Launches that the host may be ahead while dead bytes wait: enough to keep the GPU busy. And while launches bring
// nobody knows how much by faults: these take long.
constexpr uint64_t kMaxRunAhead = 32, kMaxFaultsAhead = 8;
constexpr int kPatience = 200, kPatienceForDead = 1500;  // in looks, 100 us apart
constexpr int kPatienceForTrial = 10000;  // what is larger than the budget takes hundreds of milliseconds by faults
// Waited for in vain, and nothing has moved since: not the whole time again, but a thread that goes on at its own pace
// has a thousand launches queued before the card moves again, none of them with its bytes. What names more than the
// budget comes by faults anyhow.
constexpr int kPatienceInVain = 10;
constexpr uint64_t kBytesALook = 1 << 20;  // at least: 10 GB/s
// Where nothing had to be done for a launch, an event is set behind every so many only; what needs one sets it then.
// The second where the same launches go round and nothing has come or gone for two rounds: nobody asks soon.
constexpr uint64_t kEventEvery = 16, kEventSeldom = 64;

// Under the lock; read without it.
void Count(std::atomic<uint64_t>* of) { of->store(of->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
}  // namespace

// Waits while many transfers are queued, as the driver itself does when its queues are full, and while dead bytes or
// duplicates wait for a GPU that is far behind (on a card that is 150 launches behind, a convolution net's training
// moves twice as much: what died cannot be discarded yet, so living bytes leave), or a time is awaited that decides how
// a graph, or many launches of a kind, go. And while what launches of several streams have brought by faults is to
// leave and one of them still uses it: if each went on at its own pace, at no time would all of them be over. But if
// nothing moves for 20 ms and the time of the next transfer, for 150 ms where it waits for bytes that are to go or for
// a launch's time, for a second where a graph is timed or launches larger than the budget come by faults (a kernel may
// be waiting for what this very thread does next), the launch goes ahead; false: without any transfer, since the queues
// are full.
bool WorkScope::Throttle(const Work& work) {
  Stream* stream = work.stream;
  Device* device = stream->device;
  size_t before = SIZE_MAX;
  uint64_t done_before = 0;
  std::vector<memory::Mark> before_us;
  for (int still = 0, most = kPatience; still < most;) {
    size_t outstanding;
    uint64_t done;
    {
      std::lock_guard lock(device->mutex);
      RelaxedCapture relaxed;
      ++device->look;
      outstanding = device->Outstanding(stream);
      bool far_ahead = false;
      done = 0;
      if (outstanding >= kMaxOutstanding) {
        // What leaves may wait for launches of this very stream, and a GiB alone takes 70 ms.
        device->Poll(stream);
        done = stream->completed;
        most = kPatience + static_cast<int>(device->residency.NextBytes(stream->id) / kBytesALook);
      }
      if (device->residency.awaits_freed() && device->residency.launches() >= device->hold_back_from) {
        device->Poll(stream);
        done = stream->completed;
        far_ahead = stream->seq.load(std::memory_order_relaxed) > done + kMaxRunAhead;
        if (far_ahead) most = std::max(most, kPatienceForDead);
        if (far_ahead && still + 1 >= most) device->hold_back_from = device->residency.launches() + 1024;
      }
      if (device->residency.has_excess_duplicates()) {
        device->DropExcessDuplicates();
        device->Poll(stream);
        done = stream->completed;
        far_ahead |= device->residency.has_excess_duplicates() && stream->seq.load(std::memory_order_relaxed) > done;
        if (far_ahead) most = std::max(most, kPatienceForDead);
      }
      if (work.id && device->residency.scatters(work.id) && device->residency.launches() >= device->hold_back_from) {
        device->Poll(stream);
        done = stream->completed;
        const bool far = stream->seq.load(std::memory_order_relaxed) > done + kMaxFaultsAhead;
        far_ahead |= far;
        if (far) most = std::max(most, kPatienceForTrial);  // a sweep of 3 GiB takes 200 ms
        if (far && still + 1 >= most) device->hold_back_from = device->residency.launches() + 1024;
      }
      if (work.id && device->residency.scatters(work.id) && device->residency.ResidueSweepPending()) {
        bool told;
        done = device->DoneUpTo(&before_us, &told);
        far_ahead = true;
        most = std::max(most, told ? kPatienceForTrial : kPatience);
        if (still + 1 >= most) device->residency.PauseResidueSweep();
      }
      const auto tries = [&] {
        return work.hotter ? device->residency.probes_graph_strategy(work.id)
                           : work.id && device->residency.Crowded(work.id);
      };
      if (tries() && device->residency.launches() >= device->hold_back_from) {
        device->Record(stream);
        device->Poll(stream);
        device->ReadProbes();
        done = stream->completed;
        far_ahead |= tries() && stream->seq.load(std::memory_order_relaxed) > done;
        if (far_ahead) most = std::max(most, work.hotter ? kPatienceForTrial : kPatienceForDead);
        if (far_ahead && still + 1 >= most) device->hold_back_from = device->residency.launches() + 1024;
      }
      if (device->AwaitsWatch(work)) {
        device->Record(stream);
        device->Poll(stream);
        done = device->WatchProgress();
        far_ahead |= device->AwaitsWatch(work);
        // In vain once, it is hardly waited for again: who goes on is counted as missed.
        if (far_ahead) most = std::max(most, device->watch_in_vain ? kPatienceInVain : kPatienceForDead);
        if (far_ahead && still + 1 >= most) device->watch_in_vain = true;
      }
      if (outstanding < kMaxOutstanding && !far_ahead) return true;
      const uint64_t finished = stream->in.done + stream->out.done + stream->repopulate.done + stream->completed + 1;
      const policy::Residency& residency = device->residency;
      if (stream->stuck_at == finished)
        most = residency.named_bytes() > residency.capacity() ? 1 : std::min(most, kPatienceInVain);
      if (outstanding >= kMaxOutstanding && still + 1 >= most) {
        stream->stuck_at = finished;
        return std::max({stream->in.events.size(), stream->out.events.size(), 2 * stream->repopulate.events.size()}) <
               kFull;
      }
    }
    still = outstanding < before || done > done_before ? 0 : still + 1;
    before = outstanding;
    done_before = done;
    const timespec pause{0, 100000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

// Of all that is asked of a launch.
uint64_t WorkScope::KeyOf(const Work& work) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t key = work.id ^ uint64_t { work.stream->id } << 32;
  const auto add = [&key](uint64_t value) { key = (key ^ value) * kOdd; };
  for (const uint64_t word : work.words) add(word);
  for (const libraries::Reach& reach : work.reaches) {
    add(reach.pointer);
    add(reach.begin + reach.end * kOdd);
    add(reach.only_read);
  }
  for (const memory::Extent& extent : work.exact) add(extent.base + extent.bytes * kOdd);
  const uint64_t flags = (work.unseen ? 2 : 0) | (work.known ? 1 : 0);
  const uint64_t counts = work.words.size() << 48 | work.reaches.size() << 32 | work.reads << 16 | work.overwritten;
  add(counts + flags * kOdd);
  return key ^ key >> 32;
}

// Whether no more need be said of it. The device's lock is held.
bool WorkScope::ServeFast(Stream* stream, uint64_t id, bool known, uint64_t key) {
  Device* const device = stream->device;
  const uint64_t seq = stream->seq.load(std::memory_order_relaxed) + 1;
  // Now and then all of it: an event is set, the driver's counters are read.
  if (seq >= stream->recorded + kEventSeldom) return false;
  policy::SteadySets::Set* const set = device->brief.Find(key);
  if (!set || !device->residency.PrepareSteady(stream->id, seq, id, set)) return false;
  Count(&device->launches_looked_at);
  if (known) Count(&device->launches_known);
  stream->last_launch = device->residency.launches();
  device->NoteFastLaunch();
  return true;
}

bool WorkScope::TryFastPath(Stream* stream, uint64_t id, uint64_t key) {
  Device* const device = stream->device;
  if (!device->active.load(std::memory_order_relaxed) || stream->mark_wanted.load(std::memory_order_relaxed) ||
      device->raised_until.load(std::memory_order_relaxed)) {
    return false;
  }
  stream->order.lock();
  {
    std::lock_guard lock(device->mutex);
    if (device->brief.OnlyLaunches(device->mutex.times()) && ServeFast(stream, id, true, key)) return true;
  }
  stream->order.unlock();
  return false;
}

// The launch was looked at, and nothing was done: the next one like it may be told in brief, if nothing waits to be
// done either.
void WorkScope::RememberFast(const Work& work, uint64_t key) {
  Device* const device = stream_->device;
  policy::Residency& residency = device->residency;
  policy::SteadySets::Set* const set = residency.steady_set();
  if (!set || work.copy || work.hotter || !device->probes.empty() || !device->learnt.empty() ||
      device->learnt.wants_any() || device->Watches(stream_) || residency.awaits_freed() || residency.has_withdrawn() ||
      MustThrottle(work) || LogEnabled(settings::LogLevel::kDebug)) {
    return;
  }
  const Stream* const stream_discard_owner = device->stream_discard_owner;
  if (stream_discard_owner && stream_discard_owner != stream_ &&
      stream_discard_owner->repopulate.done < device->stream_discard_op)
    return;
  device->brief.Keep(key ? key : KeyOf(work), set);
}

// Whether there is anything that Throttle might wait for. The device's lock is held.
bool WorkScope::MustThrottle(const Work& work) {
  Device* const device = work.stream->device;
  const policy::Residency& residency = device->residency;
  return device->Outstanding(work.stream) >= kMaxOutstanding || residency.awaits_freed() ||
         residency.has_excess_duplicates() || device->AwaitsWatch(work) || (work.id && residency.scatters(work.id)) ||
         (work.hotter ? residency.probes_graph_strategy(work.id) : work.id && residency.Crowded(work.id));
}

void Device::Resolve(const Work& work, Touched* to) {
  size_t count = 0;
  const size_t most = work.words.size() + work.reaches.size() + work.exact.size();
  if (to->room.size() < most) {
    to->room.resize(most);
    to->reads_room.resize(most);
  }
  memory::Extent* const extents = to->room.data();
  char* const only_read = to->reads_room.data();
  const auto add = [&](const memory::Extent& extent, bool reads) {
    extents[count] = extent;
    only_read[count++] = reads;
  };
  loose.clear();
  narrowed = false;
  if (learnt.empty()) {
    for (const uint64_t word : work.words) {
      if (const memory::Extent* const extent = live.Where(word)) add(*extent, false);
    }
  } else {
    policy::UnboundedPointer around;
    for (size_t i = 0; i < work.words.size(); ++i) {
      const auto extent = ResolveWord(work, i, &around);
      if (!extent) continue;
      add(*extent, false);
      if (!around.block.bytes) continue;
      loose.push_back(around);
      narrowed |= around.block.bytes > extent->bytes;
    }
  }
  to->hotter.reset();
  if (work.hotter) to->hotter = 0;
  for (size_t i = 0; i < work.reaches.size(); ++i) {
    if (const auto extent = Resolve(work.reaches[i])) add(*extent, work.reaches[i].only_read);
    if (work.hotter && i < *work.hotter) to->hotter = count;
  }
  // Last: those that are overwritten.
  for (size_t i = 0; i < work.exact.size(); ++i) add(work.exact[i], i < work.reads);
  to->extents = {extents, count};
  to->only_read = {only_read, count};
}

std::optional<memory::Extent> Device::Resolve(const libraries::Reach& reach) {
  if (reach.pointer) return live.Resolve(reach.pointer, reach.begin, reach.end);
  return memory::Extent{reach.begin, reach.end - reach.begin};
}

WorkScope::WorkScope(const Work& work) : stream_(work.stream) {
  Device* device = stream_->device;
  capturing_ = IsCapturing(*stream_);
  if (capturing_) {
    // The graph may use these at any replay, whatever is freed meanwhile.
    for (const uint64_t word : work.words) device->MarkCaptured(word);
    for (const memory::Extent& extent : work.exact) device->MarkCaptured(extent.base);
    return;
  }
  if (stream_->mark_wanted.load(std::memory_order_relaxed) && stream_->mark_wanted.exchange(false)) {
    std::lock_guard lock(device->mutex);
    device->Record(stream_);
  }
  if (!device->active.load(std::memory_order_relaxed)) return;
  if (device->raised_until.load(std::memory_order_relaxed)) device->AwaitRoom(work);
  const uint64_t key = work.key ? work.key : work.id && device->brief.Any() ? KeyOf(work) : 0;
  stream_->order.lock();
  ordered_ = true;
  std::unique_lock lock(device->mutex);
  if (device->brief.OnlyLaunches(device->mutex.times()) && key && ServeFast(stream_, work.id, work.known, key)) {
    follow_up_ = false;
    return;
  }
  if (!stream_->context) return;
  RelaxedCapture relaxed;
  ++device->look;
  bool may_move = true;
  if (MustThrottle(work)) {
    // Others must be able to queue what this stream waits for.
    lock.unlock();
    stream_->order.unlock();
    may_move = Throttle(work);
    stream_->order.lock();
    lock.lock();
    if (!stream_->context) return;
    ++device->look;
    device->residency.Rested(work.id);
  }
  device->EndWatch();
  const Touched& touched = device->touched;
  device->Resolve(work, &device->touched);
  device->NoteWriters(touched, work.unseen);
  Count(&device->launches_looked_at);
  if (work.known) Count(&device->launches_known);
  // Counted when the driver has it (End): an event set meanwhile stands in front of it and must not count as behind it.
  const uint64_t seq = stream_->seq.load(std::memory_order_acquire) + 1;
  const size_t overwritten = work.overwritten && OrderIsKnown(stream_) ? work.overwritten : 0;
  device->FollowCeiling();
  device->CountFaults();
  device->NoteNarrowed(work);
  if (work.hotter) device->ReadProbes();  // says which way it goes
  AwaitStreamDiscards(stream_);
  stream_->last_launch = device->residency.launches();
  // Asked for what died alone.
  const bool asks = device->residency.has_freed_chunks();
  device->residency.set_in_order(asks && WorksAlone(stream_) && OrderIsKnown(stream_));
  const policy::Plan& plan =
      device->residency.Prepare(stream_->id, seq, touched.extents, work.id, may_move, overwritten, touched.hotter);
  if (LogEnabled(settings::LogLevel::kDebug)) device->LogPlacement(work);
  bool moves = false;
  if (!plan.nothing) {
    device->brief.Forget();
    moves = CarryOut(work, plan);
  } else {
    if (work.copy) device->NoteCopied(touched);
    if (!device->probes.empty()) device->ReadProbes();
  }
  if (may_move && device->MayWatch(work)) device->BeginWatch(work, seq);
  if (work.id) device->FollowPressure({stream_->id, seq});  // the plan is over
  const uint64_t every = device->residency.in_steady_state() ? kEventSeldom : kEventEvery;
  follow_up_ = moves || seq >= stream_->recorded + every || device->residency.awaits_freed() ||
               (work.id && device->residency.scatters(work.id)) || device->Watches(stream_);
  if (work.id) RememberFast(work, key);
}

// All that has to be done before the driver's call; whether that is more than to tell the driver. The device's lock is
// held.
bool WorkScope::CarryOut(const Work& work, const policy::Plan& plan) {
  Device* const device = stream_->device;
  const auto time = [&] {
    CUevent begin = device->probes.size() < 64 ? stream_->context->timers.Take() : nullptr;
    if (!begin) return device->residency.Answered(plan.probe);
    g_real.cuEventRecord(begin, stream_->handle);
    timed_.emplace(plan.probe, plan.way, work.function ? work.function->name.substr(0, 96) : "", begin);
  };
  if (plan.way.id) time();  // with all that is moved for it
  if (work.copy) device->NoteCopied(device->touched);
  if (!plan.discard.empty()) DiscardRuns(plan.discard, device->Housekeeping(stream_->context));
  if (!plan.populate_now.empty()) device->PopulateNow(plan.populate_now, stream_);
  const bool moves = !plan.now.empty() || !plan.ahead.empty() || !plan.stream_discard.empty() ||
                     !plan.repopulate.empty() || plan.wait_in || plan.after_op || plan.probe.id || plan.way.id;
  // What leaves waits for events of this stream: one must cover all that was queued.
  if (moves) device->Record(stream_);
  // Before anything is queued to be sent away: the call waits for what is being sent just then.
  if (!plan.map_remote.empty() || !plan.unmap_remote.empty()) device->Map(plan);
  if (moves) {
    DiscardInStream(plan, stream_);
    device->Execute(plan.now, stream_);
    Repopulate(plan, stream_);
    if (plan.wait_in) device->WaitForTransfer(stream_, stream_->in, plan.wait_in);
    device->Execute(plan.ahead, stream_);
  }
  if (!device->probes.empty()) device->ReadProbes();
  if (plan.probe.id) time();
  if (plan.after_op) {
    evict_after_ = plan.evict_after;
    after_op_ = plan.after_op;
  }
  return moves;
}

void WorkScope::End(CUresult) {
  if (capturing_) return;
  stream_->seq.fetch_add(1, std::memory_order_release);
  if (!ordered_) return;
  if (follow_up_) {
    Device* const device = stream_->device;
    std::lock_guard lock(device->mutex);
    device->brief.OnlyLaunches(device->mutex.times());
    stream_->stream_discarding = 0;
    if (stream_->context) {
      RelaxedCapture relaxed;
      if (timed_) {
        EventPool* timers = &stream_->context->timers;
        if (CUevent end = timers->Take()) {
          g_real.cuEventRecord(end, stream_->handle);
          device->probes.push_back({stream_->context, timed_->begin, end, timed_->probe, std::move(timed_->name),
                                    timed_->way, device->Moved(),
                                    timed_->way.id ? device->TakeLeft(stream_->context) : Device::Left{}});
        } else {
          timers->Give(timed_->begin);
          stream_->device->residency.Answered(timed_->probe);
        }
      }
      stream_->device->Record(stream_);
      stream_->device->EvictAfter(evict_after_, after_op_, stream_);
      if (timed_ && timed_->way.id) stream_->device->SetLeft(timed_->way, after_op_ != 0, stream_);
    }
  }
  stream_->order.unlock();
}

}  // namespace sluice
