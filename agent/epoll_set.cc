#include "agent/epoll_set.h"

#include <unistd.h>

#include <utility>

namespace sluice::agent {

EpollSet::EpollSet() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}
EpollSet::~EpollSet() {
  if (epoll_ >= 0) close(epoll_);
}

bool EpollSet::Add(int fd, uint32_t events, Handler handler) {
  const uint64_t key = next_key_++;
  epoll_event e{};
  e.events = events;
  e.data.u64 = key;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) != 0) return false;
  keys_[fd] = key;
  handlers_[key] = std::move(handler);
  return true;
}

void EpollSet::Change(int fd, uint32_t events) {
  const auto it = keys_.find(fd);
  if (it == keys_.end()) return;
  epoll_event e{};
  e.events = events;
  e.data.u64 = it->second;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &e);
}

void EpollSet::Remove(int fd) {
  const auto it = keys_.find(fd);
  if (it == keys_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(it->second);
  keys_.erase(it);
}

int EpollSet::Wait(epoll_event* events, int max, int ms) const { return epoll_wait(epoll_, events, max, ms); }

void EpollSet::Dispatch(const epoll_event& event) {
  const auto it = handlers_.find(event.data.u64);
  if (it == handlers_.end()) return;
  const Handler handler = it->second;  // a copy: the handler may remove itself
  handler(event.events);
}

uint64_t EpollSet::KeyOf(int fd) const {
  const auto it = keys_.find(fd);
  return it == keys_.end() ? 0 : it->second;
}

}  // namespace sluice::agent
