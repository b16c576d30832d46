// Server: connections of processes.
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

#include "agent/process_facts.h"
#include "agent/server.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace sluice::agent {
namespace {

constexpr int kAcceptsPerWake = 2;  // of one allocation, before others are served (fair_queue.h)
constexpr int kFramesPerWake = 4;   // of one connection
constexpr size_t kOwnDescriptors = 128;
constexpr size_t kDescriptorsEach = 3;  // of a connection, until it has its page
constexpr size_t kAlways = 8;           // connections that an allocation may have, however few descriptors are left
constexpr int kSendBytes = 8192;        // of a connection; the kernel doubles it, for some twenty frames
// Plans may take a fifth of the time. Time without plans counts for at most this long.
constexpr uint64_t kPlanShare = 5;
constexpr uint64_t kMaxCreditNs = 10'000'000;
constexpr int kStarvedMs = 100;
constexpr uint64_t kStarvedReportNs = 60'000'000'000;
constexpr size_t kMaxWaiting = size_t{4} * SLUICE_MAX_GPUS;

int MakePage(sluice_page** page) {
  const int fd = memfd_create("sluice-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  void* p = MAP_FAILED;
  if (ftruncate(fd, SLUICE_PAGE_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    p = mmap(nullptr, SLUICE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (p == MAP_FAILED) {
    close(fd);
    return -1;
  }
  *page = static_cast<sluice_page*>(p);
  return fd;
}

struct Peer {
  int64_t pid = 0;  // 0: not known
  int pidfd = -1;   // to be polled for its end
  ContainerKey container;
  bool has_ended = false;
};

// The process that connected. It may have ended since, and its pid may be another's now: what /proc tells under the pid
// counts only if the process is alive afterwards. SO_PEERPIDFD has no race. Before Linux 6.5 the pid may be another
// process's from the beginning.
// `of_pods`: a process in no container is looked at closely, since it would pass for one of the node's own.
Peer PeerOf(int fd, bool of_pods) {
  Peer out;
  ucred cred{};
  socklen_t size = sizeof(cred);
  out.pid = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0 ? cred.pid : 0;
  size = sizeof(out.pidfd);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &out.pidfd, &size) != 0) {
    const int why = errno;
    out.pidfd = -1;
    out.has_ended = why == ESRCH;
    if (why == ENOPROTOOPT && out.pid > 0) {
      out.pidfd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(out.pid), 0));
      out.has_ended = out.pidfd < 0 && errno == ESRCH;
    }
  }
  if (out.has_ended) return out;
  out.container = ReadContainer(out.pid);
  if (of_pods && out.container.empty() && out.pid > 0) out.container = ReadContainerOfAny(out.pid);
  pollfd end{out.pidfd, POLLIN, 0};
  out.has_ended = out.pidfd >= 0 && poll(&end, 1, 0) > 0;
  return out;
}

// Whether a newer frame makes the waiting one obsolete.
bool Replaces(const sluice_frame& a, const sluice_frame& b) {
  if (a.h.type != b.h.type) return false;
  switch (a.h.type) {
    case SLUICE_BUDGET:
      return std::strncmp(a.u.budget.uuid, b.u.budget.uuid, SLUICE_UUID_CHARS) == 0;
    case SLUICE_MEMORY:  // its grants are cumulative
      return std::strncmp(a.u.memory.uuid, b.u.memory.uuid, SLUICE_UUID_CHARS) == 0;
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
    const std::shared_ptr<FairQueue> queue = place->second.queue;
    if (!queue->TakeConnect(place->second.listener)) return;
    const uint64_t began = ThreadNs();
    const int fd = accept4(place->second.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno != EMFILE && errno != ENFILE) return;
      // No descriptor is left: the connection is accepted with the spare one and closed. Else it would wake the loop
      // for ever.
      close(spare_fd_);
      const int refused = accept4(place->second.listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (refused >= 0) close(refused);
      spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      return;
    }
    // Its kernel memory is the agent's: a client that reads no answers holds little of it.
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBytes, sizeof(kSendBytes));
    if (!HasRoom(*queue)) {
      Reject(id, fd, "allocation " + id + " holds as many connections as the node can give one");
      continue;
    }
    const Peer peer = PeerOf(fd, node_->in_kubernetes());
    if (peer.has_ended) {
      if (peer.pidfd >= 0) close(peer.pidfd);
      close(fd);
      continue;
    }
    const SessionId session = next_session_++;
    Connection& c = connections_[session];
    c.queue = queue;
    c.fd = fd;
    c.pidfd = peer.pidfd;
    ++queue->connections;
    Hold(*queue, c.pidfd >= 0 ? 2 : 1);
    queue->Add(fd, EPOLLIN | EPOLLRDHUP, [this, session](uint32_t events) { Readable(session, events); });
    if (c.pidfd >= 0) {
      // A forked child may hold a copy of the socket: the session ends with the process that connected.
      queue->Add(c.pidfd, EPOLLIN, [this, session](uint32_t) {
        node_->Closed(session, MonotonicNs());
        Destroy(session);
        SettleSoon();
      });
    }
    node_->Opened(session, id, peer.pid, nullptr, MonotonicNs(), peer.container);
    c.attach_ns = ThreadNs() - began;  // still there: a refused one is destroyed after this batch of events
  }
}

