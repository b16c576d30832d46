// Limits of this process's container on the machine: host memory, which holds evicted bytes, and CPUs.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_HOST_LIMITS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_HOST_LIMITS_H_

#include <sched.h>

#include <cstdint>

namespace sluice {

// Bytes left under the memory cgroup's limit (v2 or v1), or available on the machine, whichever is less. Read from
// /proc and /sys at most every 100 ms. UINT64_MAX / 2, to which bytes may be added, where nothing can be read.
uint64_t HostMemoryLeft();

// The CPUs that the process's first thread might run on at the first call, whatever its threads are bound to later.
cpu_set_t CpuMask();
// How many CPUs the process may keep busy: those of CpuMask, but no more than its cgroup's quota (v2 or v1), rounded
// up. At least 1. Read from /proc and /sys each time.
int CpusAllowed();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_HOST_LIMITS_H_
