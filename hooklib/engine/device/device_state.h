// The state of a device, apart from its functions: Device (device.h) is built on it in layers.
//
// Lock order: Stream::order, then the device's mutex (the table in engine/README.md has all locks). Neither is held
// while the application's own call runs, except Stream::order around a launch and its event.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_STATE_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_STATE_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooklib/compute/tokens.h"
#include "hooklib/engine/device/access_set.h"
#include "hooklib/engine/device/context.h"
#include "hooklib/engine/device/device_arenas.h"
#include "hooklib/engine/device/device_lock.h"
#include "hooklib/engine/device/fault_watch.h"
#include "hooklib/engine/device/launch_timings.h"
#include "hooklib/engine/device/memory_factor.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/device/touch_watch.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/driver_counters.h"
#include "hooklib/memory/live_map.h"
#include "hooklib/policy/budget/fault_ledger.h"
#include "hooklib/policy/budget/link_meter.h"
#include "hooklib/policy/residency.h"
#include "hooklib/policy/steady/launch_fast_path.h"
#include "hooklib/policy/working_set/use_watch.h"
#include "sluice/wire.h"

namespace sluice {

struct Device;

class DeviceState : public memory::Timeline {
 public:
  // --- fixed once constructed ---
  const CUdevice ordinal;
  std::string uuid;  // "GPU-..."
  uint64_t total_bytes = 0;
  bool managed = true;  // false: all memory is unmanaged, the budget is a hard limit
  const char* unmanaged_reason = "";
  int lease = -1;  // number of this GPU's lease of the container's memory-limit; -1: no agent, so no lease

  // --- for any thread without the lock ---
  std::atomic<bool> active{false};       // launches go through RunWork: requested memory exceeds the budget
  std::atomic<bool> watches_use{false};  // while not active: NoteUse is to be called for work
  std::atomic<bool> works{false};        // a stream of the application was seen
  // A bit for each GPU whose copies use this one's memory (peers.cc), and for those of them that map it.
  std::atomic<uint64_t> peers_known{0}, peers_that_map{0};
  std::atomic<uint64_t> unmanaged_bytes{0};
  std::atomic<uint64_t> launches_known{0}, launches_planned{0};  // written with the lock held
  // Monotonic ns: until then the budget may be raised, because others give memory up for it, 64 MiB at a time. 0: no
  // raise is expected.
  std::atomic<uint64_t> raise_expected_until_ns{0};
  policy::LinkMeter link_meter;           // WaitNs: any thread; the rest: with the lock held
  std::atomic<uint64_t> link_wait_ns{0};  // that launches waited for it
  Tokens tokens{&uuid};                   // compute time; has locks of its own
  // Not checked: the bounds of the arenas and a flag, both atomic.
  bool MayHold(CUdeviceptr pointer) SLUICE_NO_THREAD_SAFETY_ANALYSIS { return residency.chunks().MayHold(pointer); }
  bool MayUseFastPath() const SLUICE_NO_THREAD_SAFETY_ANALYSIS { return fast_path.HasEntries(); }

  // --- guarded ---
  memory::CountedLock mutex;  // taken by DeviceLock
  // Within one epoch no event is queried twice: a launch under pressure asks of hundreds of chunks whether their last
  // use is over. Raised by a thread that takes the lock and needs fresh answers.
  uint64_t poll_epoch SLUICE_BY_DEVICE_LOCK = 1;
  memory::Fences fences SLUICE_BY_DEVICE_LOCK;
  memory::LiveMap live SLUICE_BY_DEVICE_LOCK;
  policy::Residency residency SLUICE_BY_DEVICE_LOCK;
  std::unordered_map<CUcontext, std::unique_ptr<Context>> contexts SLUICE_BY_DEVICE_LOCK;
  std::vector<std::unique_ptr<Stream>> streams SLUICE_BY_DEVICE_LOCK;
  // Allocated and not freed, by the finest knowledge.
  uint64_t live_bytes SLUICE_BY_DEVICE_LOCK = 0, peak_live_bytes SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t allocated_bytes SLUICE_BY_DEVICE_LOCK = 0;  // by the application, through the engine
  uint64_t requested_bytes SLUICE_BY_DEVICE_LOCK = 0;  // managed memory requested from the driver
  sluice_budget budget SLUICE_BY_DEVICE_LOCK{};        // in force
  bool reports_seen SLUICE_BY_DEVICE_LOCK = false, extents_seen SLUICE_BY_DEVICE_LOCK = false;
  bool managed_seen SLUICE_BY_DEVICE_LOCK = false;  // the application itself requested managed memory
  AccessSet access_set SLUICE_BY_DEVICE_LOCK;       // of the work that is being planned
  policy::LaunchFastPath fast_path SLUICE_BY_DEVICE_LOCK;
  DriverCounters driver_counters SLUICE_BY_DEVICE_LOCK{TheDriverPort()};
  policy::MigrationLedger driver_evicted SLUICE_BY_DEVICE_LOCK;  // bytes that left the GPU though not by this engine
  LaunchTimings timings;
  FaultWatch fault_watch;
  TouchWatch touch_watch;
  MemoryFactor memory_factor;
  // Whose order the last discards of freed chunks took (discards.h), and as which operation of its discard queue.
  Stream* discard_owner SLUICE_BY_DEVICE_LOCK = nullptr;
  uint64_t discard_op SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t throttle_from_launch SLUICE_BY_DEVICE_LOCK = 0;  // before this one, launches are not throttled for a wait
  bool watch_wait_failed SLUICE_BY_DEVICE_LOCK = false;     // a wait for FaultWatch has run out once

