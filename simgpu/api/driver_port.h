// The hook's port to the driver's memory manager (hooklib/engine/execute/driver_port.h), answered by the simulated
// driver.
#ifndef SIMGPU_API_DRIVER_PORT_H_
#define SIMGPU_API_DRIVER_PORT_H_

#include <cstddef>
#include <cstdint>

namespace simgpu {

// sluice_driver_port_table::evict. Real threads have no place in virtual time, so the simulator models them.
int EvictByThreads(void* begin, void* queue, const uint64_t* bases, const uint64_t* lengths, size_t count, int threads);

// These bytes are about to be freed. Misuse if a request for them waits (SIMGPU_REQUEST_DELAY_US): it would take effect
// on memory that has the same addresses by then. The simulator's lock is held.
void CheckLateRequests(uint64_t base, uint64_t length);

}  // namespace simgpu

#endif  // SIMGPU_API_DRIVER_PORT_H_
