// cuBLAS: one description for each family. hooks.def's SLUICE_BLAS rows make the entries.
#include <cstring>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/blas_handles.h"
#include "hooklib/libraries/entry.h"
#include "hooklib/libraries/extents/blas.h"
#include "hooklib/libraries/pointer_arrays.h"

namespace sluice::libraries {

namespace {

using abi::BatchStride;
using abi::ConstPointer;
using abi::Pointer;

enum ScalarType { F16, F32, F64, C32, C64, I32 };
constexpr uint64_t kScalarBytes[] = {2, 4, 8, 8, 16, 4};

bool IsZero(const void* at, ScalarType type) {
  uint64_t parts[2] = {};
  std::memcpy(parts, at, kScalarBytes[type]);
  auto f32 = [](uint64_t bits) { return (bits & 0x7fffffffu) == 0; };  // -0.0 too
  auto f64 = [](uint64_t bits) { return bits << 1 == 0; };
  switch (type) {
    case F16:
      return (parts[0] & 0x7fff) == 0;
    case F32:
      return f32(parts[0] & 0xffffffffu);
    case F64:
      return f64(parts[0]);
    case C32:
      return f32(parts[0] & 0xffffffffu) && f32(parts[0] >> 32);
    case C64:
      return f64(parts[0]) && f64(parts[1]);
    default:
      return parts[0] == 0;  // an integer or a float: zero as both
  }
}

// The type of alpha and beta of a typed call, by its compute type: cublasComputeType_t or, before CUDA 11,
// cudaDataType.
ScalarType ScalarOf(int compute, int result) {
  using Type = blas::CudaDataType;
  const bool complex = result == Type::CUDA_C_32F || result == Type::CUDA_C_64F || result == Type::CUDA_C_16F ||
                       result == Type::CUDA_C_8I || result == Type::CUDA_C_8U || result == Type::CUDA_C_16BF;
  switch (compute) {
    case blas::kCompute16F:
    case blas::kCompute16FPedantic:
    case Type::CUDA_R_16F:
      return F16;
    case blas::kCompute64F:
    case blas::kCompute64FPedantic:
    case blas::kCompute64FEmulated:
    case Type::CUDA_R_64F:
    case Type::CUDA_C_64F:
      return complex || compute == Type::CUDA_C_64F ? C64 : F64;
    case blas::kCompute32I:
    case blas::kCompute32IPedantic:
    case Type::CUDA_R_32I:
      return I32;
    default:
      return complex || compute == Type::CUDA_C_32F ? C32 : F32;
  }
}

// The handle's settings that every description needs.
class Call {
 public:
  Call(const LibraryCopy& copy, Pointer handle, AccessSet* set) {
    auto* const get = copy.Find<abi::GetPointerMode>("cublasGetPointerMode_v2");
    int mode = 0;
    if (!get || get(handle, &mode) != 0) {
      set->MarkUnknown(UnknownReason::kDescriptor);
      known_ = false;
    }
    on_device_ = mode == blas::kFactorsOnDevice;
    if (const Workspace own = WorkspaceOf(handle); own.bytes)
      set->AddOptional(Region::Bytes(own.address, own.bytes), Use::kScratch);
  }
  // `used`: the library reads the factor. Where it returns before, the pointer may be invalid and is not followed.
  blas::Scalar Scalar(ConstPointer at, ScalarType type, bool used) const {
    if (on_device_) return {Address(at), kScalarBytes[type], false};
    return {0, kScalarBytes[type], used && known_ && at && IsZero(at, type)};
  }

