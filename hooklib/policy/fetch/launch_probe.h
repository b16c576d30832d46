// Probes: launches that are timed, so that launches like them take the fastest way (launch_classifier.h).
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_PROBE_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_PROBE_H_

#include <cstdint>

namespace sluice::policy {

// How launches of an execution id use memory that is not resident.
enum class AccessClass : uint8_t {
  kUnknown,          // some chunks may stay in host memory, and the launch is timed
  kUnknownFaulting,  // some chunks are left to faults, and the launch is timed
  kStreaming,        // uses host memory at no more than the link's price
  kFaulting,         // touches little of its set: left to faults
  kFetch,            // re-reads its set, or its probe's time is awaited: fetched
};

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

// The part that a launch uses remotely although it is left to faults: each stride-th chunk.
struct RemoteShare {
  uint32_t stride = 0;         // 0: none
  uint64_t max_new_bytes = 0;  // bytes that may be newly mapped for it
};

// The cost of probes: some launches re-read the chunks that were left in host memory.
struct ProbeStats {
  uint64_t probes = 0, slow_probes = 0;  // launches; those of them that did not stream
  uint64_t lost_ns = 0;                  // GPU time beyond that of a fetch
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LAUNCH_PROBE_H_
