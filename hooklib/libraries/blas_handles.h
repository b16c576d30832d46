// The workspace that a program gave a cuBLAS handle: the library has no getter for it.
#ifndef SLUICE_HOOKLIB_LIBRARIES_BLAS_HANDLES_H_
#define SLUICE_HOOKLIB_LIBRARIES_BLAS_HANDLES_H_

#include <cstdint>

namespace sluice::libraries {

struct Workspace {
  uint64_t address = 0, bytes = 0;
};
// Zero bytes: the handle uses the library's own workspace, or its slot was taken by another handle. Any thread.
Workspace WorkspaceOf(void* handle);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_BLAS_HANDLES_H_
