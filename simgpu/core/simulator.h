// The discrete-event simulation of one process' streams. Time is virtual: calls advance the host's clocks, operations
// the GPUs'. Operations take effect in the order of their virtual times and not of their submission, as far as the
// calling threads' own clocks allow it.
#ifndef SIMGPU_CORE_SIMULATOR_H_
#define SIMGPU_CORE_SIMULATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "memory.h"
#include "operation.h"
#include "profile.h"
#include "shared_state.h"
#include "timeline.h"
#include "uvm_tools.h"

namespace simgpu {

struct Stream {
  uint32_t id = 0;
  int card = 0;
  const void* context = nullptr;
  bool legacy = false, blocking = true;  // blocking: orders itself with the context's legacy stream
  std::deque<Op*> queue;
  bool scheduled = false;
  bool blocked = false;
  int64_t free_at = 0;
  int64_t waited_for = 0;  // end of the latest operation that it waited for
  int pending_prefetches = 0;
  bool zombie = false;  // destroyed by the API; drained, then reused
  bool Busy() const { return !queue.empty(); }
  std::vector<FencePtr> gates;  // cuCtxWaitEvent: its next work waits for them (an H200: an empty stream does not)
};

struct CardFigures {
  uint64_t launches = 0, kernel_ns = 0, stall_ns = 0, fault_bytes = 0, prefetch_in = 0, prefetch_out = 0, evicted = 0;
  uint64_t copy_in = 0, copy_out = 0, remote = 0, discarded = 0, duplicate_write = 0, resident_peak = 0;
  uint64_t evicted_in_use = 0, races = 0;
};

// The calling thread's clock.
struct HostThread {
  int64_t now = 0;
  uint64_t calls = 0;
  bool in_callback = false;
};
HostThread& ThisThread();

// The duration of a transfer; at least 1 ns.
inline int64_t Nanoseconds(uint64_t bytes, double gbps) {
  return static_cast<int64_t>(static_cast<double>(bytes) / gbps) + 1;
}

class Simulator {
 public:
  using Lock = std::unique_lock<std::mutex>;
  Simulator(const Profile& profile, SharedState& state);

  std::mutex mutex;  // held during all functions below

  Stream* NewStream(int card, const void* context, bool blocking, bool legacy);
  void DeleteStream(Stream* s);

  Op* NewOp(OpKind kind);
  // Enqueues at the calling thread's time, and blocks the thread while the stream's queue is full. Keeps legacy-stream
  // order.
  void Submit(Lock& lock, Stream* s, Op* op);
  FencePtr SubmitFence(Lock& lock, Stream* s);
  void SubmitWait(Lock& lock, Stream* s, const FencePtr& fence);

  // Processes everything due up to the calling thread's time.
  void CatchUp(Lock& lock);
  // The calling thread waits. A wait that cannot end is misuse.
  // `is_transfer`: for a transfer that depends on no work.
  void WaitFence(Lock& lock, const FencePtr& fence, const char* what, bool is_transfer = false);
  // How many locks the hook holds in this thread. A wait for work that it makes with one is misuse. Null: it does not
  // tell.
  static inline std::atomic<int (*)()> locks_held{nullptr};
  void WaitStream(Lock& lock, Stream* s, const char* what);
  void WaitContext(Lock& lock, const void* context, int card, const char* what);  // nullptr: all of the card
  bool AnyBusy(const void* context, int card) const;
  void ForgetContext(const void* context, int card) { deleted_until_.erase({card, context}); }

  // Reserves unmanaged memory and evicts managed blocks for it. False: out of memory.
  bool TakeUnmanaged(int card, uint64_t bytes);
  void GiveUnmanaged(int card, uint64_t bytes);
  uint64_t FreeBytes(int card) const;

  // Advice is set or withdrawn between moves: the caller waits for evictions in flight.
  void WaitForEvictions(Lock& lock);
  // Withdrawn advice drops a duplicate from the GPU at `time`, under the state's lock. Running readers fault it in
  // again.
  void NoteDuplicateDropped(Allocation* a, const BlockPart& part, int64_t time);

  // The calling thread evicts by a request of its own, and waits for the eviction.
  void EvictByRequest(Lock& lock, Allocation* a, uint64_t address, uint64_t length);
  void DiscardByRequest(Lock& lock, Allocation* a, uint64_t address, uint64_t length);

  // Synchronous contents, outside any stream.
  bool ReadBytes(uint64_t address, void* out, uint64_t length);
  bool WriteBytes(uint64_t address, const void* in, uint64_t length);
  // The same contents as of a fill of one word.
  void WriteWord(uint64_t address, uint32_t value);
  bool Mapped(uint64_t address, uint64_t length);  // the whole range is one allocation's, or mapped

  // Reports misuse if an operation still works on the range at `time`. `what` is done to the range ("unmapped",
  // "freed").
  void CheckIdle(uint64_t address, uint64_t length, int64_t time, const char* what);

  uint64_t ResidentBytes(uint64_t address, uint64_t length);
  uint64_t Digest(uint64_t address, uint64_t length);

