// cublasLt's calls through their descriptors: the entry's set must equal lt::Describe's for the same values.
// lt_oracle_test.cc compares lt::Describe with the oracle.
#include <cstring>
#include <string>

#include "hooklib/libraries/blas_abi.h"
#include "hooklib/libraries/extents/lt.h"
#include "test/libraries/fake_getters.h"
#include "test/libraries/library.h"

namespace sluice::libraries {
namespace {

using test::Library;
using test::Random;
using test::t_seen;
using Attribute = abi::LtMatmulAttribute;

void Check(AccessSet* expected, const char* what) {
  expected->Close();
  const auto same = [](const LibraryRange& a, const LibraryRange& b) {
    return a.address == b.address && a.bytes == b.bytes && a.read == b.read && a.written == b.written &&
           a.overwritten == b.overwritten && a.scratch == b.scratch;
  };
  const auto want = expected->ranges();
  const bool alike = std::equal(want.begin(), want.end(), t_seen.ranges.begin(), t_seen.ranges.end(), same);
  if (t_seen.inside && t_seen.call.known == expected->known() && t_seen.call.streaming == expected->streaming() &&
      alike) {
    return;
  }
  std::string text = what;
  for (const LibraryRange& r : want) text += " wanted " + std::to_string(r.address) + "+" + std::to_string(r.bytes);
  for (const LibraryRange& r : t_seen.ranges)
    text += " got " + std::to_string(r.address) + "+" + std::to_string(r.bytes);
  FAIL(text << " known " << t_seen.call.known);
}

struct Scene {
  Random r{73};
  test::MatmulDesc op;
  int slot = 0;

