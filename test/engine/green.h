// Green contexts of 16 multiprocessors, and their streams.
#ifndef SLUICE_TEST_ENGINE_GREEN_H_
#define SLUICE_TEST_ENGINE_GREEN_H_

#include "test/engine/scenario.h"

namespace scenario {

inline CUgreenCtx MakeGreen(int device) {
  CUdevResource all{}, part{};
  unsigned count = 1;
  OK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16));
  CUdevResourceDesc description = nullptr;
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx green = nullptr;
  OK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}
inline CUstream GreenStream(CUgreenCtx green) {
  CUstream s = nullptr;
  OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
  return s;
}

}  // namespace scenario

#endif  // SLUICE_TEST_ENGINE_GREEN_H_