 private:
  bool on_device_ = false, known_ = true;
};

blas::Operand Of(ConstPointer at, int64_t ld, uint64_t bytes, int64_t stride = 0) {
  return {Address(at), ld, bytes, stride};
}

// --- GEMM in all its forms ---

struct GemmTypes {
  uint64_t a, b, c;
  ScalarType scalar;
};

template <typename Int>
void DescribeGemm(const LibraryCopy& copy, AccessSet* set, Pointer handle, int ta, int tb, Int m, Int n, Int k,
                  ConstPointer alpha, blas::Operand a, blas::Operand b, ConstPointer beta, blas::Operand c,
                  ScalarType scalar, int64_t batch) {
  const Call call(copy, handle, set);
  const bool used = m > 0 && n > 0 && batch > 0;
  Describe(
      blas::Gemm{ta, tb, m, n, k, a, b, c, call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used), batch},
      set);
}

struct PointerArrays {
  std::vector<uint64_t> operands[3];
};

template <typename Int>
void DescribeBatched(const LibraryCopy& copy, AccessSet* set, Pointer handle, int ta, int tb, Int m, Int n, Int k,
                     ConstPointer alpha, const ConstPointer* a, Int lda, const ConstPointer* b, Int ldb,
                     ConstPointer beta, const Pointer* c, Int ldc, Int batch, const GemmTypes& types) {
  const Call call(copy, handle, set);
  PointerArrays seen;
  const uint64_t arrays[3] = {Address(a), Address(b), Address(c)};
  const auto count = static_cast<uint64_t>(batch > 0 ? batch : 0);
  for (int i = 0; i < 3; ++i) {
    if (!SeenPointers(arrays[i], count, &seen.operands[i])) seen.operands[i].clear();
  }
  const bool used = m > 0 && n > 0 && batch > 0;
  blas::BatchedGemm it;
  it.one = {ta,
            tb,
            m,
            n,
            k,
            Of(nullptr, lda, types.a),
            Of(nullptr, ldb, types.b),
            Of(nullptr, ldc, types.c),
            call.Scalar(alpha, types.scalar, used),
            call.Scalar(beta, types.scalar, used),
            1};
  it.a = {arrays[0], seen.operands[0]}, it.b = {arrays[1], seen.operands[1]}, it.c = {arrays[2], seen.operands[2]};
  it.batch = batch;
  Describe(it, set);
}

// Groups: sizes and factors are in host arrays, one for each group. The pointers of all groups follow each other in
// three device arrays.
template <typename Int>
void DescribeGrouped(const LibraryCopy& copy, AccessSet* set, Pointer handle, const int* ta, const int* tb,
                     const Int* m, const Int* n, const Int* k, ConstPointer alpha, const ConstPointer* a,
                     const Int* lda, const ConstPointer* b, const Int* ldb, ConstPointer beta, const Pointer* c,
                     const Int* ldc, Int groups, const Int* sizes, const GemmTypes& types) {
  const Call call(copy, handle, set);
  if (groups < 0 || !ta || !tb || !m || !n || !k || !lda || !ldb || !ldc || !sizes || !beta || !alpha)
    return set->MarkUnknown(groups == 0 ? UnknownReason::kNone : UnknownReason::kUnsupported);
  PointerArrays seen;
  uint64_t at = 0;
  for (Int group = 0; group < groups && set->known(); ++group) {
    if (sizes[group] < 0) return set->MarkUnknown(UnknownReason::kUnsupported);
    const auto count = static_cast<uint64_t>(sizes[group]);
    const uint64_t arrays[3] = {Address(a + at), Address(b + at), Address(c + at)};
    for (int i = 0; i < 3; ++i) {
      if (!SeenPointers(arrays[i], count, &seen.operands[i])) seen.operands[i].clear();
    }
    const auto factor = static_cast<std::ptrdiff_t>(static_cast<uint64_t>(group) * kScalarBytes[types.scalar]);
    blas::BatchedGemm it;
    it.one = {ta[group],
              tb[group],
              m[group],
              n[group],
              k[group],
              Of(nullptr, lda[group], types.a),
              Of(nullptr, ldb[group], types.b),
              Of(nullptr, ldc[group], types.c),
              call.Scalar(static_cast<const char*>(alpha) + factor, types.scalar, true),
              call.Scalar(static_cast<const char*>(beta) + factor, types.scalar, true),
              1};
    it.a = {arrays[0], seen.operands[0]}, it.b = {arrays[1], seen.operands[1]}, it.c = {arrays[2], seen.operands[2]};
    it.batch = sizes[group];
    Describe(it, set);
    at += count;
  }
}

// The families' descriptions for rows with this integer type, type of alpha and beta, and element type.
template <typename Int, ScalarType scalar, ScalarType element>
struct Family {
  static constexpr uint64_t kElement = kScalarBytes[element];
  static constexpr GemmTypes kTypes{kElement, kElement, kElement, scalar};

