// The functions of cuBLAS as sluice calls and defines them: handles and matrices are pointers, enumerations are int.
// cuBLAS' headers come only in a wheel of 423 MB; test/libraries compares these with them where they are installed.
#ifndef SLUICE_HOOKLIB_LIBRARIES_BLAS_ABI_H_
#define SLUICE_HOOKLIB_LIBRARIES_BLAS_ABI_H_

#include <cstddef>
#include <cstdint>

namespace sluice::libraries::abi {

using Pointer = void*;
using ConstPointer = const void*;
using BatchStride = long long;

// Int: int, or int64_t for the functions whose name ends in _64. The types are named as the families of SLUICE_BLAS
// rows (hooks.def).
template <typename Int>
struct Blas {
  using Gemm = int(Pointer, int, int, Int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Int, ConstPointer,
                   Pointer, Int);
  using GemmTyped = int(Pointer, int, int, Int, Int, Int, ConstPointer, ConstPointer, int, Int, ConstPointer, int, Int,
                        ConstPointer, Pointer, int, Int);  // SgemmEx
  using GemmEx = int(Pointer, int, int, Int, Int, Int, ConstPointer, ConstPointer, int, Int, ConstPointer, int, Int,
                     ConstPointer, Pointer, int, Int, int, int);
  using GemmBatched = int(Pointer, int, int, Int, Int, Int, ConstPointer, const ConstPointer*, Int, const ConstPointer*,
                          Int, ConstPointer, const Pointer*, Int, Int);
  using GemmBatchedEx = int(Pointer, int, int, Int, Int, Int, ConstPointer, const ConstPointer*, int, Int,
                            const ConstPointer*, int, Int, ConstPointer, const Pointer*, int, Int, Int, int, int);
  using GemmStrided = int(Pointer, int, int, Int, Int, Int, ConstPointer, ConstPointer, Int, BatchStride, ConstPointer,
                          Int, BatchStride, ConstPointer, Pointer, Int, BatchStride, Int);
  using GemmStridedEx = int(Pointer, int, int, Int, Int, Int, ConstPointer, ConstPointer, int, Int, BatchStride,
                            ConstPointer, int, Int, BatchStride, ConstPointer, Pointer, int, Int, BatchStride, Int, int,
                            int);
  using GemmGrouped = int(Pointer, const int*, const int*, const Int*, const Int*, const Int*, ConstPointer,
                          const ConstPointer*, const Int*, const ConstPointer*, const Int*, ConstPointer,
                          const Pointer*, const Int*, Int, const Int*);
  using GemmGroupedEx = int(Pointer, const int*, const int*, const Int*, const Int*, const Int*, ConstPointer,
                            const ConstPointer*, int, const Int*, const ConstPointer*, int, const Int*, ConstPointer,
                            const Pointer*, int, const Int*, Int, const Int*, int);
  using Gemv = int(Pointer, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Int, ConstPointer, Pointer,
                   Int);
  using GemvStrided = int(Pointer, int, Int, Int, ConstPointer, ConstPointer, Int, BatchStride, ConstPointer, Int,
                          BatchStride, ConstPointer, Pointer, Int, BatchStride, Int);
  using Trsm = int(Pointer, int, int, int, int, Int, Int, ConstPointer, ConstPointer, Int, Pointer, Int);
  using TrsmBatched = int(Pointer, int, int, int, int, Int, Int, ConstPointer, const ConstPointer*, Int, const Pointer*,
                          Int, Int);
  using Trmm = int(Pointer, int, int, int, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Int, Pointer,
                   Int);
  using Symm = int(Pointer, int, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Int, ConstPointer,
                   Pointer, Int);
  using Syrk = int(Pointer, int, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Pointer, Int);
  using Syr2k = int(Pointer, int, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Int, ConstPointer,
                    Pointer, Int);
  using Her2k = int(Pointer, int, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, Int, ConstPointer,
                    Pointer, Int);
  using Geam = int(Pointer, int, int, Int, Int, ConstPointer, ConstPointer, Int, ConstPointer, ConstPointer, Int,
                   Pointer, Int);
  using Dgmm = int(Pointer, int, Int, Int, ConstPointer, Int, ConstPointer, Int, Pointer, Int);
};

using SetWorkspace = int(Pointer, Pointer, std::size_t);
using SetStream = int(Pointer, Pointer);
using Destroy = int(Pointer);
using GetPointerMode = int(Pointer, int*);

using LtMatmul = int(Pointer, Pointer, ConstPointer, ConstPointer, Pointer, ConstPointer, Pointer, ConstPointer,
                     ConstPointer, Pointer, Pointer, Pointer, ConstPointer, Pointer, std::size_t, Pointer);
using LtMatrixTransform = int(Pointer, Pointer, ConstPointer, ConstPointer, Pointer, ConstPointer, ConstPointer,
                              Pointer, Pointer, Pointer, Pointer);
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
using LtAlgoCheck = int(Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, const LtAlgo*, LtAlgoResult*);
using LtGetAttribute = int(Pointer, int, Pointer, std::size_t,
                           std::size_t*);  // of layouts, matmul and transform descriptors

// Attributes of cublasLt's descriptors, named as the library names them.
struct LtLayoutAttribute {
  enum : int {
#define SLUICE_LT_LAYOUT(name, number) CUBLASLT_MATRIX_LAYOUT_##name = (number),
#include "hooklib/libraries/cublaslt_attributes.def"
  };
};
struct LtMatmulAttribute {
  enum : int {
#define SLUICE_LT_MATMUL(name, number) CUBLASLT_MATMUL_DESC_##name = (number),
#include "hooklib/libraries/cublaslt_attributes.def"
  };
};
struct LtTransformAttribute {
  enum : int {
#define SLUICE_LT_TRANSFORM(name, number) CUBLASLT_MATRIX_TRANSFORM_DESC_##name = (number),
#include "hooklib/libraries/cublaslt_attributes.def"
  };
};

}  // namespace sluice::libraries::abi

#endif  // SLUICE_HOOKLIB_LIBRARIES_BLAS_ABI_H_
