// Our declarations of cuBLAS' functions and our copies of its numbers against its headers, at compile time. Built where
// the headers are installed (scripts/setup test fetches them); abi_test.py checks that no call is missing.
#include <cublasLt.h>
#include <cublas_api.h>

#include <catch2/catch_test_macros.hpp>
#include <type_traits>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/extents/lt.h"

// C++ overloads three of the functions. The exported overload takes int where its sister for 64 bits takes int64_t.
template <typename Call>
struct NarrowOf;
template <typename Result, typename... Args>
struct NarrowOf<Result(Args...)> {
  using Type = Result(std::conditional_t<std::is_same_v<Args, int64_t>, int, Args>...);
};
#define SLUICE_EXPORTED(symbol)                                          \
  extern NarrowOf<decltype(symbol##_64)>::Type sluice_exported_##symbol; \
  [[maybe_unused]] constexpr NarrowOf<decltype(symbol##_64)>::Type* sluice_overload_##symbol = &(symbol);
SLUICE_EXPORTED(cublasGemmEx)
SLUICE_EXPORTED(cublasGemmBatchedEx)
SLUICE_EXPORTED(cublasGemmStridedBatchedEx)
#define cublasGemmEx sluice_exported_cublasGemmEx
#define cublasGemmBatchedEx sluice_exported_cublasGemmBatchedEx
#define cublasGemmStridedBatchedEx sluice_exported_cublasGemmStridedBatchedEx

namespace sluice::libraries {
namespace {

// A type as the calling convention sees it: every pointer is void*, every enumeration int.
template <typename T>
using Passed = std::conditional_t<std::is_pointer_v<T>, void*, std::conditional_t<std::is_enum_v<T>, int, T>>;
template <typename Call>
struct SignatureOf;
template <typename Result, typename... Args>
struct SignatureOf<Result(Args...)> {
  using Type = Passed<Result>(Passed<Args>...);
};
template <typename Ours, typename Theirs>
constexpr bool kSameCall = std::is_same_v<typename SignatureOf<Ours>::Type, typename SignatureOf<Theirs>::Type>;

// --- signatures ---

#define SLUICE_LIB(symbol, soname_prefix)
#define SLUICE_CUDNN(symbol)
#define SLUICE_BLAS(symbol, family, integer, scalar, element) \
  static_assert(kSameCall<abi::Blas<integer>::family, decltype(::symbol)>, #symbol);
#include "hooklib/hooks.def"
static_assert(kSameCall<abi::SetWorkspace, decltype(::cublasSetWorkspace_v2)>);
static_assert(kSameCall<abi::SetStream, decltype(::cublasSetStream_v2)>);
static_assert(kSameCall<abi::Destroy, decltype(::cublasDestroy_v2)>);
static_assert(kSameCall<abi::GetPointerMode, decltype(::cublasGetPointerMode_v2)>);
static_assert(kSameCall<abi::LtMatmul, decltype(::cublasLtMatmul)>);
static_assert(kSameCall<abi::LtAlgoCheck, decltype(::cublasLtMatmulAlgoCheck)>);
static_assert(kSameCall<abi::LtMatrixTransform, decltype(::cublasLtMatrixTransform)>);
static_assert(kSameCall<abi::LtGetAttribute, decltype(::cublasLtMatrixLayoutGetAttribute)>);
static_assert(kSameCall<abi::LtGetAttribute, decltype(::cublasLtMatmulDescGetAttribute)>);
static_assert(kSameCall<abi::LtGetAttribute, decltype(::cublasLtMatrixTransformDescGetAttribute)>);
static_assert(sizeof(abi::LtAlgo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(abi::LtAlgoResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(abi::LtAlgoResult, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));

// --- numbers ---

#define SLUICE_SAME(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs);
SLUICE_SAME(blas::kN, CUBLAS_OP_N)
SLUICE_SAME(blas::kT, CUBLAS_OP_T)
SLUICE_SAME(blas::kC, CUBLAS_OP_C)
SLUICE_SAME(blas::kLeft, CUBLAS_SIDE_LEFT)
SLUICE_SAME(blas::kRight, CUBLAS_SIDE_RIGHT)
SLUICE_SAME(blas::kLower, CUBLAS_FILL_MODE_LOWER)
SLUICE_SAME(blas::kUpper, CUBLAS_FILL_MODE_UPPER)
SLUICE_SAME(blas::kFull, CUBLAS_FILL_MODE_FULL)
SLUICE_SAME(blas::kNonUnit, CUBLAS_DIAG_NON_UNIT)
SLUICE_SAME(blas::kUnit, CUBLAS_DIAG_UNIT)
SLUICE_SAME(blas::kFactorsOnHost, CUBLAS_POINTER_MODE_HOST)
SLUICE_SAME(blas::kFactorsOnDevice, CUBLAS_POINTER_MODE_DEVICE)
SLUICE_SAME(blas::kCompute16F, CUBLAS_COMPUTE_16F)
SLUICE_SAME(blas::kCompute16FPedantic, CUBLAS_COMPUTE_16F_PEDANTIC)
SLUICE_SAME(blas::kCompute64F, CUBLAS_COMPUTE_64F)
SLUICE_SAME(blas::kCompute64FPedantic, CUBLAS_COMPUTE_64F_PEDANTIC)
SLUICE_SAME(blas::kCompute64FEmulated, CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT)
SLUICE_SAME(blas::kCompute32I, CUBLAS_COMPUTE_32I)
SLUICE_SAME(blas::kCompute32IPedantic, CUBLAS_COMPUTE_32I_PEDANTIC)

SLUICE_SAME(lt::kCol, CUBLASLT_ORDER_COL)
SLUICE_SAME(lt::kRow, CUBLASLT_ORDER_ROW)
SLUICE_SAME(lt::kCol32, CUBLASLT_ORDER_COL32)
SLUICE_SAME(lt::kCol4_4R2_8C, CUBLASLT_ORDER_COL4_4R2_8C)
SLUICE_SAME(lt::kCol32_2R_4R4, CUBLASLT_ORDER_COL32_2R_4R4)
SLUICE_SAME(lt::kHost, CUBLASLT_POINTER_MODE_HOST)
SLUICE_SAME(lt::kDevice, CUBLASLT_POINTER_MODE_DEVICE)
SLUICE_SAME(lt::kDeviceVector, CUBLASLT_POINTER_MODE_DEVICE_VECTOR)
SLUICE_SAME(lt::kAlphaVectorBetaZero, CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO)
SLUICE_SAME(lt::kAlphaVectorBetaHost, CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST)
SLUICE_SAME(lt::kRelu, CUBLASLT_EPILOGUE_RELU)
SLUICE_SAME(lt::kRelu | lt::kAux, CUBLASLT_EPILOGUE_RELU_AUX)
SLUICE_SAME(lt::kBias, CUBLASLT_EPILOGUE_BIAS)
SLUICE_SAME(lt::kDrelu | lt::kAux, CUBLASLT_EPILOGUE_DRELU)
SLUICE_SAME(lt::kDrelu | lt::kAux | lt::kBiasGradient, CUBLASLT_EPILOGUE_DRELU_BGRAD)
SLUICE_SAME(lt::kGelu, CUBLASLT_EPILOGUE_GELU)
SLUICE_SAME(lt::kDgelu | lt::kAux, CUBLASLT_EPILOGUE_DGELU)
SLUICE_SAME(lt::kBgradA, CUBLASLT_EPILOGUE_BGRADA)
SLUICE_SAME(lt::kBgradB, CUBLASLT_EPILOGUE_BGRADB)
SLUICE_SAME(lt::kStrided, CUBLASLT_BATCH_MODE_STRIDED)
SLUICE_SAME(lt::kPointerArray, CUBLASLT_BATCH_MODE_POINTER_ARRAY)
SLUICE_SAME(lt::kScalar32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)
SLUICE_SAME(lt::kVec16, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3)
SLUICE_SAME(lt::kVec32, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)
SLUICE_SAME(lt::kOuterVec, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)
SLUICE_SAME(lt::kVec128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F)
SLUICE_SAME(lt::kBlock128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)

#define SLUICE_LT_LAYOUT(name, number) SLUICE_SAME(number, CUBLASLT_MATRIX_LAYOUT_##name)
#define SLUICE_LT_MATMUL(name, number) SLUICE_SAME(number, CUBLASLT_MATMUL_DESC_##name)
#define SLUICE_LT_TRANSFORM(name, number) SLUICE_SAME(number, CUBLASLT_MATRIX_TRANSFORM_DESC_##name)
#include "hooklib/libraries/cublaslt_attributes.def"

TEST_CASE("declarations and numbers of cuBLAS are its headers'") { SUCCEED("this compiled"); }

}  // namespace
}  // namespace sluice::libraries
