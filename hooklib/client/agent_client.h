// The hook's connection to the node agent (proto/sluice/wire.h): one thread, one socket, one shared page of counters.
// It runs in the hooked process, so it uses only libc, and has no exit handler, no signal handler and no output.
#ifndef SLUICE_HOOKLIB_CLIENT_AGENT_CLIENT_H_
#define SLUICE_HOOKLIB_CLIENT_AGENT_CLIENT_H_

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/mutex.h"
#include "descriptor.h"
#include "sluice/wire.h"

namespace sluice::client {

// Called on the client's own thread, without any lock of the client, in the order in which the agent sent. May call the
// client. A slow observer delays only the next frame of this process.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnAttached(const sluice_welcome&) noexcept {}
  // New values for one GPU. The observer follows them and then stores `generation` into the GPU's slot of the page,
  // which acknowledges them.
  virtual void OnBudget(const sluice_budget& budget) noexcept = 0;
  virtual void OnGrant(const sluice_token&) noexcept {}
  virtual void OnRevoke(const sluice_token&) noexcept {}
  // The connection is lost. The last budget holds; tokens are void. The client keeps reconnecting.
  virtual void OnLost() noexcept {}
  // The agent will not serve this process (another major version, no such allocation). The client tries again every 5
  // s.
  virtual void OnRefused(const char* /*reason*/) noexcept {}
};

enum class State : int {
  kStopped,     // not started in this process (also: just forked)
  kConnecting,  // no agent yet, or the connection is lost; it is tried again
  kAttached,    // WELCOME and all first budgets were received and passed to the observer
  kRefused
};

class AgentClient {
 public:
  // `socket_path` and `version` are copied. `observer` must outlive Stop(), or the process where it is never called.
  AgentClient(const char* socket_path, const char* version, Observer* observer);
  ~AgentClient();  // Stop()
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;

  // Starts the thread unless it runs in this process already, then waits up to `wait_ms` until attached or refused. To
  // be called at every CUDA use: a forked child starts again at its first one. Costs one relaxed load while attached.
  // Thread-safe.
  State Start(int wait_ms);
  // Ends thread and connection. Not needed at exit: the agent sees the closed socket. Not from an observer.
  void Stop();

  State state() const { return state_.load(std::memory_order_acquire); }
  bool attached() const { return state() == State::kAttached; }

  // The shared page, always at the same address. It is private memory until the first agent sends one. After a
  // reconnect it is the new agent's page with the old contents. Store absolute values by relaxed atomic stores: an
  // increment during a reconnect may be lost.
  sluice_page* page() { return page_; }
  // The GPU's slot, allocated at the first call; nullptr when all 16 are used. Thread-safe.
  sluice_gpu_slot* Slot(const char* uuid);
  // Stores all counters into the slot of their uuid. Thread-safe.
  void Publish(const sluice_gpu_counters& counters);

  // Queued to the socket without blocking. False: nothing was sent, since the client is not attached or the agent does
  // not read. Thread-safe.
  bool SendTokenRequest(const sluice_token& token);
  bool SendTokenRelease(const sluice_token& token);
  bool SendNotice(uint32_t kind, const char* text);

  // --- memory-limit of the container (leases.cc). `gpu`: the number that Lease() gave. Thread-safe ---
  // A number for the GPU with this uuid, the same at each call; -1: all 16 are used.
  int Lease(const char* uuid);
  // Charges bytes that are about to be allocated, if the container's limit has room for them. Within the lease it takes
  // no call; beyond it the agent is asked, and the answer awaited for at most `wait_ms` (0: not asked). False: no room.
  // Where no agent has given a lease, all is charged.
  bool Charge(int gpu, uint64_t bytes, int wait_ms);
  // Bytes that were allocated already (they are charged whatever is left), or, negative, that were released.
  void Recharge(int gpu, int64_t change);
  struct ContainerMemory {
    uint64_t others_bytes = 0;  // charged by the container's other processes
    uint32_t utilization = 0;   // GPU time of the container in the last second, millionths
  };
  // Asks the agent, unless this process is alone in its container; the last answer where none comes in time.
  ContainerMemory AskMemory(int gpu, bool even_if_alone, int wait_ms);
  // The container's attached processes, at most `max`. -1: no answer.
  int AskProcesses(int gpu, sluice_process* list, int max, int wait_ms);

