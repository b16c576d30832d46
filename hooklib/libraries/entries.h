// Entries that are more than a description: hooks.def's plain SLUICE_LIB rows. Each has exactly the type of its
// function.
#ifndef SLUICE_HOOKLIB_LIBRARIES_ENTRIES_H_
#define SLUICE_HOOKLIB_LIBRARIES_ENTRIES_H_

#include <cudnn.h>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/call_scope.h"

namespace sluice::libraries::entry {

extern abi::SetWorkspace cublasSetWorkspace_v2;
extern abi::SetStream cublasSetStream_v2;
extern abi::Destroy cublasDestroy_v2;
extern abi::LtMatmul cublasLtMatmul;
extern abi::LtMatrixTransform cublasLtMatrixTransform;

extern decltype(::cudnnBackendCreateDescriptor) cudnnBackendCreateDescriptor;
extern decltype(::cudnnBackendSetAttribute) cudnnBackendSetAttribute;
extern decltype(::cudnnBackendGetAttribute) cudnnBackendGetAttribute;
extern decltype(::cudnnBackendFinalize) cudnnBackendFinalize;
extern decltype(::cudnnBackendDestroyDescriptor) cudnnBackendDestroyDescriptor;
extern decltype(::cudnnBackendExecute) cudnnBackendExecute;

}  // namespace sluice::libraries::entry

#endif  // SLUICE_HOOKLIB_LIBRARIES_ENTRIES_H_
