// Arrays of pointers that batched calls of cuBLAS read on the card, as they were seen on their way from the host. Any
// thread.
#ifndef SLUICE_HOOKLIB_LIBRARIES_POINTER_ARRAYS_H_
#define SLUICE_HOOKLIB_LIBRARIES_POINTER_ARRAYS_H_

#include <cstdint>
#include <vector>

namespace sluice::libraries {

// The `count` pointers that a copy from the host put at `address`; false where no copy, or not all of it, was seen. A
// belief: a kernel may have changed them since.
bool SeenPointers(uint64_t address, uint64_t count, std::vector<uint64_t>* out);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_POINTER_ARRAYS_H_