  static void Gemm(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                   ConstPointer alpha, ConstPointer a, Int lda, ConstPointer b, Int ldb, ConstPointer beta, Pointer c,
                   Int ldc) {
    DescribeGemm<Int>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, kElement), Of(b, ldb, kElement), beta,
                      Of(c, ldc, kElement), scalar, 1);
  }
  static void GemmTyped(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                        ConstPointer alpha, ConstPointer a, int at, Int lda, ConstPointer b, int bt, Int ldb,
                        ConstPointer beta, Pointer c, int ct, Int ldc) {
    DescribeGemm<Int>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, blas::BytesOf(at)),
                      Of(b, ldb, blas::BytesOf(bt)), beta, Of(c, ldc, blas::BytesOf(ct)), scalar, 1);
  }
  static void GemmEx(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                     ConstPointer alpha, ConstPointer a, int at, Int lda, ConstPointer b, int bt, Int ldb,
                     ConstPointer beta, Pointer c, int ct, Int ldc, int compute, int) {
    DescribeGemm<Int>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, blas::BytesOf(at)),
                      Of(b, ldb, blas::BytesOf(bt)), beta, Of(c, ldc, blas::BytesOf(ct)), ScalarOf(compute, ct), 1);
  }
  static void GemmStrided(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                          ConstPointer alpha, ConstPointer a, Int lda, BatchStride sa, ConstPointer b, Int ldb,
                          BatchStride sb, ConstPointer beta, Pointer c, Int ldc, BatchStride sc, Int batch) {
    DescribeGemm<Int>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, kElement, sa), Of(b, ldb, kElement, sb), beta,
                      Of(c, ldc, kElement, sc), scalar, batch);
  }
  static void GemmStridedEx(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                            ConstPointer alpha, ConstPointer a, int at, Int lda, BatchStride sa, ConstPointer b, int bt,
                            Int ldb, BatchStride sb, ConstPointer beta, Pointer c, int ct, Int ldc, BatchStride sc,
                            Int batch, int compute, int) {
    DescribeGemm<Int>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, blas::BytesOf(at), sa),
                      Of(b, ldb, blas::BytesOf(bt), sb), beta, Of(c, ldc, blas::BytesOf(ct), sc), ScalarOf(compute, ct),
                      batch);
  }
  static void GemmBatched(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                          ConstPointer alpha, const ConstPointer* a, Int lda, const ConstPointer* b, Int ldb,
                          ConstPointer beta, const Pointer* c, Int ldc, Int batch) {
    DescribeBatched<Int>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch, kTypes);
  }
  static void GemmBatchedEx(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, Int k,
                            ConstPointer alpha, const ConstPointer* a, int at, Int lda, const ConstPointer* b, int bt,
                            Int ldb, ConstPointer beta, const Pointer* c, int ct, Int ldc, Int batch, int compute,
                            int) {
    DescribeBatched<Int>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch,
                         {blas::BytesOf(at), blas::BytesOf(bt), blas::BytesOf(ct), ScalarOf(compute, ct)});
  }
  static void GemmGrouped(const LibraryCopy& copy, AccessSet* set, Pointer h, const int* ta, const int* tb,
                          const Int* m, const Int* n, const Int* k, ConstPointer alpha, const ConstPointer* a,
                          const Int* lda, const ConstPointer* b, const Int* ldb, ConstPointer beta, const Pointer* c,
                          const Int* ldc, Int groups, const Int* sizes) {
    DescribeGrouped<Int>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, groups, sizes, kTypes);
  }
  static void GemmGroupedEx(const LibraryCopy& copy, AccessSet* set, Pointer h, const int* ta, const int* tb,
                            const Int* m, const Int* n, const Int* k, ConstPointer alpha, const ConstPointer* a, int at,
                            const Int* lda, const ConstPointer* b, int bt, const Int* ldb, ConstPointer beta,
                            const Pointer* c, int ct, const Int* ldc, Int groups, const Int* sizes, int compute) {
    DescribeGrouped<Int>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, groups, sizes,
                         {blas::BytesOf(at), blas::BytesOf(bt), blas::BytesOf(ct), ScalarOf(compute, ct)});
  }

  // --- matrix and vector ---
  static void Gemv(const LibraryCopy& copy, AccessSet* set, Pointer h, int trans, Int m, Int n, ConstPointer alpha,
                   ConstPointer a, Int lda, ConstPointer x, Int incx, ConstPointer beta, Pointer y, Int incy) {
    GemvStrided(copy, set, h, trans, m, n, alpha, a, lda, 0, x, incx, 0, beta, y, incy, 0, 1);
  }
  static void GemvStrided(const LibraryCopy& copy, AccessSet* set, Pointer h, int trans, Int m, Int n,
                          ConstPointer alpha, ConstPointer a, Int lda, BatchStride sa, ConstPointer x, Int incx,
                          BatchStride sx, ConstPointer beta, Pointer y, Int incy, BatchStride sy, Int batch) {
    const Call call(copy, h, set);
    const bool used = m > 0 && n > 0 && batch > 0;
    Describe(blas::Gemv{trans, m, n, Of(a, lda, kElement, sa), Of(x, incx, kElement, sx), Of(y, incy, kElement, sy),
                        call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used), batch},
             set);
  }
  static void Dgmm(const LibraryCopy& copy, AccessSet* set, Pointer h, int side, Int m, Int n, ConstPointer a, Int lda,
                   ConstPointer x, Int incx, Pointer c, Int ldc) {
    const Call call(copy, h, set);
    Describe(blas::Dgmm{side, m, n, Of(a, lda, kElement), Of(x, incx, kElement), Of(c, ldc, kElement)}, set);
  }

  // --- triangles ---
  static void Trsm(const LibraryCopy& copy, AccessSet* set, Pointer h, int side, int uplo, int, int diag, Int m, Int n,
                   ConstPointer alpha, ConstPointer a, Int lda, Pointer b, Int ldb) {
    const Call call(copy, h, set);
    Describe(blas::Triangular{side,
                              uplo,
                              diag,
                              m,
                              n,
                              Of(a, lda, kElement),
                              Of(b, ldb, kElement),
                              {},
                              call.Scalar(alpha, scalar, false),
                              true},
             set);
  }
  static void TrsmBatched(const LibraryCopy& copy, AccessSet* set, Pointer h, int side, int uplo, int, int diag, Int m,
                          Int n, ConstPointer alpha, const ConstPointer* a, Int lda, const Pointer* b, Int ldb,
                          Int batch) {
    const Call call(copy, h, set);
    PointerArrays seen;
    const auto count = static_cast<uint64_t>(batch > 0 ? batch : 0);
    if (!SeenPointers(Address(a), count, &seen.operands[0])) seen.operands[0].clear();
    if (!SeenPointers(Address(b), count, &seen.operands[1])) seen.operands[1].clear();
    Describe(blas::BatchedTrsm{{side,
                                uplo,
                                diag,
                                m,
                                n,
                                Of(nullptr, lda, kElement),
                                Of(nullptr, ldb, kElement),
                                {},
                                call.Scalar(alpha, scalar, false),
                                true},
                               {Address(a), seen.operands[0]},
                               {Address(b), seen.operands[1]},
                               batch},
             set);
  }
  static void Trmm(const LibraryCopy& copy, AccessSet* set, Pointer h, int side, int uplo, int, int diag, Int m, Int n,
                   ConstPointer alpha, ConstPointer a, Int lda, ConstPointer b, Int ldb, Pointer c, Int ldc) {
    const Call call(copy, h, set);
    Describe(blas::Triangular{side, uplo, diag, m, n, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                              call.Scalar(alpha, scalar, false), false},
             set);
  }
  static void Symm(const LibraryCopy& copy, AccessSet* set, Pointer h, int side, int uplo, Int m, Int n,
                   ConstPointer alpha, ConstPointer a, Int lda, ConstPointer b, Int ldb, ConstPointer beta, Pointer c,
                   Int ldc) {
    const Call call(copy, h, set);
    const bool used = m > 0 && n > 0;
    Describe(blas::Symm{side, uplo, m, n, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                        call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used)},
             set);
  }
  static void Rank(const LibraryCopy& copy, AccessSet* set, Pointer h, int uplo, int trans, Int n, Int k,
                   ConstPointer alpha, ConstPointer a, Int lda, ConstPointer b, Int ldb, ConstPointer beta, Pointer c,
                   Int ldc, bool two, ScalarType alpha_type = scalar) {
    const Call call(copy, h, set);
    const bool used = n > 0;
    Describe(blas::Syrk{uplo, trans, n, k, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                        call.Scalar(alpha, alpha_type, used), call.Scalar(beta, scalar, used), two},
             set);
  }
  static void Syrk(const LibraryCopy& copy, AccessSet* set, Pointer h, int uplo, int trans, Int n, Int k,
                   ConstPointer alpha, ConstPointer a, Int lda, ConstPointer beta, Pointer c, Int ldc) {
    Rank(copy, set, h, uplo, trans, n, k, alpha, a, lda, nullptr, 0, beta, c, ldc, false);
  }
  static void Syr2k(const LibraryCopy& copy, AccessSet* set, Pointer h, int uplo, int trans, Int n, Int k,
                    ConstPointer alpha, ConstPointer a, Int lda, ConstPointer b, Int ldb, ConstPointer beta, Pointer c,
                    Int ldc) {
    Rank(copy, set, h, uplo, trans, n, k, alpha, a, lda, b, ldb, beta, c, ldc, true);
  }
  // Beta is real, alpha is complex.
  static void Her2k(const LibraryCopy& copy, AccessSet* set, Pointer h, int uplo, int trans, Int n, Int k,
                    ConstPointer alpha, ConstPointer a, Int lda, ConstPointer b, Int ldb, ConstPointer beta, Pointer c,
                    Int ldc) {
    Rank(copy, set, h, uplo, trans, n, k, alpha, a, lda, b, ldb, beta, c, ldc, true, element);
  }
  static void Geam(const LibraryCopy& copy, AccessSet* set, Pointer h, int ta, int tb, Int m, Int n, ConstPointer alpha,
                   ConstPointer a, Int lda, ConstPointer beta, ConstPointer b, Int ldb, Pointer c, Int ldc) {
    const Call call(copy, h, set);
    const bool used = m > 0 && n > 0;
    Describe(blas::Geam{ta, tb, m, n, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                        call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used)},
             set);
  }
};

#define SLUICE_BLAS(symbol, family, integer, scalar, element) \
  {#symbol, reinterpret_cast<void*>(                          \
                &Entry<#symbol, abi::Blas<integer>::family, &Family<integer, scalar, element>::family>::Call)},
const EntryRow kRows[] = {
#include "hooklib/hooks.def"
};

}  // namespace

std::span<const EntryRow> BlasEntries() { return kRows; }

}  // namespace sluice::libraries
