// Each row of cuBLAS as a program calls it. What its entry says must be what blas::Describe says of the same operands,
// which stand here in the order of cuBLAS' documentation; that Describe is right, blas_oracle_test.cc holds to the
// oracle. An element's size is told by the function's own letter, not by its row.
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/extents/blas.h"
#include "test/libraries/fake_getters.h"
#include "test/libraries/library.h"

namespace sluice::libraries {
namespace {

using abi::C;
using abi::P;
using test::Library;
using test::Random;
using test::t_seen;

const P kHandle = reinterpret_cast<P>(0x2000);

// alpha or beta as the program gives it.
struct Factor {
  alignas(16) unsigned char host[64] = {};  // of up to four groups
  C at = nullptr;
  blas::Scalar scalar;
};

struct Scene {
  Random r{61};
  bool on_device = false;
  uint64_t element = 4;
  bool complex = false;
  AccessSet expected;
  std::vector<uint64_t> arrays[3];
  std::map<std::string, std::string> wrong;  // the last of each row

  // By its letter: S, D, C, Z, H.
  void Next(const char* symbol) {
    const char letter = symbol[std::strlen("cublas")];
    element = letter == 'H' ? 2 : letter == 'S' ? 4 : letter == 'Z' ? 16 : 8;
    complex = letter == 'C' || letter == 'Z';
    on_device = r.OneIn(4);
    test::g_pointer_mode = on_device ? 1 : 0;
    expected.Clear();
  }
  // `real`: of a complex function, a factor of half the size.
  Factor Make(int slot, uint64_t bytes, bool of_pairs, bool integer = false) {
    Factor f;
    if (on_device) {
      f.scalar = {0x7000000000u + static_cast<uint64_t>(slot) * 0x10000000, bytes, false};
      f.at = reinterpret_cast<C>(f.scalar.device);
      return f;
    }
    f.scalar = {0, bytes, r.OneIn(2)};
    const uint64_t part = of_pairs ? bytes / 2 : bytes;
    unsigned char* const sign = f.host + part - 1;
    if (!f.scalar.zero) {
      f.host[of_pairs && r.OneIn(2) ? bytes - 1 : part - 1] = integer ? 0x80 : 0x3f;
    } else if (!integer && r.OneIn(2)) {
      *sign = 0x80;  // minus zero
    }
    return f;
  }
  Factor Make(int slot) { return Make(slot, element, complex); }
  Factor Real(int slot) { return Make(slot, complex ? element / 2 : element, false); }
  // Once it is where it stays.
  static C Given(Factor& f) { return f.at ? f.at : f.host; }

  int64_t Size() { return r.OneIn(12) ? 0 : r.In(1, 40); }
  // Gaps of more than 2 MiB between columns, too.
  int64_t Ld(int64_t rows) {
    return std::max<int64_t>(1, rows) + (r.OneIn(2) ? 0 : r.OneIn(4) ? r.In(1, 3) << 20 : r.In(1, 50));
  }
  int64_t Increment() { return r.OneIn(2) ? 1 : r.OneIn(2) ? r.In(1, 9) : r.In(-9, -1); }
  blas::Operand At(int slot, int64_t ld, uint64_t bytes = 0, int64_t stride = 0) {
    return {(static_cast<uint64_t>(slot) << 36) + static_cast<uint64_t>(r.In(0, 1000)) * 16, ld,
            bytes ? bytes : element, stride};
  }
  // `count` pointers that the card was given by a copy.
  uint64_t Array(int slot, int64_t count) {
    std::vector<uint64_t>& all = arrays[slot];
    all.clear();
    for (int64_t i = 0; i < count; ++i) all.push_back(At(slot + 1, 0).address + static_cast<uint64_t>(i) * 0x4000000);
    const uint64_t at = 0x9000000000u + static_cast<uint64_t>(slot) * 0x10000000;
    NoteHostCopy(at, all.data(), all.size() * 8);
    return at;
  }

