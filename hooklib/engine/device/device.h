// One GPU in this process: its memory, its streams, its budget.
//
// Lock order: Stream::order, then Device::mutex. No lock is held while the application's own call runs, except
// Stream::order around a launch and its event.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "hooklib/compute/tokens.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/execute/eviction_threads.h"
#include "hooklib/engine/observe/driver_counters.h"
#include "hooklib/engine/observe/fault_records.h"
#include "hooklib/libraries/extents/torch_kernels.h"
#include "hooklib/memory/arena_allocator.h"
#include "hooklib/memory/live_map.h"
#include "hooklib/memory/lock.h"
#include "hooklib/policy/budget/fault_ledger.h"
#include "hooklib/policy/budget/pressure.h"
#include "hooklib/policy/predict/pointer_ranges.h"
#include "hooklib/policy/residency.h"
#include "hooklib/policy/steady/launch_fast_path.h"
#include "sluice/wire.h"

namespace sluice {

struct Work;

// What belongs to a CUDA context and ends with it.
struct Context {
  CUcontext handle = nullptr;
  Device* device = nullptr;
  EventPool events;
  EventPool timers{CU_EVENT_DEFAULT};
  std::unique_ptr<memory::ArenaAllocator> arenas,
      held;  // managed memory; device memory that never leaves (Device::AllocateUnevictable)
  std::map<memory::Va, uint64_t> arena_list, held_list;
  CUstream housekeeping = nullptr;  // populates, shrinks
  Stream* own = nullptr;            // its queues carry what no application stream asked for
  senders::Cells cells;
  int64_t limits = 0;  // bytes by which limits of it (heap, stacks) were raised
};

// Why an allocation was refused; the caller returns CUDA's out-of-memory code in each case.
enum class Refusal : uint8_t { kNone, kLimit, kHost, kManagedLimit, kDriver };

// What work touches of what is alive.
struct Touched {
  std::span<const memory::Extent> extents;
  std::span<const char> only_read;  // of each, whether the work is known not to write it
  std::optional<size_t> hotter;     // of a graph: so many of them, at the begin, are used more than the others
  // They lie here; used again.
  std::vector<memory::Extent> room;
  std::vector<char> reads_room;
};

struct Device final : memory::Timeline {
  explicit Device(CUdevice ordinal);

  const CUdevice ordinal;
  std::string uuid;  // "GPU-..."
  uint64_t total = 0;
  bool managed = true;  // false: plain memory, the budget is a hard limit
  const char* unmanaged_because = "";

  memory::CountedLock mutex;
  // Number of the look at the card that is being taken: within one no event is asked twice (a launch under pressure
  // asks of hundreds of chunks whether their last use is over). Raised by who takes the lock and wants to know anew.
  uint64_t look = 1;
  memory::Fences fences;
  memory::LiveMap live;
  policy::Residency residency;
  std::unordered_map<CUcontext, std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;

  // Whether launches must be looked at. Read without the lock on every launch.
  std::atomic<bool> active{false};
  std::atomic<uint64_t> plain{0};  // bytes that are not ours to move
  uint64_t live_bytes = 0;         // allocated and not freed, by the finest knowledge
  uint64_t peak_live_bytes = 0;
  uint64_t allocated_bytes = 0;  // allocated by the application through the engine
  uint64_t requested_bytes = 0;  // managed memory asked of the driver
  sluice_budget budget{};        // in force
  Tokens tokens{&uuid};          // compute time: when a launch may go, and what it used; has locks of its own
  bool reports_seen = false, extents_seen = false;
  bool managed_seen = false;  // the application itself asked for managed memory
  std::atomic<uint64_t> launches_known{0}, launches_looked_at{0};
  uint64_t map_ns = 0;    // the calling threads' time in Map
  uint64_t stall_ns = 0;  // application streams waited for fetches, by events around the waits
  struct Wait {
    Context* context;
    CUevent begin, end;
  };
  std::deque<Wait> waits;
  // Behind a graph larger than the capacity, until the next: events at its end, and where what it sent away is gone.
  struct Left {
    Context* context = nullptr;
    CUevent end = nullptr, gone = nullptr;
    policy::GraphProbe way;
  };
  Left left;
  // Launches that are timed: with bytes in host memory, and graphs larger than the capacity.
  struct Probe {
    Context* context;
    CUevent begin, end;
    policy::LaunchProbe what;
    std::string name;  // of the kernel
    policy::GraphProbe way;
    policy::Pressure::Moved moved;  // Moved() when it was queued
    Left before;                    // of a graph: what the graph before it left
  };
  std::deque<Probe> probes;
  Touched touched;  // by the work that is being looked at
  std::vector<policy::UnboundedPointer>
      loose;              // once anything is asked: its words that lead into blocks of which no part is told,
  bool narrowed = false;  // and whether less than these was named for any
  policy::PointerRanges learnt;
  policy::Pressure pressure;
  // Monotonic ns: until then the budget may be raised, since others are giving memory up for it, 64 MiB at a time; 0:
  // no raise is awaited.
  std::atomic<uint64_t> raised_until{0};
  Stream* stream_discard_owner = nullptr;  // for whom dead bytes were last discarded in its order (stream_discard.h),
  uint64_t stream_discard_op = 0;          // and as which operation of its repopulate queue
  uint64_t hold_back_from = 0;   // launch number: before it, launches are not held back for the sake of dead bytes
  bool watch_in_vain = false;    // a launch to be watched, or one that was, has been waited for in vain
  policy::LaunchFastPath brief;  // what launches may be told by in brief

