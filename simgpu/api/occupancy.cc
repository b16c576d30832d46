// Occupancy of a multiprocessor by kernels that use few resources.
#include <algorithm>

#include "call.h"

using simgpu::Sim;

extern "C" {

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction f, int block, size_t) {
  BEGIN(200);
  NEED_ARG(blocks != nullptr && block > 0 && simgpu::KernelInfo(f) != nullptr);
  *blocks = std::clamp(2048 / ((block + 31) / 32 * 32), 0, 32);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction f, int block, size_t shared,
                                                              unsigned int) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, block, shared);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction f, CUoccupancyB2DSize, size_t, int limit) {
  BEGIN(200);
  NEED_ARG(grid != nullptr && block != nullptr && simgpu::KernelInfo(f) != nullptr);
  *block = limit > 0 ? std::min(limit, 1024) : 1024;
  *grid = static_cast<int>(Sim().profile().multiprocessors) * 2;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction f, CUoccupancyB2DSize fn,
                                                   size_t shared, int limit, unsigned int) {
  return cuOccupancyMaxPotentialBlockSize(grid, block, f, fn, shared, limit);
}
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction f, int, int) {
  BEGIN(200);
  NEED_ARG(bytes != nullptr && simgpu::KernelInfo(f) != nullptr);
  *bytes = 48 << 10;
  return CUDA_SUCCESS;
}

}  // extern "C"
