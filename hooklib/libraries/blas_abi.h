// The functions of cuBLAS as we call and define them: handles and matrices are pointers, enumerations int. Its headers
// come only in a wheel of 423 MB; test/libraries holds these to them where they are installed.
#ifndef SLUICE_HOOKLIB_LIBRARIES_BLAS_ABI_H_
#define SLUICE_HOOKLIB_LIBRARIES_BLAS_ABI_H_

#include <cstddef>
#include <cstdint>

namespace sluice::libraries::abi {

using P = void*;
using C = const void*;
using Long = long long;  // batch strides

// I: int, or int64_t of the functions whose name ends in _64. Named as the families of SLUICE_BLAS rows (hooks.def).
template <typename I>
struct Blas {
  using Gemm = int(P, int, int, I, I, I, C, C, I, C, I, C, P, I);
  using GemmTyped = int(P, int, int, I, I, I, C, C, int, I, C, int, I, C, P, int, I);  // SgemmEx
  using GemmEx = int(P, int, int, I, I, I, C, C, int, I, C, int, I, C, P, int, I, int, int);
  using GemmBatched = int(P, int, int, I, I, I, C, const C*, I, const C*, I, C, const P*, I, I);
  using GemmBatchedEx = int(P, int, int, I, I, I, C, const C*, int, I, const C*, int, I, C, const P*, int, I, I, int,
                            int);
  using GemmStrided = int(P, int, int, I, I, I, C, C, I, Long, C, I, Long, C, P, I, Long, I);
  using GemmStridedEx = int(P, int, int, I, I, I, C, C, int, I, Long, C, int, I, Long, C, P, int, I, Long, I, int, int);
  using GemmGrouped = int(P, const int*, const int*, const I*, const I*, const I*, C, const C*, const I*, const C*,
                          const I*, C, const P*, const I*, I, const I*);
  using GemmGroupedEx = int(P, const int*, const int*, const I*, const I*, const I*, C, const C*, int, const I*,
                            const C*, int, const I*, C, const P*, int, const I*, I, const I*, int);
  using Gemv = int(P, int, I, I, C, C, I, C, I, C, P, I);
  using GemvStrided = int(P, int, I, I, C, C, I, Long, C, I, Long, C, P, I, Long, I);
  using Trsm = int(P, int, int, int, int, I, I, C, C, I, P, I);
  using TrsmBatched = int(P, int, int, int, int, I, I, C, const C*, I, const P*, I, I);
  using Trmm = int(P, int, int, int, int, I, I, C, C, I, C, I, P, I);
  using Symm = int(P, int, int, I, I, C, C, I, C, I, C, P, I);
  using Syrk = int(P, int, int, I, I, C, C, I, C, P, I);
  using Syr2k = int(P, int, int, I, I, C, C, I, C, I, C, P, I);
  using Her2k = int(P, int, int, I, I, C, C, I, C, I, C, P, I);
  using Geam = int(P, int, int, I, I, C, C, I, C, C, I, P, I);
  using Dgmm = int(P, int, I, I, C, I, C, I, P, I);
};

using SetWorkspace = int(P, P, std::size_t);
using SetStream = int(P, P);
using Destroy = int(P);
using GetPointerMode = int(P, int*);

using LtMatmul = int(P, P, C, C, P, C, P, C, C, P, P, P, C, P, std::size_t, P);
using LtMatrixTransform = int(P, P, C, C, P, C, C, P, P, P, P);
// cublasLtMatmulAlgo_t, cublasLtMatmulHeuristicResult_t.
struct LtAlgo {
  uint64_t data[8];
};
struct LtAlgoResult {
  LtAlgo algo;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
using LtAlgoCheck = int(P, P, P, P, P, P, const LtAlgo*, LtAlgoResult*);
using LtGetAttribute = int(P, int, P, std::size_t, std::size_t*);  // of layouts, matmul and transform descriptors

}  // namespace sluice::libraries::abi

#endif  // SLUICE_HOOKLIB_LIBRARIES_BLAS_ABI_H_
