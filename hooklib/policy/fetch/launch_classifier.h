// Classifies launches for which a fetch of their set is not the best: streaming ones, which may use it in host memory
// over the link (UVM's accessed-by advice), and those that touch so little of it that demand faults cost less.
//
// A streaming kernel (an optimizer's update, a decoder's small-batch GEMM) passes over host memory at the link's rate,
// without faults and without moving a page. On an H200 that takes 24 ms a GiB read and written, where a fetch takes 22
// and the eviction for its room 30 (cost/link_model.h). A kernel that re-reads its operands is slow there: a GEMM of
// 16,384 rows over 128 MiB of weights takes 232 ms instead of 2.5. Nothing in a launch tells one from the other. So it
// is measured for each execution id, first on a few chunks, later now and then.
//
// A kernel that looks up rows of a table names all of it. A fetch costs 52 ms a GiB, room included, and faults bring
// only the touched pages. That is measured in the same way, where the launch does not stream: chunks that a probe
// leaves to faults take their time if they are touched.
//
// Host memory may be better still for a set that cannot be resident and of which little is touched: rows of 4 KiB that
// faults bring one by one take 8 ms on an H200, over the link 0.6. But mapping a GiB takes 51 ms. So it is probed once
// launches of the id have taken so long that this is little, and on a part first (ShareOf). Not thread-safe: the
// device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_CLASSIFIER_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_CLASSIFIER_H_

