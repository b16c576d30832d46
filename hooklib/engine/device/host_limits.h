// What this process's container may take of the machine: host memory, where evicted bytes lie, and processors.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_HOST_LIMITS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_HOST_LIMITS_H_

#include <sched.h>

#include <cstdint>

namespace sluice {

// Bytes left under the memory cgroup's limit (v2 or v1) and of what the machine has available, whichever is less. Read
// from /proc and /sys at most every 100 ms. UINT64_MAX where nothing is known.
uint64_t HostMemoryLeft();

// Those that the process' first thread might run on when this was first asked, whatever its threads are bound to later.
cpu_set_t ProcessorMask();
// How many processors it may keep busy: those that it might run on, but no more than its cgroup's quota (v2 or v1),
// rounded up. At least 1. Read from /proc and /sys each time.
int ProcessorsAllowed();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_HOST_LIMITS_H_
