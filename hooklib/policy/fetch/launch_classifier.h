// For which launches fetching what they name is not the best: those that may leave it in host memory, where the GPU
// reads and writes it over the link (UVM's accessed-by advice), and those that touch so little of it that faults are
// cheaper.
//
// A kernel that streams (an optimizer's update, a decoder's small-batch GEMM) passes over host memory at the link's
// rate, without faults and without moving a page: 24 ms a GiB read and written on an H200, where fetching takes 22 and
// sending away what makes room 70. A kernel that reads its operands again and again crawls (a GEMM of 16,384 rows over
// 128 MiB of weights: 232 ms instead of 2.5). Nothing in a launch tells one from the other, so it is measured, per
// execution id, first on a few chunks, later now and then.
// A kernel that looks up rows of a table names all of it: fetching costs 92 ms a GiB, room included, and faults bring
// the few pages that are touched. That is measured in the same way, where the launch does not stream: what is left to
// faults on a trial takes its time if it is touched.
// Of what cannot be held at all and touches little, host memory may be the better still: rows of 4 KiB that faults
// bring one by one take 8 ms on an H200, over the link 0.6. But to map a GiB there takes 51 ms, so it is tried when
// launches of the kind have taken so long that this is little beside it, on a part first (Share). Not thread-safe: the
// device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_CLASSIFIER_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_CLASSIFIER_H_

#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// One launch that is to be timed, since not all that it names is brought for it.
struct LaunchProbe {
  uint64_t id = 0;              // execution id; 0: nothing to time
  uint64_t host_bytes = 0;      // bytes of its set in host memory
  uint64_t resident_bytes = 0;  // bytes of its set on the card
  bool oversize = false;        // the set is larger than all that may be resident: faults are what it is compared with
  bool by_faults = false;       // they are left to faults, not used where they lie
  bool duplicates = false;      // fetched, they would leave again for nothing
  bool exploratory = false;     // it is a try, not a launch of a kind that is timed again
  uint32_t stride = 0;  // of a set larger than the capacity so many-th chunks are used in host memory: see Share
};

// Of a launch that is left to faults, what is used in host memory all the same: of its chunks every so many-th.
struct RemoteShare {
  uint32_t stride = 0;         // 0: none
  uint64_t max_new_bytes = 0;  // so many bytes may be mapped for it anew
};

// What tries cost: some launches re-read what was left in host memory.
struct ProbeStats {
  uint64_t probes = 0, slow_probes = 0;  // launches; those of them that did not stream
  uint64_t lost_ns = 0;                  // GPU time beyond what fetching would have taken
};

class LaunchClassifier {
 public:
  enum class AccessClass : uint8_t {
    kUnknown,          // unknown: some chunks may stay in host memory, and the launch is timed
    kUnknownFaulting,  // unknown: some chunks are left to faults, and the launch is timed
    kStreaming,        // stays in host memory at no more than the link's price
    kFaulting,         // touches little of what it names: left to faults
    kRereading,        // re-reads: bring it
  };

