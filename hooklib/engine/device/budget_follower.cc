#include "hooklib/engine/device/budget_follower.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hooklib/client/agent_client.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/observe/log.h"
#include "sluice/version.h"

namespace sluice {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;
// Bytes evicted or fetched at a time: the device's lock is held meanwhile, and launches wait for it. The link is idle
// between two slices: 3 % of the time with 64 MiB at 15 GB/s. So memory that the agent reclaims is evicted in larger
// slices while that is fast. New host pages take four times as long.
constexpr uint64_t kMinSliceBytes = uint64_t{64} << 20, kMaxSliceBytes = 4 * kMinSliceBytes;
constexpr uint64_t kSliceNs = 40 * kMs;
// A process that wakes fetches more at a time: each slice looks at all chunks.
constexpr uint64_t kWakeSliceBytes = 2 * kMinSliceBytes;
// Evictions that a parked process has queued: one that wakes at this moment waits for these.
constexpr uint64_t kMaxParkedEvictionBytes = uint64_t{512} << 20;
// Time slices are so long only where working sets exceed the GPU together: the memory follows the token.
constexpr uint64_t kMinSwappingQuantumNs = 200 * kMs;

// From the client's thread to the follower's.
struct Mailbox {
  Mutex mutex;
  Condition changed;
  std::vector<sluice_budget> budgets SLUICE_GUARDED_BY(mutex);  // at most one a device: the newest
  bool wake SLUICE_GUARDED_BY(mutex) = false;
  bool lost SLUICE_GUARDED_BY(mutex) = false;  // the agent, since the last budget
};
Mailbox& TheMailbox() {
  static auto& mailbox = *new Mailbox;
  return mailbox;
}

Device* DeviceNamed(const char* uuid) {
  for (const auto& device : Devices()) {
    if (device->uuid == uuid) return device.get();
  }
  return nullptr;
}

class Observer final : public client::Observer {
 public:
  void OnBudget(const sluice_budget& budget) noexcept override {
    Device* device = DeviceNamed(budget.uuid);
    if (!device) return;
    const auto index = static_cast<size_t>(device->ordinal);
    if (index >= SLUICE_MAX_GPUS) return;
    const bool parks = budget.parked != 0, wakes = !parks && parked_[index];
    parked_[index] = parks;
    // A process that wakes has its budget before its launches go on.
    if (wakes) ApplyNow(device, budget);
    if (demanded_[index] != (budget.tokens != 0)) {
      demanded_[index] = budget.tokens != 0;
      device->tokens.time_slices().SetDemanded(demanded_[index]);
    }
    if (parks) device->tokens.time_slices().GiveUp();
    if (wakes) return WakeFollower();
    if (!has_budget_[index]) {  // the first one is in force before anything is allocated
      has_budget_[index] = true;
      device->ApplyBudget(budget);
      PublishAll();
      return;
    }
    Mailbox& mailbox = TheMailbox();
    {
      MutexLock lock(mailbox.mutex);
      std::erase_if(mailbox.budgets,
                    [&](const sluice_budget& old) { return std::string_view(old.uuid) == budget.uuid; });
      mailbox.budgets.push_back(budget);
      mailbox.lost = false;
    }
    mailbox.changed.NotifyAll();
  }
  void OnGrant(const sluice_token& token) noexcept override {
    if (Device* device = DeviceNamed(token.uuid)) {
      if (token.quantum_ns >= kMinSwappingQuantumNs) device->ExpectRaise();
      device->tokens.time_slices().NoteGranted(token.id, token.quantum_ns, token.lease_ns);
      WakeFollower();
    }
  }
  void OnRevoke(const sluice_token& token) noexcept override {
    if (Device* device = DeviceNamed(token.uuid)) device->tokens.time_slices().NoteRevoked(token.id);
  }
  void OnLost() noexcept override {
    std::fill(std::begin(demanded_), std::end(demanded_), false);
    for (const auto& device : Devices()) device->tokens.time_slices().NoteAgentLost();
    Mailbox& mailbox = TheMailbox();
    {
      MutexLock lock(mailbox.mutex);
      mailbox.lost = true;
    }
    mailbox.changed.NotifyAll();
  }
  void OnRefused(const char* reason) noexcept override {
    Log(settings::LogLevel::kError, "the agent refuses this process: %s", reason);
  }

 private:
  // In place of the follower, which would apply it a moment later.
  static void ApplyNow(Device* device, const sluice_budget& budget) {
    {
      Mailbox& mailbox = TheMailbox();
      MutexLock lock(mailbox.mutex);
      std::erase_if(mailbox.budgets,
                    [&](const sluice_budget& old) { return std::string_view(old.uuid) == budget.uuid; });
      mailbox.lost = false;
    }
    device->ApplyBudget(budget);
    PublishAll();
  }

