// A flag in host memory that streams wait for.
#ifndef SLUICE_TEST_ENGINE_HOST_FLAG_H_
#define SLUICE_TEST_ENGINE_HOST_FLAG_H_

#include <unistd.h>

#include <atomic>
#include <thread>

#include "test/engine/scenario.h"

namespace scenario {

struct HostFlag {
  HostFlag() {
    void* host = nullptr;
    OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address, host, 0));
    value = static_cast<uint32_t*>(host);
    Set(0);
  }
  void MakeWait(CUstream stream) const { OK(cuStreamWaitValue32(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ)); }
  void Set(uint32_t to) const { __atomic_store_n(value, to, __ATOMIC_RELEASE); }  // the GPU reads it at the same time
  CUdeviceptr address = 0;
  uint32_t* value = nullptr;
};

// Whether the call returns behind the opening of the gate, which another thread opens after `us`.
template <typename Call>
bool WaitsFor(const HostFlag& gate, Call call, useconds_t us = 50'000) {
  std::atomic<bool> is_open{false};
  std::thread opener([&] {
    usleep(us);
    is_open = true;
    gate.Set(1);
  });
  OK(call());
  const bool waited = is_open;
  opener.join();
  return waited;
}

}  // namespace scenario

#endif  // SLUICE_TEST_ENGINE_HOST_FLAG_H_
