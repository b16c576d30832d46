// The hook's end of the conversation with the node agent (proto/sluice/wire.h): one thread, one socket, one shared page
// of counters. Lives in other people's processes: nothing but libc, no exit handler, no signal handler, no output.
#ifndef SLUICE_HOOKLIB_CLIENT_AGENT_CLIENT_H_
#define SLUICE_HOOKLIB_CLIENT_AGENT_CLIENT_H_

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "descriptor.h"
#include "sluice/wire.h"

namespace sluice::client {

// Called on the client's own thread, without any lock of the client held, in the order the agent sent. May call back
// into the client. A slow observer delays only the next frame of this process.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnAttached(const sluice_welcome&) noexcept {}
  // New values for one GPU. Follow them, then store `generation` into the GPU's slot of the page: that is the answer.
  virtual void OnBudget(const sluice_budget& budget) noexcept = 0;
  virtual void OnGrant(const sluice_token&) noexcept {}
  virtual void OnRevoke(const sluice_token&) noexcept {}
  // The agent closed or went away. The last budget holds; tokens are void. Reconnecting goes on for ever.
  virtual void OnLost() noexcept {}
  // The agent will not serve this process (another major version, no such allocation). Tried again now and then.
  virtual void OnRefused(const char* /*reason*/) noexcept {}
};

enum class State : int {
  kStopped,     // not started in this process (also: just forked)
  kConnecting,  // no agent yet, or lost; being tried
  kAttached,    // WELCOME and all first budgets were received and handed to the observer
  kRefused
};

class AgentClient {
 public:
  // `socket_path` and `version` are copied. `observer` must live until Stop() returned, or for ever.
  AgentClient(const char* socket_path, const char* version, Observer* observer);
  ~AgentClient();  // Stop()
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;

  // Starts the thread unless it runs in this process already, then waits up to `wait_ms` until attached or refused.
  // Call it at the first CUDA use, and again at any later one: a forked child starts afresh there. Costs one relaxed
  // load when all is well. Thread-safe.
  State Start(int wait_ms);
  // Ends thread and connection. Not called at exit: a closed socket says the same. Not from an observer.
  void Stop();

  State state() const { return state_.load(std::memory_order_acquire); }
  bool attached() const { return state() == State::kAttached; }

  // The shared page, always mapped at this one address: private memory until an agent gave one; after a reconnect the
  // new agent's page, with the old content. Store absolute values by relaxed atomic stores (an increment in the very
  // moment of a reconnect may be lost).
  sluice_page* page() { return page_; }
  // The GPU's slot, taken if there is none yet; nullptr when all 16 are taken. Thread-safe.
  sluice_gpu_counters* Slot(const char* uuid);

  // Queued to the socket without blocking. False: not attached, or the agent does not read; nothing was sent.
  // Thread-safe.
  bool SendTokenRequest(const sluice_token& token);
  bool SendTokenRelease(const sluice_token& token);
  bool SendNotice(uint32_t kind, const char* text);

 private:
  enum class End { kStop, kLost, kRefused };

  static void* ThreadMain(void* self);
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();
  static void Register(AgentClient* client);
  static void Unregister(AgentClient* client);

  void Run();
  bool Connect();
  End Serve();
  bool Handle(const sluice_frame& frame, int passed_fd, End* end);
  void AdoptPage(int fd);
  bool SendHello();
  bool Send(uint16_t type, const void* body, size_t bytes);
  void Disconnect();
  void SetState(State state);
  bool Sleep(int ms);  // false: stopped
  bool Stopping();
  void Heard();
  bool Deaf();  // the agent

  char path_[256];
  char version_[SLUICE_VERSION_CHARS];
  Observer* const observer_;
  sluice_page* page_ = nullptr;

  std::atomic<State> state_{State::kStopped};
  // Guards socket_, asked_ns_, seq_, running_, stop_, pid_ and the slots' names. Never held over a call that waits, nor
  // over an observer.
  pthread_mutex_t mutex_;
  pthread_cond_t changed_;  // of the state, or of stop_
  pthread_t thread_{};
  bool running_ = false;
  bool stop_ = false;
  pid_t pid_ = 0;
  Descriptor socket_;      // the one descriptor that it keeps
  uint64_t asked_ns_ = 0;  // for a token, and nothing was heard of the agent since
  uint64_t seq_ = 0;
  uint32_t first_budgets_ = 0;  // still to come after WELCOME; the thread's own
  bool welcomed_ = false;
  bool served_ = false;          // by any agent in this process: the page has content
  AgentClient* next_ = nullptr;  // list of all clients of the process, for fork
};

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_AGENT_CLIENT_H_
