// Whose clock a sleeping thread of the replayer follows.
#ifndef SLUICE_TRACE_REPLAY_SLEEP_H_
#define SLUICE_TRACE_REPLAY_SLEEP_H_

#include "driver.h"

namespace sluice::replay {

// From here on, what the engine sleeps on the calling thread passes on the simulated card. Null: real sleep again.
void SleepOnCard(decltype(&simgpu_advance_host) advance);

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_SLEEP_H_
