// The event loop: streams, fences, callbacks. Operations are in steps.cc, host waits in waits.cc.
#include "simulator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "misuse.h"
#include "pace.h"

namespace simgpu {

HostThread& ThisThread() {
  static thread_local HostThread thread;
  return thread;
}

Simulator::Simulator(const Profile& profile, SharedState& state)
    : profile_(profile), state_(state), memory_(state), figures_(static_cast<size_t>(profile.gpus)) {
  worked_until_ = state.header().now;
  memory_.on_taken = [this](int card, uint64_t bytes) { uvm_tools_.Count(card, UvmTools::kToHost, bytes); };
}

Simulator& TheSimulator() {
  static auto* simulator = new Simulator(TheProfile(), TheState());
  return *simulator;
}

Stream* Simulator::NewStream(int card, const void* context, bool blocking, bool legacy) {
  Stream* s;
  if (!spare_streams_.empty()) {
    s = spare_streams_.back();
    spare_streams_.pop_back();
    *s = Stream{};
  } else {
    s = new Stream;
  }
  s->id = ++next_stream_;
  s->card = card;
  s->context = context;
  s->blocking = blocking;
  s->legacy = legacy;
  streams_.push_back(s);
  return s;
}

void Simulator::DeleteStream(Stream* s) {
  // Queued work continues; the object is reused when it is done.
  s->zombie = true;
  if (s->Busy()) return;
  const int64_t end = s->free_at - profile_.kernel_gap_ns;
  if (end > ThisThread().now) {
    int64_t& until = deleted_until_[{s->card, s->context}];
    until = std::max(until, end);
  }
  streams_.erase(std::find(streams_.begin(), streams_.end(), s));
  spare_streams_.push_back(s);
}

Op* Simulator::NewOp(OpKind kind) {
  Op* op;
  if (spare_ops_.empty()) {
    op = new Op;
  } else {
    op = spare_ops_.back();
    spare_ops_.pop_back();
  }
  op->kind = kind;
  op->number = ++next_number_;
  return op;
}

void Simulator::Recycle(Op* op) {
  op->started = op->finishing = op->must_be_resident = op->discard_too = false;
  op->kind_of_kernel = SIMGPU_UNKNOWN;
  op->phase = op->eviction_threads = 0;
  op->name = nullptr;
  op->duration = 0;
  op->seed = 0;
  op->touches.clear();
  op->touch = op->offset = 0;
  op->fault_bytes = op->remote_in = op->remote_out = op->duplicate_bytes = 0;
  op->fence.reset();
  if (op->kind != OpKind::kKernel) {
    op->ranges.clear();
    op->wait.reset();
    op->copy = CopyWork{};
    op->set = MemsetWork{};
    op->host = HostFuncWork{};
    op->value = ValueWork{};
    op->action = nullptr;
  }
  spare_ops_.push_back(op);
}

void Simulator::Submit(Lock& lock, Stream* s, Op* op) {
  for (const FencePtr& gate : std::exchange(s->gates, {})) SubmitWait(lock, s, gate);
  if (s->legacy || s->blocking) {
    for (Stream* other : streams_) {
      if (other == s || other->context != s->context || !other->Busy()) continue;
      const bool ordered = s->legacy ? other->blocking : other->legacy;
      if (ordered) SubmitWait(lock, s, SubmitFence(lock, other));
    }
  }
  if (s->queue.size() >= static_cast<size_t>(profile_.launch_queue)) {
    CatchUp(lock);
    // The driver's ring is full: the caller waits for room.
    WaitUntilDone(
        lock, "room in a stream's queue",
        [](const void* p) {
          const auto& self = TheSimulator();
          return static_cast<const Stream*>(p)->queue.size() < static_cast<size_t>(self.profile_.launch_queue);
        },
        s, true);  // no call tells the hook how full the ring is
    ThisThread().now = std::max(ThisThread().now, s->free_at);
  }
  op->enqueued = std::max(ThisThread().now, worked_until_);
  s->queue.push_back(op);
  if (s->queue.size() == 1) Schedule(s, std::max(op->enqueued, s->free_at));
  if (Paced() && !pace_thread_) {
    // Due operations run on time, even if this process makes no call.
    pace_thread_ = true;
    std::thread([this] {
      for (;;) {
        PacedSleep(500'000);
        Lock held(mutex);
        ThisThread().now = PacedNow();
        CatchUp(held);
      }
    }).detach();
  }
}

FencePtr Simulator::SubmitFence(Lock& lock, Stream* s) {
  auto fence = std::make_shared<Fence>();
  if (!s->Busy()) {
    // No work is pending: done as of now.
    fence->done = true;
    fence->time = std::max(ThisThread().now, s->free_at);
    return fence;
  }
  Op* op = NewOp(OpKind::kFence);
  op->fence = fence;
  op->enqueued = std::max(ThisThread().now, worked_until_);
  s->queue.push_back(op);
  (void)lock;
  return fence;
}

void Simulator::SubmitWait(Lock& lock, Stream* s, const FencePtr& fence) {
  (void)lock;
  if (fence == nullptr || (fence->done && fence->time <= s->free_at)) return;
  Op* op = NewOp(OpKind::kWait);
  op->wait = fence;
  op->enqueued = std::max(ThisThread().now, worked_until_);
  s->queue.push_back(op);
  if (s->queue.size() == 1) Schedule(s, std::max(op->enqueued, s->free_at));
}

void Simulator::Schedule(Stream* s, int64_t time) {
  s->scheduled = true;
  s->blocked = false;
  due_.push({time, ++sequence_, s});
}

void Simulator::Finish(Stream* s, int64_t time) {
  Op* op = s->queue.front();
  if (op->fence != nullptr) {
    op->fence->done = true;
    op->fence->time = time;
    for (Stream* waiter : op->fence->waiters) {
      if (waiter->blocked) Schedule(waiter, std::max(time, waiter->queue.front()->enqueued));
    }
    op->fence->waiters.clear();
  }
  s->free_at = op->kind == OpKind::kKernel ? time + profile_.kernel_gap_ns : time;
  if (op->kind == OpKind::kPrefetch) --s->pending_prefetches;
  s->queue.pop_front();
  Recycle(op);
  if (s->zombie && !s->Busy()) DeleteStream(s);
}

bool Simulator::ProcessNext(int64_t limit) {
  if (due_.empty() || due_.top().time > limit || CallbackBars(due_.top().time)) return false;
  const Due due = due_.top();
  due_.pop();
  Stream* s = due.stream;
  int64_t t = due.time;
  if (state_.shared()) {
    state_.Publish(t);
    if (!Paced()) state_.WaitForOthers(t);  // real time is the common clock
  }
  s->scheduled = false;
  // The stream continues while nothing else is due earlier.
  for (;;) {
    worked_until_ = std::max(worked_until_, t);
    Op* op = s->queue.front();
    Result r = op->finishing ? Result{State::kDone, t} : Step(s, op, t);
    if (r.state == State::kBlocked) {
      s->blocked = true;
      return true;
    }
    if (r.state == State::kDone && r.time <= t) {
      const bool zombie = s->zombie;
      Finish(s, t);
      if (zombie || !s->Busy()) {
        if (s->Busy()) Schedule(s, std::max(s->free_at, s->queue.front()->enqueued));
        return true;
      }
      t = std::max(s->free_at, s->queue.front()->enqueued);
    } else {
      op->finishing = r.state == State::kDone;
      t = r.time;
    }
    if (t > limit || state_.shared() || Paced() || (!due_.empty() && due_.top().time <= t) || CallbackBars(t)) {
      Schedule(s, t);
      return true;
    }
  }
}

void Simulator::CatchUp(Lock& lock) {
  (void)lock;
  HostThread& thread = ThisThread();
  if (state_.shared()) thread.now = std::max(thread.now, state_.Publish(thread.now));
  if (!polling_.empty()) RecheckPolls();
  while (ProcessNext(thread.now)) {
  }
  if (state_.shared()) state_.Publish(thread.now);
}

bool Simulator::CallbackBars(int64_t time) const { return !callbacks_.empty() && time > callbacks_.front().end; }

bool Simulator::RecheckPolls() {
  bool any = false;
  auto polling = std::move(polling_);
  polling_.clear();
  for (Stream* s : polling) {
    if (!s->blocked) continue;
    // The event loop tries again. A stream whose value is still missing is added again.
    Schedule(s, std::max(worked_until_, s->queue.front()->enqueued));
    any = true;
  }
  return any;
}

void Simulator::StartCallback(Stream* s, Op* op, int64_t t) {
  callbacks_.push_back({s, op, t + profile_.host_func_ns});
  if (!callback_thread_) {
    callback_thread_ = true;
    std::thread([this] { CallbackThread(); }).detach();
  }
  callback_due_.notify_one();
}

void Simulator::CallbackThread() {
  ThisThread().in_callback = true;
  Lock lock(mutex);
  for (;;) {
    callback_due_.wait(lock, [this] { return !callbacks_.empty(); });
    const Callback c = callbacks_.front();
    const HostFuncWork work = c.op->host;
    lock.unlock();
    work.run(work.context);
    lock.lock();
    const int64_t end = std::min(callbacks_.front().end, c.end);
    callbacks_.pop_front();
    c.op->finishing = true;
    Schedule(c.stream, std::max(end, c.end));
    progress_.notify_all();
  }
}

void Simulator::RunDry(Lock& lock) {
  (void)lock;
  while (ProcessNext(INT64_MAX)) {
  }
}

std::string Simulator::Describe(const Op& op, const Stream& s) const {
  static const char* const kNames[] = {"launch",
                                       "copy",
                                       "memset",
                                       "prefetch",
                                       "discard",
                                       "event record",
                                       "wait for an event",
                                       "host function",
                                       "wait for a value",
                                       "write of a value",
                                       "free"};
  std::string text = std::string(kNames[static_cast<int>(op.kind)]) + " #" + std::to_string(op.number);
  if (op.name != nullptr) text += std::string(" '") + op.name + "'";
  return text + " on " + (s.legacy ? "the legacy stream" : "stream " + std::to_string(s.id));
}

}  // namespace simgpu
