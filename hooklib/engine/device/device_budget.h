// The budget of a device (device_budget.cc), work that waits for it, and parked processes (device_park.cc).
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_BUDGET_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_BUDGET_H_

#include "hooklib/engine/device/device_counters.h"

namespace sluice {

class DeviceBudget : public DeviceCounters {
 public:
  void ApplyBudget(const sluice_budget& next) SLUICE_TAKES_DEVICE_LOCK;
  sluice_budget Budget() SLUICE_TAKES_DEVICE_LOCK;
  // Total and free bytes of the container, as memory queries report them. Asks the agent for the use of the container's
  // other processes where `free` is not null.
  void View(uint64_t* total, uint64_t* free) SLUICE_TAKES_DEVICE_LOCK;
  // For a forked child, where another thread of the parent may have held the lock.
  void ViewUnlocked(uint64_t others_bytes, uint64_t* total, uint64_t* free) const SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  void UpdateMode() SLUICE_DEVICE_LOCKED;  // after any change to bytes or budget
  uint64_t Capacity() const SLUICE_DEVICE_LOCKED;
  void ExpectRaise();
  // Before work that touches this, while the budget is being raised: waits for room instead of evicting chunks of this
  // process. Their eviction would share the link with those that make the room, and they would be needed back at once.
  void AwaitRoom(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  // Before work that touches this and finds bytes of it missing: waits until the container's share of the link allows
  // more transfers. Time alone ends the wait, so it cannot hang, whatever the GPU waits for.
  void AwaitLink(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  void CountLink() SLUICE_DEVICE_LOCKED;  // bytes that moved since

  // --- parked (device_park.cc) ---
  // The agent has parked the container, and nothing was launched since.
  bool IsParked() SLUICE_TAKES_DEVICE_LOCK;
  bool IsWaking() SLUICE_TAKES_DEVICE_LOCK;  // the working set is being fetched
  // While parked: has the agent wake the container, for work that is not a launch. Never waits.
  void AskToWake() SLUICE_DEVICE_LOCKED;
  // The agent is lost: a parked process may use its guarantee by itself.
  void NoteAgentLost() SLUICE_TAKES_DEVICE_LOCK;
  // Without an agent a launch ends the parking. True: it did, and the follower is to fetch the working set.
  bool WakeIfLaunched() SLUICE_TAKES_DEVICE_LOCK;

 protected:
  using DeviceCounters::DeviceCounters;
  void NoteSurplus() SLUICE_DEVICE_LOCKED;          // each context's arenas are looked at when the program waits next
  uint64_t LinkBytes() const SLUICE_DEVICE_LOCKED;  // moved so far, by whomever
  void FollowParked(const sluice_budget& next) SLUICE_DEVICE_LOCKED;  // before it is in force
  uint64_t UnmanagedBound() const SLUICE_DEVICE_LOCKED;               // of unmanaged memory
  void NoteRestored(uint64_t bytes) SLUICE_DEVICE_LOCKED;             // by RestoreWorkingSet, while waking
  void Activate() SLUICE_DEVICE_LOCKED;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_BUDGET_H_
