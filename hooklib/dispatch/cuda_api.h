// cuda.h with every function under its exact ELF name: cuda.h's macros would rename cuMemAlloc to cuMemAlloc_v2 and
// hide the per-thread sisters. Include this, never cuda.h, in anything that touches the hook table.
#ifndef SLUICE_HOOKLIB_DISPATCH_CUDA_API_H_
#define SLUICE_HOOKLIB_DISPATCH_CUDA_API_H_

#if defined(__cuda_cuda_h__) && !defined(__CUDA_API_VERSION_INTERNAL)
#error "cuda.h was included before hooklib/dispatch/cuda_api.h: names are renamed by its macros"
#endif
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>

// Exported by the driver; cuda.h declares it only where it renames everything to _ptsz.
extern "C" CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                                     CUdriverProcAddressQueryResult* symbolStatus);
// Exported by the simulated driver alone, which has no kernel module: its answers to open and ioctl of
// /dev/nvidia-uvm-tools (simgpu/simgpu.h).
extern "C" int simgpu_uvm_open(void);
extern "C" int simgpu_uvm_ioctl(int device, unsigned long request, void* argument);
// Its eviction, in place of the eviction threads' requests (hooklib/engine/execute/eviction_threads.h).
extern "C" int simgpu_send_away(void* begin, void* queue, const uint64_t* bases, const uint64_t* lengths, size_t count,
                                int threads);

#endif  // SLUICE_HOOKLIB_DISPATCH_CUDA_API_H_
