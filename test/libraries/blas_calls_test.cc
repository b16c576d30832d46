// Each row of cuBLAS as a program calls it. Its entry's set must equal that of blas::Describe for the same operands, in
// the order of cuBLAS' documentation; blas_oracle_test.cc compares Describe with the oracle. The element size follows
// from the letter in the function's name and not from its row.
#include <string>
#include <string_view>

#include "test/libraries/blas_products.h"

namespace sluice::libraries {
namespace {

using test::Factor;
using test::kHandle;
using test::Library;
using test::PointerTo;
using test::Scene;

// One call of a row of each family, with random arguments.
template <typename Int>
struct Call : test::ProductCalls<Int> {
  using Families = abi::Blas<Int>;
  using Base = test::ProductCalls<Int>;
  using Base::Inputs;
  using Base::Outputs;

  static blas::Gemv Vectors(Scene& s, const Factor& alpha, const Factor& beta, bool strided) {
    blas::Gemv g;
    g.trans = static_cast<int>(s.r.In(0, 2));
    g.m = s.Size(), g.n = s.Size();
    g.batch = strided ? s.r.In(0, 4) : 1;
    const auto stride = [&] { return strided ? s.r.In(0, 1 << 22) : 0; };
    g.a = s.At(1, s.Ld(g.m), 0, stride());
    g.x = s.At(2, s.Increment(), 0, stride());
    g.y = s.At(3, s.Increment(), 0, stride());
    g.alpha = alpha.scalar, g.beta = beta.scalar;
    return g;
  }
  static void Gemv(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemv g = Vectors(s, alpha, beta, false);
    Describe(g, &s.expected);
    Library<typename Families::Gemv>::Call(symbol, kHandle, g.trans, Int(g.m), Int(g.n), s.Given(alpha), PointerTo(g.a),
                                           Int(g.a.ld), PointerTo(g.x), Int(g.x.ld), s.Given(beta), PointerTo(g.y),
                                           Int(g.y.ld));
    s.Check(symbol);
  }
  static void GemvStrided(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemv g = Vectors(s, alpha, beta, true);
    Describe(g, &s.expected);
    Library<typename Families::GemvStrided>::Call(
        symbol, kHandle, g.trans, Int(g.m), Int(g.n), s.Given(alpha), PointerTo(g.a), Int(g.a.ld), g.a.stride,
        PointerTo(g.x), Int(g.x.ld), g.x.stride, s.Given(beta), PointerTo(g.y), Int(g.y.ld), g.y.stride, Int(g.batch));
    s.Check(symbol);
  }

