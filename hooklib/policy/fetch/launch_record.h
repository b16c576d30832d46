// A launch that is timed, and the record of one execution id: what the times of its launches have told.
// LaunchClassifier (launch_classifier.h) alone changes records.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_RECORD_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_RECORD_H_

#include <cstdint>

namespace sluice::policy {

// One launch that is to be timed, since not all of its set is fetched.
struct LaunchProbe {
  uint64_t id = 0;              // execution id; 0: nothing to time
  uint64_t host_bytes = 0;      // of its set, host-resident
  uint64_t resident_bytes = 0;  // of its set, resident
  bool oversize = false;        // the set is larger than the capacity: faults are the alternative
  bool by_faults = false;       // host-resident chunks are left to faults, not used remotely
  bool duplicates = false;      // fetched, they would be evicted again without a copy
  bool exploratory = false;     // probes an unknown class; false: times a known class again
  uint32_t stride = 0;          // of an oversize set each stride-th chunk is used remotely (ShareOf); 0: none
};

enum class AccessClass : uint8_t {
  kUnknown,          // some chunks may stay in host memory, and the launch is timed
  kUnknownFaulting,  // some chunks are left to faults, and the launch is timed
  kStreaming,        // uses host memory at no more than the link's price
  kFaulting,         // touches little of its set: left to faults
  kFetch,            // re-reads its set, or its probe's time is awaited: fetched
};

struct LaunchRecord {
  AccessClass access_class = AccessClass::kUnknown;
  uint8_t failures[2] = {};  // of remote use, of faults
  uint8_t slow = 0;          // times in a row that it streamed, but slower than one pass
  uint8_t sparse_score = 0;  // times that it touched little of its host-resident bytes, less the others
  bool sparse = false;
  bool is_dense = false;             // a launch that was left to faults touched most of its set
  bool is_sparse_by_faults = false;  // the newest that was left to them did not
  bool tries_faults = false;         // one is left to faults before anything is known
  uint8_t confirmed = 0;             // times in a row that faults were better
  uint64_t remote_rate = 0;          // bytes a ns in host memory, the measure for faults; 0: only a fetch is
  uint64_t remote_rate_bytes = 0;    // that remote_rate was measured with
  uint32_t launches = 0;             // not fetched for, since the class was set
  uint32_t counted = 0;              // launches whose time is in remote_ns
  uint64_t newest_remote_ns = 0;     // of the newest timed launch of a streaming class, beyond its own time
  uint64_t remote_ns = 0;            // by launches of a streaming class, about, since the last probe of faults
  uint16_t awaited = 0;              // times that decide about the next launches
  bool has_backlog = false;          // so many are queued behind a probe that the host should wait
  uint32_t queued = 0;               // launches that missed bytes while any time was awaited
  uint64_t queued_bytes = 0;         // that they missed
  uint64_t retry_at = 0;             // launch number
  uint64_t faults_ns = 0;            // of the newest timed launch that was left to faults
  uint64_t previous_faults_ns = 0;   // of the one before
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

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_RECORD_H_
