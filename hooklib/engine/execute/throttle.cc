// WorkScope: when the host waits before a launch, and for how long.
//
// While many transfers are queued, as the driver itself waits when its queues are full; and for these reasons:
//
// - Freed chunks or excess duplicates wait for a GPU that is far behind. On a card that is 150 launches behind, a
//   convolution net's training moves twice as much: freed chunks cannot be discarded yet, so live bytes are evicted.
// - A measured time decides how a graph, or many launches of a kind, are served.
// - Fault residue of launches on several streams is to be evicted, and one of them still uses it. If each went on at
//   its own pace, at no time would all of them be over.
// - A launch is watched, or is to be watched (fault_watch.h).
//
// A kernel may be waiting for the next call of this very thread, so no wait is unbounded. The launch goes ahead if
// nothing moves:
// - for 20 ms and the time of the next transfer;
// - for 150 ms where it waits for eviction or for a launch's time;
// - for a second where a graph is timed, or launches larger than the budget fault.
#include <algorithm>
#include <ctime>

#include "hooklib/engine/execute/work.h"

namespace sluice {

namespace {

// The driver takes more than 32 and fewer than 128 deferred prefetches before it blocks the caller (measured).
// We wait earlier, outside all locks, so that a caller blocked in the driver never keeps other threads from launching
// the work that it waits for.
constexpr size_t kMaxOutstandingTransfers = 28;
// In one queue. From here on the driver could block the calling thread, which holds locks then. The stream may be
// waiting for that very thread.
constexpr size_t kMaxQueuedTransfers = 32;
// Launches that the host may be ahead while freed chunks wait: enough to keep the GPU busy. And while launches fault an
// unknown amount in: these take long.
constexpr uint64_t kMaxRunAhead = 32, kMaxFaultingRunAhead = 8;

constexpr timespec kPollPause{0, 100'000};
constexpr int kMaxPolls = 200, kMaxPollsForFreed = 1500;
constexpr int kMaxPollsForFaults = 10000;  // launches larger than the budget fault for hundreds of milliseconds
// After a wait that ran out, while nothing has moved since: not the whole time again. But a thread that does not wait
// at all has a thousand launches queued before the GPU moves again, none of them with its bytes. A launch that names
// more than the budget faults in any case.
constexpr int kMaxPollsAfterFailedWait = 10;
constexpr uint64_t kMinBytesPerPoll = 1 << 20;       // 10 GB/s
constexpr uint64_t kLaunchesAfterFailedWait = 1024;  // without another such wait

// Whether times of such launches are awaited that decide how it is served.
bool IsProbed(const Work& work) SLUICE_DEVICE_LOCKED {
  const policy::Residency& residency = work.stream->device->residency;
  return work.hot_reaches ? residency.probes_graph_strategy(work.id) : work.id && residency.ShouldAwaitProbes(work.id);
}

class ThrottleWait {
 public:
  explicit ThrottleWait(const Work& work) : work_(work), stream_(work.stream), device_(work.stream->device) {}

  enum class Answer : uint8_t { kWait, kGo, kGoWithoutTransfers };
  Answer Poll() SLUICE_DEVICE_LOCKED {
    outstanding_ = device_->OutstandingTransfers(stream_);
    must_wait_ = false;
    done_ = 0;
    const bool queues_full = outstanding_ >= kMaxOutstandingTransfers;
    // The order matters: each reason extends the patience of those before it, and the last one defines
    // progress.
    if (queues_full) PollTransfers();
    PollFreedChunks();
    PollExcessDuplicates();
    PollFaultingLaunches();
    PollFaultResidue();
    PollProbes();
    PollFaultWatch();
    if (!queues_full && !must_wait_) return Answer::kGo;
    const uint64_t finished =
        stream_->fetch_queue.done + stream_->evict_queue.done + stream_->discard_queue.done + stream_->completed + 1;
    const policy::Residency& residency = device_->residency;
    if (stream_->done_at_failed_wait == finished)
      max_polls_ = residency.named_bytes() > residency.capacity() ? 1 : std::min(max_polls_, kMaxPollsAfterFailedWait);
    if (!queues_full || !IsLastPoll()) return Answer::kWait;
    stream_->done_at_failed_wait = finished;
    const size_t queued = std::max({stream_->fetch_queue.events.size(), stream_->evict_queue.events.size(),
                                    2 * stream_->discard_queue.events.size()});
    return queued < kMaxQueuedTransfers ? Answer::kGo : Answer::kGoWithoutTransfers;
  }

  // False: nothing has moved for too long.
  bool HasPatience() {
    polls_ = outstanding_ < outstanding_before_ || done_ > done_before_ ? 0 : polls_ + 1;
    outstanding_before_ = outstanding_;
    done_before_ = done_;
    return polls_ < max_polls_;
  }

 private:
  bool IsLastPoll() const { return polls_ + 1 >= max_polls_; }
  bool IsAhead(uint64_t launches) SLUICE_DEVICE_LOCKED {
    return stream_->seq.load(std::memory_order_relaxed) > stream_->completed + launches;
  }
  bool MayWaitForLaunches() SLUICE_DEVICE_LOCKED {
    return device_->residency.launches() >= device_->throttle_from_launch;
  }
  void StopThrottling() SLUICE_DEVICE_LOCKED {
    device_->throttle_from_launch = device_->residency.launches() + kLaunchesAfterFailedWait;
  }
  // The stream's completed work is the progress.
  void PollStream() SLUICE_DEVICE_LOCKED {
    device_->PollEvents(stream_);
    done_ = stream_->completed;
  }
  // Whether more than `launches` are queued. Launches that move nothing set an event only now and then: without one
  // behind them their end would not be seen while the host waits for it.
  bool AwaitsLaunches(uint64_t launches) SLUICE_DEVICE_LOCKED {
    if (stream_->seq.load(std::memory_order_relaxed) > stream_->recorded + launches / 2) device_->RecordEvent(stream_);
    PollStream();
    return IsAhead(launches);
  }

  // Evictions may wait for launches of this very stream, and a GiB takes 30 ms, 70 by the driver's call.
  void PollTransfers() SLUICE_DEVICE_LOCKED {
    PollStream();
    max_polls_ = kMaxPolls + static_cast<int>(device_->residency.NextTransferBytes(stream_->id) / kMinBytesPerPoll);
  }
  void PollFreedChunks() SLUICE_DEVICE_LOCKED {
    if (!device_->residency.awaits_freed() || !MayWaitForLaunches()) return;
    must_wait_ = AwaitsLaunches(kMaxRunAhead);
    if (!must_wait_) return;
    max_polls_ = std::max(max_polls_, kMaxPollsForFreed);
    if (IsLastPoll()) StopThrottling();
  }
  void PollExcessDuplicates() SLUICE_DEVICE_LOCKED {
    if (!device_->residency.has_excess_duplicates()) return;
    device_->DropExcessDuplicates();
    must_wait_ |= device_->residency.has_excess_duplicates() && AwaitsLaunches(0);
    if (must_wait_) max_polls_ = std::max(max_polls_, kMaxPollsForFreed);
  }
  void PollFaultingLaunches() SLUICE_DEVICE_LOCKED {
    if (!work_.id || !device_->residency.ExpectsFaultResidue(work_.id) || !MayWaitForLaunches()) return;
    if (!AwaitsLaunches(kMaxFaultingRunAhead)) return;
    must_wait_ = true;
    max_polls_ = std::max(max_polls_, kMaxPollsForFaults);  // a sweep of 3 GiB takes 200 ms
    if (IsLastPoll()) StopThrottling();
  }
  void PollFaultResidue() SLUICE_DEVICE_LOCKED {
    if (!work_.id || !device_->residency.ExpectsFaultResidue(work_.id) || !device_->residency.ResidueSweepPending())
      return;
    bool all_seen;
    done_ = device_->CompletedWork(&residue_users_, &all_seen);
    must_wait_ = true;
    max_polls_ = std::max(max_polls_, all_seen ? kMaxPollsForFaults : kMaxPolls);
    if (IsLastPoll()) device_->residency.PauseResidueSweep();
  }
  void PollProbes() SLUICE_DEVICE_LOCKED {
    if (!IsProbed(work_) || !MayWaitForLaunches()) return;
    const bool is_ahead = AwaitsLaunches(0);
    device_->timings.Read();
    must_wait_ |= is_ahead && IsProbed(work_);
    if (!must_wait_) return;
    max_polls_ = std::max(max_polls_, work_.hot_reaches ? kMaxPollsForFaults : kMaxPollsForFreed);
    if (IsLastPoll()) StopThrottling();
  }
  void PollFaultWatch() SLUICE_DEVICE_LOCKED {
    if (!device_->fault_watch.MustWait(work_)) return;
    device_->RecordEvent(stream_);
    device_->PollEvents(stream_);
    done_ = device_->fault_watch.Progress();
    must_wait_ |= device_->fault_watch.MustWait(work_);
    if (!must_wait_) return;
    // After one such wait that ran out, the next are short: a launch that goes on counts as missed.
    max_polls_ = std::max(max_polls_, device_->watch_wait_failed ? kMaxPollsAfterFailedWait : kMaxPollsForFreed);
    if (IsLastPoll()) device_->watch_wait_failed = true;
  }

  const Work& work_;
  Stream* const stream_;
  Device* const device_;
  int polls_ = 0, max_polls_ = kMaxPolls;  // without progress
  bool must_wait_ = false;                 // for another reason than full queues
  size_t outstanding_ = 0, outstanding_before_ = SIZE_MAX;
  uint64_t done_ = 0, done_before_ = 0;
  std::vector<memory::Mark> residue_users_;
};

}  // namespace

// Whether there is anything that Throttle might wait for.
bool WorkScope::MayThrottle(const Work& work) {
  Device* const device = work.stream->device;
  const policy::Residency& residency = device->residency;
  return device->OutstandingTransfers(work.stream) >= kMaxOutstandingTransfers || residency.awaits_freed() ||
         residency.has_excess_duplicates() || device->fault_watch.MustWait(work) ||
         (work.id && residency.ExpectsFaultResidue(work.id)) || IsProbed(work);
}

// False: the launch goes ahead without any transfer, because the queues are full.
bool WorkScope::Throttle(const Work& work) {
  Device* const device = work.stream->device;
  ThrottleWait wait(work);
  do {
    ThrottleWait::Answer answer;
    {
      DeviceLock lock(device->mutex);
      RelaxedCapture relaxed;
      ++device->poll_epoch;
      answer = wait.Poll();
    }
    if (answer != ThrottleWait::Answer::kWait) return answer == ThrottleWait::Answer::kGo;
    const bool goes_on = wait.HasPatience();
    nanosleep(&kPollPause, nullptr);
    if (!goes_on) return true;
  } while (true);
}

}  // namespace sluice
