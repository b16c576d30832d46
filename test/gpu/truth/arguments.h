// A launch's parameters as one packed image of 8-byte words, by the driver's own layout.
#ifndef SLUICE_TEST_GPU_TRUTH_ARGUMENTS_H_
#define SLUICE_TEST_GPU_TRUTH_ARGUMENTS_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "trace/recorder.h"

namespace sluice::truth {

struct Arguments {
  std::vector<trace::Parameter> layout;
  std::vector<uint64_t> words;
};

// `parameters` and `extra` as cuLaunchKernel gets them. Thread-safe; the driver is asked for each layout once.
Arguments ReadArguments(CUfunction function, void** parameters, void** extra);
uint64_t FunctionsWithoutLayout();

}  // namespace sluice::truth

#endif  // SLUICE_TEST_GPU_TRUTH_ARGUMENTS_H_
