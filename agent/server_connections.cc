// Server: one process's connection.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "agent/server.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace sluice::agent {
namespace {

constexpr int kAcceptsPerWake = 64;
constexpr int kFramesPerWake = 16;          // then the others have their turn
constexpr uint64_t kCreditNs = 10'000'000;  // of time without plans is made up for
constexpr size_t kMaxWaiting = size_t{4} * SLUICE_MAX_GPUS;

int MakePage(sluice_page** page) {
  const int fd = memfd_create("sluice-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  void* p = MAP_FAILED;
  if (ftruncate(fd, SLUICE_PAGE_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    p = mmap(nullptr, SLUICE_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
  }
  if (p == MAP_FAILED) {
    close(fd);
    return -1;
  }
  *page = static_cast<sluice_page*>(p);
  return fd;
}

// The process at the other end, to be polled for its end. SO_PEERPIDFD has no race; before Linux 6.5 the pid might have
// been taken by another process between the two calls, which would only delay the release until the socket closes.
int PeerPidfd(int fd, int64_t* pid) {
  ucred cred{};
  socklen_t size = sizeof(cred);
  *pid = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0 ? cred.pid : 0;
  int pidfd = -1;
  size = sizeof(pidfd);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0 && pidfd >= 0) return pidfd;
  return *pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(*pid), 0)) : -1;
}

bool SameKind(const sluice_frame& a, const sluice_frame& b) {
  if (a.h.type != b.h.type) return false;
  switch (a.h.type) {
    case SLUICE_BUDGET:
      return std::strncmp(a.u.budget.uuid, b.u.budget.uuid, SLUICE_UUID_CHARS) == 0;
    case SLUICE_TOKEN_GRANT:
    case SLUICE_TOKEN_REVOKE:
      return std::strncmp(a.u.token.uuid, b.u.token.uuid, SLUICE_UUID_CHARS) == 0;
    default:
      return a.h.type == SLUICE_PING;
  }
}

}  // namespace

void Server::Accept(const std::string& id) {
  for (int n = 0; n < kAcceptsPerWake; ++n) {
    const auto place = places_.find(id);
    if (place == places_.end() || place->second.listener < 0) return;
    const uint64_t began = ThreadNs();
    const int fd = accept4(place->second.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno != EMFILE && errno != ENFILE) return;
      // No descriptor left: the connection is taken with the spare one and closed, or it would wake us for ever.
      close(spare_fd_);
      const int turned_away = accept4(place->second.listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (turned_away >= 0) close(turned_away);
      spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      return;
    }
    const SessionId session = next_session_++;
    Connection c;
    c.fd = fd;
    int64_t pid = 0;
    c.pidfd = PeerPidfd(fd, &pid);
    c.page_fd = MakePage(&c.page);
    if (c.page_fd < 0) {
      close(fd);
      if (c.pidfd >= 0) close(c.pidfd);
      return;
    }
    loop_->Add(fd, EPOLLIN | EPOLLRDHUP, [this, session](uint32_t events) { Readable(session, events); });
    if (c.pidfd >= 0) {
      // A forked child may hold a copy of the socket; the process that connected is what counts.
      loop_->Add(c.pidfd, EPOLLIN, [this, session](uint32_t) {
        node_->Closed(session, MonotonicNs());
        Destroy(session);
        SettleSoon();
      });
    }
    const sluice_page* page = c.page;
    Connection& kept = connections_[session] = std::move(c);
    node_->Opened(session, id, pid, page, MonotonicNs());
    kept.attach_ns = ThreadNs() - began;  // a refused one is destroyed in the loop's next round
  }
}

// Once a batch of events, however many arrived, left or spoke in it; and where a thousand arrive at once, not for each
// few of them: plans may take a fifth of the time, and a little more at first.
void Server::SettleSoon() {
  if (settle_posted_) return;
  settle_posted_ = true;
  const auto settle = [this] {
    settle_posted_ = false;
    const uint64_t begin = MonotonicNs();
    Settle();
    paid_until_ns_ = std::max(paid_until_ns_, begin - kCreditNs) + 5 * (MonotonicNs() - begin);
    if (drop_orphans_ && !orphans_.empty()) DropOrphans();
    // What was called back is watched from now on; not more often than every 10 ms, however many come.
    if (hurry_planned_) return;
    hurry_planned_ = true;
    loop_->After(10, [this] {
      hurry_planned_ = false;
      loop_->Hurry();
    });
  };
  const uint64_t now = MonotonicNs();
  if (now >= paid_until_ns_) {
    loop_->Soon(settle);
  } else {
    loop_->After(static_cast<int>((paid_until_ns_ - now) / 1000000) + 1, settle);
  }
}