  const Profile& profile() const { return profile_; }
  SharedState& state() { return state_; }
  Memory& memory() { return memory_; }
  Timeline& timeline() { return timeline_; }
  UvmTools& uvm_tools() { return uvm_tools_; }
  CardFigures& figures(int card) { return figures_[card]; }
  int64_t worked_until() const { return worked_until_; }
  uint64_t operations() const { return next_number_; }
  void RunDry(Lock& lock);  // at exit: runs all queued operations

  std::string Describe(const Op& op, const Stream& s) const;
  void SetHostRangeCheck(bool (*pinned)(uint64_t address)) { pinned_ = pinned; }

 private:
  enum class State { kDone, kAgain, kBlocked };
  struct Result {
    State state;
    int64_t time;
  };
  struct Due {
    int64_t time;
    uint64_t sequence;
    Stream* stream;
    bool operator<(const Due& o) const { return time != o.time ? time > o.time : sequence > o.sequence; }
  };

  void Schedule(Stream* s, int64_t time);
  bool ProcessNext(int64_t limit);  // false: nothing due
  void Finish(Stream* s, int64_t time);
  void Recycle(Op* op);
  Result Step(Stream* s, Op* op, int64_t t);
  Result StepKernel(Stream* s, Op* op, int64_t t);
  Result StepCopy(Stream* s, Op* op, int64_t t);
  Result StepMemset(Stream* s, Op* op, int64_t t);
  uint64_t EvictionParts(const Stream& s, int64_t t) const;
  Result StepPrefetch(Stream* s, Op* op, int64_t t);
  void Request(Lock& lock, int card, Op* op);
  Result StepDiscard(Stream* s, Op* op, int64_t t);
  Result StepWaitValue(Stream* s, Op* op, int64_t t);
  void StepWriteValue(Stream* s, Op* op, int64_t t);
  void StartCallback(Stream* s, Op* op, int64_t t);

  // Faults in the next missing part of op's touches, which is resident at *end. False: nothing is missing.
  bool FaultNext(Stream* s, Op* op, int64_t t, int64_t* end);
  int64_t MoveIn(int card, const BlockPart& part, uint32_t mask, double rate, bool keep_host, int64_t t, bool fault);
  int64_t MakeRoom(int card, uint64_t bytes, int64_t t, bool* room);
  int64_t Transfer(int card, Server server, uint64_t bytes, double rate, int64_t t, bool faults = false,
                   bool requests = false);
  int64_t AccessRemotely(int card, const Op& op, int64_t t);
  void NoteRemote(Op* op, const Touch& touch, uint64_t bytes) const;
  int64_t Collapse(int card, const Op& op);
  int64_t TakeCompute(int card, int64_t t, int64_t duration);
  void NotePeak(int card);

  // Contents and the marks of the misuse detector.
  // `copies`: the bytes read go to the GPU's memory, with their segments.
  uint64_t NoteRead(Stream* s, const Op& op, uint64_t address, uint64_t length, uint32_t object, int64_t t, int64_t end,
                    uint64_t digest, bool copies = false);
  void NoteWrite(Stream* s, const Op& op, uint64_t address, uint64_t length, uint32_t object, int64_t t, int64_t end,
                 Segment contents);
  void NoteMoving(const Op& op, bool begins);
  void ReportWriteOfDiscarded(const Stream& s, const Op& op, const Allocation& a, uint64_t offset) const;
  void CheckUnused(Stream* s, const Op& op, uint64_t address, uint64_t length, int64_t t, bool discard);
  bool CheckMapped(Stream* s, const Op& op);
  void CopyContents(Stream* s, Op* op, int64_t t, int64_t end);
  void CopyRow(Stream* s, const Op& op, uint64_t dst, uint64_t src, uint64_t row, uint64_t length, int64_t t,
               int64_t end);

  void WaitUntilDone(Lock& lock, const char* what, bool (*done)(const void*), const void* argument,
                     bool is_transfer = false);
  void ReportDeadlock(const char* what);
  bool RecheckPolls();
  bool CallbackBars(int64_t time) const;
  void CallbackThread();

  const Profile& profile_;
  SharedState& state_;
  Memory memory_;
  Timeline timeline_;
  UvmTools uvm_tools_;
  std::vector<CardFigures> figures_;
  std::vector<Stream*> streams_, spare_streams_;
  // When the work of deleted streams ended, by card and context: a thread may be behind that time.
  std::map<std::pair<int, const void*>, int64_t> deleted_until_;
  std::vector<Op*> spare_ops_;
  std::priority_queue<Due> due_;
  std::vector<Stream*> polling_;
  uint64_t sequence_ = 0, next_number_ = 0;
  int64_t worked_until_ = 0;
  uint32_t next_stream_ = 0;
  bool (*pinned_)(uint64_t) = nullptr;
  bool logged_content_limit_ = false;

  struct Callback {
    Stream* stream;
    Op* op;
    int64_t end;
  };
  std::deque<Callback> callbacks_;  // the front one may be running
  std::condition_variable callback_due_, progress_;
  bool callback_thread_ = false, pace_thread_ = false;
};

Simulator& TheSimulator();

}  // namespace simgpu

#endif  // SIMGPU_CORE_SIMULATOR_H_
