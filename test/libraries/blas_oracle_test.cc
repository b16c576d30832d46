// Random BLAS calls against the oracle.
#include "hooklib/libraries/extents/blas.h"
#include "test/libraries/oracle.h"

namespace sluice::libraries {
namespace {

using namespace blas;  // NOLINT(google-build-using-namespace): the test is about its names
using test::Judge;
using test::Random;
using test::Touched;

constexpr uint64_t kSizes[] = {1, 2, 4, 8, 16};

// Operands lie apart; one time in eight two of them overlap.
struct Scene {
  Random random;
  Touched truth;
  Judge judge;
  AccessSet exact{0, SIZE_MAX}, coarse{96, 3};
  uint64_t element = 4;
  bool overlap = false;
  int checked = 0;  // calls whose operands all lie in the oracle's space

  explicit Scene(uint64_t seed) : random(seed) {}
  void Next() {
    truth.Clear();
    element = kSizes[random.In(0, 4)];
    overlap = random.OneIn(8);
  }
  uint64_t Place(int operand) {
    const uint64_t at = test::Bytes::kBase + 16384 * static_cast<uint64_t>(operand) + 8192;
    return overlap ? test::Bytes::kBase + 24000 + static_cast<uint64_t>(random.In(0, 40)) * element : at;
  }
  Operand Make(int operand, int64_t ld, bool strided = false) {
    return {Place(operand), ld, element, strided ? random.In(-60, 60) : 0};
  }
  Scalar MakeScalar() {
    if (random.OneIn(10))
      return {test::Bytes::kBase + 512 + static_cast<uint64_t>(random.In(0, 8)) * 16, element, false};
    return {0, element, random.OneIn(2)};
  }
  void ReadScalar(const Scalar& s) {
    if (s.device) truth.Read(s.device, s.bytes);
  }
  bool Zero(const Scalar& s) { return s.zero && !s.device; }

