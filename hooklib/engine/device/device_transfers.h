// The transfers of a device: plans that are executed (execute/plan_steps.cc), duplicates that end
// (execute/read_mostly.cc), eviction and fetches beside the launches (device_rebalance.cc).
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_TRANSFERS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_TRANSFERS_H_

#include <vector>

#include "hooklib/engine/device/device_budget.h"

namespace sluice {

class DeviceTransfers : public DeviceBudget {
 public:
  void Execute(const policy::PlanStep& step, Stream* stream) SLUICE_DEVICE_LOCKED;
  // Maps host memory that launches use remotely, and unmaps the rest.
  void ApplyRemoteMappings(const policy::Plan& plan) SLUICE_DEVICE_LOCKED;
  // Populates discarded chunks at once, with no wait of the host for the application's work. Where discards are still
  // queued, in their order, and the stream waits.
  void PopulateNow(const policy::Plan& plan, Stream* stream) SLUICE_DEVICE_LOCKED;
  void EvictAfter(const std::vector<memory::Extent>& runs, uint64_t op, Stream* stream) SLUICE_DEVICE_LOCKED;

  // --- read-mostly duplicates (execute/read_mostly.cc) ---
  // Duplicates in the resolved set that the work writes, or may write, are withdrawn. `anywhere`: it may write any.
  void NoteWriters(const AccessSet& set, bool anywhere) SLUICE_DEVICE_LOCKED {
    if (residency.has_copies() || residency.has_withdrawn()) NoteWritersOfCopies(set, anywhere);
  }
  void NoteWritersOfCopies(const AccessSet& set, bool anywhere) SLUICE_DEVICE_LOCKED;
  void NoteCopied(const AccessSet& set) SLUICE_DEVICE_LOCKED;  // the work is a copy
  // A copy or a memset writes this, and the work is not planned.
  void NoteUnplannedWrite(memory::Extent range, bool copy) SLUICE_TAKES_DEVICE_LOCK;
  void NoteUnknownWriter() SLUICE_TAKES_DEVICE_LOCK;  // something writes anywhere
  // The application waited for the GPU: duplicates beyond the budget are dropped, which costs nothing then.
  void DropExcessDuplicates() SLUICE_DEVICE_LOCKED;
  void Withdraw() SLUICE_DEVICE_LOCKED;  // ranges that are no duplicates any more

  // --- on the engine's own thread (device_rebalance.cc) ---
  // Evicts the excess over the capacity, `max_bytes` at most. Bytes evicted; 0: nothing may be evicted now.
  // `reclaimed`: for another container, so the bytes do not count as this one's use of the link.
  uint64_t Evict(uint64_t max_bytes, bool reclaimed) SLUICE_TAKES_DEVICE_LOCK;
  bool OverCapacity() SLUICE_TAKES_DEVICE_LOCK;
  // Fetches chunks of the working set, up to the capacity and `max_bytes`.
  uint64_t RestoreWorkingSet(uint64_t max_bytes) SLUICE_TAKES_DEVICE_LOCK;
  // Discarded chunks that were allocated again are populated now; with `fetching` also those whose fetch is queued.
  void PopulateDiscarded(bool fetching) SLUICE_DEVICE_LOCKED;
  // Streams of several GPUs work from now on: their work may write this GPU's memory, and is not planned here.
  void PrepareForOtherDevices() SLUICE_TAKES_DEVICE_LOCK;
  uint64_t EvictingBytes() SLUICE_TAKES_DEVICE_LOCK;      // may still be on the GPU; asks the GPU
  uint64_t LastEvictingBytes() SLUICE_TAKES_DEVICE_LOCK;  // as the GPU last answered
  // Evicts the excess over the capacity: launches that miss nothing evict nothing.
  void MakeRoom() SLUICE_TAKES_DEVICE_LOCK;

 protected:
  using DeviceBudget::DeviceBudget;
  bool MayBeWrittenByHost(memory::Va va) SLUICE_DEVICE_LOCKED;
  // work(queue) in a context of this device, on queues that belong to no application stream. False: there is none.
  template <typename F>
  bool OnEngineStream(F work) SLUICE_DEVICE_LOCKED;
  Stream* EngineStream(Context* context) SLUICE_DEVICE_LOCKED;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_TRANSFERS_H_