  // Of an execution id at launch number `now`. `oversize` as in LaunchProbe, judged apart.
  // `duplicates`: what it misses would leave again for nothing, which is always better than faults.
  AccessClass ClassOf(uint64_t id, bool oversize, uint64_t now, bool duplicates = false);
  // Whether launches of this id that cannot be held, if there were any, come by faults.
  bool LeftToFaults(uint64_t id) const;
  // Whether launches of this id were seen to be slow in host memory, and not to stream since.
  bool IsSlowRemote(uint64_t id, bool oversize) const;
  // Whether launches of this id were done with what they name in host memory in less than a quarter of the time that
  // the link takes for it, twice more often than not: they touch little of it. That stands until as many were not, so
  // that one which met a busy link or a slow host changes nothing.
  bool IsSparse(uint64_t id) const;
  // What these three say, at one look.
  struct Traits {
    bool streaming, slow_remote, sparse;
  };
  Traits TraitsOf(uint64_t id, bool oversize, uint64_t now);
  // Whether the launch that was answered kStreaming or kFaults is one of those that are timed again. `every`: as in
  // LaunchProbe.
  bool IsDue(uint64_t id, bool oversize, uint32_t stride = 0);
  // A launch of this id misses so many bytes, where `capacity` may be resident.
  void NoteMissing(uint64_t id, bool oversize, uint64_t bytes, uint64_t capacity);
  // So many did while a time is awaited which decides how they go that the host had better wait for it: a program that
  // runs a thousand launches ahead sends all of them a way that may be the wrong one.
  bool ShouldAwait(uint64_t id) const;
  // A launch of this id, which could be held, was to be tried, but all that it misses was still on its way out. Where
  // the host never waits it would be so for ever: then it had better wait once (Crowded).
  void NoteBlocked(uint64_t id);
  // The host has waited before a launch of this id, or will not any longer. It waits for the next one, too, if this one
  // misses nothing, up to four times.
  void NoteAwaited(uint64_t id);
  // The time of a timed launch is known, or never will be.
  void NoteAnswered(const LaunchProbe& probe);
  // The launch is tried; until its time is known, others of its id fetch.
  void NoteProbe(const LaunchProbe& probe, uint64_t now);
  // How long the timed launch ran, in ns of the GPU's clock. True where this settles that its id is left to faults.
  bool NoteMeasured(const LaunchProbe& probe, uint64_t ns, uint64_t now);
  // A launch of this id that cannot be held, and is left to faults, misses so many bytes: what of it is tried in host
  // memory.
  RemoteShare ShareOf(uint64_t id, uint64_t bytes);
  // For that so many bytes were mapped.
  void NoteMapped(uint64_t id, uint64_t bytes);
  // Whether launches of some id have been found to be slower in host memory than by faults since this was last asked.
  bool TakeLeftRemote() { return std::exchange(left_remote_, false); }
  // How many bytes faults bring for a launch of this id that is larger than all that may be resident, at most: by how
  // long the last timed ones ran. kNever: not known.
  uint64_t MaxFaultBytes(uint64_t id) const;
  // How many bytes a try leaves in host memory or to faults, for a launch with `resident` bytes on the card beside
  // them: few, but enough to be seen in its time.
  static uint64_t ProbeBytes(AccessClass access_class, uint64_t resident);
  const ProbeStats& probe_stats() const { return stats_; }

 private:
  struct Record {
    AccessClass access_class = AccessClass::kUnknown;
    uint8_t failures[2] = {};  // of using host memory, of faults
    uint8_t slow = 0;          // times in a row that it streamed, but slower than once over
    uint8_t sparse_score = 0;  // times that it touched little of what it names in host memory, less those that not
    bool sparse = false;
    uint8_t confirmed = 0;     // times that faults were the better, one after the other
    uint64_t remote_rate = 0;  // bytes a ns in host memory, which faults are held against; 0: only against fetching
    uint64_t remote_rate_bytes = 0;  // that this was measured with
    uint32_t launches = 0;           // that were not fetched for, since the verdict
    uint16_t awaited = 0;            // times of launches that decide how the next ones go
    bool crowded = false;
    uint32_t queued = 0;              // launches that missed something while any was
    uint64_t queued_bytes = 0;        // that they missed
    uint64_t retry_at = 0;            // launch number
    uint64_t faults_ns = 0;           // of the last timed launch that was left to faults
    uint64_t previous_faults_ns = 0;  // of the one before
    // Host memory tried instead of faults, a greater part of what is missed with each step.
    enum class Step : uint8_t { kNone, kBefore, kAfter };  // timed: nothing; with the present part; with a greater one
    Step step = Step::kNone;
    uint8_t samples = 0;           // times of this step so far
    uint8_t failed_steps = 0;      // steps that failed
    uint32_t stride = 0;           // the present part, as in RemoteShare; 1: all of it
    uint32_t uncounted = 0;        // launches that are not in spent_ns yet
    uint64_t sum_ns = 0;           // of the samples
    uint64_t before_ns = 0;        // their mean, with the part before
    uint64_t spent_ns = 0;         // by launches left to faults, about, since the last failure
    uint64_t map_ns = 0;           // what mapping took of that
    uint16_t blocked = 0;          // launches that could not be tried
    uint8_t wait_rounds = 0;       // times that the host was to wait for that
    uint8_t awaited_launches = 0;  // launches before which it did, this time
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
  bool AddSample(Record* record, uint32_t stride, uint64_t ns);
  static void BeginStep(Record* record, uint32_t stride, uint64_t before_ns);
  Record& FindOrAdd(uint64_t id, bool oversize);
  void EndWait(Record* record);
  std::unordered_map<uint64_t, Record> records_;
  mutable CacheSlot cache_[256];
  uint32_t crowded_records_ = 0;  // habits that are crowded
  uint32_t waiting_records_ = 0;  // habits that want the host to wait
  bool left_remote_ = false;
  ProbeStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_CLASSIFIER_H_
