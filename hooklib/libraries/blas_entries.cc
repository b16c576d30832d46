// cuBLAS: one description a family; hooks.def's SLUICE_BLAS rows make the entries.
#include <cstring>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/blas_handles.h"
#include "hooklib/libraries/entry.h"
#include "hooklib/libraries/extents/blas.h"
#include "hooklib/libraries/pointer_arrays.h"

namespace sluice::libraries {

namespace {

using abi::C;
using abi::Long;
using abi::P;

enum Kind { F16, F32, F64, C32, C64, I32 };
constexpr uint64_t kBytes[] = {2, 4, 8, 8, 16, 4};

bool Zero(const void* at, Kind kind) {
  uint64_t parts[2] = {};
  std::memcpy(parts, at, kBytes[kind]);
  auto f32 = [](uint64_t bits) { return (bits & 0x7fffffffu) == 0; };  // -0.0 too
  auto f64 = [](uint64_t bits) { return bits << 1 == 0; };
  switch (kind) {
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
      return parts[0] == 0;  // by its type an integer or a float: only what is zero as both
  }
}

// Alpha and beta of a typed call: by its compute type, cublasComputeType_t or, before CUDA 11, cudaDataType.
Kind ScalarOf(int compute, int result) {
  const bool complex = result == 4 || result == 5 || result == 6 || result == 7 || result == 9 || result == 15;
  switch (compute) {
    case 64:
    case 65:
    case 2:
      return F16;
    case 70:
    case 71:
    case 79:
    case 1:
    case 5:
      return complex || compute == 5 ? C64 : F64;
    case 72:
    case 73:
    case 10:
      return I32;
    default:
      return complex || compute == 4 ? C32 : F32;
  }
}

// What every description needs of the call's handle.
class Call {
 public:
  Call(const Copy& copy, P handle, AccessSet* set) {
    auto* const get = copy.Find<abi::GetPointerMode>("cublasGetPointerMode_v2");
    int mode = 0;
    if (!get || get(handle, &mode) != 0) {
      set->MarkUnknown(UnknownReason::kDescriptor);
      known_ = false;
    }
    on_device_ = mode == 1;
    if (const Workspace own = WorkspaceOf(handle); own.bytes)
      set->AddOptional(Region::Bytes(own.address, own.bytes), Use::kScratch);
  }
  // A factor that may be read by the library only (`used`) is not read by us where the library would return before it
  // does.
  blas::Scalar Scalar(C at, Kind kind, bool used) const {
    if (on_device_) return {Address(at), kBytes[kind], false};
    return {0, kBytes[kind], used && known_ && at && Zero(at, kind)};
  }