 protected:
  // `device`: the whole of which this is a part.
  DeviceState(Device* device, CUdevice number)
      : ordinal(number),
        fences(this),
        residency(this, &fences),
        timings(device),
        fault_watch(device),
        touch_watch(device),
        memory_factor(device),
        device_(device) {}

  Device* const device_;
  unsigned char raw_uuid_[16] = {};
  policy::FaultLedger faulted_ SLUICE_BY_DEVICE_LOCK;
  std::vector<CUdevice> peers_ SLUICE_BY_DEVICE_LOCK;
  std::vector<Stream*> retired_ SLUICE_BY_DEVICE_LOCK;
  std::unordered_map<memory::Va, std::vector<GivenAdvice>> advice_ SLUICE_BY_DEVICE_LOCK;  // by allocation
  std::vector<FreeArena> free_arenas_ SLUICE_BY_DEVICE_LOCK;
  std::map<memory::Va, Reservation> reservations_ SLUICE_BY_DEVICE_LOCK;  // by base
  uint64_t reserved_bytes_ SLUICE_BY_DEVICE_LOCK = 0;                     // of these, in chunks that were never mapped
  uint64_t await_freed_from_ SLUICE_BY_DEVICE_LOCK = 0;    // allocation number before which AwaitFreed does not wait
  bool has_surplus_ SLUICE_BY_DEVICE_LOCK = false;         // some context's is set
  uint32_t launches_waiting_ SLUICE_BY_DEVICE_LOCK = 0;    // in AwaitRoom
  uint64_t graph_memory_bytes_ SLUICE_BY_DEVICE_LOCK = 0;  // part of unmanaged_bytes
  uint64_t awaited_bytes_ SLUICE_BY_DEVICE_LOCK = 0;       // of allocations that wait for their share
  uint64_t failed_wait_generation_ SLUICE_BY_DEVICE_LOCK = 0;  // of the budget under which such a wait failed
  uint64_t map_ns_ SLUICE_BY_DEVICE_LOCK = 0;                  // the calling threads' time in ApplyRemoteMappings
  uint64_t logged_iteration_ SLUICE_BY_DEVICE_LOCK = 1;        // the newest that LogPlacement saw
  std::unordered_map<uint64_t, std::string> kernel_names_ SLUICE_BY_DEVICE_LOCK;  // by execution id; at DEBUG
  bool logged_large_graph_ SLUICE_BY_DEVICE_LOCK = false, logged_refusal_[8] SLUICE_BY_DEVICE_LOCK = {};
  static constexpr size_t kSeconds = 10;
  uint64_t launch_at_second_[kSeconds] SLUICE_BY_DEVICE_LOCK = {};  // launch numbers at the last seconds with launches
  uint64_t active_seconds_ SLUICE_BY_DEVICE_LOCK = 0, planned_seconds_ SLUICE_BY_DEVICE_LOCK = 0;  // with launches
  uint64_t launches_at_last_second_ SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t loaded_bytes_ SLUICE_BY_DEVICE_LOCK = 0, loaded_launch_ SLUICE_BY_DEVICE_LOCK = 0;  // CountUsed
  uint64_t working_set_bytes_ SLUICE_BY_DEVICE_LOCK = 0, next_allocation_ SLUICE_BY_DEVICE_LOCK = 1;
  policy::UseWatch use_watch_ SLUICE_BY_DEVICE_LOCK;
  uint64_t touched_bytes_ SLUICE_BY_DEVICE_LOCK = 0;  // tracked ones, within the last minute
  uint64_t launches_at_unplanned_copy_ SLUICE_BY_DEVICE_LOCK = 0;
  bool wakes_alone_ SLUICE_BY_DEVICE_LOCK = false;  // parked, and the agent is lost
  bool waking_ SLUICE_BY_DEVICE_LOCK = false;
  uint64_t woken_ns_ SLUICE_BY_DEVICE_LOCK = 0, woken_bytes_ SLUICE_BY_DEVICE_LOCK = 0;  // since then fetched
  uint64_t asked_to_wake_ns_ SLUICE_BY_DEVICE_LOCK = 0, launches_when_parked_ SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t budget_before_park_ SLUICE_BY_DEVICE_LOCK = 0;
  std::atomic<CUcontext> primary_{nullptr};      // as PoolContext saw it last
  std::atomic<bool> retains_primary_{false};     // for memory of pools
  std::atomic<CUcontext> own_context_{nullptr};  // for memory of pools, where no primary context was active
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_STATE_H_
