// The CUDA driver as a program without the runtime uses it: libcuda.so.1 by dlopen, and functions by dlsym under the
// names that cuda.h maps them to. Under a preloaded hook these are the hook's functions.
#ifndef SLUICE_TRACE_REPLAY_DRIVER_H_
#define SLUICE_TRACE_REPLAY_DRIVER_H_

#include <cuda.h>

#include <string>

#include "simgpu/simgpu.h"

namespace sluice::replay {

// Member, and cuda.h's name for the function (cuda.h's macros turn it into the exported name).
#define SLUICE_REPLAY_FUNCTIONS(X)                  \
  X(init, cuInit)                                   \
  X(get_error_name, cuGetErrorName)                 \
  X(driver_version, cuDriverGetVersion)             \
  X(device_count, cuDeviceGetCount)                 \
  X(device_get, cuDeviceGet)                        \
  X(device_name, cuDeviceGetName)                   \
  X(device_uuid, cuDeviceGetUuid)                   \
  X(retain, cuDevicePrimaryCtxRetain)               \
  X(set_current, cuCtxSetCurrent)                   \
  X(synchronize, cuCtxSynchronize)                  \
  X(module_load, cuModuleLoadData)                  \
  X(module_function, cuModuleGetFunction)           \
  X(module_global, cuModuleGetGlobal)               \
  X(mem_info, cuMemGetInfo)                         \
  X(alloc, cuMemAlloc)                              \
  X(alloc_managed, cuMemAllocManaged)               \
  X(alloc_async, cuMemAllocAsync)                   \
  X(default_pool, cuDeviceGetDefaultMemPool)        \
  X(set_pool, cuMemPoolSetAttribute)                \
  X(free, cuMemFree)                                \
  X(free_async, cuMemFreeAsync)                     \
  X(host_alloc, cuMemHostAlloc)                     \
  X(host_device_pointer, cuMemHostGetDevicePointer) \
  X(copy_in, cuMemcpyHtoD)                          \
  X(copy_out, cuMemcpyDtoH)                         \
  X(copy_in_async, cuMemcpyHtoDAsync)               \
  X(copy_out_async, cuMemcpyDtoHAsync)              \
  X(copy_async, cuMemcpyDtoDAsync)                  \
  X(set_async, cuMemsetD8Async)                     \
  X(stream_create, cuStreamCreate)                  \
  X(stream_destroy, cuStreamDestroy)                \
  X(stream_wait, cuStreamWaitEvent)                 \
  X(stream_sync, cuStreamSynchronize)               \
  X(begin_capture, cuStreamBeginCapture)            \
  X(end_capture, cuStreamEndCapture)                \
  X(instantiate, cuGraphInstantiateWithFlags)       \
  X(graph_launch, cuGraphLaunch)                    \
  X(event_create, cuEventCreate)                    \
  X(event_record, cuEventRecord)                    \
  X(event_sync, cuEventSynchronize)                 \
  X(event_destroy, cuEventDestroy)                  \
  X(prefetch, cuMemPrefetchAsync)                   \
  X(host_func, cuLaunchHostFunc)                    \
  X(launch, cuLaunchKernel)

// simgpu.h gives a struct and a function the same name, which C allows.
using SimFigures = struct simgpu_stats;

struct Driver {
#define SLUICE_MEMBER(member, name) decltype(&name) member = nullptr;  // NOLINT(bugprone-macro-parentheses)
  SLUICE_REPLAY_FUNCTIONS(SLUICE_MEMBER)
#undef SLUICE_MEMBER
  // CUDA 13's cuda.h maps to cuEventElapsedTime_v2 (driver 570 and later); older drivers have only the plain name, with
  // the same type.
  CUresult(CUDAAPI* elapsed)(float*, CUevent, CUevent) = nullptr;

  // The simulated GPU's side channel; null on a real GPU.
  decltype(&simgpu_next_launch) sim_next_launch = nullptr;
  decltype(&simgpu_now_ns) sim_now = nullptr;
  decltype(&simgpu_advance_host) sim_advance = nullptr;
  decltype(&simgpu_stats) sim_stats = nullptr;
  decltype(&simgpu_last_misuse) sim_last_misuse = nullptr;
  decltype(&simgpu_mark) sim_mark = nullptr;
  bool simulated() const { return sim_next_launch != nullptr; }

  // An error's text, or empty.
  std::string Load();
  std::string Name(CUresult result) const;
};

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_DRIVER_H_
