// One GPU in this process: its memory, its streams, its budget.
//
// Lock order: Stream::order, then Device::mutex (the table in engine/README.md has all locks). Neither is held while
// the application's own call runs, except Stream::order around a launch and its event.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooklib/compute/tokens.h"
#include "hooklib/engine/device/access_set.h"
#include "hooklib/engine/device/context.h"
#include "hooklib/engine/device/device_lock.h"
#include "hooklib/engine/device/fault_watch.h"
#include "hooklib/engine/device/launch_timings.h"
#include "hooklib/engine/device/memory_factor.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/device/touch_watch.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/driver_counters.h"
#include "hooklib/libraries/extents/torch_kernels.h"
#include "hooklib/memory/live_map.h"
#include "hooklib/policy/budget/fault_ledger.h"
#include "hooklib/policy/budget/link_meter.h"
#include "hooklib/policy/residency.h"
#include "hooklib/policy/steady/launch_fast_path.h"
#include "hooklib/policy/working_set/use_watch.h"
#include "sluice/wire.h"

namespace sluice {
namespace client {
class AgentClient;
}

struct Work;

// Why an allocation was refused; the caller returns CUDA's out-of-memory code in each case.
enum class Refusal : uint8_t { kNone, kLimit, kHost, kManagedLimit, kDriver };

struct Device final : memory::Timeline {
  explicit Device(CUdevice ordinal);

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
  void ExpectRaise();
  void ReleaseUnmanaged(uint64_t bytes) { CountUnmanaged(-static_cast<int64_t>(bytes)); }

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
  LaunchTimings timings{this};
  FaultWatch fault_watch{this};
  TouchWatch touch_watch{this};
  MemoryFactor memory_factor{this};
  // Whose order the last discards of freed chunks took (discards.h), and as which operation of its discard queue.
  Stream* discard_owner SLUICE_BY_DEVICE_LOCK = nullptr;
  uint64_t discard_op SLUICE_BY_DEVICE_LOCK = 0;
  uint64_t throttle_from_launch SLUICE_BY_DEVICE_LOCK = 0;  // before this one, launches are not throttled for a wait
  bool watch_wait_failed SLUICE_BY_DEVICE_LOCK = false;     // a wait for FaultWatch has run out once

