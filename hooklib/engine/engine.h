// The engine as a whole: start, the conversation with the agent, what is said at exit.
#ifndef SLUICE_HOOKLIB_ENGINE_ENGINE_H_
#define SLUICE_HOOKLIB_ENGINE_ENGINE_H_

#include "hooklib/engine/device/device.h"

namespace sluice {

// After a successful cuInit, in this process (a forked child comes here by itself): attaches to the agent and waits for
// its first budget for at most a second; without one the environment's values hold. Cheap when done.
void EnsureStarted();

uint64_t MonotonicNs();  // CLOCK_MONOTONIC
double SecondsSinceStart();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_ENGINE_H_
