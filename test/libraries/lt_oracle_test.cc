// Random cublasLt calls against the oracle.
#include "hooklib/libraries/extents/lt.h"
#include "test/libraries/oracle.h"

namespace sluice::libraries {
namespace {

using namespace lt;  // NOLINT(google-build-using-namespace): the test is about its names
using test::Bytes;
using test::Judge;
using test::Random;
using test::Touched;

constexpr int kTypes[] = {0, 1, 2, 3, 5, 14, 16, 28, 33};  // 32F 64F 16F 8I C64F 16BF 4I 8F 4F

// Element (row, column) of one of a batch, in elements from the matrix' begin.
int64_t Offset(const Layout& l, int64_t row, int64_t column) {
  switch (l.order) {
    case kCol:
      return row + column * l.ld;
    case kRow:
      return row * l.ld + column;
    case kCol32:
      return column / 32 * l.ld + row * 32 + column % 32;
    default: {  // kCol32_2R_4R4, by the formula of cublasLt.h
      const int64_t r = row % 32;
      return column / 32 * l.ld + row / 32 * 1024 + (((r % 8) / 2 * 4 + r / 8) * 2 + r % 2) * 32 + column % 32;
    }
  }
}

template <typename Visit>
void Each(const Matrix& m, Visit visit) {
  const Layout& l = m.layout;
  const uint64_t bits = blas::BitsOf(l.type);
  for (int64_t batch = 0; batch < l.batch; ++batch) {
    for (int64_t row = 0; row < static_cast<int64_t>(l.rows); ++row) {
      for (int64_t column = 0; column < static_cast<int64_t>(l.columns); ++column) {
        const int64_t at = (batch * l.stride + Offset(l, row, column)) * static_cast<int64_t>(bits);
        visit(m.address + static_cast<uint64_t>(at / 8), (bits + 7) / 8);
      }
    }
  }
}

struct Scene {
  explicit Scene(uint64_t seed) : r(seed) {}
  Random r;
  Touched truth;
  Judge judge;
  AccessSet exact{0, SIZE_MAX}, coarse{96, 3};
  bool tiled = false, sharp = true;