  void Check(const char* symbol) {
    expected.Close();
    const auto same = [](const LibraryRange& a, const LibraryRange& b) {
      return a.address == b.address && a.bytes == b.bytes && a.read == b.read && a.written == b.written &&
             a.overwritten == b.overwritten && a.scratch == b.scratch;
    };
    const auto want = expected.ranges();
    if (!t_seen.inside || t_seen.call.known != expected.known() || t_seen.call.streaming != expected.streaming() ||
        !std::equal(want.begin(), want.end(), t_seen.ranges.begin(), t_seen.ranges.end(), same)) {
      std::string text = symbol;
      for (const LibraryRange& range : want) text += Text(" wanted", range);
      for (const LibraryRange& range : t_seen.ranges) text += Text(" got", range);
      wrong[symbol] = text.substr(0, 800) + (t_seen.call.known ? " known" : " doubted");
    }
  }
  static std::string Text(const char* what, const LibraryRange& range) {
    char text[96];
    std::snprintf(text, sizeof text, "%s %llx+%llu %d%d%d", what, static_cast<unsigned long long>(range.address),
                  static_cast<unsigned long long>(range.bytes), range.read, range.written, range.overwritten);
    return text;
  }
};

P Pointer(const blas::Operand& operand) { return reinterpret_cast<P>(operand.address); }

// What GemmEx and its sisters are told: the result's type, how it is computed, and what alpha and beta are then.
struct Computed {
  int type, compute;
  uint64_t factor;
  bool complex, integer;
};
constexpr Computed kComputed[] = {{2, 64, 2, false, false}, {2, 68, 4, false, false},  {14, 68, 4, false, false},
                                  {0, 77, 4, false, false}, {0, 65, 2, false, false},  {4, 68, 8, true, false},
                                  {1, 70, 8, false, false}, {5, 71, 16, true, false},  {10, 72, 4, false, true},
                                  {0, 74, 4, false, false}, {28, 68, 4, false, false}, {10, 73, 4, false, true}};

// One call of a row of that family, by random arguments.
template <typename I>
struct Call {
  using B = abi::Blas<I>;

  // Operands of a product, A and B by their own types where a call tells them.
  static blas::Gemm Product(Scene& s, const Factor& alpha, const Factor& beta, uint64_t a, uint64_t b, uint64_t c,
                            bool strided) {
    blas::Gemm g;
    g.transa = static_cast<int>(s.r.In(0, 2)), g.transb = static_cast<int>(s.r.In(0, 2));
    g.m = s.Size(), g.n = s.Size(), g.k = s.Size();
    g.batch = strided ? s.r.In(0, 4) : 1;
    const auto stride = [&] { return strided ? s.r.In(0, 1 << 22) : 0; };
    g.a = s.At(1, s.Ld(g.transa == 0 ? g.m : g.k), a, stride());
    g.b = s.At(2, s.Ld(g.transb == 0 ? g.k : g.n), b, stride());
    g.c = s.At(3, s.Ld(g.m), c, stride());
    g.alpha = alpha.scalar, g.beta = beta.scalar;
    return g;
  }
  template <typename Issue>
  static void Typed(Scene& s, const char* symbol, bool strided, bool computed, Issue issue) {
    const Computed& of = kComputed[s.r.In(0, 11)];
    constexpr int kTypes[] = {0, 1, 2, 3, 4, 5, 14, 28};
    const int types[3] = {kTypes[s.r.In(0, 7)], kTypes[s.r.In(0, 7)], computed ? of.type : kTypes[s.r.In(0, 7)]};
    Factor alpha = computed ? s.Make(0, of.factor, of.complex, of.integer) : s.Make(0),
           beta = computed ? s.Make(1, of.factor, of.complex, of.integer) : s.Make(1);
    const blas::Gemm g =
        Product(s, alpha, beta, blas::BytesOf(types[0]), blas::BytesOf(types[1]), blas::BytesOf(types[2]), strided);
    Describe(g, &s.expected);
    issue(g, types, of.compute, Scene::Given(alpha), Scene::Given(beta));
    s.Check(symbol);
  }

