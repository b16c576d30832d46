// Waits of host threads: for fences, streams, contexts and evictions, and the report of a wait that cannot end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "misuse.h"
#include "pace.h"
#include "simulator.h"

namespace simgpu {

namespace {

void CheckLocks(const char* what) {
  int (*const held)() = Simulator::locks_held.load(std::memory_order_relaxed);
  if (held == nullptr || held() == 0) return;
  Misuse(std::string("the host waits for ") + what + " while the hook holds a lock, for which other threads wait");
}

}  // namespace

void Simulator::WaitUntilDone(Lock& lock, const char* what, bool (*done)(const void*), const void* argument,
                              bool is_transfer) {
  using Clock = std::chrono::steady_clock;
  static const int64_t patience_ms = [] {
    const char* text = std::getenv("SIMGPU_DEADLOCK_MS");
    return text != nullptr && *text != '\0' ? std::strtoll(text, nullptr, 10) : 3000;
  }();
  Clock::time_point stuck_since{};
  Clock::time_point callback_since{};
  if (!is_transfer && !done(argument)) CheckLocks(what);
  while (!done(argument)) {
    if (Paced() && !due_.empty() && due_.top().time > PacedNow()) {
      const int64_t pause = std::min<int64_t>(due_.top().time - PacedNow(), 200'000);
      lock.unlock();
      PacedSleep(pause);
      lock.lock();
      stuck_since = {};
      continue;
    }
    if (ProcessNext(INT64_MAX)) {
      stuck_since = {};
      // A poll that fails again is no progress.
      if (polling_.empty() || !due_.empty()) continue;
    }
    if (done(argument)) return;
    const auto now = Clock::now();
    // A request that the application's function makes itself ends before the function does.
    if (!callbacks_.empty() && !ThisThread().in_callback &&
        (callback_since == Clock::time_point{} || now - callback_since < std::chrono::seconds(1))) {
      // The application's function runs on the driver's thread. Nothing later happens before it returns, unless it
      // waits for something later itself.
      if (callback_since == Clock::time_point{}) callback_since = now;
      progress_.wait_for(lock, std::chrono::milliseconds(20));
      continue;
    }
    callback_since = {};
    if (!callbacks_.empty() && !due_.empty()) {
      callbacks_.front().end = INT64_MAX;  // it waits for this thread: let later operations pass
      continue;
    }
    // Only another thread of this process can help: by a store that a stream polls for, or by more work.
    if (stuck_since == Clock::time_point{}) stuck_since = now;
    if (now - stuck_since > std::chrono::milliseconds(patience_ms)) ReportDeadlock(what);
    progress_.wait_for(lock, std::chrono::microseconds(200));
    const auto since = stuck_since;
    if (!polling_.empty()) {
      RecheckPolls();
      while (!due_.empty() && ProcessNext(worked_until_)) {
      }
    }
    stuck_since = since;
  }
}

void Simulator::ReportDeadlock(const char* what) {
  std::string message = std::string("deadlock: the host waits for ") + what + " and nothing can run:";
  int listed = 0;
  for (const Stream* s : streams_) {
    if (!s->Busy() || ++listed > 8) continue;
    const Op& op = *s->queue.front();
    message += " stream " + std::to_string(s->id) + " is stuck at " + Describe(op, *s);
    if (op.kind == OpKind::kWaitValue) message += " (no operation writes the value)";
    if (op.kind == OpKind::kWait) {
      for (const Stream* other : streams_) {
        for (const Op* behind : other->queue) {
          if (behind->fence == op.wait) message += ", which waits for " + Describe(*behind, *other);
        }
      }
    }
    message += ";";
  }
  Misuse(message);
  // Misuse is only counted (SIMGPU_MISUSE=report): end the wait, as the driver's would not.
  std::fprintf(stderr, "simgpu: the wait cannot go on\n");
  std::_Exit(87);
}

void Simulator::WaitFence(Lock& lock, const FencePtr& fence, const char* what, bool is_transfer) {
  WaitUntilDone(lock, what, [](const void* f) { return static_cast<const Fence*>(f)->done; }, fence.get(), is_transfer);
  ThisThread().now = std::max(ThisThread().now, fence->time);
  if (state_.shared()) state_.Publish(ThisThread().now);
}

void Simulator::EvictByRequest(Lock& lock, Allocation* a, uint64_t address, uint64_t length) {
  Op* op = NewOp(OpKind::kPrefetch);
  op->ranges = {{address, length, kHostCard}};
  op->eviction_threads = 1;
  Request(lock, a->card, op);
}

void Simulator::DiscardByRequest(Lock& lock, Allocation* a, uint64_t address, uint64_t length) {
  Op* op = NewOp(OpKind::kDiscard);
  op->ranges = {{address, length, a->card}};
  Request(lock, a->card, op);
}

// Runs it beside all streams, and waits for it.
void Simulator::Request(Lock& lock, int card, Op* op) {
  static thread_local Stream* own = nullptr;
  if (own == nullptr || own->card != card) own = NewStream(card, nullptr, false, false);
  ThisThread().now = std::max(ThisThread().now, worked_until_);
  op->fence = std::make_shared<Fence>();
  const FencePtr over = op->fence;
  ++own->pending_prefetches;
  Submit(lock, own, op);
  WaitFence(lock, over, "its own request", true);
}

void Simulator::WaitForEvictions(Lock& lock) {
  CatchUp(lock);
  for (size_t i = 0; i < streams_.size(); ++i) {
    Op* op = streams_[i]->queue.empty() ? nullptr : streams_[i]->queue.front();
    if (op == nullptr || op->kind != OpKind::kPrefetch || !op->started || op->ranges.empty() ||
        op->ranges[0].target != kHostCard)
      continue;
    if (op->fence == nullptr) op->fence = std::make_shared<Fence>();
    WaitFence(lock, FencePtr(op->fence), "an eviction in flight", true);
  }
}

void Simulator::WaitStream(Lock& lock, Stream* s, const char* what) {
  if (s->Busy()) {
    WaitFence(lock, SubmitFence(lock, s), what);
  } else {
    ThisThread().now = std::max(ThisThread().now, s->free_at - profile_.kernel_gap_ns);
  }
}

void Simulator::WaitContext(Lock& lock, const void* context, int card, const char* what) {
  std::vector<FencePtr> fences;
  for (Stream* s : streams_) {
    if (s->card != card || (context != nullptr && s->context != context)) continue;
    if (s->Busy()) {
      fences.push_back(SubmitFence(lock, s));
    } else {
      ThisThread().now = std::max(ThisThread().now, s->free_at - profile_.kernel_gap_ns);
    }
  }
  for (const auto& [of, until] : deleted_until_) {
    if (of.first == card && (context == nullptr || of.second == context))
      ThisThread().now = std::max(ThisThread().now, until);
  }
  for (const FencePtr& f : fences) WaitFence(lock, f, what);
}

bool Simulator::AnyBusy(const void* context, int card) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const Stream* s) {
    return s->card == card && (context == nullptr || s->context == context) && s->Busy();
  });
}

}  // namespace simgpu
