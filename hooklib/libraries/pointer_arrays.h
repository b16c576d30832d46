// Arrays of pointers that batched calls of cuBLAS read from device memory, as the last copy from the host wrote them.
// Any thread.
#ifndef SLUICE_HOOKLIB_LIBRARIES_POINTER_ARRAYS_H_
#define SLUICE_HOOKLIB_LIBRARIES_POINTER_ARRAYS_H_

#include <cstdint>
#include <vector>

namespace sluice::libraries {

// The `count` pointers that a copy from the host put at `address`. False where no such copy was seen, or not all of it.
// They are assumed to be current: a kernel may have changed them since.
bool SeenPointers(uint64_t address, uint64_t count, std::vector<uint64_t>* out);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_POINTER_ARRAYS_H_
