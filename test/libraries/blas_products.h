// cuBLAS' GEMM calls as a program makes them, with random operands and the access sets that they must have.
#ifndef SLUICE_TEST_LIBRARIES_BLAS_PRODUCTS_H_
#define SLUICE_TEST_LIBRARIES_BLAS_PRODUCTS_H_

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/extents/blas.h"
#include "test/libraries/fake_getters.h"
#include "test/libraries/library.h"

namespace sluice::libraries::test {

using abi::ConstPointer;
using abi::Pointer;

inline const Pointer kHandle = reinterpret_cast<Pointer>(0x2000);

// alpha or beta as the program passes it.
struct Factor {
  alignas(16) unsigned char host[64] = {};  // of up to four groups
  ConstPointer at = nullptr;
  blas::Scalar scalar;
};

// Random operands of one call, the set that they must have, and the rows that failed.
struct Scene {
  Random r{61};
  bool on_device = false;
  uint64_t element = 4;
  bool complex = false;
  AccessSet expected;
  std::vector<uint64_t> arrays[3];
  std::map<std::string, std::string> wrong;  // the last of each row

  // By its letter: S, D, ConstPointer, Z, H.
  void Next(const char* symbol) {
    const char letter = symbol[std::strlen("cublas")];
    element = letter == 'H' ? 2 : letter == 'S' ? 4 : letter == 'Z' ? 16 : 8;
    complex = letter == 'C' || letter == 'Z';
    on_device = r.OneIn(4);
    g_pointer_mode = on_device ? 1 : 0;
    expected.Clear();
  }
  // `real`: of a complex function, a factor of half the size.
  Factor Make(int slot, uint64_t bytes, bool of_pairs, bool integer = false) {
    Factor f;
    if (on_device) {
      f.scalar = {0x7000000000u + static_cast<uint64_t>(slot) * 0x10000000, bytes, false};
      f.at = reinterpret_cast<ConstPointer>(f.scalar.device);
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
  // The pointer to pass. Only once the factor no longer moves.
  static ConstPointer Given(Factor& f) { return f.at ? f.at : f.host; }

  int64_t Size() { return r.OneIn(12) ? 0 : r.In(1, 40); }
  // Includes gaps of more than 2 MiB between columns.
  int64_t Ld(int64_t rows) {
    return std::max<int64_t>(1, rows) + (r.OneIn(2) ? 0 : r.OneIn(4) ? r.In(1, 3) << 20 : r.In(1, 50));
  }
  int64_t Increment() { return r.OneIn(2) ? 1 : r.OneIn(2) ? r.In(1, 9) : r.In(-9, -1); }
  blas::Operand At(int slot, int64_t ld, uint64_t bytes = 0, int64_t stride = 0) {
    return {(static_cast<uint64_t>(slot) << 36) + static_cast<uint64_t>(r.In(0, 1000)) * 16, ld,
            bytes ? bytes : element, stride};
  }
  // `count` pointers that a copy from the host put into device memory.
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
      wrong[symbol] = text.substr(0, 800) + (t_seen.call.known ? " known" : " unknown");
    }
  }
  static std::string Text(const char* what, const LibraryRange& range) {
    char text[96];
    std::snprintf(text, sizeof text, "%s %llx+%llu %d%d%d", what, static_cast<unsigned long long>(range.address),
                  static_cast<unsigned long long>(range.bytes), range.read, range.written, range.overwritten);
    return text;
  }
};

inline Pointer PointerTo(const blas::Operand& operand) { return reinterpret_cast<Pointer>(operand.address); }

// The type arguments of GemmEx and its variants: the result's type, the compute type, and the type of alpha and beta.
struct Computed {
  int type, compute;
  uint64_t factor;
  bool complex, integer;
};
inline constexpr Computed kComputed[] = {{2, 64, 2, false, false}, {2, 68, 4, false, false},  {14, 68, 4, false, false},
                                         {0, 77, 4, false, false}, {0, 65, 2, false, false},  {4, 68, 8, true, false},
                                         {1, 70, 8, false, false}, {5, 71, 16, true, false},  {10, 72, 4, false, true},
                                         {0, 74, 4, false, false}, {28, 68, 4, false, false}, {10, 73, 4, false, true}};

// One call of a row of each GEMM family, with random arguments.
template <typename Int>
struct ProductCalls {
  using Families = abi::Blas<Int>;

