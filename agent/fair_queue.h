// One allocation's descriptors, served in turn with those of the others. Its descriptors are in an epoll of their own,
// so the loop's epoll holds one descriptor for each allocation, and rotates over those that are ready. A tenant with a
// thousand busy sockets gets the same turns as one with a single socket. Used by the loop's thread only.
#ifndef SLUICE_AGENT_FAIR_QUEUE_H_
#define SLUICE_AGENT_FAIR_QUEUE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "agent/epoll_set.h"
#include "agent/event_loop.h"
#include "agent/token_bucket.h"

namespace sluice::agent {

class FairQueue : public std::enable_shared_from_this<FairQueue> {
 public:
  // Reads that had to wait, for metrics.
  struct Delayed {
    uint64_t connects = 0, frames = 0;
  };

  static std::shared_ptr<FairQueue> Make(EventLoop* loop);  // nullptr: no descriptor is left (errno)
  ~FairQueue();
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // As EpollSet's.
  bool Add(int fd, uint32_t events, EpollSet::Handler handler) {
    return descriptors_.Add(fd, events, std::move(handler));
  }
  void Change(int fd, uint32_t events) { descriptors_.Change(fd, events); }
  void Remove(int fd) { descriptors_.Remove(fd); }

  // Whether one more connection or frame may be read now. False: `listener`, or the whole turn, pauses until then.
  bool TakeConnect(int listener);
  bool TakeFrame();
  const Delayed& delayed() const { return delayed_; }

  size_t connections = 0, descriptors = 0;  // that the allocation holds

 private:
  explicit FairQueue(EventLoop* loop) : loop_(loop) {}
  void Serve();
  void Pause(uint64_t ns);

  EventLoop* const loop_;
  EpollSet descriptors_;
  // A thousand processes may attach at once. A process with a token sends some frames a millisecond.
  TokenBucket connects_{5'000'000, 2000}, frames_{50'000, 10000};
  bool paused_ = false, listener_paused_ = false;
  Delayed delayed_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_FAIR_QUEUE_H_
