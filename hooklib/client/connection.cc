// One connection to the agent: connect, HELLO, frames in both directions.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "client/agent_client.h"
#include "client/connect.h"
#include "client/hello.h"
#include "client/internals.h"

namespace sluice::client {
namespace {

constexpr int kHeartbeatMs = 1000, kMaxConnectMs = 2000;
// A process that waits for a time slice sends a request every 2 s, and the agent answers each, as it does requests for
// memory. An agent that is silent for this long is stopped or hangs, and its clients would wait for ever.
constexpr uint64_t kMaxSilenceNs = 10'000'000'000;

}  // namespace

bool AgentClient::Connect() {
  const SocketAddress address(path_);
  const Descriptor made(MakeSocket());
  if (made.fd() < 0) return false;
  {
    // The fork handler must know it before anything is sent through it.
    MutexLock lock(mutex_);
    socket_ = made;
    seq_ = 0;
  }
  return address.Connect(made.fd(), kMaxConnectMs) && SendHello();
}

bool AgentClient::SendHello() {
  sluice_hello hello{};
  FillHello(hello);
  CopyText(hello.version, sizeof(hello.version), version_);
  if (served_) hello.flags |= SLUICE_HELLO_RETURNING;
  welcomed_ = false;
  first_budgets_ = 0;
  return Send(SLUICE_HELLO, &hello, sizeof(hello));
}

AgentClient::End AgentClient::Serve() {
  const Descriptor socket = Socket();  // only this thread changes it while it runs
  for (;;) {
    pollfd p{socket.fd(), POLLIN, 0};
    poll(&p, 1, kHeartbeatMs);
    if (IsStopping()) return End::kStop;
    // The program may have put a file of its own in the socket's place.
    if (!socket.IsOurs()) return End::kLost;
    __atomic_store_n(&page_->heartbeat_ns, NowNs(), __ATOMIC_RELAXED);
    if (p.revents == 0) {
      if (IsAgentSilent()) return End::kLost;
      continue;
    }
    sluice_frame frame{};
    iovec iov{&frame, sizeof(frame)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(socket.fd(), &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return End::kLost;
    NoteFrame();
    int passed = -1;
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(&msg, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int got;
        memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        if (passed < 0) {
          passed = got;
        } else {
          close(got);
        }
      }
    }
    End end = End::kLost;
    const bool whole = n == static_cast<ssize_t>(sizeof(frame)) && (msg.msg_flags & MSG_TRUNC) == 0;
    const bool go_on = whole && HandleFrame(frame, passed, &end);
    if (passed >= 0) close(passed);
    if (!go_on) return end;
  }
}

bool AgentClient::HandleFrame(const sluice_frame& frame, int passed_fd, End* end) {
  const sluice_header& h = frame.h;
  if (h.magic != SLUICE_WIRE_MAGIC) return false;
  if (h.type == SLUICE_REFUSE || h.major != SLUICE_WIRE_MAJOR) {
    char reason[sizeof(frame.u.refuse.reason)];
    if (h.type == SLUICE_REFUSE) {
      CopyText(reason, sizeof(reason), frame.u.refuse.reason);
    } else {
      snprintf(reason, sizeof(reason), "the agent speaks protocol %d.%d, this hook %d.%d", h.major, h.minor,
               SLUICE_WIRE_MAJOR, SLUICE_WIRE_MINOR);
    }
    *end = End::kRefused;
    const bool first = state() != State::kRefused;
    if (first) observer_->OnRefused(reason);
    SetState(State::kRefused);
    return false;
  }
  switch (h.type) {
    case SLUICE_WELCOME:
      if (passed_fd >= 0) AdoptPage(passed_fd);
      {
        MutexLock lock(mutex_);
        agent_minor_ = h.minor;
      }
      welcomed_ = served_ = true;
      first_budgets_ = frame.u.welcome.gpus;
      observer_->OnAttached(frame.u.welcome);
      if (first_budgets_ == 0) SetState(State::kAttached);
      return true;
    case SLUICE_BUDGET:
      FollowLease(frame.u.budget);
      observer_->OnBudget(frame.u.budget);
      if (first_budgets_ > 0) {
        --first_budgets_;
        if (first_budgets_ == 0) SetState(State::kAttached);
      }
      return true;
    case SLUICE_TOKEN_GRANT:
      observer_->OnGrant(frame.u.token);
      return true;
    case SLUICE_TOKEN_REVOKE:
      observer_->OnRevoke(frame.u.token);
      return true;
    case SLUICE_MEMORY:
      NoteMemory(frame.u.memory);
      return true;
    case SLUICE_PROCESSES:
      NoteProcesses(frame.u.processes);
      return true;
    case SLUICE_PING:
      Send(SLUICE_PONG, nullptr, 0);
      return true;
    default:
      return true;  // of a newer minor version
  }
}

void AgentClient::AdoptPage(int fd) {
  struct stat st{};
  // Without the seal the page could shrink, and reads of it would end the application by SIGBUS.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &st) != 0 || st.st_size < SLUICE_PAGE_BYTES || seals < 0 || (seals & F_SEAL_SHRINK) == 0) return;
  MutexLock lock(mutex_);
  std::array<uint64_t, sizeof(sluice_page) / sizeof(uint64_t)> contents;
  static_assert(sizeof contents == sizeof(sluice_page));
  const auto* const words = reinterpret_cast<const uint64_t*>(page_);  // other threads write them
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
  if (pwrite(fd, contents.data(), sizeof contents, 0) != static_cast<ssize_t>(sizeof contents)) return;
  MapPage(page_, fd);  // replaces the old page in one step, at the same address; on failure the old one stays
}

bool AgentClient::Send(uint16_t type, const void* body, size_t bytes) {
  MutexLock lock(mutex_);
  return SendLocked(type, body, bytes);
}

bool AgentClient::SendLocked(uint16_t type, const void* body, size_t bytes) {
  sluice_frame frame{};
  frame.h.magic = SLUICE_WIRE_MAGIC;
  frame.h.major = SLUICE_WIRE_MAJOR;
  frame.h.minor = SLUICE_WIRE_MINOR;
  frame.h.type = type;
  if (bytes > 0) memcpy(frame.u.bytes, body, bytes);
  if (!socket_.IsOurs()) return false;
  frame.h.seq = ++seq_;
  if (send(socket_.fd(), &frame, sizeof(frame), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(frame)))
    return false;
  const bool is_request = type == SLUICE_TOKEN_REQUEST || type == SLUICE_MEMORY_REQUEST;
  if (is_request && unanswered_since_ns_ == 0) unanswered_since_ns_ = NowNs();
  return true;
}

Descriptor AgentClient::Socket() {
  MutexLock lock(mutex_);
  return socket_;
}

void AgentClient::NoteFrame() {
  MutexLock lock(mutex_);
  unanswered_since_ns_ = 0;
}

bool AgentClient::IsAgentSilent() {
  MutexLock lock(mutex_);
  return unanswered_since_ns_ != 0 && NowNs() - unanswered_since_ns_ > kMaxSilenceNs;
}

void AgentClient::Disconnect() {
  MutexLock lock(mutex_);
  socket_.Close();
  unanswered_since_ns_ = 0;
}

}  // namespace sluice::client