  uint64_t Place() { return static_cast<uint64_t>(++slot) << 36; }
  void* Pointer(uint64_t at) { return reinterpret_cast<void*>(at); }
  template <typename T>
  T Set(int attribute, T value) {
    std::vector<char>& bytes = op.others[attribute];
    bytes.resize(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return value;
  }
  uint64_t SetPointer(int attribute) { return Set(attribute, Place()); }

  lt::Matrix Make(uint64_t rows, uint64_t columns, int batch) {
    constexpr int kTypes[] = {0, 2, 14, 28, 3, 4};
    lt::Matrix m;
    m.address = Place();
    lt::Layout& l = m.layout;
    l.type = kTypes[r.In(0, 5)];
    l.order = r.OneIn(3) ? lt::kRow : lt::kCol;
    l.rows = rows, l.columns = columns, l.batch = batch;
    l.ld = static_cast<int64_t>(l.order == lt::kCol ? rows : columns) + r.In(0, 5);
    l.stride = batch > 1 ? l.ld * static_cast<int64_t>(rows + columns) + r.In(0, 1 << 22) : 0;
    if (l.type == 4 && r.OneIn(2)) l.plane = 1 << 24;
    return m;
  }
  static test::Layout Of(const lt::Matrix& m) {
    const lt::Layout& l = m.layout;
    test::Layout out{static_cast<uint32_t>(l.type), l.rows, l.columns, l.ld, l.order, l.batch, l.stride};
    out.plane = l.plane;
    return out;
  }
};

TEST_CASE("the set of cublasLtMatmul follows every attribute of its descriptors: 30,000 calls") {
  const test::Wanted wanted;
  Scene s;
  for (int round = 0; round < 30000; ++round) {
    Random& r = s.r;
    s.slot = 0;
    s.op = {};
    lt::Matmul m;
    const auto rows = static_cast<uint64_t>(r.In(1, 40)), columns = static_cast<uint64_t>(r.In(1, 40)),
               k = static_cast<uint64_t>(r.In(1, 40));
    const int batch = r.OneIn(3) ? static_cast<int>(r.In(2, 4)) : 1;
    m.transa = s.op.transa = static_cast<int>(r.In(0, 2)), m.transb = s.op.transb = static_cast<int>(r.In(0, 2));
    m.a = s.Make(m.transa ? k : rows, m.transa ? rows : k, batch);
    m.b = s.Make(m.transb ? columns : k, m.transb ? k : columns, batch);
    m.c = s.Make(rows, columns, batch), m.d = s.Make(rows, columns, batch);
    m.pointer_mode = s.op.pointer_mode = static_cast<int>(r.In(0, 4));
    constexpr int kScales[] = {0, 1, 10, 4};
    s.op.scale_type = kScales[r.In(0, 3)];
    m.scalar_bytes = blas::BytesOf(s.op.scale_type);
    alignas(8) unsigned char factor[8] = {};
    const bool on_host = m.pointer_mode == lt::kHost || m.pointer_mode == lt::kAlphaVectorBetaHost;
    m.beta_zero = on_host && r.OneIn(2);
    if (on_host && !m.beta_zero) factor[m.scalar_bytes - 1] = 0x3f;
    m.alpha = s.Place(), m.beta = on_host ? reinterpret_cast<uintptr_t>(factor) : s.Place();
    if (batch > 1 && m.pointer_mode == lt::kAlphaVectorBetaHost)
      m.alpha_stride = s.Set(Attribute::CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, r.In(0, 1 << 22));

    constexpr uint32_t kEpilogues[] = {1, 2, 130, 4, 6, 134, 136, 152, 32, 160, 36, 164, 192, 208, 256, 512};
    m.epilogue = s.op.epilogue = kEpilogues[r.In(0, 15)];
    if (m.epilogue & (lt::kBias | lt::kBiasGradient | lt::kBgradA | lt::kBgradB)) {
      m.bias = s.Place();
      s.op.bias = s.Pointer(m.bias);
      if (batch > 1)
        m.bias_stride = s.Set<int64_t>(Attribute::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, r.In(0, 1 << 22));
      if (r.OneIn(2)) m.bias_type = s.Set<int32_t>(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, r.OneIn(2) ? 0 : 14);
    }
    bool narrow = false;
    for (const lt::Matrix* x : {&m.a, &m.b, &m.c, &m.d}) narrow |= blas::BitsOf(x->layout.type) <= 8;
    if (m.epilogue & lt::kAux) {
      m.aux = s.SetPointer(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
      m.aux_ld =
          s.Set<int64_t>(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(rows + 127) / 128 * 128);
      if (batch > 1)
        m.aux_stride = s.Set<int64_t>(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE,
                                      m.aux_ld * static_cast<int64_t>(columns));
      if (r.OneIn(2))
        m.aux_type = s.Set<int32_t>(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, r.OneIn(2) ? 28 : 14);
      if (narrow && r.OneIn(2))
        m.scale_aux.address = s.SetPointer(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER);
      if (m.scale_aux.address && r.OneIn(2))
        m.scale_aux.mode =
            s.Set<int32_t>(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, static_cast<int>(r.In(0, 2)));
      if (narrow && r.OneIn(2)) m.aux_amax = s.SetPointer(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER);
    }
    const struct {
      lt::Scale* scale;
      int pointer, mode;
    } scales[] = {
        {&m.scale_a, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE},
        {&m.scale_b, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE},
        {&m.scale_c, Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_MODE},
        {&m.scale_d, Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_MODE},
        {&m.scale_out, Attribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER,
         Attribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE}};
    for (const auto& [scale, pointer, mode] : scales) {
      if (!narrow || !r.OneIn(3)) continue;
      scale->address = s.SetPointer(pointer);
      if (r.OneIn(2)) scale->mode = s.Set<int32_t>(mode, static_cast<int>(r.In(0, 5)));
    }
    if (narrow && r.OneIn(3)) m.amax = s.SetPointer(Attribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
    m.workspace = s.Place(), m.workspace_bytes = static_cast<uint64_t>(r.In(0, 1 << 20));

    test::Layout a = s.Of(m.a), b = s.Of(m.b), c = s.Of(m.c), d = s.Of(m.d);
    Library<abi::LtMatmul>::Call("cublasLtMatmul", nullptr, &s.op, s.Pointer(m.alpha), s.Pointer(m.a.address), &a,
                                 s.Pointer(m.b.address), &b, s.Pointer(m.beta), s.Pointer(m.c.address), &c,
                                 s.Pointer(m.d.address), &d, nullptr, s.Pointer(m.workspace), m.workspace_bytes,
                                 nullptr);
    AccessSet expected;
    Describe(m, &expected);
    Check(&expected, "matmul");
    if (!t_seen.call.known) FAIL("a valid call has an incomplete set");
  }
}

TEST_CASE("the set of cublasLtMatrixTransform follows its descriptors: 10,000 calls") {
  const test::Wanted wanted;
  Scene s;
  for (int round = 0; round < 10000; ++round) {
    Random& r = s.r;
    s.slot = 0;
    test::TransformDesc op;
    constexpr int kScales[] = {0, 1, 10};
    op.scale_type = kScales[r.In(0, 2)], op.pointer_mode = static_cast<int>(r.In(0, 1));
    lt::Transform t;
    const auto rows = static_cast<uint64_t>(r.In(1, 40)), columns = static_cast<uint64_t>(r.In(1, 40));
    t.a = s.Make(rows, columns, 1), t.b = s.Make(rows, columns, 1), t.c = s.Make(rows, columns, 1);
    if (r.OneIn(2)) t.b.address = 0;
    t.pointer_mode = op.pointer_mode, t.scalar_bytes = blas::BytesOf(op.scale_type);
    alignas(8) unsigned char factor[8] = {};
    t.beta_zero = op.pointer_mode == 0 && r.OneIn(2);
    if (!t.beta_zero) factor[t.scalar_bytes - 1] = 0x3f;
    t.alpha = s.Place(), t.beta = op.pointer_mode == 0 ? reinterpret_cast<uintptr_t>(factor) : s.Place();
    test::Layout a = s.Of(t.a), b = s.Of(t.b), c = s.Of(t.c);
    Library<abi::LtMatrixTransform>::Call("cublasLtMatrixTransform", nullptr, &op, s.Pointer(t.alpha),
                                          s.Pointer(t.a.address), &a, s.Pointer(t.beta), s.Pointer(t.b.address),
                                          t.b.address ? &b : nullptr, s.Pointer(t.c.address), &c, nullptr);
    AccessSet expected;
    Describe(t, &expected);
    Check(&expected, "transform");
  }
}

TEST_CASE("values of a later cublasLt make the set incomplete, and nothing counts as overwritten") {
  const test::Wanted wanted;
  test::Layout a{0, 64, 64, 64}, batches = a;
  batches.batch_mode = 2;
  test::MatmulDesc op;
  const float alpha = 1, beta = 0;
  const auto is_unknown = [&](test::Layout* d) {
    const auto at = [](uint64_t p) { return reinterpret_cast<void*>(p); };
    Library<abi::LtMatmul>::Call("cublasLtMatmul", nullptr, &op, &alpha, at(1 << 24), &a, at(2 << 24), &a, &beta,
                                 at(3 << 24), d, at(3 << 24), d, nullptr, nullptr, 0, nullptr);
    for (const LibraryRange& range : t_seen.ranges) {
      if (!t_seen.call.known && range.overwritten) return false;
    }
    return !t_seen.call.known;
  };
  CHECK_FALSE(is_unknown(&a));
  CHECK(is_unknown(&batches));  // neither strides nor pointers
  op.epilogue = 1024;           // it may write anywhere
  CHECK(is_unknown(&a));
  op.epilogue = 1;
  op.pointer_mode = 5;
  CHECK(is_unknown(&a));
  op = {};
  a.order = 5;
  CHECK(is_unknown(&a));
}

}  // namespace
}  // namespace sluice::libraries