  static blas::Triangular Triangle(Scene& s, const Factor& alpha, bool in_place) {
    blas::Triangular t;
    t.side = static_cast<int>(s.r.In(0, 1)), t.uplo = static_cast<int>(s.r.In(0, 1));
    t.diag = static_cast<int>(s.r.In(0, 1)), t.in_place = in_place;
    t.m = s.Size(), t.n = s.Size();
    t.a = s.At(1, s.Ld(t.side == 0 ? t.m : t.n));
    t.b = s.At(2, s.Ld(t.m));
    if (!in_place) t.c = s.At(3, s.Ld(t.m));
    t.alpha = alpha.scalar;
    return t;
  }
  static void Trsm(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0);
    const blas::Triangular t = Triangle(s, alpha, true);
    Describe(t, &s.expected);
    Library<typename Families::Trsm>::Call(symbol, kHandle, t.side, t.uplo, static_cast<int>(s.r.In(0, 2)), t.diag,
                                           Int(t.m), Int(t.n), s.Given(alpha), PointerTo(t.a), Int(t.a.ld),
                                           PointerTo(t.b), Int(t.b.ld));
    s.Check(symbol);
  }
  static void Trmm(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0);
    const blas::Triangular t = Triangle(s, alpha, false);
    Describe(t, &s.expected);
    Library<typename Families::Trmm>::Call(symbol, kHandle, t.side, t.uplo, static_cast<int>(s.r.In(0, 2)), t.diag,
                                           Int(t.m), Int(t.n), s.Given(alpha), PointerTo(t.a), Int(t.a.ld),
                                           PointerTo(t.b), Int(t.b.ld), PointerTo(t.c), Int(t.c.ld));
    s.Check(symbol);
  }
  static void TrsmBatched(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0);
    blas::BatchedTrsm b{Triangle(s, alpha, true), {}, {}, s.r.In(1, 5)};
    b.a = {s.Array(0, b.batch), s.arrays[0]}, b.b = {s.Array(1, b.batch), s.arrays[1]};
    Describe(b, &s.expected);
    const blas::Triangular& t = b.one;
    Library<typename Families::TrsmBatched>::Call(symbol, kHandle, t.side, t.uplo, static_cast<int>(s.r.In(0, 2)),
                                                  t.diag, Int(t.m), Int(t.n), s.Given(alpha), Inputs(b.a), Int(t.a.ld),
                                                  Outputs(b.b), Int(t.b.ld), Int(b.batch));
    s.Check(symbol);
  }

  static void Symm(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    blas::Symm y;
    y.side = static_cast<int>(s.r.In(0, 1)), y.uplo = static_cast<int>(s.r.In(0, 1));
    y.m = s.Size(), y.n = s.Size();
    y.a = s.At(1, s.Ld(y.side == 0 ? y.m : y.n)), y.b = s.At(2, s.Ld(y.m)), y.c = s.At(3, s.Ld(y.m));
    y.alpha = alpha.scalar, y.beta = beta.scalar;
    Describe(y, &s.expected);
    Library<typename Families::Symm>::Call(symbol, kHandle, y.side, y.uplo, Int(y.m), Int(y.n), s.Given(alpha),
                                           PointerTo(y.a), Int(y.a.ld), PointerTo(y.b), Int(y.b.ld), s.Given(beta),
                                           PointerTo(y.c), Int(y.c.ld));
    s.Check(symbol);
  }
  static blas::Syrk Rank(Scene& s, const Factor& alpha, const Factor& beta, bool two) {
    blas::Syrk k;
    k.uplo = static_cast<int>(s.r.In(0, 1)), k.trans = static_cast<int>(s.r.In(0, 2)), k.two = two;
    k.n = s.Size(), k.k = s.Size();
    const int64_t rows = k.trans == 0 ? k.n : k.k;
    k.a = s.At(1, s.Ld(rows)), k.c = s.At(3, s.Ld(k.n));
    if (two) k.b = s.At(2, s.Ld(rows));
    k.alpha = alpha.scalar, k.beta = beta.scalar;
    return k;
  }
  // The factors of Hermitian matrices are real. With two operands, only beta is.
  static bool Hermitian(const char* symbol) { return std::string_view(symbol).find("her") != std::string_view::npos; }
  static void Syrk(Scene& s, const char* symbol) {
    const bool real = Hermitian(symbol);
    Factor alpha = real ? s.Real(0) : s.Make(0), beta = real ? s.Real(1) : s.Make(1);
    const blas::Syrk k = Rank(s, alpha, beta, false);
    Describe(k, &s.expected);
    Library<typename Families::Syrk>::Call(symbol, kHandle, k.uplo, k.trans, Int(k.n), Int(k.k), s.Given(alpha),
                                           PointerTo(k.a), Int(k.a.ld), s.Given(beta), PointerTo(k.c), Int(k.c.ld));
    s.Check(symbol);
  }
  static void Syr2k(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = Hermitian(symbol) ? s.Real(1) : s.Make(1);
    const blas::Syrk k = Rank(s, alpha, beta, true);
    Describe(k, &s.expected);
    Library<typename Families::Syr2k>::Call(symbol, kHandle, k.uplo, k.trans, Int(k.n), Int(k.k), s.Given(alpha),
                                            PointerTo(k.a), Int(k.a.ld), PointerTo(k.b), Int(k.b.ld), s.Given(beta),
                                            PointerTo(k.c), Int(k.c.ld));
    s.Check(symbol);
  }
  static void Her2k(Scene& s, const char* symbol) { Syr2k(s, symbol); }
  static void Geam(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    blas::Geam g;
    g.transa = static_cast<int>(s.r.In(0, 2)), g.transb = static_cast<int>(s.r.In(0, 2));
    g.m = s.Size(), g.n = s.Size();
    g.a = s.At(1, s.Ld(g.transa == 0 ? g.m : g.n)), g.b = s.At(2, s.Ld(g.transb == 0 ? g.m : g.n));
    g.c = s.At(3, s.Ld(g.m));
    g.alpha = alpha.scalar, g.beta = beta.scalar;
    Describe(g, &s.expected);
    Library<typename Families::Geam>::Call(symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), s.Given(alpha),
                                           PointerTo(g.a), Int(g.a.ld), s.Given(beta), PointerTo(g.b), Int(g.b.ld),
                                           PointerTo(g.c), Int(g.c.ld));
    s.Check(symbol);
  }
  static void Dgmm(Scene& s, const char* symbol) {
    blas::Dgmm d;
    d.side = static_cast<int>(s.r.In(0, 1));
    d.m = s.Size(), d.n = s.Size();
    d.a = s.At(1, s.Ld(d.m)), d.x = s.At(2, s.Increment()), d.c = s.At(3, s.Ld(d.m));
    Describe(d, &s.expected);
    Library<typename Families::Dgmm>::Call(symbol, kHandle, d.side, Int(d.m), Int(d.n), PointerTo(d.a), Int(d.a.ld),
                                           PointerTo(d.x), Int(d.x.ld), PointerTo(d.c), Int(d.c.ld));
    s.Check(symbol);
  }
};

const struct {
  const char* symbol;
  void (*call)(Scene&, const char*);
} kRows[] = {
#define SLUICE_LIB(symbol, soname_prefix)
#define SLUICE_CUDNN(symbol)
#define SLUICE_BLAS(symbol, family, integer, scalar, element) {#symbol, &Call<integer>::family},
#include "hooklib/hooks.def"
};

TEST_CASE("the set of every cuBLAS row is the set of its documented operands: 300 calls a row") {
  const test::Wanted wanted;
  Scene s;
  for (const auto& [symbol, call] : kRows) {
    for (int round = 0; round < 300; ++round) {
      s.Next(symbol);
      call(s, symbol);
    }
  }
  for (const auto& [symbol, what] : s.wrong) FAIL_CHECK(what);
  test::g_pointer_mode = 0;
  ForgetHostCopies(0, UINT64_MAX / 2);
}

}  // namespace
}  // namespace sluice::libraries