  // --- memory; each takes the lock ---
  // `stream`: allocated or freed in that stream's order (cuMemAllocAsync).
  CUresult Allocate(uint64_t bytes, bool app_managed, CUdeviceptr* result, memory::StreamId stream = 0);
  // Nothing: not ours, the driver's to free.
  std::optional<CUresult> Free(CUdeviceptr pointer, memory::StreamId stream = 0);
  void Report(CUdeviceptr pointer, int64_t bytes);
  // Plain memory of the driver's own making: false if the budget has no room for it, and none is on its way.
  bool TakeUnmanaged(uint64_t bytes);
  void GiveUnmanaged(uint64_t bytes) { plain.fetch_sub(bytes); }
  // --- device_unmanaged.cc ---
  // A graph whose nodes allocate so much at a time is about to be instantiated: false where the budget has no room.
  bool TakeGraphMemory(uint64_t bytes);
  void CountGraphMemory();  // what the driver keeps for such graphs now
  // Sends away what the capacity holds no more: launches that miss nothing do not.
  void MakeRoom();
  // A limit of a context changed by so many bytes of device memory; `taken` of them are counted already.
  void NoteLimit(CUcontext handle, int64_t change, uint64_t taken);
  void ApplyBudget(const sluice_budget& next);
  void View(uint64_t* total_bytes, uint64_t* free_bytes);
  void ViewUnlocked(uint64_t* total_bytes, uint64_t* free_bytes) const;
  void LogDriverCounters();  // at DEBUG: the driver's own totals
  uint64_t LeftToFaults();   // launches for which nothing was fetched by choice
  // Of host memory used in place: bytes, once a launch; what tries of it cost; how long calls for it kept threads.
  std::tuple<uint64_t, policy::ProbeStats, uint64_t> HostMemoryUsed();
  // Tells the driver what is used in host memory from now on, and what no longer. The lock is held.
  void Map(const policy::Plan& plan);
  void ContextEnds(CUcontext handle);  // is about to go
  void DropContext(CUcontext handle);  // it is gone, and all that was made in it
  void Publish(sluice_gpu_counters* slot);
  void MarkCaptured(memory::Va va);
  // `peer` may use this card's memory from now on: pages stay here and are mapped there instead of moving to and fro.
  void AddPeer(CUdevice peer);
  bool HasPeers() const { return !peers_.empty(); }  // with the lock held
  // A graph whose nodes name this: said once where it cannot be held at a time.
  void LogIfTooLarge(const std::vector<libraries::Reach>& reaches);
  void Resolve(const Work& work, Touched* touched);  // work.cc. The lock is held.
  std::optional<memory::Extent> Resolve(const libraries::Reach& reach);
  // What one of its words means. `*around`: the block that it leads into, if nobody has told a part of that; else of no
  // bytes. Where it is larger than the answer, that was learnt.
  std::optional<memory::Extent> ResolveWord(const Work& work, size_t place, policy::UnboundedPointer* around);
  // --- launches that are watched (device_watch.cc); the lock is held ---
  // Whether the launch has to wait: for the one that is watched, or, since it is to be watched, until it is alone.
  bool AwaitsWatch(const Work& work) { return (watch_.id || learnt.wants_any()) && MustAwaitWatch(work); }
  uint64_t WatchProgress();  // grows while what is waited for goes on
  void EndWatch() {          // the one that is watched is over, or has company from here on
    if (watch_.id) CloseWatch();
  }
  void NoteNarrowed(const Work& work);  // before Prepare
  // Behind Prepare: whether BeginWatch has anything to look at. Then the launch is the next thing on its stream.
  bool MayWatch(const Work& work) const;
  void BeginWatch(const Work& work, uint64_t seq);
  bool Watches(const Stream* stream) const { return watch_.id && watch_.mark.stream == stream->id; }
  // Of what the work touches, as resolved: duplicates that it writes or may write are withdrawn. `unseen`: it may write
  // any. The lock is held.
  void NoteWriters(const Touched& by, bool unseen) {
    if (residency.has_copies() || residency.has_withdrawn()) NoteWritersOfCopies(by, unseen);
  }
  void NoteWritersOfCopies(const Touched& by, bool unseen);
  // The work is a copy.
  void NoteCopied(const Touched& by);
  // While nobody looks at launches: a copy writes this, or a memset. Takes the lock.
  void NoteUnseenCopy(memory::Extent range, bool copy);
  // Something writes nobody knows where. Takes the lock.
  void NoteUnknownWriter();
  // The application waited for the card: what is on it beyond the budget and can go for nothing, goes. The lock is
  // held.
  void DropExcessDuplicates();
  // Withdraws what is no duplicate any more. The lock is held.
  void Withdraw();
  // Before a launch that touches this, while the budget is being raised: waits for room, without the lock, instead of
  // sending bytes of this process away for it. They would take the link from those that make the room, and be wanted
  // back at once.
  void AwaitRoom(const Work& work);
  void ExpectRaise();  // takes no lock
  // --- on the engine's own thread (device_rebalance.cc); each takes the lock ---
  // Sends away what is held beyond the capacity, at most `most` bytes at a time. Returns what went, 0: nothing may now.
  uint64_t Evict(uint64_t most);
  bool OverCapacity();
  // Brings back of the working set what the capacity has room for, at most `most` bytes.
  uint64_t RestoreWorkingSet(uint64_t most);
  uint64_t EvictingBytes();  // bytes on their way out
  void NoteSecond();         // once a second: what the last ten seconds with launches touched
  uint64_t Launches();       // kernels and graphs so far

