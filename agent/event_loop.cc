#include "agent/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

namespace sluice::agent {

uint64_t MonotonicNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

uint64_t ThreadNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

int64_t UnixMs() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000 + t.tv_nsec / 1000000;
}

EventLoop::EventLoop() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Add(wake_, EPOLLIN, [this](uint32_t) {
    uint64_t n;
    (void)!read(wake_, &n, sizeof(n));
    RunPosted();
  });
}

EventLoop::~EventLoop() { close(wake_); }

void EventLoop::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

void EventLoop::Post(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
  }
  Wake();
}

void EventLoop::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  Wake();
}

void EventLoop::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    const MutexLock lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& w : work) w();
}

void EventLoop::After(int ms, std::function<void()> work) {
  timers_.emplace(MonotonicNs() + static_cast<uint64_t>(ms) * 1000000u, std::move(work));
}

void EventLoop::Run(const std::function<int()>& tick) {
  uint64_t due = MonotonicNs();
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (stop_) return;
    }
    uint64_t now = MonotonicNs();
    if (tick_soon_ || now >= due) {
      tick_soon_ = false;
      const int ms = tick();
      now = MonotonicNs();
      due = now + static_cast<uint64_t>(std::max(ms, 0)) * 1000000u;
    }
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const auto work = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      work();
    }
    for (const auto& work : std::exchange(next_, {})) work();
    epoll_event events[64];
    const uint64_t next = timers_.empty() ? due : std::min(due, timers_.begin()->first);
    const int wait = next > now ? static_cast<int>((next - now + 999999u) / 1000000u) : 0;
    const int n = descriptors_.Wait(events, 64, tick_soon_ || !next_.empty() ? 0 : wait);
    for (int i = 0; i < n; ++i) descriptors_.Dispatch(events[i]);
  }
}

}  // namespace sluice::agent
