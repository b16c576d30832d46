// The copies of libcuda in a process, and the one that is bound: the toolkit's stub, a compatibility copy beside the
// system's, or the same library under two paths.
#ifndef SLUICE_HOOKLIB_DISPATCH_DRIVER_COPIES_H_
#define SLUICE_HOOKLIB_DISPATCH_DRIVER_COPIES_H_

#include "hooklib/shim/engine_abi.h"

namespace sluice {

// Called first; `shim` must stay valid. Binds the libcuda.so.1 that is loaded, if one is. The binding is a guess until
// a cuInit succeeds.
void BindLoadedDriver(const sluice_shim_api& shim);

// sluice_engine_api's cuda_entry. The copy that was looked at last is bound until a cuInit succeeds; that copy is bound
// for good and kept loaded. A copy whose cuInit fails is not kept. Work on a further copy is not hooked: that is logged
// at WARN, and refused where SLUICE_ON_ERROR is stop. Thread-safe.
void* CudaEntryOf(unsigned index, void* real);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_DRIVER_COPIES_H_
