// What cuBLAS cannot be asked about a handle: the workspace that the program gave it.
#ifndef SLUICE_HOOKLIB_LIBRARIES_BLAS_HANDLES_H_
#define SLUICE_HOOKLIB_LIBRARIES_BLAS_HANDLES_H_

#include <cstdint>

namespace sluice::libraries {

struct Workspace {
  uint64_t address = 0, bytes = 0;
};
Workspace WorkspaceOf(void* handle);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_BLAS_HANDLES_H_