  template <typename Call>
  void Check(const Call& call, bool overwrites) {
    if (!truth.inside) return;
    ++checked;
    for (AccessSet* set : {&exact, &coarse}) {
      set->Clear();
      Describe(call, set);
      set->Close();
      if (!set->known()) FAIL("a sound call is doubted");
      const std::string wrong = judge(*set, truth, set == &exact, overwrites && !overlap);
      if (!wrong.empty()) FAIL(wrong);
    }
  }
};

uint64_t At(const Operand& o, int64_t row, int64_t column, int64_t batch = 0) {
  return o.address + static_cast<uint64_t>((batch * o.stride + column * o.ld + row)) * o.bytes;
}
// op(A)'s element (i, j).
uint64_t AtOp(const Operand& o, int op, int64_t i, int64_t j, int64_t batch = 0) {
  return op == kN ? At(o, i, j, batch) : At(o, j, i, batch);
}
// BLAS' start for a negative increment.
uint64_t AtVector(const Operand& o, int64_t i, int64_t length, int64_t batch = 0) {
  const int64_t start = o.ld < 0 ? (1 - length) * o.ld : 0;
  return o.address + static_cast<uint64_t>(batch * o.stride + start + i * o.ld) * o.bytes;
}

int64_t Ld(Random& random, int64_t rows) {
  return std::max<int64_t>(1, rows) + (random.OneIn(2) ? 0 : random.In(0, 3));
}

TEST_CASE("gemm, strided batches, alpha and beta on host and device: 300,000 calls") {
  Scene s(1);
  for (int round = 0; round < 300000; ++round) {
    s.Next();
    Random& r = s.random;
    Gemm g;
    g.transa = static_cast<int>(r.In(0, 2));
    g.transb = static_cast<int>(r.In(0, 2));
    g.m = r.In(0, 5), g.n = r.In(0, 5), g.k = r.In(0, 5);
    g.batch = r.OneIn(3) ? r.In(0, 3) : 1;
    g.a = s.Make(1, Ld(r, g.transa == kN ? g.m : g.k), g.batch > 1);
    g.b = s.Make(2, Ld(r, g.transb == kN ? g.k : g.n), g.batch > 1);
    g.c = s.Make(3, Ld(r, g.m), g.batch > 1);
    g.alpha = s.MakeScalar();
    g.beta = s.MakeScalar();
    if (g.m && g.n && g.batch) {
      s.ReadScalar(g.alpha);
      s.ReadScalar(g.beta);
    }
    for (int64_t batch = 0; batch < g.batch; ++batch) {
      for (int64_t i = 0; i < g.m; ++i) {
        for (int64_t j = 0; j < g.n; ++j) {
          for (int64_t l = 0; l < g.k; ++l) {
            s.truth.Read(AtOp(g.a, g.transa, i, l, batch), g.a.bytes);
            s.truth.Read(AtOp(g.b, g.transb, l, j, batch), g.b.bytes);
          }
          if (!s.Zero(g.beta)) s.truth.Read(At(g.c, i, j, batch), g.c.bytes);
          s.truth.Write(At(g.c, i, j, batch), g.c.bytes);
        }
      }
    }
    s.Check(g, s.Zero(g.beta) && g.k > 0);
  }
  CHECK(s.checked > 290000);
}

TEST_CASE("gemm by pointer arrays that were seen: 50,000 calls") {
  Scene s(2);
  std::vector<uint64_t> a, b, c;
  for (int round = 0; round < 50000; ++round) {
    s.Next();
    s.overlap = false;
    Random& r = s.random;
    BatchedGemm g;
    g.one.m = r.In(0, 4), g.one.n = r.In(0, 4), g.one.k = r.In(0, 4);
    g.batch = r.In(0, 3);
    g.one.a = s.Make(0, Ld(r, g.one.m)), g.one.b = s.Make(0, Ld(r, g.one.k)), g.one.c = s.Make(0, Ld(r, g.one.m));
    g.one.beta = {0, s.element, r.OneIn(2)};
    a.clear(), b.clear(), c.clear();
    auto place = [&](int64_t slot) { return test::Bytes::kBase + 4096 * static_cast<uint64_t>(slot); };
    for (int64_t i = 0; i < g.batch; ++i) {
      a.push_back(place(1 + 3 * i)), b.push_back(place(2 + 3 * i)), c.push_back(place(3 + 3 * i));
    }
    g.a = {place(11), a}, g.b = {place(12), b}, g.c = {place(13), c};
    if (g.one.m && g.one.n) {
      for (const PointerArray* array : {&g.a, &g.b, &g.c}) s.truth.Read(array->address, array->seen.size() * 8);
    }
    for (size_t batch = 0; batch < a.size(); ++batch) {
      Gemm one = g.one;
      one.a.address = a[batch], one.b.address = b[batch], one.c.address = c[batch];
      for (int64_t i = 0; i < one.m; ++i) {
        for (int64_t j = 0; j < one.n; ++j) {
          for (int64_t l = 0; l < one.k; ++l) {
            s.truth.Read(At(one.a, i, l), one.a.bytes);
            s.truth.Read(At(one.b, l, j), one.b.bytes);
          }
          if (!one.beta.zero) s.truth.Read(At(one.c, i, j), one.c.bytes);
          s.truth.Write(At(one.c, i, j), one.c.bytes);
        }
      }
    }
    s.Check(g, false);  // the pointers are believed, so nothing is called overwritten
  }
  CHECK(s.checked > 49000);
}

TEST_CASE("gemv with increments of both signs: 150,000 calls") {
  Scene s(3);
  for (int round = 0; round < 150000; ++round) {
    s.Next();
    Random& r = s.random;
    Gemv g;
    g.trans = static_cast<int>(r.In(0, 2));
    g.m = r.In(0, 6), g.n = r.In(0, 6);
    g.batch = r.OneIn(3) ? r.In(0, 3) : 1;
    auto increment = [&] { return r.OneIn(2) ? 1 : r.OneIn(2) ? r.In(1, 4) : r.In(-4, -1); };
    g.a = s.Make(1, Ld(r, g.m), g.batch > 1);
    g.x = s.Make(2, increment(), g.batch > 1);
    g.y = s.Make(3, increment(), g.batch > 1);
    g.alpha = s.MakeScalar();
    g.beta = s.MakeScalar();
    if (g.m && g.n && g.batch) {
      s.ReadScalar(g.alpha);
      s.ReadScalar(g.beta);
    }
    const int64_t rows = g.trans == kN ? g.m : g.n, columns = g.trans == kN ? g.n : g.m;
    for (int64_t batch = 0; batch < g.batch; ++batch) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          s.truth.Read(AtOp(g.a, g.trans, i, j, batch), g.a.bytes);
          s.truth.Read(AtVector(g.x, j, columns, batch), g.x.bytes);
          s.truth.Write(AtVector(g.y, i, rows, batch), g.y.bytes);
          if (!s.Zero(g.beta)) s.truth.Read(AtVector(g.y, i, rows, batch), g.y.bytes);
        }
      }
    }
    s.Check(g, s.Zero(g.beta));
  }
  CHECK(s.checked > 145000);
}

// Whether BLAS refers to (row, column) of a triangular matrix.
bool InTriangle(int uplo, bool diagonal, int64_t row, int64_t column) {
  if (row == column) return diagonal;
  return uplo == kLower ? row > column : row < column;
}

