// The phases of a recording, and its managed memory. Started by injection.cc.
#ifndef SLUICE_TEST_GPU_TRUTH_TRUTH_H_
#define SLUICE_TEST_GPU_TRUTH_TRUTH_H_

#include <cuda.h>

#include <cstdint>

namespace sluice::truth {

inline constexpr CUmemLocation kHost = {CU_MEM_LOCATION_TYPE_HOST, {0}}, kGpu = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};

// Prefetches the managed memory within the range to `to`.
void Move(uint64_t address, uint64_t bytes, CUmemLocation to);

// A managed block was allocated, or freed (bytes 0). Never with g_data held: the driver may deliver records meanwhile.
void ChangeShadow(uint64_t address, uint64_t bytes);

// From now on the durations of launches are not recorded.
void BeginLight();
// From now on every launch is measured.
void BeginSlow();

}  // namespace sluice::truth

#endif  // SLUICE_TEST_GPU_TRUTH_TRUTH_H_
