// SIMGPU_PACE=1: virtual time is the machine's monotonic clock. This measures programs that also wait in real time, for
// example for an agent. It is slower than free virtual time, and as noisy as the machine.
#ifndef SIMGPU_CORE_PACE_H_
#define SIMGPU_CORE_PACE_H_

#include <cstdint>

namespace simgpu {

bool Paced();
int64_t PacedNow();           // ns
void PacedSleep(int64_t ns);  // of real time

}  // namespace simgpu

#endif  // SIMGPU_CORE_PACE_H_
