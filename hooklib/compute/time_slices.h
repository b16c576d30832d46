// One process's time slices on one GPU. While the agent demands tokens, a launch waits here until the process holds
// one, and its use is measured by stamps (GPU events) around its launches. The agent decides which process is next
// (agent/tokens.h). Rules kept here:
//  - While nothing is demanded a launch costs one relaxed load (wanted()).
//  - Launches pass while the use since the grant is below the quantum: measured, and predicted for queued ones.
//  - So the GPU is handed on at most one kernel after the quantum.
//  - No wait is unbounded: a lease that ends voids the grant, even if kernels run, and the launch requests anew.
//    (A kernel may wait for a peer that has no time slice yet.)
//  - An agent that is lost stops demanding.
// While nothing is demanded, a few launches now and then are measured and represent the others: an estimate.
#ifndef SLUICE_HOOKLIB_COMPUTE_TIME_SLICES_H_
#define SLUICE_HOOKLIB_COMPUTE_TIME_SLICES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/mutex.h"

namespace sluice::compute {

// GPU time by stamps. Any thread; no lock of TimeSlices is held in Set().
class StampClock {
 public:
  virtual ~StampClock() = default;
  // Records a stamp at the end of the stream's queued work. `again`: a stamp of this stream to reuse, or null. Null
  // result: none can be recorded now.
  virtual void* Record(void* stream, void* again) = 0;
  virtual bool Reached(void* stamp) = 0;
  // Nanoseconds from one stamp to another. False: unknown (stamps of two contexts).
  virtual bool Elapsed(void* from, void* to, int64_t* ns) = 0;
  virtual void Free(void* stamp) = 0;
  virtual bool BelongsTo(void* stamp, const void* context) = 0;
  virtual uint64_t Now() = 0;  // the host's monotonic clock, ns
  // The calling thread sleeps; on a simulated GPU its clock goes on meanwhile.
  virtual void Sleep(uint64_t ns) = 0;
};

// The requests to the arbiter. Called with TimeSlices' lock held: must not wait, nor call TimeSlices.
class TimeSlicePort {
 public:
  virtual ~TimeSlicePort() = default;
  virtual bool Request(uint64_t burst_ns) = 0;  // false: no arbiter
  virtual void Release(uint64_t id, uint64_t used_ns, uint64_t burst_ns, bool estimated) = 0;
};

class TimeSlices {
 public:
  TimeSlices(StampClock* clock, TimeSlicePort* port);
  ~TimeSlices();
  TimeSlices(const TimeSlices&) = delete;
  TimeSlices& operator=(const TimeSlices&) = delete;

  // Must a launch go through Enter/Begin/End?
  bool wanted() const { return mode_.load(std::memory_order_relaxed) != 0; }

  // --- a launch, on its own thread, in this order; no lock of the caller's may be held in Enter ---
  struct Segment;
  struct Launch {
    bool is_admitted = false;  // counts as under way
    bool is_sample = false;    // measured for the estimate only
    uint64_t id = 0;           // execution id
    Segment* segment = nullptr;
  };
  Launch Enter(uint64_t id);
  // Right before the driver's call. `apart`: something else (a wait for a transfer) is queued between this launch and
  // the one before, so that they must not be measured as one.
  void BeginLaunch(Launch* launch, void* stream, bool apart);
  void EndLaunch(Launch* launch, void* stream);  // right behind it; also after Enter alone, where nothing was launched

  // --- from the agent's thread ---
  void SetDemanded(bool tokens);
  void NoteGranted(uint64_t id, uint64_t quantum_ns, uint64_t lease_ns);
  void NoteRevoked(uint64_t id);
  void NoteAgentLost();
  // Gives the grant up at once: launches from here on request anew. Kernels under it are reported when they end.
  void GiveUp();

  // --- from the engine's own thread ---
  // Releases an idle grant, and reports late figures. Nanoseconds until the next call; 0: not by time.
  uint64_t Tick();
  // A new round of samples; `launches`: made on this device so far.
  void BeginSampling(uint64_t launches);
  bool holding();
  // How long launches have waited for the token that they wait for now; 0: none waits.
  uint64_t WaitedNs();

  struct Used {
    uint64_t ns = 0, estimated_ns = 0;  // all; and the part of it that no token covered
  };
  Used used();
  // Frees all stamps of a context that is about to be destroyed, or was: nothing more is known of the kernels there.
  void DropStamps(const void* context);

 private:
  struct Account {  // one grant's account
    uint64_t id = 0, quantum = 0, until = 0, since = 0;
    uint64_t used = 0, pending = 0;  // measured; predicted of unfinished launches
    int64_t covered = 0;             // up to here, from base
    void* base = nullptr;            // stamp
    uint32_t open = 0;               // segments not over
    bool estimated = false;
    bool is_over = false;  // reported: takes no base any more
  };
  struct KernelTime {
    uint64_t id = 0;
    uint64_t ns = 0;
    uint32_t seen = 0, uses = 0;
  };
  enum Mode : uint32_t { kDemanded = 1, kSampling = 2 };

  const KernelTime* Find(uint64_t id) const SLUICE_REQUIRES(mutex_);
  uint64_t Predict(uint64_t id) const SLUICE_REQUIRES(mutex_);
  bool MeasuresAlone(uint64_t id) SLUICE_REQUIRES(mutex_);  // whether it is to be measured by itself
  void Learn(uint64_t id, uint64_t ns) SLUICE_REQUIRES(mutex_);
  void CollectFinished(uint64_t now) SLUICE_REQUIRES(mutex_);
  void CloseSegment(Segment& segment) SLUICE_REQUIRES(mutex_);
  void FreeBase(const std::shared_ptr<Account>& account);  // an account is only touched with the lock held
  void ReleaseGrant(bool burst_over) SLUICE_REQUIRES(mutex_);
  void VoidGrant() SLUICE_REQUIRES(mutex_);
  uint64_t IdleTimeout() const SLUICE_REQUIRES(mutex_);
  void SetMode(Mode bit, bool on) SLUICE_REQUIRES(mutex_);

  StampClock* const clock_;
  TimeSlicePort* const port_;
  std::atomic<uint32_t> mode_{0};  // written with the lock held, read by each launch without it
  Mutex mutex_;                    // the port is called with it held, which takes the client's lock
  Condition changed_;
  std::shared_ptr<Account> grant_ SLUICE_GUARDED_BY(mutex_);
  // Of void grants whose kernels still run.
  std::vector<std::shared_ptr<Account>> void_accounts_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Segment>> segments_ SLUICE_GUARDED_BY(mutex_);
  bool requested_ SLUICE_GUARDED_BY(mutex_) = false;
  uint64_t requested_at_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t last_busy_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t collected_at_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint32_t admitted_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint32_t waiting_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_since_ SLUICE_GUARDED_BY(mutex_) = 0;  // the first of these, or the last grant
  uint64_t burst_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t last_burst_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t measured_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t estimated_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t average_ns_ SLUICE_GUARDED_BY(mutex_) = 20000;
  uint64_t sample_sum_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t sample_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t sample_left_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t sampled_at_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t sample_launches_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::array<KernelTime, 2048> kernel_times_ SLUICE_GUARDED_BY(mutex_){};
};

}  // namespace sluice::compute

#endif  // SLUICE_HOOKLIB_COMPUTE_TIME_SLICES_H_