  // --- allocation (device_allocation.cc). `stream`: in whose order (cuMemAllocAsync, cuMemFreeAsync) ---
  CUresult Allocate(uint64_t bytes, bool app_managed, CUdeviceptr* result,
                    memory::StreamId stream = 0) SLUICE_TAKES_DEVICE_LOCK;
  // The context that memory of a pool is taken in, for a stream of `owner`: it is the device's, and outlives `owner`.
  // Where that is the primary context, the engine retains it until ReleasePrimary.
  CUcontext PoolContext(CUcontext owner);
  // Before the application releases or resets the primary context. `anyway`: also where memory of a pool is left there.
  void ReleasePrimary(bool anyway) SLUICE_TAKES_DEVICE_LOCK;
  // Nothing: no allocation of the engine's, the driver's to free. Never waits where `stream` is given.
  // `is_async`: in the order of a stream, which is `stream` if it is this device's, else 0.
  std::optional<CUresult> Free(CUdeviceptr pointer, memory::StreamId stream, bool is_async) SLUICE_TAKES_DEVICE_LOCK;
  // Waits for the work that the context of this block has queued, as the driver's cuMemFree does. Another address, or
  // memory of a pool: returns at once. An error is that of the work.
  CUresult AwaitContextOf(CUdeviceptr block) SLUICE_TAKES_DEVICE_LOCK;
  // Gives arenas that are wholly free back to the driver. cuMemFree waits for the whole GPU: to be called where the
  // application's own call waits as well, and without any lock. `only_idle`: nothing is done while a stream has work.
  void ReturnArenas(bool only_idle) SLUICE_TAKES_DEVICE_LOCK;
  // The application's allocator reports bytes of a block as taken, or (negative) as freed to its cache.
  void Report(CUdeviceptr pointer, int64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  void MarkCaptured(memory::Va va) SLUICE_TAKES_DEVICE_LOCK;
  // The application gave advice for a range of one allocation: it ends with the allocation.
  void NoteAdvice(memory::Extent range, CUmem_advise advice, CUmemLocation location) SLUICE_TAKES_DEVICE_LOCK;
  bool ExceedsManagedLimit(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;  // SLUICE_MANAGED_LIMIT
  bool HoldsManaged() SLUICE_TAKES_DEVICE_LOCK;  // also memory that no allocation uses, but the driver has not back

  // --- VMM memory in managed form (device_mapped.cc). `context` owns the reservation. A range is one mapping, and in
  // whole chunks. ---
  // Charges for physical memory as for an allocation of so many bytes, and releases that.
  Refusal ChargeHandle(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  void ReleaseHandle(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  // Managed memory of so many bytes, of which nothing is populated; `*result` is its address. With `context` current.
  Refusal Reserve(CUcontext context, uint64_t bytes, memory::Va* result) SLUICE_TAKES_DEVICE_LOCK;
  // Of a reservation without mappings and contents. Its memory goes back to the driver with other arenas (`at_once`:
  // now, and the call may wait for the GPU). False: the driver refused. `gone`: it went with its context.
  bool Unreserve(memory::Va base, bool at_once, bool gone = false) SLUICE_TAKES_DEVICE_LOCK;
  // `has_contents`: those that Unmap kept at this place. With the owner's context current.
  void Map(memory::Extent range, bool has_contents) SLUICE_TAKES_DEVICE_LOCK;
  void Unmap(memory::Extent range, bool keeps_contents) SLUICE_TAKES_DEVICE_LOCK;
  void EndContents(memory::Extent range) SLUICE_TAKES_DEVICE_LOCK;  // that Unmap kept
  // The parts of the range whose contents may matter: a copy of the others would read discarded memory.
  std::vector<memory::Extent> WrittenParts(memory::Extent range) SLUICE_TAKES_DEVICE_LOCK;
  bool IsOwnedByPrimary(CUcontext context) const;  // whether the context is the device's primary one

  // --- unmanaged memory (device_unmanaged.cc) ---
  // False: the budget has no room for it, and none is on its way.
  bool ReserveUnmanaged(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  // A graph whose nodes allocate so much at a time is about to be instantiated. False as above.
  bool ReserveGraphMemory(uint64_t bytes) SLUICE_TAKES_DEVICE_LOCK;
  void CountGraphMemory() SLUICE_TAKES_DEVICE_LOCK;  // memory that the driver keeps for such graphs now
  // A limit of the context changed by so many bytes of device memory; `reserved` of them are counted already.
  void NoteLimit(CUcontext handle, int64_t change, uint64_t reserved) SLUICE_TAKES_DEVICE_LOCK;
  // Evicts the excess over the capacity: launches that miss nothing evict nothing.
  void MakeRoom() SLUICE_TAKES_DEVICE_LOCK;

  // --- the container's memory-limit (device_container.cc). All bytes of `allocated_bytes` and `unmanaged_bytes` are
  // charged to it. ---
  // False: the container's processes have no room for it together. Waits, without the lock, for the agent where this
  // process's lease is too small.
  bool ChargeContainer(uint64_t bytes) SLUICE_DEVICE_LOCKED;
  bool ChargeWithinLease(uint64_t bytes);
  void ReleaseContainer(uint64_t bytes);
  // Unmanaged memory that came (it exists already, so it cannot be refused) or, negative, went. Any thread.
  void CountUnmanaged(int64_t change);
  // Charged by the container's other processes. Asks the agent, unless this process is alone.
  uint64_t OthersBytes();
  uint64_t KnownOthersBytes();      // as last heard
  uint32_t ContainerUtilization();  // GPU time of the container in the last second, millionths; asks the agent

  // --- budget, contexts (device.cc, device_contexts.cc) ---
  void ApplyBudget(const sluice_budget& next) SLUICE_TAKES_DEVICE_LOCK;
  sluice_budget Budget() SLUICE_TAKES_DEVICE_LOCK;
  // Total and free bytes of the container, as memory queries report them. Asks the agent for the use of the container's
  // other processes where `free` is not null.
  void View(uint64_t* total, uint64_t* free) SLUICE_TAKES_DEVICE_LOCK;
  // For a forked child, where another thread of the parent may have held the lock.
  void ViewUnlocked(uint64_t others_bytes, uint64_t* total, uint64_t* free) const SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  void ContextEnds(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;  // before it is destroyed
  // Before it may be destroyed, with its memory: its chunks are not evicted or discarded any more, and other
  // contexts' transfers of them are waited for, for two seconds at most.
  void EndTransfersOf(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;
  void DropContext(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;  // it is gone, with everything made in it
  // `peer` may use this GPU's memory from now on: pages stay here and are mapped there instead of moving to and fro.
  void AddPeer(CUdevice peer) SLUICE_TAKES_DEVICE_LOCK;
  bool HasPeers() const SLUICE_DEVICE_LOCKED { return !peers_.empty(); }
  Context* ContextFor(CUcontext handle) SLUICE_DEVICE_LOCKED;
  // The context that owns memory which is allocated while `current` is current: a green context has none of its own.
  CUcontext MemoryContext(CUcontext current);
  CUstream Housekeeping(Context* context) SLUICE_DEVICE_LOCKED;
  Stream* StreamById(memory::StreamId id) SLUICE_DEVICE_LOCKED;  // null: its context is gone
  // The state of a new stream: that of an ended one of the context whose work is over, with its queues, or a new one.
  Stream* NewStream(Context* context) SLUICE_DEVICE_LOCKED;
  // No more work is added to the stream. On the thread of a per-thread default stream.
  void Retire(Stream* stream) SLUICE_DEVICE_LOCKED;
  // The green context is about to be destroyed, while work of its streams may still run.
  void EndGreenContext(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;
  void UpdateMode() SLUICE_DEVICE_LOCKED;  // after any change to bytes or budget
  uint64_t Capacity() const SLUICE_DEVICE_LOCKED;
  // The card for which the driver is to count and record; null: the only one, which may have another name there.
  const unsigned char* UuidForDriver() const;

  // --- figures (device_counters.cc) ---
  sluice_gpu_counters Counters() SLUICE_TAKES_DEVICE_LOCK;
  // Stores them in the page of the agent. Under the lock, since several threads do: the page never goes back.
  void Publish(client::AgentClient* agent) SLUICE_TAKES_DEVICE_LOCK;
  void LogDriverCounters() SLUICE_TAKES_DEVICE_LOCK;  // at DEBUG: the driver's own totals
  uint64_t Launches() SLUICE_TAKES_DEVICE_LOCK;       // kernels and graphs so far
  void NoteSecond() SLUICE_TAKES_DEVICE_LOCK;         // once a second: the bytes that lately were used
  // Work that is not planned is about to be queued, or was (policy/working_set/use_watch.h).
  void NoteUse(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  // Reads the driver's counts since the last time.
  void CountFaults() SLUICE_DEVICE_LOCKED;
  // Bytes that the driver evicted on its own, and bytes of faults; 0 where it does not count.
  policy::Pressure::Totals BytesMovedByDriver() const SLUICE_DEVICE_LOCKED;
  // At DEBUG: which chunks are where and why, when an iteration began.
  void LogPlacement(const Work& work) SLUICE_DEVICE_LOCKED;
  // A graph whose nodes name these: logged once where they exceed the capacity.
  void LogIfTooLarge(const std::vector<libraries::Reach>& reaches) SLUICE_TAKES_DEVICE_LOCK;

  // --- work that is planned (execute/) ---
  void Resolve(const Work& work, AccessSet* set) SLUICE_DEVICE_LOCKED;
  std::optional<memory::Extent> Resolve(const libraries::Reach& reach) SLUICE_DEVICE_LOCKED;
  // Before work that touches this, while the budget is being raised: waits for room instead of evicting chunks of this
  // process. Their eviction would share the link with those that make the room, and they would be needed back at once.
  void AwaitRoom(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  // Before work that touches this and finds bytes of it missing: waits until the container's share of the link allows
  // more transfers. Time alone ends the wait, so it cannot hang, whatever the GPU waits for.
  void AwaitLink(const Work& work) SLUICE_TAKES_DEVICE_LOCK;
  void CountLink() SLUICE_DEVICE_LOCKED;  // bytes that moved since
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

  // --- events (device_timeline.cc) ---
  // Sets an event behind everything queued on the stream so far. False: that is not possible now.
  bool RecordEvent(Stream* stream) SLUICE_DEVICE_LOCKED;
  void PollEvents(Stream* stream) SLUICE_DEVICE_LOCKED;
  void PollQueue(TransferQueue* queue, EventPool* pool) SLUICE_DEVICE_LOCKED;
  // How much is done of the work that the streams held at the first call with these marks. `*all_seen`: the rest will
  // be seen to finish. On a thread's own stream it is, if that thread queues more.
  uint64_t CompletedWork(std::vector<memory::Mark>* marks, bool* all_seen) SLUICE_DEVICE_LOCKED;
  // Transfers of the stream that are not done; a discard with its populating counts twice.
  size_t OutstandingTransfers(Stream* stream) SLUICE_DEVICE_LOCKED {
    const bool none = stream->fetch_queue.events.empty() && stream->evict_queue.events.empty() &&
                      stream->discard_queue.events.empty();
    return none ? 0 : CountOutstanding(stream);
  }
  size_t CountOutstanding(Stream* stream) SLUICE_DEVICE_LOCKED;
  // memory::Timeline
  bool Done(memory::Mark mark) override SLUICE_DEVICE_LOCKED;
  bool MarkAll(std::vector<memory::Mark>* marks) override SLUICE_DEVICE_LOCKED;
  bool InDone(memory::StreamId stream, uint64_t op) override SLUICE_DEVICE_LOCKED;
  bool OutDone(memory::StreamId stream, uint64_t op) override SLUICE_DEVICE_LOCKED;

 private:
  // A range of device memory for a small request, which is never evicted; nothing where it has to be managed memory.
  std::optional<memory::Va> AllocateUnevictable(Context* context, uint64_t bytes,
                                                memory::StreamId stream) SLUICE_DEVICE_LOCKED;
  Refusal Grow(Context* context, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  // Whether so many bytes may be allocated; then they are charged to the container. May wait, without the lock.
  Refusal Admit(uint64_t bytes) SLUICE_DEVICE_LOCKED;
  // A reservation for VMM memory. Its chunks are known to residency in parts, from their first mapping on: PyTorch
  // reserves more than the GPU has.
  struct Reservation {
    memory::Extent range;
    CUcontext context;
    std::vector<bool> was_mapped;        // by chunk
    std::vector<memory::Extent> arenas;  // parts that residency knows
    uint64_t mapped_bytes = 0;           // of chunks that were mapped: these count as requested
  };
  Reservation* ReservationOf(memory::Va va) SLUICE_DEVICE_LOCKED;
  void AwaitByQueries(memory::Mark mark) SLUICE_TAKES_DEVICE_LOCK;
  Context* OwnerOf(memory::Va block, bool is_unevictable) SLUICE_DEVICE_LOCKED;  // by its arena; null: none
  std::vector<memory::Extent> AddChunks(Reservation* reservation, memory::Extent range) SLUICE_DEVICE_LOCKED;
  bool Populate(Context* context, const std::vector<memory::Extent>& runs) SLUICE_DEVICE_LOCKED;
  void PinMappings(memory::Extent range) SLUICE_DEVICE_LOCKED;
  std::optional<memory::Va> AllocateWhenFreed(Context* context, uint64_t bytes, bool may_block) SLUICE_DEVICE_LOCKED;
  std::optional<memory::Va> AwaitFreed(Context* context, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  void TakeSurplusArenas(Context* context, bool all) SLUICE_DEVICE_LOCKED;
  void EndAdvice(memory::Va base) SLUICE_DEVICE_LOCKED;  // of the allocation that begins there
  bool IsOver(Stream* stream) SLUICE_DEVICE_LOCKED;      // its work, and everything on its queues
  // Waits, without the lock, until `fits()` holds. This process's share may be on its way: the agent has lent it out,
  // or other processes have not given it up yet. Whether it came.
  // After 3 s it gives up, unless `is_patient()` holds.
  template <typename F, typename G>
  bool AwaitShare(uint64_t bytes, F fits, G is_patient) SLUICE_DEVICE_LOCKED;
  uint64_t HostAllowance() SLUICE_DEVICE_LOCKED;  // bytes of host memory that may still be used
  void LogRefusal(Refusal refusal, uint64_t bytes) SLUICE_DEVICE_LOCKED;
  void SetLive(memory::Extent range, bool alive, memory::Extent owner = {}) SLUICE_DEVICE_LOCKED;  // RemoveLive's owner
  bool MayBeWrittenByHost(memory::Va va) SLUICE_DEVICE_LOCKED;
  // work(queue) in a context of this device, on queues that belong to no application stream. False: there is none.
  template <typename F>
  bool OnEngineStream(F work) SLUICE_DEVICE_LOCKED;
  Stream* EngineStream(Context* context) SLUICE_DEVICE_LOCKED;
  uint64_t CountLaunches() const SLUICE_DEVICE_LOCKED;
  sluice_gpu_counters CountAll() SLUICE_DEVICE_LOCKED;
  void CountUsed() SLUICE_TAKES_DEVICE_LOCK;
  uint64_t LinkBytes() const SLUICE_DEVICE_LOCKED;                    // moved so far, by whomever
  void FollowParked(const sluice_budget& next) SLUICE_DEVICE_LOCKED;  // before it is in force
  uint64_t UnmanagedBound() const SLUICE_DEVICE_LOCKED;               // of unmanaged memory
  void NoteRestored(uint64_t bytes) SLUICE_DEVICE_LOCKED;             // by RestoreWorkingSet, while waking
  void Activate() SLUICE_DEVICE_LOCKED;
  void StartCounting() SLUICE_DEVICE_LOCKED;

  unsigned char raw_uuid_[16] = {};
  policy::FaultLedger faulted_ SLUICE_BY_DEVICE_LOCK;
  std::vector<CUdevice> peers_ SLUICE_BY_DEVICE_LOCK;
  std::vector<Stream*> retired_ SLUICE_BY_DEVICE_LOCK;
  std::unordered_map<memory::Va, std::vector<GivenAdvice>> advice_ SLUICE_BY_DEVICE_LOCK;  // by allocation
  // Wholly free arenas that the driver has not taken back yet. They count as requested.
  struct FreeArena {
    CUcontext context;
    memory::Extent range;
    bool is_managed;
    uint64_t requested;  // its bytes that count as such
  };
  std::vector<FreeArena> free_arenas_ SLUICE_BY_DEVICE_LOCK;
  // Whether streams of other contexts fetch, or evict, chunks of these arenas of the context.
  bool IsMovedElsewhere(CUcontext handle, const std::vector<memory::Extent>& arenas,
                        bool by_evictions) SLUICE_TAKES_DEVICE_LOCK;
  std::map<memory::Va, Reservation> reservations_ SLUICE_BY_DEVICE_LOCK;  // by base
  uint64_t reserved_bytes_ SLUICE_BY_DEVICE_LOCK = 0;                     // of these, in chunks that were never mapped
  uint64_t await_freed_from_ SLUICE_BY_DEVICE_LOCK = 0;    // allocation number before which AwaitFreed does not wait
  bool has_surplus_ SLUICE_BY_DEVICE_LOCK = false;         // a stream-ordered free may have left surplus arenas
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
  std::atomic<CUcontext> primary_{nullptr};   // as PoolContext saw it last
  std::atomic<bool> retains_primary_{false};  // for memory of pools
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_
