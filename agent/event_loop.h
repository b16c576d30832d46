// One thread's epoll loop: file descriptors, one periodic tick, and work posted from other threads. Handlers may add
// and remove descriptors, their own included.
#ifndef SLUICE_AGENT_EVENT_LOOP_H_
#define SLUICE_AGENT_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace sluice::agent {

class EventLoop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Level-triggered. The caller keeps the descriptor and removes it before closing it. False: the system refused
  // (errno).
  bool Add(int fd, uint32_t events, Handler handler);
  void Change(int fd, uint32_t events);
  void Remove(int fd);

  // Thread-safe: runs on the loop's thread, in order, soon.
  void Post(std::function<void()> work);
  void Stop();  // thread-safe
  // The same from the loop's own thread, behind the events that are being handled.
  void Soon(std::function<void()> work) { soon_.push_back(std::move(work)); }
  // Runs once on the loop's thread, `ms` from now. Loop's thread only.
  void After(int ms, std::function<void()> work);

  // Runs until Stop(). `tick` is called when the time it returned last (milliseconds from then) is over, first at once.
  void Run(const std::function<int()>& tick);
  // Asks for the tick at once, whatever time was left. Loop's thread only.
  void Hurry() { hurry_ = true; }

 private:
  void RunPosted();

  int epoll_ = -1;
  int wake_ = -1;
  uint64_t next_key_ = 1;
  bool hurry_ = false;
  // A key, not the descriptor's number, goes to the kernel: within one batch a number may be closed and taken again.
  std::unordered_map<int, uint64_t> keys_;
  std::unordered_map<uint64_t, Handler> handlers_;
  std::multimap<uint64_t, std::function<void()>> timers_;
  std::vector<std::function<void()>> soon_;
  std::mutex mutex_;  // guards posted_ and stop_
  std::vector<std::function<void()>> posted_;
  bool stop_ = false;
};

uint64_t MonotonicNs();
uint64_t ThreadNs();  // this thread's processor time
int64_t UnixMs();

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_EVENT_LOOP_H_