  // --- with the lock held ---
  Context* ContextFor(CUcontext handle);
  CUstream Housekeeping(Context* context);
  Stream* StreamById(memory::StreamId id);
  void UpdateMode();
  uint64_t Capacity() const;
  uint32_t Factor() const;   // percent in force
  uint32_t Default() const;  // percent where nothing shows that the driver takes pages away
  void WaitForTransfer(Stream* stream, const TransferQueue& queue, uint64_t op);
  void Execute(const policy::PlanStep& step, Stream* stream);
  // Brings what holds nothing, on the spot: nothing of the application's is waited for.
  void PopulateNow(const std::vector<memory::Extent>& runs, Stream* stream);
  void EvictAfter(const std::vector<memory::Extent>& runs, uint64_t op, Stream* stream);
  Left TakeLeft(const Context* context);
  void SetLeft(const policy::GraphProbe& way, bool HasEvictionsInFlight, Stream* stream);
  // After a launch was planned: sets the factor by what the driver took away and faults brought back lately.
  void FollowPressure(memory::Mark launch);
  // The same of launches that are told in brief, left to the next of the others.
  void NoteFastLaunch() {
    part_named_ += residency.named_bytes();
    ++part_launches_;
  }
  // Holds no more than the driver says there is room for beside what others have taken.
  void FollowCeiling();
  // Reads what the driver has counted since the last time: as often as launches are planned.
  void CountFaults();
  // What the driver took away, and what came by faults; 0 where it does not count.
  policy::Pressure::Moved Moved() const { return {taken_.bytes(), faults_.bytes()}; }
  // Tells residency what the timed launches that are over have cost.
  void ReadProbes();
  // At DEBUG: what was seen of places on the card when a window of launches began, and what lies where.
  void LogPlacement(const Work& work);
  // A graph larger than the capacity took so long.
  void NoteWay(const policy::GraphProbe& probe, double ms);
  void NoteLeft(const Left& before, CUevent begin);
  static void GiveBack(const Left& behind);
  // Sets an event behind everything queued on the stream so far. False where that cannot be done now.
  bool Record(Stream* stream);
  void Poll(Stream* stream);
  // How much of what the streams held at the first of these calls with the same marks is done. `told`: of all the rest
  // it will be known; of a thread's own stream only if that thread queues something more.
  uint64_t DoneUpTo(std::vector<memory::Mark>* marks, bool* told);
  size_t Outstanding(Stream* stream) {
    const bool none = stream->in.events.empty() && stream->out.events.empty() && stream->repopulate.events.empty();
    return none ? 0 : CountOutstanding(stream);
  }
  size_t CountOutstanding(Stream* stream);

  // memory::Timeline
  bool Done(memory::Mark mark) override;
  bool MarkAll(std::vector<memory::Mark>* marks) override;
  bool InDone(memory::StreamId stream, uint64_t op) override;
  bool OutDone(memory::StreamId stream, uint64_t op) override;

