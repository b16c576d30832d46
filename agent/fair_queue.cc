#include "agent/fair_queue.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

namespace sluice::agent {
namespace {

constexpr int kEventsPerTurn = 16;
constexpr uint64_t kTurnNs = 100'000;  // no handler begins later in a turn

int Milliseconds(uint64_t ns) { return static_cast<int>(ns / 1'000'000) + 1; }

}  // namespace

std::shared_ptr<FairQueue> FairQueue::Make(EventLoop* loop) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return nullptr;
  std::shared_ptr<FairQueue> queue(new FairQueue(loop, epoll));
  const std::weak_ptr<FairQueue> weak = queue;
  const bool ok = loop->Add(epoll, EPOLLIN, [weak](uint32_t) {
    if (const auto self = weak.lock()) self->Serve();  // a handler may drop the last reference
  });
  return ok ? queue : nullptr;
}

FairQueue::~FairQueue() {
  loop_->Remove(epoll_);
  close(epoll_);
}

bool FairQueue::Add(int fd, uint32_t events, EventLoop::Handler handler) {
  const uint64_t key = next_key_++;
  epoll_event e{};
  e.events = events;
  e.data.u64 = key;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) != 0) return false;
  keys_[fd] = key;
  handlers_[key] = std::move(handler);
  return true;
}

void FairQueue::Change(int fd, uint32_t events) {
  const auto it = keys_.find(fd);
  if (it == keys_.end()) return;
  epoll_event e{};
  e.events = events;
  e.data.u64 = it->second;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &e);
}

void FairQueue::Remove(int fd) {
  const auto it = keys_.find(fd);
  if (it == keys_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(it->second);
  keys_.erase(it);
}

void FairQueue::Serve() {
  epoll_event events[kEventsPerTurn];
  const uint64_t until = MonotonicNs() + kTurnNs;
  const int n = epoll_wait(epoll_, events, kEventsPerTurn, 0);
  for (int i = 0; i < n && !paused_; ++i) {
    // The others are ready in the next turn too.
    if (i > 0 && MonotonicNs() > until) break;
    const auto it = handlers_.find(events[i].data.u64);
    if (it == handlers_.end()) continue;            // removed by an earlier handler of this turn
    const EventLoop::Handler handler = it->second;  // a copy: the handler may remove itself
    handler(events[i].events);
  }
}

bool FairQueue::TakeConnect(int listener) {
  const uint64_t now = MonotonicNs();
  if (connects_.Take(now)) return true;
  if (listener_paused_) return false;
  ++delayed_.connects;
  listener_paused_ = true;
  Change(listener, 0);
  loop_->After(Milliseconds(connects_.WaitNs(now)), [weak = weak_from_this(), listener, key = keys_.at(listener)] {
    const auto self = weak.lock();
    if (!self) return;
    self->listener_paused_ = false;
    const auto it = self->keys_.find(listener);  // the number may be another descriptor's by now
    if (it != self->keys_.end() && it->second == key) self->Change(listener, EPOLLIN);
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
  loop_->Change(epoll_, 0);
  loop_->After(Milliseconds(ns), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->paused_ = false;
    self->loop_->Change(self->epoll_, EPOLLIN);
  });
}

}  // namespace sluice::agent