  Matrix Make(int slot, uint64_t rows, uint64_t columns, int batch) {
    Matrix m;
    m.address = Bytes::kBase + 12288 * static_cast<uint64_t>(slot);
    Layout& l = m.layout;
    l.type = kTypes[r.In(0, 8)];
    l.order = tiled ? (r.OneIn(2) ? kCol32 : kCol32_2R_4R4) : r.OneIn(2) ? kCol : kRow;
    l.rows = rows, l.columns = columns, l.batch = batch;
    const bool packed = blas::BitsOf(l.type) < 8;
    if (tiled) {
      l.type = 3;
      l.ld = static_cast<int64_t>(l.order == kCol32 ? 32 * rows : (rows + 31) / 32 * 1024);
      if (l.order == kCol32_2R_4R4) sharp = false;
    } else {
      l.ld = static_cast<int64_t>(l.order == kCol ? rows : columns) + (r.OneIn(2) ? 0 : r.In(0, 3));
      if (packed) {  // what cuBLAS demands of them, roughly: lines begin at whole bytes
        l.ld = (l.ld + 1) / 2 * 2;
        if ((l.order == kCol ? rows : columns) % 2) sharp = false;
      }
    }
    l.stride = batch > 1 ? l.ld * static_cast<int64_t>(rows + columns) + r.In(0, 8) * 2 : 0;
    return m;
  }
};

TEST_CASE("matmul: layouts, batches, epilogues, scales, workspaces: 60,000 calls") {
  Scene s(31);
  for (int round = 0; round < 60000; ++round) {
    s.truth.Clear();
    s.sharp = true;
    s.tiled = s.r.OneIn(8);
    Random& r = s.r;
    Matmul call;
    const auto m = static_cast<uint64_t>(r.In(1, s.tiled ? 40 : 6)),
               n = static_cast<uint64_t>(r.In(1, s.tiled ? 70 : 6)), k = static_cast<uint64_t>(r.In(1, 6));
    const int batch = r.OneIn(3) && !s.tiled ? static_cast<int>(r.In(1, 3)) : 1;
    call.transa = static_cast<int>(r.In(0, 2)), call.transb = static_cast<int>(r.In(0, 2));
    call.a = s.Make(0, call.transa ? k : m, call.transa ? m : k, batch);
    call.b = s.Make(1, call.transb ? n : k, call.transb ? k : n, batch);
    call.c = s.Make(2, m, n, batch);
    call.d = s.Make(3, m, n, batch);
    if (r.OneIn(3)) call.d = call.c;  // in place
    call.pointer_mode = static_cast<int>(r.In(0, 4));
    call.beta_zero = r.OneIn(2);
    if (call.pointer_mode == kDevice || call.pointer_mode == kDeviceVector) call.beta_zero = false;
    const uint64_t small = Bytes::kBase + 50000;
    call.alpha = small, call.beta = small + 256;
    const uint64_t vector = call.pointer_mode == kDevice ? 1 : m;
    if (batch > 1 && call.pointer_mode == kAlphaVectorBetaHost) call.alpha_stride = r.In(0, 12);
    if (call.pointer_mode != kHost) {
      for (int b = 0; b < batch; ++b)
        s.truth.Read(call.alpha + 4 * static_cast<uint64_t>(b * call.alpha_stride), 4 * vector);
    }
    if (call.pointer_mode == kDevice || call.pointer_mode == kDeviceVector) s.truth.Read(call.beta, 4 * vector);
    Each(call.a, [&](uint64_t at, uint64_t bytes) { s.truth.Read(at, bytes); });
    Each(call.b, [&](uint64_t at, uint64_t bytes) { s.truth.Read(at, bytes); });
    const bool reads_c = !call.beta_zero && call.pointer_mode != kAlphaVectorBetaZero;
    if (reads_c) Each(call.c, [&](uint64_t at, uint64_t bytes) { s.truth.Read(at, bytes); });
    Each(call.d, [&](uint64_t at, uint64_t bytes) { s.truth.Write(at, bytes); });

    constexpr uint32_t kEpilogues[] = {1, 2, 130, 4, 6, 134, 136, 152, 32, 160, 36, 164, 192, 208, 256, 512};
    call.epilogue = kEpilogues[r.In(0, 15)];
    bool only_d = true;
    if (call.epilogue & (kBias | kBiasGradient | kBgradA | kBgradB)) {
      call.bias = small + 1024;
      call.bias_type = r.OneIn(2) ? 0 : 14;
      call.bias_stride = batch > 1 ? r.In(0, 12) : 0;
      const uint64_t bytes = call.bias_type ? 2 : 4;
      for (int b = 0; b < batch; ++b) {
        for (uint64_t i = 0; i < (call.epilogue & kBgradB ? n : m); ++i) {
          const uint64_t at = call.bias + (static_cast<uint64_t>(b * call.bias_stride) + i) * bytes;
          if (call.epilogue & kBias) {
            s.truth.Read(at, bytes);
          } else {
            s.truth.Write(at, bytes);
            only_d = false;
          }
        }
      }
    }
    if (call.epilogue & kAux) {
      call.aux = small + 2048;
      const bool bits = call.epilogue & (kRelu | kDrelu), reads = call.epilogue & (kDrelu | kDgelu);
      call.aux_type = 14;
      call.aux_ld = bits ? 128 : static_cast<int64_t>(m + 7) / 8 * 8;
      call.aux_stride = batch > 1 ? call.aux_ld * static_cast<int64_t>(n) : 0;
      if (!reads) only_d = false;
      for (int b = 0; b < batch; ++b) {
        for (uint64_t i = 0; i < m; ++i) {
          for (uint64_t j = 0; j < n; ++j) {
            const uint64_t element =
                static_cast<uint64_t>(b * call.aux_stride) + j * static_cast<uint64_t>(call.aux_ld) + i;
            const uint64_t at = call.aux + (bits ? element / 8 : element * 2), bytes = bits ? 1 : 2;
            if (reads) {
              s.truth.Read(at, bytes);
            } else {
              s.truth.Write(at, bytes);
            }
          }
        }
      }
    }
    auto scale = [&](Scale* to, uint64_t slot, uint64_t outer) {
      if (!r.OneIn(4)) return;
      *to = {small + 8192 + slot * 64, r.OneIn(2) ? kScalar32F : kOuterVec};
      s.truth.Read(to->address, to->mode == kScalar32F ? 4 : 4 * outer);
    };
    if (!s.tiled) {
      scale(&call.scale_a, 0, m);
      scale(&call.scale_b, 1, n);
    }
    if (r.OneIn(4)) {
      call.amax = small + 9000;
      s.truth.Write(call.amax, 4);
      only_d = false;
    }
    if (r.OneIn(2)) {
      call.workspace = small + 10000, call.workspace_bytes = 512;
      s.truth.Write(call.workspace, 512);
      only_d = false;
    }
    REQUIRE(s.truth.inside);
    for (AccessSet* set : {&s.exact, &s.coarse}) {
      set->Clear();
      Describe(call, set);
      set->Close();
      if (!set->known()) FAIL("a sound call is doubted");
      const bool overwrites = only_d && s.sharp && !(reads_c && call.d.address == call.c.address);
      const std::string wrong = s.judge(*set, s.truth, set == &s.exact && s.sharp, overwrites);
      if (!wrong.empty()) FAIL(wrong << " in round " << round);
    }
  }
}

TEST_CASE("matrix transforms: 20,000 calls") {
  Scene s(32);
  for (int round = 0; round < 20000; ++round) {
    s.truth.Clear();
    s.sharp = true;
    s.tiled = s.r.OneIn(4);
    Transform call;
    const auto m = static_cast<uint64_t>(s.r.In(1, 6)), n = static_cast<uint64_t>(s.r.In(1, 40));
    call.a = s.Make(0, m, n, 1), call.b = s.Make(1, m, n, 1), call.c = s.Make(2, m, n, 1);
    if (s.r.OneIn(2)) call.b.address = 0;
    call.beta_zero = s.r.OneIn(2);
    Each(call.a, [&](uint64_t at, uint64_t bytes) { s.truth.Read(at, bytes); });
    if (call.b.address && !call.beta_zero) Each(call.b, [&](uint64_t at, uint64_t bytes) { s.truth.Read(at, bytes); });
    Each(call.c, [&](uint64_t at, uint64_t bytes) { s.truth.Write(at, bytes); });
    for (AccessSet* set : {&s.exact, &s.coarse}) {
      set->Clear();
      Describe(call, set);
      set->Close();
      const std::string wrong = s.judge(*set, s.truth, set == &s.exact && s.sharp, s.sharp);
      if (!wrong.empty()) FAIL(wrong << " in round " << round);
      if (!set->streaming()) FAIL("a transform streams");
    }
  }
}

TEST_CASE("planar complex, block scales, pointer arrays, nonsense") {
  AccessSet set(0, SIZE_MAX);
  Matmul call;
  auto layout = [](int type, uint64_t rows, uint64_t columns) {
    Layout l;
    l.type = type, l.rows = rows, l.columns = columns, l.ld = static_cast<int64_t>(rows);
    return l;
  };
  const uint64_t p = Bytes::kBase;
  call.a = {p, layout(6, 4, 4)};  // C_16F: planes of 2-byte parts
  call.a.layout.plane = 4096;
  call.b = {p + 16384, layout(28, 256, 300)};
  call.c = call.d = {p + 200000, layout(14, 4, 300)};
  call.a.layout.columns = 256;
  call.scale_b = {p + 300000, kVec32};
  call.beta_zero = true;
  Describe(call, &set);
  set.Close();
  REQUIRE(set.known());
  REQUIRE(set.ranges().size() == 5);
  CHECK((set.ranges()[0].address == p && set.ranges()[0].bytes == 4 * 256 * 2));
  CHECK((set.ranges()[1].address == p + 4096 && set.ranges()[1].bytes == 4 * 256 * 2));
  CHECK(set.ranges()[4].bytes == 384 * 8);  // 300 columns padded to 384, 256 / 32 blocks
  CHECK(set.ranges()[3].overwritten);

  call.d.layout.batch_mode = kPointerArray;
  set.Clear();
  Describe(call, &set);
  CHECK(set.unknown_reason() == UnknownReason::kPointerArray);
  call.d.layout.batch_mode = kStrided;
  call.d.layout.order = 99;
  set.Clear();
  Describe(call, &set);
  CHECK(set.unknown_reason() == UnknownReason::kUnsupported);
  call.d.layout.order = kCol;
  call.epilogue = 1024 | kBias;  // what it names besides, we do not know
  set.Clear();
  Describe(call, &set);
  CHECK(set.unknown_reason() == UnknownReason::kUnsupported);
  // A step of the bias whose bytes are no number.
  call.epilogue = kBias, call.bias = p, call.bias_stride = INT64_MAX;
  call.a.layout.batch = call.b.layout.batch = call.c.layout.batch = call.d.layout.batch = 2;
  set.Clear();
  Describe(call, &set);
  CHECK(set.unknown_reason() == UnknownReason::kUnsupported);
  call.d.layout.batch_mode = 2;  // batches in a way that is not known
  call.bias_stride = 0;
  set.Clear();
  Describe(call, &set);
  CHECK(set.unknown_reason() == UnknownReason::kUnsupported);
  call.epilogue = 1;
  call.d.layout = layout(99, 4, 4);
  set.Clear();
  Describe(call, &set);
  CHECK(set.unknown_reason() == UnknownReason::kUnsupported);

  Random r(5);
  for (int i = 0; i < 100000; ++i) {
    auto wild = [&] { return static_cast<int64_t>(r.Next() >> r.In(0, 63)) * (r.OneIn(2) ? 1 : -1); };
    auto matrix = [&] {
      Layout l{static_cast<int>(r.In(-1, 34)),
               static_cast<int>(r.In(-1, 5)),
               static_cast<uint64_t>(wild()),
               static_cast<uint64_t>(wild()),
               wild(),
               static_cast<int>(wild()),
               wild(),
               r.OneIn(4) ? wild() : 0,
               static_cast<int>(r.OneIn(8) ? r.In(1, 3) : 0)};
      return Matrix{static_cast<uint64_t>(wild()), l};
    };
    Matmul m;
    m.a = matrix(), m.b = matrix(), m.c = matrix(), m.d = matrix();
    m.epilogue = static_cast<uint32_t>(r.Next() & 1023), m.bias = m.aux = p, m.aux_ld = wild(), m.bias_stride = wild();
    m.aux_stride = wild();
    m.scale_a = {p, static_cast<int>(r.In(-1, 6))};
    set.Clear();
    AccessSet coarse;
    Describe(m, &coarse);
    coarse.Close();
    for (const LibraryRange& range : coarse.ranges()) {
      if (range.address + range.bytes < range.address) FAIL("a range that wraps");
    }
  }
}

}  // namespace
}  // namespace sluice::libraries