void Server::Settle() {
  BookAttached(0);  // what others had Node send
  const uint64_t began = ThreadNs(), sent = budgets_sent_;
  node_->Settle();
  // A plan may move the budgets of many: it was made for all of them.
  if (budgets_sent_ > sent) BookAttached((ThreadNs() - began) / (budgets_sent_ - sent));
}

void Server::BookAttached(uint64_t plan_ns) {
  for (const SessionId session : std::exchange(fresh_, {})) {
    const auto it = connections_.find(session);
    if (it != connections_.end()) attach_times_.Add(it->second.attach_ns + plan_ns);
  }
}

void Server::Readable(SessionId session, uint32_t events) {
  const uint64_t began = ThreadNs();
  for (int n = 0; n < kFramesPerWake; ++n) {
    const auto it = connections_.find(session);
    if (it == connections_.end()) return;
    Connection& c = it->second;
    if ((events & EPOLLOUT) != 0) {
      events &= ~static_cast<uint32_t>(EPOLLOUT);
      Flush(session);
      if (!connections_.contains(session)) return;
    }
    // No control space: descriptors that a client sends along are dropped by the kernel.
    char data[SLUICE_FRAME_BYTES + 1];
    const ssize_t got = recv(c.fd, data, sizeof(data), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) {
      node_->Closed(session, MonotonicNs());
      Destroy(session);
      break;
    }
    if (!c.closing) node_->Received(session, data, static_cast<size_t>(got), MonotonicNs());
  }
  const auto it = connections_.find(session);
  if (it != connections_.end() && !it->second.attached) it->second.attach_ns += ThreadNs() - began;
  SettleSoon();
}

void Server::Send(SessionId session, const sluice_frame& frame) {
  const auto it = connections_.find(session);
  if (it == connections_.end() || it->second.closing) return;
  Connection& c = it->second;
  if (frame.h.type == SLUICE_BUDGET) {
    ++budgets_sent_;
    if (!std::exchange(c.attached, true)) fresh_.push_back(session);
  }
  const auto same = std::ranges::find_if(c.waiting, [&](const sluice_frame& w) { return SameKind(w, frame); });
  if (same != c.waiting.end()) {
    *same = frame;
  } else if (c.waiting.size() < kMaxWaiting) {
    c.waiting.push_back(frame);
  }
  // The first budget follows at once, or PING: the process is woken once for both.
  if (frame.h.type == SLUICE_WELCOME || c.blocked) return;
  SendWaiting(c);
  if (c.waiting.empty()) return;
  c.blocked = true;
  loop_->Change(c.fd, EPOLLIN | EPOLLRDHUP | EPOLLOUT);
}

bool Server::TrySend(Connection& c, const sluice_frame& frame) {
  iovec iov{const_cast<sluice_frame*>(&frame), sizeof(frame)};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  const bool with_page = frame.h.type == SLUICE_WELCOME && c.page_fd >= 0;
  if (with_page) {
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    cmsghdr* h = CMSG_FIRSTHDR(&msg);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(h), &c.page_fd, sizeof(int));
  }
  const ssize_t n = sendmsg(c.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR)) return false;
  if (with_page && n > 0) {  // mapped here and there: the descriptor is of no more use
    close(c.page_fd);
    c.page_fd = -1;
  }
  return true;  // sent, or the peer is gone, which the next read tells
}

void Server::Flush(SessionId session) {
  Connection& c = connections_.at(session);
  SendWaiting(c);
  if (!c.waiting.empty()) return;
  if (c.closing) return Destroy(session);
  c.blocked = false;
  loop_->Change(c.fd, EPOLLIN | EPOLLRDHUP);
}

void Server::SendWaiting(Connection& c) {
  while (!c.waiting.empty() && TrySend(c, c.waiting.front())) c.waiting.pop_front();
}

void Server::Close(SessionId session) {
  const auto it = connections_.find(session);
  if (it == connections_.end()) return;
  // Not from under a caller's feet: the descriptor goes in the loop's next round. What is queued in the socket is still
  // read by the peer.
  it->second.closing = true;
  loop_->Soon([this, session] { Destroy(session); });
}

void Server::Destroy(SessionId session) {
  const auto it = connections_.find(session);
  if (it == connections_.end()) return;
  Connection& c = it->second;
  loop_->Remove(c.fd);
  close(c.fd);
  if (c.pidfd >= 0) {
    loop_->Remove(c.pidfd);
    close(c.pidfd);
  }
  if (c.page_fd >= 0) close(c.page_fd);
  munmap(c.page, SLUICE_PAGE_BYTES);
  connections_.erase(it);
}

}  // namespace sluice::agent