// A page is made for a process that says HELLO: it takes half of the time of a connection, which a flood of other bytes
// shall not cost.
bool Server::GivePage(SessionId session, Connection& c, const char* frame, size_t bytes) {
  sluice_header header{};
  if (c.closing || c.page != nullptr || bytes != SLUICE_FRAME_BYTES) return true;
  std::memcpy(&header, frame, sizeof(header));
  if (header.magic != SLUICE_WIRE_MAGIC || header.type != SLUICE_HELLO) return true;
  c.page_fd = MakePage(&c.page);
  if (c.page_fd < 0) return false;
  Hold(*c.queue, 1);
  node_->SetPage(session, c.page);
  return true;
}

bool Server::HasRoom(const FairQueue& queue) const {
  if (queue.connections < kAlways) return true;
  const size_t most = node_->max_connections(), of_others = connections_.size() - queue.connections;
  if (of_others >= most || queue.connections + 1 > (most - of_others) / 2) return false;
  const size_t others = descriptors_ - queue.descriptors + places_.size() * 2;
  const size_t taken = others + kOwnDescriptors;
  const size_t left = max_descriptors_ > taken ? max_descriptors_ - taken : 0;
  return queue.descriptors + kDescriptorsEach <= left / 2;
}

void Server::Hold(FairQueue& queue, int more) {
  queue.descriptors += static_cast<size_t>(more);
  descriptors_ += static_cast<size_t>(more);
}

// Without a session: nothing of the connection is kept.
void Server::Reject(const std::string& id, int fd, const std::string& reason) {
  sluice_frame f{};
  f.h = {SLUICE_WIRE_MAGIC, SLUICE_WIRE_MAJOR, SLUICE_WIRE_MINOR, SLUICE_REFUSE, 1};
  reason.copy(f.u.refuse.reason, sizeof(f.u.refuse.reason) - 1);
  (void)!send(fd, &f, sizeof(f), MSG_DONTWAIT | MSG_NOSIGNAL);
  close(fd);
  node_->Rejected(id, reason);
}

void Server::AddDelayed(NodeStatus* status) const {
  for (AllocationStatus& a : status->allocations) {
    const auto place = places_.find(a.id);
    if (place == places_.end() || place->second.queue == nullptr) continue;
    a.delayed_connects = place->second.queue->delayed().connects;
    a.delayed_frames = place->second.queue->delayed().frames;
  }
}

// Plans once for a batch of events. A plan walks over all processes, so the share of time for plans is bounded. A
// thousand processes that attach at once do not cause a plan for every few of them.
void Server::SettleSoon() {
  if (settle_posted_) return;
  settle_posted_ = true;
  const auto settle = [this] {
    settle_posted_ = false;
    const uint64_t begin = MonotonicNs();
    Settle();
    next_plan_ns_ = std::max(next_plan_ns_, begin - kMaxCreditNs) + kPlanShare * (MonotonicNs() - begin);
    if (drop_orphans_ && !orphans_.empty()) DropOrphans();
    // Ticks follow reclaimed memory, at most one every 10 ms.
    if (tick_planned_) return;
    tick_planned_ = true;
    loop_->After(10, [this] {
      tick_planned_ = false;
      loop_->TickSoon();
    });
  };
  const uint64_t now = MonotonicNs();
  if (now >= next_plan_ns_) {
    loop_->RunNext(settle);
  } else {
    loop_->After(static_cast<int>((next_plan_ns_ - now) / 1000000) + 1, settle);
  }
}

void Server::Settle() {
  RecordAttached(0);  // first budgets that other calls caused
  const uint64_t began = ThreadNs(), sent = budgets_sent_;
  node_->Settle();
  // The plan is charged in equal parts to all processes whose budgets it set.
  if (budgets_sent_ > sent) RecordAttached((ThreadNs() - began) / (budgets_sent_ - sent));
}

void Server::RecordAttached(uint64_t plan_ns) {
  for (const SessionId session : std::exchange(fresh_, {})) {
    const auto it = connections_.find(session);
    if (it != connections_.end()) attach_times_.Add(it->second.attach_ns + plan_ns);
  }
}

