// One thread's epoll loop: file descriptors, a tick, timers, and work posted by other threads. Handlers may add and
// remove descriptors, their own included. Used by the loop's thread only, except Post() and Stop().
#ifndef SLUICE_AGENT_EVENT_LOOP_H_
#define SLUICE_AGENT_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "agent/epoll_set.h"
#include "common/mutex.h"

namespace sluice::agent {

class EventLoop {
 public:
  using Handler = EpollSet::Handler;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // As EpollSet's.
  bool Add(int fd, uint32_t events, Handler handler) { return descriptors_.Add(fd, events, std::move(handler)); }
  void Change(int fd, uint32_t events) { descriptors_.Change(fd, events); }
  void Remove(int fd) { descriptors_.Remove(fd); }

  // Any thread: the work runs soon on the loop's thread, in the order of the calls.
  void Post(std::function<void()> work) SLUICE_EXCLUDES(mutex_);
  void Stop() SLUICE_EXCLUDES(mutex_);  // any thread
  // Runs the work after the current batch of events.
  void RunNext(std::function<void()> work) { next_.push_back(std::move(work)); }
  // Runs the work once, in `ms` milliseconds.
  void After(int ms, std::function<void()> work);

  // Runs until Stop(). Calls `tick` at once, then each time when the milliseconds that it returned are over. After 0 it
  // handles the ready descriptors, then calls it again.
  void Run(const std::function<int()>& tick) SLUICE_EXCLUDES(mutex_);
  // Brings the next tick forward to now.
  void TickSoon() { tick_soon_ = true; }

 private:
  void RunPosted() SLUICE_EXCLUDES(mutex_);
  void Wake() const;

  EpollSet descriptors_;
  int wake_ = -1;
  bool tick_soon_ = false;
  std::multimap<uint64_t, std::function<void()>> timers_;
  std::vector<std::function<void()>> next_;
  Mutex mutex_;
  std::vector<std::function<void()>> posted_ SLUICE_GUARDED_BY(mutex_);
  bool stop_ SLUICE_GUARDED_BY(mutex_) = false;
};

uint64_t MonotonicNs();
uint64_t ThreadNs();  // CPU time of this thread
int64_t UnixMs();

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_EVENT_LOOP_H_