 private:
  bool on_device_ = false, known_ = true;
};

blas::Operand Of(C at, int64_t ld, uint64_t bytes, int64_t stride = 0) { return {Address(at), ld, bytes, stride}; }

// --- GEMM in all its forms ---

struct GemmTypes {
  uint64_t a, b, c;
  Kind scalar;
};

template <typename I>
void DescribeGemm(const Copy& copy, AccessSet* set, P handle, int ta, int tb, I m, I n, I k, C alpha, blas::Operand a,
                  blas::Operand b, C beta, blas::Operand c, Kind scalar, int64_t batch) {
  const Call call(copy, handle, set);
  const bool used = m > 0 && n > 0 && batch > 0;
  Describe(
      blas::Gemm{ta, tb, m, n, k, a, b, c, call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used), batch},
      set);
}

struct Arrays {
  std::vector<uint64_t> of[3];
};

template <typename I>
void DescribeBatched(const Copy& copy, AccessSet* set, P handle, int ta, int tb, I m, I n, I k, C alpha, const C* a,
                     I lda, const C* b, I ldb, C beta, const P* c, I ldc, I batch, const GemmTypes& types) {
  const Call call(copy, handle, set);
  static thread_local Arrays seen;
  const uint64_t arrays[3] = {Address(a), Address(b), Address(c)};
  const auto count = static_cast<uint64_t>(batch > 0 ? batch : 0);
  for (int i = 0; i < 3; ++i) {
    if (!SeenPointers(arrays[i], count, &seen.of[i])) seen.of[i].clear();
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
  it.a = {arrays[0], seen.of[0]}, it.b = {arrays[1], seen.of[1]}, it.c = {arrays[2], seen.of[2]};
  it.batch = batch;
  Describe(it, set);
}

// Groups: sizes and factors by host arrays, one for each group; pointers one behind the other in three device arrays.
template <typename I>
void DescribeGrouped(const Copy& copy, AccessSet* set, P handle, const int* ta, const int* tb, const I* m, const I* n,
                     const I* k, C alpha, const C* a, const I* lda, const C* b, const I* ldb, C beta, const P* c,
                     const I* ldc, I groups, const I* sizes, const GemmTypes& types) {
  const Call call(copy, handle, set);
  if (groups < 0 || !ta || !tb || !m || !n || !k || !lda || !ldb || !ldc || !sizes || !beta || !alpha)
    return set->MarkUnknown(groups == 0 ? UnknownReason::kNone : UnknownReason::kUnsupported);
  static thread_local Arrays seen;
  uint64_t at = 0;
  for (I group = 0; group < groups && set->known(); ++group) {
    if (sizes[group] < 0) return set->MarkUnknown(UnknownReason::kUnsupported);
    const auto count = static_cast<uint64_t>(sizes[group]);
    const uint64_t arrays[3] = {Address(a + at), Address(b + at), Address(c + at)};
    for (int i = 0; i < 3; ++i) {
      if (!SeenPointers(arrays[i], count, &seen.of[i])) seen.of[i].clear();
    }
    const auto factor = static_cast<std::ptrdiff_t>(static_cast<uint64_t>(group) * kBytes[types.scalar]);
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
    it.a = {arrays[0], seen.of[0]}, it.b = {arrays[1], seen.of[1]}, it.c = {arrays[2], seen.of[2]};
    it.batch = sizes[group];
    Describe(it, set);
    at += count;
  }
}

// A family's description for rows with this integer type, scalar and element.
template <typename I, Kind scalar, Kind element>
struct Family {
  static constexpr uint64_t kElement = kBytes[element];
  static constexpr GemmTypes kTypes{kElement, kElement, kElement, scalar};

  static void Gemm(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, C a, I lda, C b,
                   I ldb, C beta, P c, I ldc) {
    DescribeGemm<I>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, kElement), Of(b, ldb, kElement), beta,
                    Of(c, ldc, kElement), scalar, 1);
  }
  static void GemmTyped(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, C a, int at,
                        I lda, C b, int bt, I ldb, C beta, P c, int ct, I ldc) {
    DescribeGemm<I>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, blas::BytesOf(at)), Of(b, ldb, blas::BytesOf(bt)),
                    beta, Of(c, ldc, blas::BytesOf(ct)), scalar, 1);
  }
  static void GemmEx(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, C a, int at, I lda,
                     C b, int bt, I ldb, C beta, P c, int ct, I ldc, int compute, int) {
    DescribeGemm<I>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, blas::BytesOf(at)), Of(b, ldb, blas::BytesOf(bt)),
                    beta, Of(c, ldc, blas::BytesOf(ct)), ScalarOf(compute, ct), 1);
  }
  static void GemmStrided(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, C a, I lda,
                          Long sa, C b, I ldb, Long sb, C beta, P c, I ldc, Long sc, I batch) {
    DescribeGemm<I>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, kElement, sa), Of(b, ldb, kElement, sb), beta,
                    Of(c, ldc, kElement, sc), scalar, batch);
  }
  static void GemmStridedEx(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, C a, int at,
                            I lda, Long sa, C b, int bt, I ldb, Long sb, C beta, P c, int ct, I ldc, Long sc, I batch,
                            int compute, int) {
    DescribeGemm<I>(copy, set, h, ta, tb, m, n, k, alpha, Of(a, lda, blas::BytesOf(at), sa),
                    Of(b, ldb, blas::BytesOf(bt), sb), beta, Of(c, ldc, blas::BytesOf(ct), sc), ScalarOf(compute, ct),
                    batch);
  }
  static void GemmBatched(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, const C* a,
                          I lda, const C* b, I ldb, C beta, const P* c, I ldc, I batch) {
    DescribeBatched<I>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch, kTypes);
  }
  static void GemmBatchedEx(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, I k, C alpha, const C* a,
                            int at, I lda, const C* b, int bt, I ldb, C beta, const P* c, int ct, I ldc, I batch,
                            int compute, int) {
    DescribeBatched<I>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch,
                       {blas::BytesOf(at), blas::BytesOf(bt), blas::BytesOf(ct), ScalarOf(compute, ct)});
  }
  static void GemmGrouped(const Copy& copy, AccessSet* set, P h, const int* ta, const int* tb, const I* m, const I* n,
                          const I* k, C alpha, const C* a, const I* lda, const C* b, const I* ldb, C beta, const P* c,
                          const I* ldc, I groups, const I* sizes) {
    DescribeGrouped<I>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, groups, sizes, kTypes);
  }
  static void GemmGroupedEx(const Copy& copy, AccessSet* set, P h, const int* ta, const int* tb, const I* m, const I* n,
                            const I* k, C alpha, const C* a, int at, const I* lda, const C* b, int bt, const I* ldb,
                            C beta, const P* c, int ct, const I* ldc, I groups, const I* sizes, int compute) {
    DescribeGrouped<I>(copy, set, h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, groups, sizes,
                       {blas::BytesOf(at), blas::BytesOf(bt), blas::BytesOf(ct), ScalarOf(compute, ct)});
  }

  // --- matrix and vector ---
  static void Gemv(const Copy& copy, AccessSet* set, P h, int trans, I m, I n, C alpha, C a, I lda, C x, I incx, C beta,
                   P y, I incy) {
    GemvStrided(copy, set, h, trans, m, n, alpha, a, lda, 0, x, incx, 0, beta, y, incy, 0, 1);
  }
  static void GemvStrided(const Copy& copy, AccessSet* set, P h, int trans, I m, I n, C alpha, C a, I lda, Long sa, C x,
                          I incx, Long sx, C beta, P y, I incy, Long sy, I batch) {
    const Call call(copy, h, set);
    const bool used = m > 0 && n > 0 && batch > 0;
    Describe(blas::Gemv{trans, m, n, Of(a, lda, kElement, sa), Of(x, incx, kElement, sx), Of(y, incy, kElement, sy),
                        call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used), batch},
             set);
  }
  static void Dgmm(const Copy& copy, AccessSet* set, P h, int side, I m, I n, C a, I lda, C x, I incx, P c, I ldc) {
    const Call call(copy, h, set);
    Describe(blas::Dgmm{side, m, n, Of(a, lda, kElement), Of(x, incx, kElement), Of(c, ldc, kElement)}, set);
  }

  // --- triangles ---
  static void Trsm(const Copy& copy, AccessSet* set, P h, int side, int uplo, int, int diag, I m, I n, C alpha, C a,
                   I lda, P b, I ldb) {
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
  static void TrsmBatched(const Copy& copy, AccessSet* set, P h, int side, int uplo, int, int diag, I m, I n, C alpha,
                          const C* a, I lda, const P* b, I ldb, I batch) {
    const Call call(copy, h, set);
    static thread_local Arrays seen;
    const auto count = static_cast<uint64_t>(batch > 0 ? batch : 0);
    if (!SeenPointers(Address(a), count, &seen.of[0])) seen.of[0].clear();
    if (!SeenPointers(Address(b), count, &seen.of[1])) seen.of[1].clear();
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
                               {Address(a), seen.of[0]},
                               {Address(b), seen.of[1]},
                               batch},
             set);
  }
  static void Trmm(const Copy& copy, AccessSet* set, P h, int side, int uplo, int, int diag, I m, I n, C alpha, C a,
                   I lda, C b, I ldb, P c, I ldc) {
    const Call call(copy, h, set);
    Describe(blas::Triangular{side, uplo, diag, m, n, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                              call.Scalar(alpha, scalar, false), false},
             set);
  }
  static void Symm(const Copy& copy, AccessSet* set, P h, int side, int uplo, I m, I n, C alpha, C a, I lda, C b, I ldb,
                   C beta, P c, I ldc) {
    const Call call(copy, h, set);
    const bool used = m > 0 && n > 0;
    Describe(blas::Symm{side, uplo, m, n, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                        call.Scalar(alpha, scalar, used), call.Scalar(beta, scalar, used)},
             set);
  }
  static void Rank(const Copy& copy, AccessSet* set, P h, int uplo, int trans, I n, I k, C alpha, C a, I lda, C b,
                   I ldb, C beta, P c, I ldc, bool two, Kind of_alpha = scalar) {
    const Call call(copy, h, set);
    const bool used = n > 0;
    Describe(blas::Syrk{uplo, trans, n, k, Of(a, lda, kElement), Of(b, ldb, kElement), Of(c, ldc, kElement),
                        call.Scalar(alpha, of_alpha, used), call.Scalar(beta, scalar, used), two},
             set);
  }
  static void Syrk(const Copy& copy, AccessSet* set, P h, int uplo, int trans, I n, I k, C alpha, C a, I lda, C beta,
                   P c, I ldc) {
    Rank(copy, set, h, uplo, trans, n, k, alpha, a, lda, nullptr, 0, beta, c, ldc, false);
  }
  static void Syr2k(const Copy& copy, AccessSet* set, P h, int uplo, int trans, I n, I k, C alpha, C a, I lda, C b,
                    I ldb, C beta, P c, I ldc) {
    Rank(copy, set, h, uplo, trans, n, k, alpha, a, lda, b, ldb, beta, c, ldc, true);
  }
  // Beta is real, alpha is not.
  static void Her2k(const Copy& copy, AccessSet* set, P h, int uplo, int trans, I n, I k, C alpha, C a, I lda, C b,
                    I ldb, C beta, P c, I ldc) {
    Rank(copy, set, h, uplo, trans, n, k, alpha, a, lda, b, ldb, beta, c, ldc, true, element);
  }
  static void Geam(const Copy& copy, AccessSet* set, P h, int ta, int tb, I m, I n, C alpha, C a, I lda, C beta, C b,
                   I ldb, P c, I ldc) {
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
