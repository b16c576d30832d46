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

#include "hooklib/dispatch/cuda_newer.h"

// Exported by the driver; cuda.h declares it only where it renames everything to _ptsz.
extern "C" CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                                     CUdriverProcAddressQueryResult* symbolStatus);
// Exported by a driver without a kernel module under it, which answers in the module's place
// (hooklib/engine/execute/driver_port.h).
extern "C" const struct sluice_driver_port_table* sluice_driver_port(uint32_t version);

#endif  // SLUICE_HOOKLIB_DISPATCH_CUDA_API_H_
