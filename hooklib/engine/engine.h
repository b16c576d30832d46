// The engine as a whole: its start, its clock, its lines at exit.
#ifndef SLUICE_HOOKLIB_ENGINE_ENGINE_H_
#define SLUICE_HOOKLIB_ENGINE_ENGINE_H_

#include <cstdint>

namespace sluice {

// After a successful cuInit, in this process (a forked child calls it again). Attaches to the agent and waits for its
// first budget, at most a second; without one the environment's values hold. Cheap when done. Any thread.
void EnsureStarted();

uint64_t MonotonicNs();  // CLOCK_MONOTONIC
double SecondsSinceStart();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_ENGINE_H_