TEST_CASE("trsm and trmm: 150,000 calls") {
  Scene s(4);
  for (int round = 0; round < 150000; ++round) {
    s.Next();
    Random& r = s.random;
    Triangular t;
    t.side = static_cast<int>(r.In(0, 1)), t.uplo = static_cast<int>(r.In(0, 1)), t.diag = static_cast<int>(r.In(0, 1));
    t.m = r.In(0, 6), t.n = r.In(0, 6);
    t.in_place = r.OneIn(2);
    const int64_t order = t.side == kLeft ? t.m : t.n;
    t.a = s.Make(1, Ld(r, order));
    t.b = s.Make(2, Ld(r, t.m));
    t.c = s.Make(3, Ld(r, t.m));
    t.alpha = s.MakeScalar();
    if (t.m && t.n) {
      s.ReadScalar(t.alpha);
      for (int64_t i = 0; i < order; ++i) {
        for (int64_t j = 0; j < order; ++j) {
          if (InTriangle(t.uplo, t.diag == kNonUnit, i, j)) s.truth.Read(At(t.a, i, j), t.a.bytes);
        }
      }
    }
    for (int64_t i = 0; i < t.m; ++i) {
      for (int64_t j = 0; j < t.n; ++j) {
        s.truth.Read(At(t.b, i, j), t.b.bytes);
        s.truth.Write(At(t.in_place ? t.b : t.c, i, j), t.b.bytes);
      }
    }
    s.Check(t, !t.in_place);
  }
  CHECK(s.checked > 145000);
}

TEST_CASE("symm, syrk, syr2k: 150,000 calls") {
  Scene s(5);
  for (int round = 0; round < 75000; ++round) {
    s.Next();
    Random& r = s.random;
    Symm y;
    y.side = static_cast<int>(r.In(0, 1)), y.uplo = static_cast<int>(r.In(0, 1));
    y.m = r.In(0, 6), y.n = r.In(0, 6);
    const int64_t order = y.side == kLeft ? y.m : y.n;
    y.a = s.Make(1, Ld(r, order)), y.b = s.Make(2, Ld(r, y.m)), y.c = s.Make(3, Ld(r, y.m));
    y.alpha = s.MakeScalar(), y.beta = s.MakeScalar();
    if (y.m && y.n) {
      s.ReadScalar(y.alpha);
      s.ReadScalar(y.beta);
      for (int64_t i = 0; i < order; ++i) {
        for (int64_t j = 0; j < order; ++j) {
          if (InTriangle(y.uplo, true, i, j)) s.truth.Read(At(y.a, i, j), y.a.bytes);
        }
      }
    }
    for (int64_t i = 0; i < y.m; ++i) {
      for (int64_t j = 0; j < y.n; ++j) {
        s.truth.Read(At(y.b, i, j), y.b.bytes);
        s.truth.Write(At(y.c, i, j), y.c.bytes);
        if (!s.Zero(y.beta)) s.truth.Read(At(y.c, i, j), y.c.bytes);
      }
    }
    s.Check(y, s.Zero(y.beta));

    s.Next();
    Syrk k;
    k.uplo = static_cast<int>(r.In(0, 1)), k.trans = static_cast<int>(r.In(0, 2));
    k.n = r.In(0, 6), k.k = r.In(0, 6);
    k.two = r.OneIn(2);
    const int64_t rows = k.trans == kN ? k.n : k.k;
    k.a = s.Make(1, Ld(r, rows)), k.b = s.Make(2, Ld(r, rows)), k.c = s.Make(3, Ld(r, k.n));
    k.alpha = s.MakeScalar(), k.beta = s.MakeScalar();
    if (k.n) {
      s.ReadScalar(k.alpha);
      s.ReadScalar(k.beta);
    }
    for (int64_t i = 0; i < k.n; ++i) {
      for (int64_t l = 0; l < k.k; ++l) {
        s.truth.Read(AtOp(k.a, k.trans, i, l), k.a.bytes);
        if (k.two) s.truth.Read(AtOp(k.b, k.trans, i, l), k.b.bytes);
      }
      for (int64_t j = 0; j < k.n; ++j) {
        if (!InTriangle(k.uplo, true, i, j)) continue;
        s.truth.Write(At(k.c, i, j), k.c.bytes);
        if (!s.Zero(k.beta)) s.truth.Read(At(k.c, i, j), k.c.bytes);
      }
    }
    s.Check(k, s.Zero(k.beta) && k.k > 0);
  }
  CHECK(s.checked > 145000);
}

