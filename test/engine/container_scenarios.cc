// Processes of one container, each led by a test: container_test.py.
#include <nvml.h>

#include <iostream>
#include <sstream>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

void Answer(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace

// Commands on standard input, each answered by one line:
//   allocate MIB    "ok", or the code
//   free            the newest allocation
//   memory          free and total MiB by cuMemGetInfo, total by cuDeviceTotalMem
//   launch COUNT    kernels of 20 ms
SCENARIO(led_by_commands) {
  Card card;
  std::vector<CUdeviceptr> held;
  Answer("started");
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string word;
    uint64_t number = 0;
    in >> word >> number;
    if (word == "allocate") {
      CUdeviceptr p = 0;
      const CUresult result = cuMemAlloc(&p, number * kMiB);
      if (result == CUDA_SUCCESS) held.push_back(p);
      Answer(result == CUDA_SUCCESS ? "ok" : std::to_string(static_cast<int>(result)));
    } else if (word == "free") {
      OK(cuMemFree(held.back()));
      held.pop_back();
      Answer("ok");
    } else if (word == "memory") {
      size_t left = 0, total = 0, also_total = 0;
      OK(cuMemGetInfo(&left, &total));
      OK(cuDeviceTotalMem(&also_total, 0));
      Answer(std::to_string(left / kMiB) + " " + std::to_string(total / kMiB) + " " +
             std::to_string(also_total / kMiB));
    } else if (word == "launch") {
      for (uint64_t i = 0; i < number; ++i) card.Named(nullptr, {Read(held.back(), kMiB)}, 20'000'000);
      OK(cuCtxSynchronize());
      Answer("ok");
    }
  }
}
