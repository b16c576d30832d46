// A CUDA driver for fuzzing the player: calls succeed, device memory is only addresses, and a launch reads every
// parameter that its kernel declares.
#ifndef SLUICE_TEST_TRACE_FAKE_DRIVER_H_
#define SLUICE_TEST_TRACE_FAKE_DRIVER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "trace/reader.h"
#include "trace/replay/driver.h"

namespace sluice::replay {

// The state behind a FakeDriver. Only one may exist at a time.
struct FakeGpu {
  explicit FakeGpu(const trace::Trace& trace);
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  std::vector<std::vector<trace::Parameter>> layouts;  // by function, in the order in which the player asks for them
  std::vector<std::unique_ptr<char[]>> host_memory;
  size_t host_bytes = 0, next_function = 0;
  uint64_t checksum = 0;  // of all parameters
  CUdeviceptr next_address = 0x500000000000;
};

// Host allocations beyond 64 MiB in all fail, as on a host without memory.
Driver FakeDriver(FakeGpu& gpu, bool simulated);

}  // namespace sluice::replay

#endif  // SLUICE_TEST_TRACE_FAKE_DRIVER_H_
