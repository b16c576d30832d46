// Remote use of launches that are left to demand faults is tried in steps, with a greater part of their set in each
// (LaunchClassifier::ShareOf). Constants that the steps share with the rest of the classifier.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_REMOTE_STEPS_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_REMOTE_STEPS_H_

#include <cstdint>

namespace sluice::policy::remote_steps {

// The parts that are probed, one after the other. The first finds launches that re-read the rows they touch: 16 rows
// read 256 times over take 0.2 ms by faults, 5 in host memory, and 0.3 with a 64th of the table there. The second finds
// whether anything is gained.
inline constexpr uint32_t kFirstStride = 64, kSecondStride = 4, kWholeStride = 1;
inline constexpr uint32_t kSamples = 16,
                          kAwaitedSamples = 8;     // launches timed for a step; awaited if the host has to wait
inline constexpr uint32_t kMaxStepLaunches = 128;  // launches of a step of which each is timed; then every 64th

}  // namespace sluice::policy::remote_steps

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_REMOTE_STEPS_H_