  bool demanded_[SLUICE_MAX_GPUS] = {}, has_budget_[SLUICE_MAX_GPUS] = {}, parked_[SLUICE_MAX_GPUS] = {};
};

// 0 stands for "never".
void SetEarlier(uint64_t* next_ns, uint64_t ns) {
  if (ns != 0 && (*next_ns == 0 || ns < *next_ns)) *next_ns = ns;
}

struct EvictionPace {
  uint64_t slice_bytes = kMinSliceBytes;
  uint64_t failed_attempts = 0;  // since the last bytes were evicted
};

// Does the due work of one device. Nanoseconds until it wants to be served again; 0: not before it is woken.
uint64_t ServeDevice(Device& device, EvictionPace* pace) {
  uint64_t next_ns = device.tokens.time_slices().Tick();
  if (device.OverCapacity() && device.IsParked() && device.LastEvictingBytes() > kMaxParkedEvictionBytes) {
    SetEarlier(&next_ns, 1 * kMs);
  } else if (device.OverCapacity()) {
    const uint64_t began = MonotonicNs();
    const uint64_t evicted = device.Evict(pace->slice_bytes, true);
    if (evicted > 0) {
      const uint64_t took = std::max<uint64_t>(MonotonicNs() - began, 1);
      pace->slice_bytes = std::clamp(evicted * kSliceNs / took, kMinSliceBytes, kMaxSliceBytes);
      pace->failed_attempts = 0;
      PublishAll();
      SetEarlier(&next_ns, 20 * kUs);  // launches get their turn at the lock
    } else {
      // All of it is in use by queued work, and can be evicted when that is done.
      SetEarlier(&next_ns, std::min<uint64_t>(++pace->failed_attempts * kMs, 20 * kMs));
    }
  } else if (device.IsWaking()) {
    SetEarlier(&next_ns, device.RestoreWorkingSet(kWakeSliceBytes) > 0 ? 20 * kUs : 1 * kMs);
    if (!device.IsWaking()) PublishAll();
  } else if (device.tokens.time_slices().holding() && device.RestoreWorkingSet(kMinSliceBytes) > 0) {
    SetEarlier(&next_ns, 20 * kUs);
  }
  if (device.EvictingBytes() > 0) SetEarlier(&next_ns, 2 * kMs);
  return next_ns;
}

// Waits for mail, or until `next_ns` is over (0: without end). `*lost`: the agent is.
std::vector<sluice_budget> TakeMail(uint64_t next_ns, bool* lost) {
  Mailbox& mailbox = TheMailbox();
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(next_ns);
  MutexLock lock(mailbox.mutex);
  while (!mailbox.wake && !mailbox.lost && mailbox.budgets.empty()) {
    if (next_ns == 0) {
      mailbox.changed.Wait(mailbox.mutex);
    } else if (std::chrono::steady_clock::now() < end) {
      mailbox.changed.WaitUntil(mailbox.mutex, end);
    } else {
      break;
    }
  }
  mailbox.wake = false;
  *lost = std::exchange(mailbox.lost, false);
  return std::exchange(mailbox.budgets, {});
}

void* Follow(void*) {
  uint64_t next_ns = 0;
  std::vector<EvictionPace> paces(SLUICE_MAX_GPUS + 1);
  for (;;) {
    bool lost = false;
    const std::vector<sluice_budget> budgets = TakeMail(next_ns, &lost);
    for (const sluice_budget& budget : budgets) {
      Device* const device = DeviceNamed(budget.uuid);
      // A newer one may be in force since.
      if (device && budget.generation >= device->Budget().generation) device->ApplyBudget(budget);
    }
    if (lost) {
      for (const auto& device : Devices()) device->NoteAgentLost();
    }
    if (!budgets.empty()) PublishAll();
    next_ns = 0;
    for (size_t i = 0; i < Devices().size() && i < paces.size(); ++i) {
      Device& device = *Devices()[i];
      const uint64_t evicting = device.LastEvictingBytes();
      SetEarlier(&next_ns, ServeDevice(device, &paces[i]));
      if (device.LastEvictingBytes() != evicting) PublishAll();
    }
  }
  return nullptr;
}

}  // namespace

client::AgentClient* Client() {
  static client::AgentClient* const agent =
      GetConfig().socket.empty() ? nullptr
                                 : new client::AgentClient(GetConfig().socket.c_str(), SLUICE_VERSION, new Observer);
  return agent;
}

bool StartFollower(int wait_ms) {
  StartOwnThread("sluice-follow", Follow);
  if (!Client()) return true;
  for (const auto& device : Devices()) device->tokens.SetClient(Client());
  const client::State state = Client()->Start(wait_ms);
  return state == client::State::kAttached || state == client::State::kRefused;  // OnRefused logs the reason
}

void WakeFollower() {
  Mailbox& mailbox = TheMailbox();
  {
    MutexLock lock(mailbox.mutex);
    mailbox.wake = true;
  }
  mailbox.changed.NotifyAll();
}

void NotifyAgent(unsigned kind, const char* text) {
  if (Client()) Client()->SendNotice(kind, text);
}

void PublishAll() {
  if (!Client()) return;
  bool parked = false, woken = false;
  for (const auto& device : Devices()) {
    woken |= device->WakeIfLaunched();
    parked |= device->IsParked();
    device->Publish(Client());
  }
  __atomic_store_n(&Client()->page()->parked, parked && !woken ? 1 : 0, __ATOMIC_RELAXED);
  if (woken) WakeFollower();
  __atomic_store_n(&Client()->page()->heartbeat_ns, MonotonicNs(), __ATOMIC_RELAXED);
}

}  // namespace sluice
