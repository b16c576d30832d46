// Ends a helper of the random programs at the first error.
#ifndef SLUICE_TEST_DIFFERENTIAL_TRY_H_
#define SLUICE_TEST_DIFFERENTIAL_TRY_H_

#include <cuda.h>

#define TRY(call)                            \
  do {                                       \
    const CUresult tried = (call);           \
    if (tried != CUDA_SUCCESS) return tried; \
  } while (false)

#endif  // SLUICE_TEST_DIFFERENTIAL_TRY_H_
