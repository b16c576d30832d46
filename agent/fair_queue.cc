#include "agent/fair_queue.h"

#include <sys/epoll.h>

#include <utility>

namespace sluice::agent {
namespace {

constexpr int kEventsPerTurn = 16;
constexpr uint64_t kTurnNs = 100'000;  // no handler begins later in a turn

int Milliseconds(uint64_t ns) { return static_cast<int>(ns / 1'000'000) + 1; }

}  // namespace

std::shared_ptr<FairQueue> FairQueue::Make(EventLoop* loop) {
  std::shared_ptr<FairQueue> queue(new FairQueue(loop));
  if (queue->descriptors_.fd() < 0) return nullptr;
  const std::weak_ptr<FairQueue> weak = queue;
  const bool ok = loop->Add(queue->descriptors_.fd(), EPOLLIN, [weak](uint32_t) {
    if (const auto self = weak.lock()) self->Serve();  // a handler may drop the last reference
  });
  return ok ? queue : nullptr;
}

FairQueue::~FairQueue() {
  if (descriptors_.fd() >= 0) loop_->Remove(descriptors_.fd());  // else errno says why there is none
}

void FairQueue::Serve() {
  epoll_event events[kEventsPerTurn];
  const uint64_t until = MonotonicNs() + kTurnNs;
  const int n = descriptors_.Wait(events, kEventsPerTurn, 0);
  for (int i = 0; i < n && !paused_; ++i) {
    // The others are ready in the next turn too.
    if (i > 0 && MonotonicNs() > until) break;
    descriptors_.Dispatch(events[i]);
  }
}

bool FairQueue::TakeConnect(int listener) {
  const uint64_t now = MonotonicNs();
  if (connects_.Take(now)) return true;
  if (listener_paused_) return false;
  ++delayed_.connects;
  listener_paused_ = true;
  Change(listener, 0);
  loop_->After(Milliseconds(connects_.WaitNs(now)),
               [weak = weak_from_this(), listener, key = descriptors_.KeyOf(listener)] {
                 const auto self = weak.lock();
                 if (!self) return;
                 self->listener_paused_ = false;
                 // The number may be another descriptor's by now.
                 if (self->descriptors_.KeyOf(listener) == key) self->Change(listener, EPOLLIN);
               });
  return false;
}

bool FairQueue::TakeFrame() {
  const uint64_t now = MonotonicNs();
  if (frames_.Take(now)) return true;
  ++delayed_.frames;
  Pause(frames_.WaitNs(now));
  return false;
}

void FairQueue::Pause(uint64_t ns) {
  if (std::exchange(paused_, true)) return;
  loop_->Change(descriptors_.fd(), 0);
  loop_->After(Milliseconds(ns), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->paused_ = false;
    self->loop_->Change(self->descriptors_.fd(), EPOLLIN);
  });
}

}  // namespace sluice::agent
