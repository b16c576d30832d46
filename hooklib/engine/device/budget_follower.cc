#include "hooklib/engine/device/budget_follower.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "hooklib/client/agent_client.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/observe/log.h"
#include "sluice/version.h"

namespace sluice {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;
// Sent away or brought back at a time: the device's lock is held meanwhile, and launches wait for it. The link stands
// still between two slices (3 % of the time with 64 MiB at 15 GB/s), so what is called back leaves in larger ones while
// that goes fast. Host pages that are new take four times as long.
constexpr uint64_t kSlice = uint64_t{64} << 20, kMostSlice = 4 * kSlice;
constexpr uint64_t kSliceNs = 40 * kMs;
// TimeSlices are so long only where working sets exceed the card together: the memory follows the token.
constexpr uint64_t kLongTurn = 200 * kMs;

// What the client's thread hands to the worker's.
struct Mail {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<sluice_budget> budgets;  // at most one a device: the newest
  bool look = false;
};
Mail& TheMail() {
  static auto& mail = *new Mail;
  return mail;
}

Device* DeviceNamed(const char* uuid) {
  for (const auto& device : Devices()) {
    if (device->uuid == uuid) return device.get();
  }
  return nullptr;
}

void Wake() {
  Mail& mail = TheMail();
  {
    std::lock_guard lock(mail.mutex);
    mail.look = true;
  }
  mail.came.notify_one();
}

class Follower final : public client::Observer {
 public:
  void OnBudget(const sluice_budget& budget) noexcept override {
    Device* device = DeviceNamed(budget.uuid);
    if (!device) return;
    const auto index = static_cast<size_t>(device->ordinal);
    if (index >= SLUICE_MAX_GPUS) return;
    if (demanded_[index] != (budget.tokens != 0)) {
      demanded_[index] = budget.tokens != 0;
      device->tokens.time_slices().SetDemanded(demanded_[index]);
    }
    if (!told_[index]) {  // the first one is in force before anything is allocated
      told_[index] = true;
      device->ApplyBudget(budget);
      PublishAll();
      return;
    }
    Mail& mail = TheMail();
    {
      std::lock_guard lock(mail.mutex);
      std::erase_if(mail.budgets, [&](const sluice_budget& old) { return std::string_view(old.uuid) == budget.uuid; });
      mail.budgets.push_back(budget);
    }
    mail.came.notify_one();
  }
  void OnGrant(const sluice_token& token) noexcept override {
    if (Device* device = DeviceNamed(token.uuid)) {
      if (token.quantum_ns >= kLongTurn) device->ExpectRaise();
      device->tokens.time_slices().NoteGranted(token.id, token.quantum_ns, token.lease_ns);
      Wake();
    }
  }
  void OnRevoke(const sluice_token& token) noexcept override {
    if (Device* device = DeviceNamed(token.uuid)) device->tokens.time_slices().NoteRevoked(token.id);
  }
  void OnLost() noexcept override {
    std::fill(std::begin(demanded_), std::end(demanded_), false);
    for (const auto& device : Devices()) device->tokens.time_slices().NoteAgentLost();
  }
  void OnRefused(const char* reason) noexcept override {
    Log(settings::LogLevel::kError, "the agent refuses this process: %s", reason);
  }

 private:
  bool demanded_[SLUICE_MAX_GPUS] = {}, told_[SLUICE_MAX_GPUS] = {};
};

client::AgentClient* Client() {
  static client::AgentClient* const agent =
      GetConfig().socket.empty() ? nullptr
                                 : new client::AgentClient(GetConfig().socket.c_str(), SLUICE_VERSION, new Follower);
  return agent;
}

void Sooner(uint64_t* next, uint64_t ns) {
  if (ns != 0 && (*next == 0 || ns < *next)) *next = ns;
}

struct Progress {
  uint64_t slice = kSlice;
  uint64_t fruitless = 0;  // looks, since something left
};

// What one device needs now. Nanoseconds until it wants to be looked at again; 0: not before something happens.
uint64_t Serve(Device& device, Progress* progress) {
  uint64_t next = device.tokens.time_slices().Tick();
  if (device.OverCapacity()) {
    const uint64_t began = MonotonicNs();
    const uint64_t left = device.Evict(progress->slice);
    if (left > 0) {
      const uint64_t took = std::max<uint64_t>(MonotonicNs() - began, 1);
      progress->slice = std::clamp(left * kSliceNs / took, kSlice, kMostSlice);
      progress->fruitless = 0;
      PublishAll();
      Sooner(&next, 20 * kUs);  // launches get their turn at the lock
    } else {
      // All of it is in use by what is queued: it leaves when that is done.
      Sooner(&next, std::min<uint64_t>(++progress->fruitless * kMs, 20 * kMs));
    }
  } else if (device.tokens.time_slices().holding() && device.RestoreWorkingSet(kSlice) > 0) {
    Sooner(&next, 20 * kUs);
  }
  if (device.EvictingBytes() > 0) Sooner(&next, 2 * kMs);
  return next;
}

void* Follow(void*) {
  Mail& mail = TheMail();
  uint64_t next = 0;
  std::vector<Progress> progress(SLUICE_MAX_GPUS + 1);
  for (;;) {
    std::vector<sluice_budget> budgets;
    {
      std::unique_lock lock(mail.mutex);
      const auto due = [&] { return mail.look || !mail.budgets.empty(); };
      if (next == 0) {
        mail.came.wait(lock, due);
      } else {
        mail.came.wait_for(lock, std::chrono::nanoseconds(next), due);
      }
      mail.look = false;
      budgets.swap(mail.budgets);
    }
    for (const sluice_budget& budget : budgets) {
      if (Device* device = DeviceNamed(budget.uuid)) device->ApplyBudget(budget);
    }
    if (!budgets.empty()) PublishAll();
    next = 0;
    for (size_t i = 0; i < Devices().size() && i < progress.size(); ++i) {
      uint64_t departing = Devices()[i]->residency.evicting_bytes();
      Sooner(&next, Serve(*Devices()[i], &progress[i]));
      if (Devices()[i]->residency.evicting_bytes() != departing) PublishAll();
    }
  }
  return nullptr;
}

}  // namespace

bool StartFollower(int wait_ms) {
  if (!Client()) return true;
  for (const auto& device : Devices()) device->tokens.SetClient(Client());
  StartOwnThread("sluice-follow", Follow);
  const client::State state = Client()->Start(wait_ms);
  return state == client::State::kAttached || state == client::State::kRefused;  // a refusal is said with its reason
}

void WakeFollower() { Wake(); }

void NotifyAgent(unsigned kind, const char* text) {
  if (Client()) Client()->SendNotice(kind, text);
}

void PublishAll() {
  if (!Client()) return;
  for (const auto& device : Devices()) {
    if (sluice_gpu_counters* slot = Client()->Slot(device->uuid.c_str())) device->Publish(slot);
  }
  __atomic_store_n(&Client()->page()->heartbeat_ns, MonotonicNs(), __ATOMIC_RELAXED);
}

}  // namespace sluice
