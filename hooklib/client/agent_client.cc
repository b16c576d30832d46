// The client's life: its thread, its page, reconnecting.
#include "client/agent_client.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "client/internals.h"
#include "common/backoff.h"
#include "common/counters_page.h"

namespace sluice::client {
namespace {

constexpr std::chrono::milliseconds kFirstBackoff{10};
constexpr std::chrono::milliseconds kMaxBackoff{500};  // so that a restarted agent is found within half a second
constexpr int kRefusedBackoffMs = 5000;                // the agent may be upgraded one day
constexpr size_t kStackBytes = size_t{256} * 1024;

}  // namespace

AgentClient::AgentClient(const char* socket_path, const char* version, Observer* observer) : observer_(observer) {
  CopyText(path_, sizeof(path_), socket_path);
  CopyText(version_, sizeof(version_), version);
  page_ = MapPage(nullptr, -1);
  if (page_ != nullptr) InitPage(page_);
  Register(this);
}

AgentClient::~AgentClient() {
  Stop();
  Unregister(this);
  if (page_ != nullptr) munmap(page_, SLUICE_PAGE_BYTES);
}

State AgentClient::Start(int wait_ms) {
  if (const State s = state_.load(std::memory_order_relaxed); s == State::kAttached) return s;
  MutexLock lock(mutex_);
  // A child made by a raw clone() ran no fork handler. Its pid shows it.
  if (running_ && pid_ != getpid()) {
    running_ = served_ = false;
    socket_ = {};
    if (page_ != nullptr) MapPage(page_, -1), InitPage(page_);
    EndLeases();
  }
  if (!running_) {
    if (page_ == nullptr) return State::kStopped;
    stop_ = false;
    state_.store(State::kConnecting);
    // The application handles its own signals, so they are blocked in this thread from its first instruction.
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
  const Clock::time_point until = DeadlineAfter(wait_ms);
  while (state_.load() == State::kConnecting && Clock::now() < until) changed_.WaitUntil(mutex_, until);
  return state_.load();
}

void AgentClient::Stop() {
  {
    MutexLock lock(mutex_);
    if (!running_ || pid_ != getpid()) return;
    stop_ = true;
    if (socket_.IsOurs()) shutdown(socket_.fd(), SHUT_RDWR);  // ends its wait for a frame
    changed_.NotifyAll();
  }
  pthread_join(thread_, nullptr);
  Disconnect();
  MutexLock lock(mutex_);
  running_ = false;
  state_.store(State::kStopped);
}

sluice_gpu_slot* AgentClient::Slot(const char* uuid) {
  if (page_ == nullptr) return nullptr;
  MutexLock lock(mutex_);
  for (sluice_gpu_slot& slot : page_->gpu) {
    if (strncmp(slot.uuid, uuid, sizeof(slot.uuid)) == 0) return &slot;
    if (slot.uuid[0] == '\0') {
      CopyText(slot.uuid, sizeof(slot.uuid), uuid);
      return &slot;
    }
  }
  return nullptr;
}

void AgentClient::Publish(const sluice_gpu_counters& counters) {
  const sluice_gpu_slot* const slot = Slot(counters.uuid);
  if (slot != nullptr) StoreCounters(counters, static_cast<size_t>(slot - page_->gpu), page_);
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
  Backoff backoff{kFirstBackoff, kMaxBackoff};
  for (;;) {
    if (Connect()) {
      const bool was_refused = state() == State::kRefused;
      const End end = Serve();
      Disconnect();
      if (end == End::kStop) return;
      if (end == End::kRefused) {
        if (!SleepUnlessStopped(kRefusedBackoffMs)) return;
        continue;
      }
      if (welcomed_) {
        observer_->OnLost();
        backoff.Reset();
      }
      if (!was_refused || welcomed_) SetState(State::kConnecting);
    } else {
      Disconnect();
    }
    // Spread over the processes of a node, so that they do not reconnect at the same moment.
    const auto wait = static_cast<unsigned>(backoff.Next().count());
    if (!SleepUnlessStopped(static_cast<int>(wait + static_cast<unsigned>(getpid()) * 7u % wait))) return;
  }
}

void AgentClient::SetState(State state) {
  MutexLock lock(mutex_);
  state_.store(state, std::memory_order_release);
  changed_.NotifyAll();
}

bool AgentClient::IsStopping() {
  MutexLock lock(mutex_);
  return stop_;
}

bool AgentClient::SleepUnlessStopped(int ms) {
  const Clock::time_point until = DeadlineAfter(ms);
  MutexLock lock(mutex_);
  while (!stop_ && Clock::now() < until) changed_.WaitUntil(mutex_, until);
  return !stop_;
}

}  // namespace sluice::client