 private:
  // A range of device memory that never leaves the card, for a small request; nothing where it has to be managed.
  std::optional<memory::Va> AllocateUnevictable(Context* context, uint64_t bytes, memory::StreamId stream);
  Refusal Grow(Context* context, uint64_t bytes);
  std::optional<memory::Va> LastResort(std::unique_lock<memory::CountedLock>* lock, Context* context, uint64_t bytes);
  // Where `fits()` does not hold: waits, without the lock, while this process's share may still be on its way, because
  // the agent lent it out or others have not given it up yet. Whether it came.
  template <typename F>
  bool AwaitShare(std::unique_lock<memory::CountedLock>* lock, uint64_t bytes, F fits);
  void ReturnArenas(Context* context, bool all);
  void ReturnHeld(Context* context);  // what is wholly free, while more than half is
  uint64_t HostAllowance();
  void Say(Refusal refusal, uint64_t bytes);
  template <typename F>
  bool OnOwnQueue(F work);
  Stream* OwnStream(Context* context);
  // Percent of the budget that the driver itself has room for beside all plain memory; 100 where it does not say.
  uint32_t Ceiling() const;  // percent of the budget that the driver has room for, whatever else is on the card
  uint32_t ceiling_ = 100;
  bool ceiling_due_ = false;  // once a second
  void LogPressure(uint32_t from, uint32_t to, uint32_t ceiling);
  uint64_t CountLaunches() const;
  void SetLive(memory::Extent range, bool alive, memory::Extent owner = {});  // `owner`: Residency::RemoveLive
  bool MayBeWrittenByHost(memory::Va va);
  void StartActive();
  void StartCounting();
  unsigned char raw_uuid_[16] = {};
  DriverCounts counts_{TheKernelSide()};
  FaultRecords records_{TheKernelSide()};
  struct Watch {      // the launch that is being watched
    uint64_t id = 0;  // 0: none
    memory::Mark mark;
    std::vector<policy::UnboundedPointer> words;
    std::vector<memory::Va> pages;
    std::string name;  // of the kernel
  };
  Watch watch_;
  bool MustAwaitWatch(const Work& work);
  void CloseWatch();
  bool IsAlone();  // nothing else is unfinished on the card
  bool AnyLoose(const Work& work);
  void LogWatched(uint64_t id, size_t pages, policy::PointerRanges::Found found);
  policy::FaultLedger faults_;
  policy::MigrationLedger taken_;  // what left the card, and was not sent away
  struct Part {                    // of a round: the last of its launches, and what they name; bytes
    memory::Mark last;
    uint64_t named;
  };
  std::deque<Part> parts_;      // not over yet
  uint64_t part_named_ = 0;     // bytes, of the newest, which is not in it
  uint32_t part_launches_ = 0;  // the same
  std::vector<CUdevice> peers_;
  uint32_t launches_waiting_ = 0;                    // in AwaitRoom
  uint64_t graph_memory_ = 0;                        // bytes, part of `plain`
  uint64_t awaited_bytes_ = 0;                       // asked for by allocations that wait for their share
  uint64_t waited_in_vain_ = 0;                      // generation of the budget
  uint64_t told_window_ = 1;                         // the newest one that was told
  std::unordered_map<uint64_t, std::string> names_;  // of kernels, by execution id; at DEBUG
  bool said_graph_ = false, said_faults_ = false, said_host_ = false, said_way_ = false, said_pressure_ = false;
  bool said_[8] = {};
  static constexpr size_t kSeconds = 10;
  uint64_t seconds_[kSeconds] = {};  // launch numbers at the last seconds in which something was launched
  uint64_t second_ = 0, launches_then_ = 0, quiet_seconds_ = 0, working_set_ = 0;
  uint64_t next_id_ = 1;
  uint64_t unseen_launches_ = 0;  // at the last copy that came while nobody looked
};

// The device of the current context; null where there is none.
Device* CurrentDevice(CUcontext* context = nullptr);
Device* DeviceByOrdinal(CUdevice ordinal);
// All of them, once they are known.
extern std::atomic<const std::vector<std::unique_ptr<Device>>*> g_devices;
inline std::span<const std::unique_ptr<Device>> Devices() {
  const auto* const devices = g_devices.load(std::memory_order_acquire);
  return devices ? std::span(*devices) : std::span<const std::unique_ptr<Device>>();
}
// The tracked allocation at or around the address, on whichever device. Takes the device's lock.
struct Tracked {
  Device* device;
  memory::Va base;
  memory::Allocation allocation;
};
std::optional<Tracked> FindTracked(CUdeviceptr pointer);
// Quick "certainly not ours".
inline bool MayBeTracked(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (device->residency.chunks().MayHold(pointer)) return true;
  }
  return false;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_H_
