// A copy of the engine's own between two places of the application's memory.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_CONTENTS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_CONTENTS_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// In the legacy stream of the current context, planned as a copy of the application's: `to` is overwritten. `from` may
// be memory that is not mapped for the application. May return before the copy is done. Thread-safe.
CUresult CopyContents(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult CopyContentsFromHost(CUdeviceptr to, const void* from, size_t bytes);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_CONTENTS_H_
