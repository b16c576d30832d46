// Ranges that reach past a block of the application's.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_BLOCK_ENDS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_BLOCK_ENDS_H_

#include "hooklib/memory/types.h"

namespace sluice {

// Whether the driver would refuse a copy or a fill of the range, which begins in memory of the engine's: it reaches
// past its block, its begin was freed or is not mapped, or it is mapped without rights. The bytes behind are another
// block's here, and the driver takes a whole arena for one allocation. Thread-safe; takes the device's lock where the
// range may be tracked.
bool ReachesPastItsBlock(memory::Extent range);

// Whether synchronous copies and memsets there end before they return, as the application has asked for the block
// (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS). The driver knows only of the arena. Thread-safe, as above.
bool IsSynchronous(memory::Extent range);
void NoteSynchronousBlock();  // the application has asked for one

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_BLOCK_ENDS_H_
