// Common to the tests of the driver's contract: a primary context, and calls that must succeed.
#ifndef SIMGPU_TESTS_CONTRACT_H_
#define SIMGPU_TESTS_CONTRACT_H_

#include <cuda.h>

#include <catch2/catch_test_macros.hpp>

namespace simgpu_test {

struct Context {
  CUcontext context = nullptr;
  Context() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
  ~Context() { cuDevicePrimaryCtxRelease(0); }
};

}  // namespace simgpu_test

#define YES(call) REQUIRE((call) == CUDA_SUCCESS)

#endif  // SIMGPU_TESTS_CONTRACT_H_
