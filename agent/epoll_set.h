// Descriptors in one epoll, each with its handler. Used by one thread only.
#ifndef SLUICE_AGENT_EPOLL_SET_H_
#define SLUICE_AGENT_EPOLL_SET_H_

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <unordered_map>

namespace sluice::agent {

class EpollSet {
 public:
  using Handler = std::function<void(uint32_t events)>;

  EpollSet();  // without a descriptor left, fd() is -1 (errno)
  ~EpollSet();
  EpollSet(const EpollSet&) = delete;
  EpollSet& operator=(const EpollSet&) = delete;

  // Level-triggered. The caller keeps the descriptor, and removes it before closing it. False: the system refused
  // (errno).
  bool Add(int fd, uint32_t events, Handler handler);
  void Change(int fd, uint32_t events);
  void Remove(int fd);

  // Waits up to `ms` milliseconds (0: not at all). Returns the number of events, at most `max`.
  int Wait(epoll_event* events, int max, int ms) const;
  // Calls the handler of an event. A descriptor that an earlier handler of the batch removed has none.
  void Dispatch(const epoll_event& event);

  // Identifies the addition of a descriptor; 0: it is not in the set. A number may be closed and reused.
  uint64_t KeyOf(int fd) const;
  int fd() const { return epoll_; }

 private:
  const int epoll_;
  uint64_t next_key_ = 1;
  // The kernel gets a key instead of the descriptor's number: within one batch of events a number may be closed and
  // reused.
  std::unordered_map<int, uint64_t> keys_;
  std::unordered_map<uint64_t, Handler> handlers_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_EPOLL_SET_H_