void Server::Readable(SessionId session, uint32_t events) {
  const uint64_t began = ThreadNs();
  const bool ends = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  for (int n = 0; n < kFramesPerWake; ++n) {
    const auto it = connections_.find(session);
    if (it == connections_.end()) return;
    Connection& c = it->second;
    if ((events & EPOLLOUT) != 0) {
      events &= ~static_cast<uint32_t>(EPOLLOUT);
      Flush(session);
      if (!connections_.contains(session)) return;
      if (c.blocked && !ends) return;
    }
    if (!c.queue->TakeFrame()) break;
    // No control space: the kernel drops descriptors that a client sends along.
    char data[SLUICE_FRAME_BYTES + 1];
    const ssize_t got = recv(c.fd, data, sizeof(data), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0 || !GivePage(session, c, data, static_cast<size_t>(got))) {
      node_->Closed(session, MonotonicNs());
      Destroy(session);
      break;
    }
    if (!c.closing) node_->Received(session, data, static_cast<size_t>(got), MonotonicNs());
    // A client that does not read its answers is not read, until it does or ends. After HELLO it waits for the answer.
    const auto now = connections_.find(session);
    if (now == connections_.end() || (now->second.blocked && !ends) || !now->second.attached) break;
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
  const auto same = std::ranges::find_if(c.waiting, [&](const sluice_frame& w) { return Replaces(w, frame); });
  if (same != c.waiting.end()) {
    *same = frame;
  } else if (c.waiting.size() < kMaxWaiting) {
    if (c.waiting.empty()) c.waiting.reserve(2);  // WELCOME and BUDGET
    c.waiting.push_back(frame);
  }
  // The first budget or PING follows at once: the process is woken once for both.
  if (frame.h.type == SLUICE_WELCOME || c.blocked) return;
  SendWaiting(c);
  if (!c.waiting.empty()) WaitToSend(session, c);
}

void Server::WaitToSend(SessionId session, Connection& c) {
  c.blocked = true;
  if (!std::exchange(c.starved, false)) return c.queue->Change(c.fd, EPOLLRDHUP | EPOLLOUT);
  // The socket is writable all the time, so that a timer tries again.
  c.queue->Change(c.fd, EPOLLRDHUP);
  loop_->After(kStarvedMs, [this, session] {
    if (connections_.contains(session)) Flush(session);
  });
  const uint64_t now = MonotonicNs();
  if (starved_reported_ns_ != 0 && now - starved_reported_ns_ < kStarvedReportNs) return;
  starved_reported_ns_ = now;
  node_->AddEvent("", "descriptors in flight",
                  "processes wait to attach: user " + std::to_string(geteuid()) +
                      " has sent more descriptors over sockets than a process may have open, and no one receives them");
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
  // The kernel counts descriptors that wait in sockets for each user of the node, and any container's root is the
  // agent's user. Without CAP_SYS_RESOURCE no process of the user can pass another one then.
  if (n < 0 && errno == ETOOMANYREFS) {
    c.starved = true;
    return false;
  }
  if (with_page && n > 0) {  // both ends have mapped it
    close(std::exchange(c.page_fd, -1));
    Hold(*c.queue, -1);
  }
  return true;  // sent, or the peer is gone: then the next read fails
}

void Server::Flush(SessionId session) {
  Connection& c = connections_.at(session);
  SendWaiting(c);
  // The reason for its wait may be gone: a socket that waits for descriptors is not watched for room.
  if (!c.waiting.empty()) return WaitToSend(session, c);
  if (c.closing) return Destroy(session);
  c.blocked = false;
  c.queue->Change(c.fd, EPOLLIN | EPOLLRDHUP);
}

void Server::SendWaiting(Connection& c) {
  size_t sent = 0;
  while (sent < c.waiting.size() && TrySend(c, c.waiting[sent])) ++sent;
  c.waiting.erase(c.waiting.begin(), c.waiting.begin() + static_cast<ptrdiff_t>(sent));
}

void Server::SendSoon() {
  if (std::exchange(send_posted_, true)) return;
  loop_->RunNext([this] {
    send_posted_ = false;
    node_->SendDue();
  });
}

void Server::Close(SessionId session) {
  const auto it = connections_.find(session);
  if (it == connections_.end()) return;
  // Destroyed later: the caller may still use the connection. The peer still reads the frames in the socket.
  it->second.closing = true;
  loop_->RunNext([this, session] { Destroy(session); });
}

void Server::Destroy(SessionId session) {
  const auto it = connections_.find(session);
  if (it == connections_.end()) return;
  Connection& c = it->second;
  --c.queue->connections;
  Hold(*c.queue, -1 - (c.pidfd >= 0 ? 1 : 0) - (c.page_fd >= 0 ? 1 : 0));
  c.queue->Remove(c.fd);
  close(c.fd);
  if (c.pidfd >= 0) {
    c.queue->Remove(c.pidfd);
    close(c.pidfd);
  }
  if (c.page_fd >= 0) close(c.page_fd);
  if (c.page != nullptr) munmap(c.page, SLUICE_PAGE_BYTES);
  connections_.erase(it);
}

}  // namespace sluice::agent