#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "hooklib/policy/cost/link_model.h"
#include "hooklib/policy/fetch/launch_probe.h"
#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class LaunchClassifier {
 public:
  using AccessClass = policy::AccessClass;

  explicit LaunchClassifier(const LinkModel* link) : link_(link) {}

  // The class of an execution id at launch number `now`. `oversize` as in LaunchProbe; such launches have a class of
  // their own. `duplicates`: its missing chunks would be evicted again without a copy, which is always better than
  // faults.
  AccessClass ClassOf(uint64_t id, bool oversize, uint64_t now, bool duplicates = false);
  // Whether launches of this id, if oversize, are left to faults.
  bool LeftToFaults(uint64_t id) const;
  // Whether launches of this id were slow in host memory, and did not stream since.
  bool IsSlowRemote(uint64_t id, bool oversize) const;
  // The part of its set that a launch of this id touches, by its times in host memory: the second smallest of the
  // newest four, since other work delays some. All of it, until known. Oversize launches have none of their own.
  Share TouchedShare(uint64_t id) const;
  struct Traits {
    bool streaming, slow_remote;
    Share touched;
  };
  Traits TraitsOf(uint64_t id, bool oversize, uint64_t now);
  // Whether the launch, of class kStreaming or kFaulting, is one of those that are timed again. `stride` as in
  // LaunchProbe.
  bool IsDue(uint64_t id, bool oversize, uint32_t stride = 0);
  // A launch of this id misses so many bytes. `capacity`: bytes that may be resident.
  void NoteMissing(uint64_t id, bool oversize, uint64_t bytes, uint64_t capacity);
  // Whether the host should wait before a launch of this id: so many are queued behind a probe, and miss bytes, that
  // its time decides much. A program that runs a thousand launches ahead may treat all of them wrongly.
  bool ShouldAwait(uint64_t id) const;
  // A launch of this id, not oversize, was to be probed, but the evictions of all its missing chunks were in flight.
  // Where the host never waits this would go on for ever: then it had better wait once (ShouldAwait).
  void NoteBlocked(uint64_t id);
  // The host has waited before such a launch, or will not any longer. Four more wait at most, if it misses nothing.
  void NoteAwaited(uint64_t id);
  // The time of a timed launch is known, or never will be.
  void NoteAnswered(const LaunchProbe& probe);
  // The launch is probed. Until its time is known, others of its id are fetched for.
  void NoteProbe(const LaunchProbe& probe, uint64_t now);
  // The launch's time on the GPU's clock. True where this settles that its id is left to faults.
  bool NoteMeasured(const LaunchProbe& probe, uint64_t ns, uint64_t now);
  // An oversize launch of this id is left to faults and misses so many bytes: the part of them that it uses remotely.
  RemoteShare ShareOf(uint64_t id, uint64_t bytes);
  // So many bytes were mapped for that.
  void NoteMapped(uint64_t id, uint64_t bytes);
  // Whether launches of some id were found to be slower in host memory than by faults since the last call.
  bool TakeLeftRemote() { return std::exchange(left_remote_, false); }
  // The most bytes that faults bring for an oversize launch of this id, by the times of the newest timed ones; kNever:
  // not known.
  uint64_t MaxFaultBytes(uint64_t id) const;
  // Bytes that a probe leaves in host memory or to faults, beside `resident` resident bytes: few, but enough to be seen
  // in the launch's time.
  static uint64_t ProbeBytes(AccessClass access_class, uint64_t resident);
  const ProbeStats& probe_stats() const { return stats_; }

 private:
  struct Record {
    AccessClass access_class = AccessClass::kUnknown;
    uint8_t failures[2] = {};         // of remote use, of faults
    uint8_t slow = 0;                 // times in a row that it streamed, but slower than one pass
    Share touched[4];                 // by the newest four times in host memory
    uint8_t confirmed = 0;            // times in a row that faults were better
    uint64_t remote_rate = 0;         // bytes a ns in host memory, the measure for faults; 0: only a fetch is
    uint64_t remote_rate_bytes = 0;   // that remote_rate was measured with
    uint32_t launches = 0;            // not fetched for, since the class was set
    uint32_t counted = 0;             // launches whose time is in remote_ns
    uint64_t newest_remote_ns = 0;    // of the newest timed launch of a streaming class, beyond its own time
    uint64_t remote_ns = 0;           // by launches of a streaming class, about, since the last probe of faults
    uint16_t awaited = 0;             // times that decide about the next launches
    bool has_backlog = false;         // so many are queued behind a probe that the host should wait
    uint32_t queued = 0;              // launches that missed bytes while any time was awaited
    uint64_t queued_bytes = 0;        // that they missed
    uint64_t retry_at = 0;            // launch number
    uint64_t faults_ns = 0;           // of the newest timed launch that was left to faults
    uint64_t previous_faults_ns = 0;  // of the one before
    // Remote use probed instead of faults, with a greater part of the missing chunks in each step.
    enum class Step : uint8_t { kNone, kBefore, kAfter };  // timed: nothing; the present part; a greater one
    Step step = Step::kNone;
    uint8_t samples = 0;  // times of this step so far
    uint8_t failed_steps = 0;
    uint32_t stride = 0;           // the present part, as in RemoteShare; 1: all
    uint32_t uncounted = 0;        // launches that are not in spent_ns yet
    uint64_t sum_ns = 0;           // of the samples
    uint64_t before_ns = 0;        // their mean with the part before
    uint64_t spent_ns = 0;         // by launches left to faults, about, since the last failure
    uint64_t map_ns = 0;           // mapping's part of it
    uint16_t blocked = 0;          // launches that could not be probed
    uint8_t wait_rounds = 0;       // times that the host was to wait for that
    uint8_t awaited_launches = 0;  // launches that it waited before, this time
    bool wants_wait = false;
  };
  static uint64_t Key(uint64_t id, bool oversize) { return id ^ (oversize ? 0x5851f42d4c957f2du : 0); }
  // A launch asks about the same id several times, and the next ones are of few ids.
  struct CacheSlot {
    uint64_t key = 0;
    Record* record = nullptr;  // null: there is none
  };
  CacheSlot* SlotOf(uint64_t key) const { return &cache_[key >> 1 & (std::size(cache_) - 1)]; }
  Record* Find(uint64_t id, bool oversize) const;
  void NoteTouched(Record* record, uint64_t bytes, uint64_t ns) const;
  bool NoteRemote(Record* record, uint64_t bytes, uint64_t ns) const;
  uint64_t MostNs(const LaunchProbe& probe, uint64_t spent) const;
  bool AddSample(Record* record, uint32_t stride, uint64_t ns);
  static void BeginStep(Record* record, uint32_t stride, uint64_t before_ns);
  Record& FindOrAdd(uint64_t id, bool oversize);
  void EndWait(Record* record);
  const LinkModel* link_;
  std::unordered_map<uint64_t, Record> records_;
  mutable CacheSlot cache_[256];
  uint32_t backlogged_records_ = 0;  // records with a backlog
  uint32_t waiting_records_ = 0;     // records that want the host to wait
  bool left_remote_ = false;
  ProbeStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_CLASSIFIER_H_
