// The device memory that an array takes.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_ARRAY_BYTES_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_ARRAY_BYTES_H_

#include <cstdint>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Bytes of an array, or of all levels of a mipmapped one (`levels` from 1 on), without the driver's padding. 0: a shape
// that the driver refuses, or an array of mapped VMM memory, which was counted when it was made. Thread-safe.
uint64_t ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels);

// Bytes of one element, in which copies beside an array count lengths; 0: elements are parts of a block or of a
// picture.
uint64_t ElementBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_ARRAY_BYTES_H_