 private:
  struct GpuLease {
    char uuid[SLUICE_UUID_CHARS];
    uint64_t charged = 0;
    bool leased = false;  // by the agent's word; it stays so while the agent is lost
    uint8_t slot = 0;
    uint64_t asked = 0, answered = 0;  // requests for memory
    uint32_t processes = 1;
    ContainerMemory container;
    uint64_t processes_asked = 0, processes_answered = 0;
    sluice_processes answer;
  };
  enum class End { kStop, kLost, kRefused };

  static void* ThreadMain(void* self);
  // Not checked: they hold the list's lock and each client's from one function to the other, and the analysis knows no
  // set of locks.
  static void BeforeFork() SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  static void AfterForkInParent() SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  static void AfterForkInChild() SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  static void Register(AgentClient* client);
  static void Unregister(AgentClient* client);

  void Run();
  bool Connect();
  End Serve();
  bool HandleFrame(const sluice_frame& frame, int passed_fd, End* end);
  void AdoptPage(int fd);
  bool SendHello();
  bool Send(uint16_t type, const void* body, size_t bytes);
  bool SendLocked(uint16_t type, const void* body, size_t bytes) SLUICE_REQUIRES(mutex_);
  GpuLease* LeaseNamed(const char* uuid) SLUICE_REQUIRES(mutex_);
  sluice_lease* SharedLease(const GpuLease& lease) { return &page_->lease[lease.slot]; }
  static bool Take(sluice_lease* words, uint64_t bytes);
  void FollowLease(const sluice_budget& budget);
  void AddGranted(GpuLease* lease, uint64_t granted_bytes) SLUICE_REQUIRES(mutex_);
  void NoteMemory(const sluice_memory& memory);
  void NoteProcesses(const sluice_processes& processes);
  void EndLeases() SLUICE_REQUIRES(mutex_);  // in a forked child
  // Returns the request's id; 0: it could not be sent.
  uint64_t AskLocked(GpuLease* lease, uint64_t missing_bytes) SLUICE_REQUIRES(mutex_);
  // Waits until `answered` reaches `id`. False: not in time, or the agent is lost.
  bool AwaitLocked(const uint64_t& answered, uint64_t id, std::chrono::steady_clock::time_point until)
      SLUICE_REQUIRES(mutex_);
  void Disconnect();
  void SetState(State state);
  bool SleepUnlessStopped(int ms);  // false: stopped
  bool IsStopping();
  Descriptor Socket();
  void NoteFrame();  // the agent has sent something
  bool IsAgentSilent();

  char path_[256];
  char version_[SLUICE_VERSION_CHARS];
  Observer* const observer_;
  sluice_page* page_ = nullptr;

  std::atomic<State> state_{State::kStopped};
  // Guards the slots' names, too. Never held over a call that waits, nor over an observer.
  Mutex mutex_;
  Condition changed_;  // state_, stop_ or an answer in leases_
  pthread_t thread_{};
  bool running_ SLUICE_GUARDED_BY(mutex_) = false;
  bool stop_ SLUICE_GUARDED_BY(mutex_) = false;
  pid_t pid_ SLUICE_GUARDED_BY(mutex_) = 0;
  Descriptor socket_ SLUICE_GUARDED_BY(mutex_);  // the only descriptor that the client keeps
  // Of the first request since the agent's last frame; 0: none.
  uint64_t unanswered_since_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t seq_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint32_t first_budgets_ = 0;  // BUDGET frames that WELCOME announced and that are missing; the thread's own
  bool welcomed_ = false;
  uint8_t agent_minor_ SLUICE_GUARDED_BY(mutex_) = 0;
  int lease_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  GpuLease leases_[SLUICE_MAX_GPUS] SLUICE_GUARDED_BY(mutex_);
  bool served_ = false;          // by any agent in this process: the page has contents
  AgentClient* next_ = nullptr;  // list of all clients of the process, for fork
};

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_AGENT_CLIENT_H_