  // Operands of a product. A and B have types of their own where the call passes them.
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
    Library<typename Families::Gemm>::Call(symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k),
                                           s.Given(alpha), PointerTo(g.a), Int(g.a.ld), PointerTo(g.b), Int(g.b.ld),
                                           s.Given(beta), PointerTo(g.c), Int(g.c.ld));
    s.Check(symbol);
  }
  static void GemmStrided(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemm g = Product(s, alpha, beta, s.element, s.element, s.element, true);
    Describe(g, &s.expected);
    Library<typename Families::GemmStrided>::Call(symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k),
                                                  s.Given(alpha), PointerTo(g.a), Int(g.a.ld), g.a.stride,
                                                  PointerTo(g.b), Int(g.b.ld), g.b.stride, s.Given(beta),
                                                  PointerTo(g.c), Int(g.c.ld), g.c.stride, Int(g.batch));
    s.Check(symbol);
  }
  static void GemmTyped(Scene& s, const char* symbol) {
    Typed(s, symbol, false, false,
          [&](const blas::Gemm& g, const int* types, int, ConstPointer alpha, ConstPointer beta) {
            Library<typename Families::GemmTyped>::Call(
                symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k), alpha, PointerTo(g.a), types[0],
                Int(g.a.ld), PointerTo(g.b), types[1], Int(g.b.ld), beta, PointerTo(g.c), types[2], Int(g.c.ld));
          });
  }
  static void GemmEx(Scene& s, const char* symbol) {
    Typed(s, symbol, false, true,
          [&](const blas::Gemm& g, const int* types, int compute, ConstPointer alpha, ConstPointer beta) {
            Library<typename Families::GemmEx>::Call(symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k),
                                                     alpha, PointerTo(g.a), types[0], Int(g.a.ld), PointerTo(g.b),
                                                     types[1], Int(g.b.ld), beta, PointerTo(g.c), types[2], Int(g.c.ld),
                                                     compute, -1);
          });
  }
  static void GemmStridedEx(Scene& s, const char* symbol) {
    Typed(s, symbol, true, true,
          [&](const blas::Gemm& g, const int* types, int compute, ConstPointer alpha, ConstPointer beta) {
            Library<typename Families::GemmStridedEx>::Call(
                symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k), alpha, PointerTo(g.a), types[0],
                Int(g.a.ld), g.a.stride, PointerTo(g.b), types[1], Int(g.b.ld), g.b.stride, beta, PointerTo(g.c),
                types[2], Int(g.c.ld), g.c.stride, Int(g.batch), compute, -1);
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
  static const ConstPointer* Inputs(const blas::PointerArray& array) {
    return reinterpret_cast<const ConstPointer*>(array.address);
  }
  static const Pointer* Outputs(const blas::PointerArray& array) {
    return reinterpret_cast<const Pointer*>(array.address);
  }
  static void GemmBatched(Scene& s, const char* symbol) {
    Factor alpha = s.Make(0), beta = s.Make(1);
    const blas::Gemm g = Product(s, alpha, beta, s.element, s.element, s.element, false);
    const blas::BatchedGemm b = Batched(s, g);
    Describe(b, &s.expected);
    Library<typename Families::GemmBatched>::Call(symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k),
                                                  s.Given(alpha), Inputs(b.a), Int(g.a.ld), Inputs(b.b), Int(g.b.ld),
                                                  s.Given(beta), Outputs(b.c), Int(g.c.ld), Int(b.batch));
    s.Check(symbol);
  }
  static void GemmBatchedEx(Scene& s, const char* symbol) {
    const Computed& of = kComputed[s.r.In(0, 11)];
    Factor alpha = s.Make(0, of.factor, of.complex, of.integer), beta = s.Make(1, of.factor, of.complex, of.integer);
    const blas::Gemm g = Product(s, alpha, beta, 2, 4, blas::BytesOf(of.type), false);
    const blas::BatchedGemm b = Batched(s, g);
    Describe(b, &s.expected);
    Library<typename Families::GemmBatchedEx>::Call(
        symbol, kHandle, g.transa, g.transb, Int(g.m), Int(g.n), Int(g.k), s.Given(alpha), Inputs(b.a), 14, Int(g.a.ld),
        Inputs(b.b), 0, Int(g.b.ld), s.Given(beta), Outputs(b.c), of.type, Int(g.c.ld), Int(b.batch), of.compute, -1);
    s.Check(symbol);
  }
  // One to four groups of products; the pointers of all groups follow each other.
  template <typename Issue>
  static void Groups(Scene& s, const char* symbol, uint64_t factor, uint64_t a, uint64_t b, uint64_t c, Issue issue) {
    const int64_t groups = s.r.In(1, 4);
    std::vector<blas::Gemm> one;
    std::vector<Int> sizes;
    Factor alpha = s.Make(0, factor, false), beta = s.Make(1, factor, false);
    int64_t all = 0;
    for (int64_t i = 0; i < groups; ++i) {
      const Factor of_alpha = s.Make(0, factor, false), of_beta = s.Make(1, factor, false);
      const auto offset = static_cast<uint64_t>(i) * factor;
      std::memcpy(alpha.host + offset, of_alpha.host, factor);
      std::memcpy(beta.host + offset, of_beta.host, factor);
      one.push_back(Product(s, of_alpha, of_beta, a, b, c, false));
      if (s.on_device) one.back().alpha.device += offset, one.back().beta.device += offset;
      sizes.push_back(static_cast<Int>(s.r.In(0, 3)));
      all += sizes.back();
    }
    const uint64_t arrays[3] = {s.Array(0, all), s.Array(1, all), s.Array(2, all)};
    std::vector<int> ta, tb;
    std::vector<Int> m, n, k, lda, ldb, ldc;
    size_t at = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      const blas::Gemm& g = one[i];
      ta.push_back(g.transa), tb.push_back(g.transb), m.push_back(Int(g.m)), n.push_back(Int(g.n)),
          k.push_back(Int(g.k));
      lda.push_back(Int(g.a.ld)), ldb.push_back(Int(g.b.ld)), ldc.push_back(Int(g.c.ld));
      const auto part = [&](int which) {
        return blas::PointerArray{arrays[which] + 8 * at,
                                  std::span(s.arrays[which]).subspan(at, static_cast<size_t>(sizes[i]))};
      };
      Describe(blas::BatchedGemm{g, part(0), part(1), part(2), sizes[i]}, &s.expected);
      at += static_cast<size_t>(sizes[i]);
    }
    issue(ta.data(), tb.data(), m.data(), n.data(), k.data(), lda.data(), ldb.data(), ldc.data(), s.Given(alpha),
          s.Given(beta), reinterpret_cast<const ConstPointer*>(arrays[0]),
          reinterpret_cast<const ConstPointer*>(arrays[1]), reinterpret_cast<const Pointer*>(arrays[2]),
          static_cast<Int>(groups), sizes.data());
    s.Check(symbol);
  }
  static void GemmGrouped(Scene& s, const char* symbol) {
    Groups(s, symbol, s.element, s.element, s.element, s.element,
           [&](const int* ta, const int* tb, const Int* m, const Int* n, const Int* k, const Int* lda, const Int* ldb,
               const Int* ldc, ConstPointer alpha, ConstPointer beta, const ConstPointer* a, const ConstPointer* b,
               const Pointer* c, Int groups, const Int* sizes) {
             Library<typename Families::GemmGrouped>::Call(symbol, kHandle, ta, tb, m, n, k, alpha, a, lda, b, ldb,
                                                           beta, c, ldc, groups, sizes);
           });
  }
  static void GemmGroupedEx(Scene& s, const char* symbol) {
    Groups(s, symbol, 4, 2, 2, 4,
           [&](const int* ta, const int* tb, const Int* m, const Int* n, const Int* k, const Int* lda, const Int* ldb,
               const Int* ldc, ConstPointer alpha, ConstPointer beta, const ConstPointer* a, const ConstPointer* b,
               const Pointer* c, Int groups, const Int* sizes) {
             Library<typename Families::GemmGroupedEx>::Call(symbol, kHandle, ta, tb, m, n, k, alpha, a, 14, lda, b, 2,
                                                             ldb, beta, c, 0, ldc, groups, sizes, 68);
           });
  }
};

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_BLAS_PRODUCTS_H_