TEST_CASE("geam and dgmm: 150,000 calls") {
  Scene s(6);
  for (int round = 0; round < 75000; ++round) {
    s.Next();
    Random& r = s.random;
    Geam g;
    g.transa = static_cast<int>(r.In(0, 2)), g.transb = static_cast<int>(r.In(0, 2));
    g.m = r.In(0, 6), g.n = r.In(0, 6);
    g.a = s.Make(1, Ld(r, g.transa == kN ? g.m : g.n));
    g.b = s.Make(2, Ld(r, g.transb == kN ? g.m : g.n));
    g.c = s.Make(3, Ld(r, g.m));
    g.alpha = s.MakeScalar(), g.beta = s.MakeScalar();
    if (g.m && g.n) {
      s.ReadScalar(g.alpha);
      s.ReadScalar(g.beta);
    }
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        if (!s.Zero(g.alpha)) s.truth.Read(AtOp(g.a, g.transa, i, j), g.a.bytes);
        if (!s.Zero(g.beta)) s.truth.Read(AtOp(g.b, g.transb, i, j), g.b.bytes);
        s.truth.Write(At(g.c, i, j), g.c.bytes);
      }
    }
    s.Check(g, true);

    s.Next();
    Dgmm d;
    d.side = static_cast<int>(r.In(0, 1));
    d.m = r.In(0, 6), d.n = r.In(0, 6);
    d.a = s.Make(1, Ld(r, d.m)), d.c = s.Make(3, Ld(r, d.m));
    d.x = s.Make(2, r.OneIn(2) ? r.In(1, 4) : r.In(-4, -1));
    const int64_t length = d.side == kLeft ? d.m : d.n;
    for (int64_t i = 0; i < d.m; ++i) {
      for (int64_t j = 0; j < d.n; ++j) {
        s.truth.Read(At(d.a, i, j), d.a.bytes);
        s.truth.Read(AtVector(d.x, d.side == kLeft ? i : j, length), d.x.bytes);
        s.truth.Write(At(d.c, i, j), d.c.bytes);
      }
    }
    s.Check(d, true);
  }
  CHECK(s.checked > 145000);
}

// What no library would run, and no memory can hold: doubted, never wrong, never a crash.
TEST_CASE("calls that make no sense are doubted") {
  AccessSet set;
  auto doubt = [&](const auto& call) {
    set.Clear();
    Describe(call, &set);
    set.Close();
    return set.unknown_reason();
  };
  const uint64_t p = test::Bytes::kBase;
  const Gemm good{kN, kT, 4, 4, 4, {p, 4, 4}, {p + 4096, 4, 4}, {p + 8192, 4, 4}, {}, {0, 4, true}, 1};
  CHECK(doubt(good) == UnknownReason::kNone);
  Gemm bad = good;
  bad.m = -1;
  CHECK(doubt(bad) == UnknownReason::kUnsupported);
  bad = good, bad.a.ld = 3;
  CHECK(doubt(bad) == UnknownReason::kUnsupported);
  bad = good, bad.b.address = 0;
  CHECK(doubt(bad) == UnknownReason::kNullOperand);
  bad = good, bad.b.address = 0, bad.n = 0;
  CHECK(doubt(bad) == UnknownReason::kNone);
  CHECK(set.ranges().empty());
  bad = good, bad.c.bytes = 0;
  CHECK(doubt(bad) == UnknownReason::kUnsupported);
  bad = good, bad.transa = 77;
  CHECK(doubt(bad) == UnknownReason::kUnsupported);
  bad = good, bad.m = bad.n = bad.k = INT64_MAX, bad.a.ld = bad.b.ld = bad.c.ld = INT64_MAX;
  CHECK(doubt(bad) == UnknownReason::kUnsupported);
  bad = good, bad.batch = INT64_MAX, bad.a.stride = INT64_MIN;
  CHECK(doubt(bad) == UnknownReason::kUnsupported);
  BatchedGemm unseen{good, {p, {}}, {p + 64, {}}, {p + 128, {}}, 8};
  CHECK(doubt(unseen) == UnknownReason::kPointerArray);
  CHECK(set.ranges().size() == 1);  // the arrays themselves, side by side

  Random random(9);
  for (int i = 0; i < 100000; ++i) {
    auto wild = [&] { return static_cast<int64_t>(random.Next() >> random.In(0, 63)) * (random.OneIn(2) ? 1 : -1); };
    auto operand = [&] { return Operand{static_cast<uint64_t>(wild()), wild(), kSizes[random.In(0, 4)], wild()}; };
    doubt(Gemm{static_cast<int>(random.In(-1, 3)),
               0,
               wild(),
               wild(),
               wild(),
               operand(),
               operand(),
               operand(),
               {},
               {},
               wild()});
    doubt(Gemv{0, wild(), wild(), operand(), operand(), operand(), {}, {}, wild()});
    doubt(Triangular{
        0, static_cast<int>(random.In(0, 3)), 1, wild(), wild(), operand(), operand(), operand(), {}, false});
    doubt(Syrk{1, 0, wild(), wild(), operand(), operand(), operand(), {}, {}, true});
    for (const LibraryRange& range : set.ranges()) {
      if (range.address + range.bytes < range.address || range.bytes == 0) FAIL("a range that wraps");
    }
  }
}

}  // namespace
}  // namespace sluice::libraries
