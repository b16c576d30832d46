// Requests to the driver's memory manager (UVM) below CUDA: number and layout as in NVIDIA's open kernel modules
// (uvm_ioctl.h), the same from 535 (migrate) and 580 (discard) to 595.
//
// The request is over when the function returns. Of the CUDA calls that make the same requests this is not so: the
// effect of cuMemDiscardBatchAsync can follow the end of its stream's work by 0.1 ms and more (docs/design/driver.md).
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_REQUESTS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_REQUESTS_H_

#include "hooklib/client/descriptor.h"
#include "hooklib/engine/execute/driver_port.h"
#include "hooklib/memory/types.h"

namespace sluice::requests {

// `space`: the descriptor of the address space that CUDA uses. False: another descriptor, or the driver refuses. Any
// thread; no lock is needed.
//
// Moves the range to host memory.
bool Evict(const DriverPort& port, const client::Descriptor& space, memory::Extent range);
// Contents are undefined from here on; a later migration or write ends that (uvm.h, UvmDiscard with its flag UNMAP).
// The caller orders it against accesses and migrations of the range.
bool Discard(const DriverPort& port, const client::Descriptor& space, memory::Extent range);

}  // namespace sluice::requests

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_REQUESTS_H_
