// The clock that a sleeping thread of the replayer follows.
#ifndef SLUICE_TRACE_REPLAY_SLEEP_H_
#define SLUICE_TRACE_REPLAY_SLEEP_H_

#include "driver.h"

namespace sluice::replay {

// From now on, the engine's sleeps on the calling thread advance the simulated GPU's clock. Null: real sleep again.
void SleepOnSimulatedClock(decltype(&simgpu_advance_host) advance);

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_SLEEP_H_
