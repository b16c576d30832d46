// Arrays as copies and texture objects see them.
#ifndef SIMGPU_API_ARRAY_H_
#define SIMGPU_API_ARRAY_H_

#include "call.h"

namespace simgpu {

// The simulated layout: rows without a gap. All in bytes.
struct ArrayRows {
  uint64_t base = 0, pitch = 0, slice = 0, bytes = 0;
  uint64_t element = 0;
};
CUresult FindArray(CUarray array, ArrayRows* out);
CUarray LevelOf(CUmipmappedArray array, unsigned level);  // null: no such level

// The driver's answer to a copy before it is queued.
CUresult CheckCopy3D(const CUDA_MEMCPY3D& p);

// The memory that a texture or surface object reads or writes. False: no such object.
bool FindObject(uint64_t object, uint64_t* address, uint64_t* bytes);

}  // namespace simgpu

#endif  // SIMGPU_API_ARRAY_H_