  static void Gemm(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemm g = Product(s, alpha, beta, s.element, s.element, s.element, false);
    Describe(g, &s.expected);
    Library<typename B::Gemm>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), s.Given(alpha),
                                    Pointer(g.a), I(g.a.ld), Pointer(g.b), I(g.b.ld), s.Given(beta), Pointer(g.c),
                                    I(g.c.ld));
    s.Check(symbol);
  }
  static void GemmStrided(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemm g = Product(s, alpha, beta, s.element, s.element, s.element, true);
    Describe(g, &s.expected);
    Library<typename B::GemmStrided>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), s.Given(alpha),
                                           Pointer(g.a), I(g.a.ld), g.a.stride, Pointer(g.b), I(g.b.ld), g.b.stride,
                                           s.Given(beta), Pointer(g.c), I(g.c.ld), g.c.stride, I(g.batch));
    s.Check(symbol);
  }
  static void GemmTyped(Scene& s, const char* symbol) {
    Typed(s, symbol, false, false, [&](const blas::Gemm& g, const int* types, int, C alpha, C beta) {
      Library<typename B::GemmTyped>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), alpha,
                                           Pointer(g.a), types[0], I(g.a.ld), Pointer(g.b), types[1], I(g.b.ld), beta,
                                           Pointer(g.c), types[2], I(g.c.ld));
    });
  }
  static void GemmEx(Scene& s, const char* symbol) {
    Typed(s, symbol, false, true, [&](const blas::Gemm& g, const int* types, int compute, C alpha, C beta) {
      Library<typename B::GemmEx>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), alpha,
                                        Pointer(g.a), types[0], I(g.a.ld), Pointer(g.b), types[1], I(g.b.ld), beta,
                                        Pointer(g.c), types[2], I(g.c.ld), compute, -1);
    });
  }
  static void GemmStridedEx(Scene& s, const char* symbol) {
    Typed(s, symbol, true, true, [&](const blas::Gemm& g, const int* types, int compute, C alpha, C beta) {
      Library<typename B::GemmStridedEx>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), alpha,
                                               Pointer(g.a), types[0], I(g.a.ld), g.a.stride, Pointer(g.b), types[1],
                                               I(g.b.ld), g.b.stride, beta, Pointer(g.c), types[2], I(g.c.ld),
                                               g.c.stride, I(g.batch), compute, -1);
    });
  }

  // By pointer arrays.
  static blas::BatchedGemm Batched(Scene& s, const blas::Gemm& one) {
    blas::BatchedGemm b;
    b.one = one;
    b.batch = s.r.In(1, 5);
    b.a.address = s.Array(0, b.batch), b.b.address = s.Array(1, b.batch), b.c.address = s.Array(2, b.batch);
    b.a.seen = s.arrays[0], b.b.seen = s.arrays[1], b.c.seen = s.arrays[2];
    return b;
  }
  static const C* Inputs(const blas::PointerArray& array) { return reinterpret_cast<const C*>(array.address); }
  static const P* Outputs(const blas::PointerArray& array) { return reinterpret_cast<const P*>(array.address); }
  static void GemmBatched(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemm g = Product(s, alpha, beta, s.element, s.element, s.element, false);
    const blas::BatchedGemm b = Batched(s, g);
    Describe(b, &s.expected);
    Library<typename B::GemmBatched>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), s.Given(alpha),
                                           Inputs(b.a), I(g.a.ld), Inputs(b.b), I(g.b.ld), s.Given(beta), Outputs(b.c),
                                           I(g.c.ld), I(b.batch));
    s.Check(symbol);
  }
  static void GemmBatchedEx(Scene& s, const char* symbol) {
    const Computed& of = kComputed[s.r.In(0, 11)];
    Factor alpha = s.Make(0, of.factor, of.complex, of.integer), beta = s.Make(1, of.factor, of.complex, of.integer);
    const blas::Gemm g = Product(s, alpha, beta, 2, 4, blas::BytesOf(of.type), false);
    const blas::BatchedGemm b = Batched(s, g);
    Describe(b, &s.expected);
    Library<typename B::GemmBatchedEx>::Call(
        symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), I(g.k), s.Given(alpha), Inputs(b.a), 14, I(g.a.ld),
        Inputs(b.b), 0, I(g.b.ld), s.Given(beta), Outputs(b.c), of.type, I(g.c.ld), I(b.batch), of.compute, -1);
    s.Check(symbol);
  }
  // One to four groups of products; the pointers of all of them stand in one row.
  template <typename Issue>
  static void Groups(Scene& s, const char* symbol, uint64_t factor, uint64_t a, uint64_t b, uint64_t c, Issue issue) {
    const int64_t groups = s.r.In(1, 4);
    std::vector<blas::Gemm> one;
    std::vector<I> sizes;
    Factor alpha = s.Make(0, factor, false), beta = s.Make(1, factor, false);
    int64_t all = 0;
    for (int64_t i = 0; i < groups; ++i) {
      const Factor of_alpha = s.Make(0, factor, false), of_beta = s.Make(1, factor, false);
      const auto offset = static_cast<uint64_t>(i) * factor;
      std::memcpy(alpha.host + offset, of_alpha.host, factor);
      std::memcpy(beta.host + offset, of_beta.host, factor);
      one.push_back(Product(s, of_alpha, of_beta, a, b, c, false));
      if (s.on_device) one.back().alpha.device += offset, one.back().beta.device += offset;
      sizes.push_back(static_cast<I>(s.r.In(0, 3)));
      all += sizes.back();
    }
    const uint64_t arrays[3] = {s.Array(0, all), s.Array(1, all), s.Array(2, all)};
    std::vector<int> ta, tb;
    std::vector<I> m, n, k, lda, ldb, ldc;
    size_t at = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      const blas::Gemm& g = one[i];
      ta.push_back(g.transa), tb.push_back(g.transb), m.push_back(I(g.m)), n.push_back(I(g.n)), k.push_back(I(g.k));
      lda.push_back(I(g.a.ld)), ldb.push_back(I(g.b.ld)), ldc.push_back(I(g.c.ld));
      const auto part = [&](int which) {
        return blas::PointerArray{arrays[which] + 8 * at,
                                  std::span(s.arrays[which]).subspan(at, static_cast<size_t>(sizes[i]))};
      };
      Describe(blas::BatchedGemm{g, part(0), part(1), part(2), sizes[i]}, &s.expected);
      at += static_cast<size_t>(sizes[i]);
    }
    issue(ta.data(), tb.data(), m.data(), n.data(), k.data(), lda.data(), ldb.data(), ldc.data(), s.Given(alpha),
          s.Given(beta), reinterpret_cast<const C*>(arrays[0]), reinterpret_cast<const C*>(arrays[1]),
          reinterpret_cast<const P*>(arrays[2]), static_cast<I>(groups), sizes.data());
    s.Check(symbol);
  }
  static void GemmGrouped(Scene& s, const char* symbol) {
    Groups(s, symbol, s.element, s.element, s.element, s.element,
           [&](const int* ta, const int* tb, const I* m, const I* n, const I* k, const I* lda, const I* ldb,
               const I* ldc, C alpha, C beta, const C* a, const C* b, const P* c, I groups, const I* sizes) {
             Library<typename B::GemmGrouped>::Call(symbol, kHandle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c,
                                                    ldc, groups, sizes);
           });
  }
  static void GemmGroupedEx(Scene& s, const char* symbol) {
    Groups(s, symbol, 4, 2, 2, 4,
           [&](const int* ta, const int* tb, const I* m, const I* n, const I* k, const I* lda, const I* ldb,
               const I* ldc, C alpha, C beta, const C* a, const C* b, const P* c, I groups, const I* sizes) {
             Library<typename B::GemmGroupedEx>::Call(symbol, kHandle, ta, tb, m, n, k, alpha, a, 14, lda, b, 2, ldb,
                                                      beta, c, 0, ldc, groups, sizes, 68);
           });
  }

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
    Library<typename B::Gemv>::Call(symbol, kHandle, g.trans, I(g.m), I(g.n), s.Given(alpha), Pointer(g.a), I(g.a.ld),
                                    Pointer(g.x), I(g.x.ld), s.Given(beta), Pointer(g.y), I(g.y.ld));
    s.Check(symbol);
  }
  static void GemvStrided(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemv g = Vectors(s, alpha, beta, true);
    Describe(g, &s.expected);
    Library<typename B::GemvStrided>::Call(symbol, kHandle, g.trans, I(g.m), I(g.n), s.Given(alpha), Pointer(g.a),
                                           I(g.a.ld), g.a.stride, Pointer(g.x), I(g.x.ld), g.x.stride, s.Given(beta),
                                           Pointer(g.y), I(g.y.ld), g.y.stride, I(g.batch));
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
    Library<typename B::Trsm>::Call(symbol, kHandle, t.side, t.uplo, static_cast<int>(s.r.In(0, 2)), t.diag, I(t.m),
                                    I(t.n), s.Given(alpha), Pointer(t.a), I(t.a.ld), Pointer(t.b), I(t.b.ld));
    s.Check(symbol);
  }
  static void Trmm(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0);
    const blas::Triangular t = Triangle(s, alpha, false);
    Describe(t, &s.expected);
    Library<typename B::Trmm>::Call(symbol, kHandle, t.side, t.uplo, static_cast<int>(s.r.In(0, 2)), t.diag, I(t.m),
                                    I(t.n), s.Given(alpha), Pointer(t.a), I(t.a.ld), Pointer(t.b), I(t.b.ld),
                                    Pointer(t.c), I(t.c.ld));
    s.Check(symbol);
  }
  static void TrsmBatched(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0);
    blas::BatchedTrsm b{Triangle(s, alpha, true), {}, {}, s.r.In(1, 5)};
    b.a = {s.Array(0, b.batch), s.arrays[0]}, b.b = {s.Array(1, b.batch), s.arrays[1]};
    Describe(b, &s.expected);
    const blas::Triangular& t = b.one;
    Library<typename B::TrsmBatched>::Call(symbol, kHandle, t.side, t.uplo, static_cast<int>(s.r.In(0, 2)), t.diag,
                                           I(t.m), I(t.n), s.Given(alpha), Inputs(b.a), I(t.a.ld), Outputs(b.b),
                                           I(t.b.ld), I(b.batch));
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
    Library<typename B::Symm>::Call(symbol, kHandle, y.side, y.uplo, I(y.m), I(y.n), s.Given(alpha), Pointer(y.a),
                                    I(y.a.ld), Pointer(y.b), I(y.b.ld), s.Given(beta), Pointer(y.c), I(y.c.ld));
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
  // Of Hermitian matrices the factors are real; where there are two operands, beta alone is.
  static bool Hermitian(const char* symbol) { return std::string_view(symbol).find("her") != std::string_view::npos; }
  static void Syrk(Scene& s, const char* symbol) {
    const bool real = Hermitian(symbol);
    Factor alpha = real ? s.Real(0) : s.Make(0), beta = real ? s.Real(1) : s.Make(1);
    const blas::Syrk k = Rank(s, alpha, beta, false);
    Describe(k, &s.expected);
    Library<typename B::Syrk>::Call(symbol, kHandle, k.uplo, k.trans, I(k.n), I(k.k), s.Given(alpha), Pointer(k.a),
                                    I(k.a.ld), s.Given(beta), Pointer(k.c), I(k.c.ld));
    s.Check(symbol);
  }
  static void Syr2k(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = Hermitian(symbol) ? s.Real(1) : s.Make(1);
    const blas::Syrk k = Rank(s, alpha, beta, true);
    Describe(k, &s.expected);
    Library<typename B::Syr2k>::Call(symbol, kHandle, k.uplo, k.trans, I(k.n), I(k.k), s.Given(alpha), Pointer(k.a),
                                     I(k.a.ld), Pointer(k.b), I(k.b.ld), s.Given(beta), Pointer(k.c), I(k.c.ld));
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
    Library<typename B::Geam>::Call(symbol, kHandle, g.transa, g.transb, I(g.m), I(g.n), s.Given(alpha), Pointer(g.a),
                                    I(g.a.ld), s.Given(beta), Pointer(g.b), I(g.b.ld), Pointer(g.c), I(g.c.ld));
    s.Check(symbol);
  }
  static void Dgmm(Scene& s, const char* symbol) {
    blas::Dgmm d;
    d.side = static_cast<int>(s.r.In(0, 1));
    d.m = s.Size(), d.n = s.Size();
    d.a = s.At(1, s.Ld(d.m)), d.x = s.At(2, s.Increment()), d.c = s.At(3, s.Ld(d.m));
    Describe(d, &s.expected);
    Library<typename B::Dgmm>::Call(symbol, kHandle, d.side, I(d.m), I(d.n), Pointer(d.a), I(d.a.ld), Pointer(d.x),
                                    I(d.x.ld), Pointer(d.c), I(d.c.ld));
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

TEST_CASE("every row of cuBLAS says of its call what its operands, put together by hand, say: 300 calls a row") {
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
