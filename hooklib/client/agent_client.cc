#include "client/agent_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "client/hello.h"

namespace sluice::client {
namespace {

constexpr int kFirstBackoffMs = 10;
constexpr int kMaxBackoffMs = 500;       // an agent that came back is found within half a second
constexpr int kRefusedBackoffMs = 5000;  // the agent may be upgraded one day
constexpr int kHeartbeatMs = 1000;
// Who waits for a turn asks every 2 s, and the agent answers each time: one that says nothing for so long is stopped or
// hangs, and everybody who waits would hang with it.
constexpr uint64_t kDeafNs = 10'000'000'000;
constexpr size_t kStackBytes = size_t{256} * 1024;

// All clients of this process; fork needs them. The mutex is taken before any client's own.
pthread_mutex_t g_list_mutex = PTHREAD_MUTEX_INITIALIZER;
AgentClient* g_list = nullptr;
bool g_fork_handlers = false;

class Lock {
 public:
  explicit Lock(pthread_mutex_t& m) : m_(m) { pthread_mutex_lock(&m_); }
  ~Lock() { pthread_mutex_unlock(&m_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& m_;
};

uint64_t NowNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

timespec After(int ms) {
  const uint64_t end = NowNs() + static_cast<uint64_t>(ms < 0 ? 0 : ms) * 1000000u;
  return {static_cast<time_t>(end / 1000000000u), static_cast<long>(end % 1000000000u)};
}

void CopyText(char* to, size_t size, const char* from) {
  const size_t n = strnlen(from, size - 1);
  memcpy(to, from, n);
  memset(to + n, 0, size - n);
}

// Maps `fd`, or private memory where fd is -1, over `at` (anywhere where at is null).
sluice_page* MapPage(void* at, int fd) {
  const int flags = (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | (at != nullptr ? MAP_FIXED : 0);
  void* p = mmap(at, SLUICE_PAGE_BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<sluice_page*>(p);
}

void InitPage(sluice_page* page) {
  page->magic = SLUICE_WIRE_MAGIC;
  page->major = SLUICE_WIRE_MAJOR;
  page->minor = SLUICE_WIRE_MINOR;
}

}  // namespace

AgentClient::AgentClient(const char* socket_path, const char* version, Observer* observer) : observer_(observer) {
  CopyText(path_, sizeof(path_), socket_path);
  CopyText(version_, sizeof(version_), version);
  pthread_mutex_init(&mutex_, nullptr);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&changed_, &attr);
  pthread_condattr_destroy(&attr);
  page_ = MapPage(nullptr, -1);
  if (page_ != nullptr) InitPage(page_);
  Register(this);
}

AgentClient::~AgentClient() {
  Stop();
  Unregister(this);
  if (page_ != nullptr) munmap(page_, SLUICE_PAGE_BYTES);
  pthread_cond_destroy(&changed_);
  pthread_mutex_destroy(&mutex_);
}

State AgentClient::Start(int wait_ms) {
  if (const State s = state_.load(std::memory_order_relaxed); s == State::kAttached) return s;
  Lock lock(mutex_);
  // A child made by a raw clone() ran no fork handler: it is recognised here.
  if (running_ && pid_ != getpid()) {
    running_ = served_ = false;
    socket_ = {};
    if (page_ != nullptr) MapPage(page_, -1), InitPage(page_);
  }
  if (!running_) {
    if (page_ == nullptr) return State::kStopped;
    stop_ = false;
    state_.store(State::kConnecting);
    // The application's signals are the application's: they are blocked in our thread from its first instruction.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, kStackBytes);
    running_ = pthread_create(&thread_, &attr, &ThreadMain, this) == 0;
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pid_ = getpid();
    if (!running_) {
      state_.store(State::kStopped);
      return State::kStopped;
    }
  }
  const timespec until = After(wait_ms);
  while (state_.load() == State::kConnecting) {
    if (pthread_cond_timedwait(&changed_, &mutex_, &until) == ETIMEDOUT) break;
  }
  return state_.load();
}

void AgentClient::Stop() {
  {
    Lock lock(mutex_);
    if (!running_ || pid_ != getpid()) return;
    stop_ = true;
    if (socket_.IsOurs()) shutdown(socket_.fd(), SHUT_RDWR);  // ends its wait for a frame
    pthread_cond_broadcast(&changed_);
  }
  pthread_join(thread_, nullptr);
  Disconnect();
  Lock lock(mutex_);
  running_ = false;
  state_.store(State::kStopped);
}

sluice_gpu_counters* AgentClient::Slot(const char* uuid) {
  if (page_ == nullptr) return nullptr;
  Lock lock(mutex_);
  for (sluice_gpu_counters& slot : page_->gpu) {
    if (strncmp(slot.uuid, uuid, sizeof(slot.uuid)) == 0) return &slot;
    if (slot.uuid[0] == '\0') {
      CopyText(slot.uuid, sizeof(slot.uuid), uuid);
      return &slot;
    }
  }
  return nullptr;
}

bool AgentClient::SendTokenRequest(const sluice_token& token) {
  return attached() && Send(SLUICE_TOKEN_REQUEST, &token, sizeof(token));
}
bool AgentClient::SendTokenRelease(const sluice_token& token) {
  return attached() && Send(SLUICE_TOKEN_RELEASE, &token, sizeof(token));
}
bool AgentClient::SendNotice(uint32_t kind, const char* text) {
  sluice_notice notice{};
  notice.kind = kind;
  CopyText(notice.text, sizeof(notice.text), text);
  return attached() && Send(SLUICE_NOTICE, &notice, sizeof(notice));
}

void* AgentClient::ThreadMain(void* self) {
  prctl(PR_SET_NAME, "sluice-agent", 0, 0, 0);
  static_cast<AgentClient*>(self)->Run();
  return nullptr;
}

void AgentClient::Run() {
  int backoff = kFirstBackoffMs;
  for (;;) {
    if (Connect()) {
      const bool was_refused = state() == State::kRefused;
      const End end = Serve();
      Disconnect();
      if (end == End::kStop) return;
      if (end == End::kRefused) {
        if (!Sleep(kRefusedBackoffMs)) return;
        continue;
      }
      if (welcomed_) {
        observer_->OnLost();
        backoff = kFirstBackoffMs;
      }
      if (!was_refused || welcomed_) SetState(State::kConnecting);
    } else {
      Disconnect();
    }
    // Not all processes of a node at the same moment.
    if (!Sleep(backoff + static_cast<int>((static_cast<unsigned>(pid_) * 7u) % static_cast<unsigned>(backoff)))) return;
    backoff = backoff * 2 > kMaxBackoffMs ? kMaxBackoffMs : backoff * 2;
  }
}

bool AgentClient::Connect() {
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  int dir = -1;
  if (strlen(path_) < sizeof(addr.sun_path)) {
    memcpy(addr.sun_path, path_, strlen(path_) + 1);
  } else {  // longer than sockaddr_un holds: by way of the directory
    char folder[sizeof(path_)];
    memcpy(folder, path_, sizeof folder);
    char* slash = strrchr(folder, '/');
    if (slash == nullptr) return false;
    *slash = '\0';
    dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return false;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d/%.60s", dir, slash + 1);
  }
  const Descriptor made(MoveToHighNumber(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
  const int fd = made.fd();
  if (fd >= 0) {
    // Known to the fork handler before anything can be sent through it.
    Lock lock(mutex_);
    socket_ = made;
    seq_ = 0;
  }
  bool ok = fd >= 0;
  if (ok) {
    const timeval patience{2, 0};  // bounds connect() to an agent that does not accept
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    ok = connect(fd, reinterpret_cast<const sockaddr*>(&addr), sizeof(addr)) == 0 && SendHello();
  }
  if (dir >= 0) close(dir);
  return ok;
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
  const Descriptor socket = socket_;  // only this thread changes it while it runs
  for (;;) {
    pollfd p{socket.fd(), POLLIN, 0};
    poll(&p, 1, kHeartbeatMs);
    if (Stopping()) return End::kStop;
    // What the program's own file has to say is not for us.
    if (!socket.IsOurs()) return End::kLost;
    __atomic_store_n(&page_->heartbeat_ns, NowNs(), __ATOMIC_RELAXED);
    if (p.revents == 0) {
      if (Deaf()) return End::kLost;
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
    Heard();
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
    const bool go_on = whole && Handle(frame, passed, &end);
    if (passed >= 0) close(passed);
    if (!go_on) return end;
  }
}

bool AgentClient::Handle(const sluice_frame& frame, int passed_fd, End* end) {
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
      welcomed_ = served_ = true;
      first_budgets_ = frame.u.welcome.gpus;
      observer_->OnAttached(frame.u.welcome);
      if (first_budgets_ == 0) SetState(State::kAttached);
      return true;
    case SLUICE_BUDGET:
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
    case SLUICE_PING:
      Send(SLUICE_PONG, nullptr, 0);
      return true;
    default:
      return true;  // a newer minor version's
  }
}

void AgentClient::AdoptPage(int fd) {
  struct stat st{};
  // A page that could shrink would kill the application by SIGBUS.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &st) != 0 || st.st_size < SLUICE_PAGE_BYTES || seals < 0 || (seals & F_SEAL_SHRINK) == 0) return;
  Lock lock(mutex_);
  std::array<uint64_t, sizeof(sluice_page) / sizeof(uint64_t)> figures;
  static_assert(sizeof figures == sizeof(sluice_page));
  const auto* const words = reinterpret_cast<const uint64_t*>(page_);  // others are writing them
  for (size_t i = 0; i < figures.size(); ++i) figures[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
  if (pwrite(fd, figures.data(), sizeof figures, 0) != static_cast<ssize_t>(sizeof figures)) return;
  MapPage(page_, fd);  // replaces the old page in one step, at the same address; on failure the old one stays
}

bool AgentClient::Send(uint16_t type, const void* body, size_t bytes) {
  sluice_frame frame{};
  frame.h.magic = SLUICE_WIRE_MAGIC;
  frame.h.major = SLUICE_WIRE_MAJOR;
  frame.h.minor = SLUICE_WIRE_MINOR;
  frame.h.type = type;
  if (bytes > 0) memcpy(frame.u.bytes, body, bytes);
  Lock lock(mutex_);
  if (!socket_.IsOurs()) return false;
  frame.h.seq = ++seq_;
  if (send(socket_.fd(), &frame, sizeof(frame), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(frame)))
    return false;
  if (type == SLUICE_TOKEN_REQUEST && asked_ns_ == 0) asked_ns_ = NowNs();
  return true;
}

void AgentClient::Heard() {
  Lock lock(mutex_);
  asked_ns_ = 0;
}

bool AgentClient::Deaf() {
  Lock lock(mutex_);
  return asked_ns_ != 0 && NowNs() - asked_ns_ > kDeafNs;
}

void AgentClient::Disconnect() {
  Lock lock(mutex_);
  socket_.Close();
  asked_ns_ = 0;
}

void AgentClient::SetState(State state) {
  Lock lock(mutex_);
  state_.store(state, std::memory_order_release);
  pthread_cond_broadcast(&changed_);
}

bool AgentClient::Stopping() {
  Lock lock(mutex_);
  return stop_;
}

bool AgentClient::Sleep(int ms) {
  const timespec until = After(ms);
  Lock lock(mutex_);
  while (!stop_ && pthread_cond_timedwait(&changed_, &mutex_, &until) != ETIMEDOUT) {
  }
  return !stop_;
}

// fork() copies the socket (close-on-exec does not cover it) and the shared page. The child gives both up at once: the
// agent must see the parent's end when the parent dies, and the child must not write into the parent's counters.
void AgentClient::BeforeFork() {
  pthread_mutex_lock(&g_list_mutex);
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) pthread_mutex_lock(&c->mutex_);
}

void AgentClient::AfterForkInParent() {
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) pthread_mutex_unlock(&c->mutex_);
  pthread_mutex_unlock(&g_list_mutex);
}

void AgentClient::AfterForkInChild() {
  for (AgentClient* c = g_list; c != nullptr; c = c->next_) {
    c->socket_.Close();
    c->running_ = c->served_ = false;
    c->state_.store(State::kStopped);
    if (c->page_ != nullptr && MapPage(c->page_, -1) != nullptr) InitPage(c->page_);
    pthread_mutex_unlock(&c->mutex_);
  }
  pthread_mutex_unlock(&g_list_mutex);
}

void AgentClient::Register(AgentClient* client) {
  Lock lock(g_list_mutex);
  if (!g_fork_handlers) g_fork_handlers = pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild) == 0;
  client->next_ = g_list;
  g_list = client;
}

void AgentClient::Unregister(AgentClient* client) {
  Lock lock(g_list_mutex);
  for (AgentClient** p = &g_list; *p != nullptr; p = &(*p)->next_) {
    if (*p != client) continue;
    *p = client->next_;
    return;
  }
}

}  // namespace sluice::client
