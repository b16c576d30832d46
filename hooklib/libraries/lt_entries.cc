// cuBLASLt: layouts and operation are read back from the descriptors of the very call, by the library's own getters.
#include <algorithm>
#include <array>
#include <cstring>

#include "hooklib/libraries/entries.h"
#include "hooklib/libraries/extents/lt.h"

namespace sluice::libraries {

namespace {

// Numbers of cublasLtMatrixLayoutAttribute_t and cublasLtMatmulDescAttributes_t (test/libraries compares them).
enum LayoutAttribute {
  kType = 0,
  kOrder = 1,
  kRows = 2,
  kColumns = 3,
  kLd = 4,
  kBatch = 5,
  kStride = 6,
  kPlane = 7,
  kBatchMode = 8
};
enum MatmulAttribute {
  kScaleType = 1,
  kPointerMode = 2,
  kTransA = 3,
  kTransB = 4,
  kEpilogue = 7,
  kBias = 8,
  kBiasStride = 10,
  kAux = 11,
  kAuxLd = 12,
  kAuxStride = 13,
  kAlphaStride = 14,
  kScaleA = 17,
  kScaleB = 18,
  kScaleC = 19,
  kScaleD = 20,
  kAmaxD = 21,
  kAuxType = 22,
  kScaleAux = 23,
  kAmaxAux = 24,
  kBiasType = 26,
  kModeA = 31,
  kModeB = 32,
  kModeC = 33,
  kModeD = 34,
  kModeAux = 35,
  kScaleOut = 36,
  kModeOut = 37
};
enum TransformAttribute { kTransformScaleType = 0, kTransformPointerMode = 1 };

// One descriptor. What an older library does not have keeps its default.
class Attributes {
 public:
  Attributes(abi::LtGetAttribute* get, abi::P of) : get_(get), of_(of) {}
  template <typename T>
  bool Get(int attribute, T* out) const {
    T value{};
    std::size_t written = 0;
    if (!get_ || !of_ || get_(of_, attribute, static_cast<void*>(&value), sizeof value, &written) != 0 ||
        written != sizeof value)
      return false;
    *out = value;
    return true;
  }
  uint64_t Pointer(int attribute) const {
    void* value = nullptr;
    Get(attribute, &value);
    return Address(value);
  }

 private:
  abi::LtGetAttribute* get_;
  abi::P of_;
};

bool ReadLayout(const Attributes& from, lt::Layout* out) {
  uint32_t type = 0, mode = 0;
  int32_t order = 0, batch = 1;
  if (!from.Get(kType, &type) || !from.Get(kRows, &out->rows) || !from.Get(kColumns, &out->columns) ||
      !from.Get(kLd, &out->ld)) {
    return false;
  }
  from.Get(kOrder, &order);
  from.Get(kBatch, &batch);
  from.Get(kStride, &out->stride);
  from.Get(kPlane, &out->plane);
  from.Get(kBatchMode, &mode);
  out->type = static_cast<int>(type);
  out->order = order;
  out->batch = batch;
  out->batch_mode = static_cast<int>(mode);
  return true;
}

// Of a scale type, cudaDataType. Zero of an integer or float of that size.
bool ZeroOnHost(const void* at, int type) {
  uint64_t parts[2] = {};
  const uint64_t bytes = blas::BytesOf(type);
  if (!at || bytes == 0 || bytes > sizeof parts) return false;
  std::memcpy(parts, at, bytes);
  return parts[0] == 0 && parts[1] == 0;  // -0.0 is taken for a value
}

// What the algorithm that the caller chose takes of the workspace: programs give 32 MiB to all, of which a split
// product uses a tenth of one. Asked of the library once for a shape; only speed depends on it.
std::size_t WorkspaceUsed(const Copy& copy, abi::P handle, abi::P operation, abi::P a, abi::P b, abi::P c, abi::P d,
                          abi::C algorithm, const lt::Matmul& call, std::size_t given) {
  constexpr std::size_t kWorthAsking = std::size_t{2} << 20;  // unified memory's own unit
  if (!algorithm || !call.workspace || given <= kWorthAsking) return given;
  abi::LtAlgo algo;
  std::memcpy(&algo, algorithm, sizeof algo);
  uint64_t hash = reinterpret_cast<uintptr_t>(copy.real) ^ call.epilogue;
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  for (const uint64_t word : algo.data) mix(word);
  for (const lt::Matrix* matrix : {&call.a, &call.b, &call.c, &call.d}) {
    const lt::Layout& l = matrix->layout;
    for (const uint64_t value : {l.rows, l.columns, static_cast<uint64_t>(l.ld), static_cast<uint64_t>(l.stride)})
      mix(value);
    mix(static_cast<uint64_t>(l.type) << 40 ^ static_cast<uint64_t>(l.order) << 32 ^ static_cast<uint64_t>(l.batch));
  }
  mix(static_cast<uint64_t>(call.transa) << 1 ^ static_cast<uint64_t>(call.transb));
  struct Known {
    uint64_t hash = 0;
    std::size_t bytes = 0;
  };
  static thread_local std::array<Known, 256> known;
  Known& slot = known[hash >> 56];
  if (slot.hash != hash) {
    auto* const check = copy.Find<abi::LtAlgoCheck>("cublasLtMatmulAlgoCheck");
    abi::LtAlgoResult result{};
    const bool told = check && check(handle, operation, a, b, c, d, &algo, &result) == 0;
    slot = {hash, told ? result.workspace : SIZE_MAX};
  }
  return std::min(given, slot.bytes);
}

void DescribeMatmul(const Copy& copy, AccessSet* set, abi::P handle, abi::P operation, abi::C alpha, abi::C a,
                    abi::P a_layout, abi::C b, abi::P b_layout, abi::C beta, abi::C c, abi::P c_layout, abi::P d,
                    abi::P d_layout, abi::C algorithm, abi::P workspace, std::size_t workspace_bytes, abi::P) {
  auto* const layouts = copy.Find<abi::LtGetAttribute>("cublasLtMatrixLayoutGetAttribute");
  const Attributes op(copy.Find<abi::LtGetAttribute>("cublasLtMatmulDescGetAttribute"), operation);
  lt::Matmul call;
  call.workspace = Address(workspace);
  call.a.address = Address(a), call.b.address = Address(b), call.c.address = Address(c), call.d.address = Address(d);
  int32_t pointer_mode = 0, transa = 0, transb = 0, scale_type = 0;
  if (!ReadLayout({layouts, a_layout}, &call.a.layout) || !ReadLayout({layouts, b_layout}, &call.b.layout) ||
      !ReadLayout({layouts, c_layout}, &call.c.layout) || !ReadLayout({layouts, d_layout}, &call.d.layout) ||
      !op.Get(kTransA, &transa) || !op.Get(kTransB, &transb) || !op.Get(kScaleType, &scale_type)) {
    return set->MarkUnknown(UnknownReason::kDescriptor);
  }
  op.Get(kPointerMode, &pointer_mode);
  call.transa = transa, call.transb = transb, call.pointer_mode = pointer_mode;
  call.alpha = Address(alpha), call.beta = Address(beta);
  call.scalar_bytes = blas::BytesOf(scale_type);
  if (pointer_mode > lt::kDevice) op.Get(kAlphaStride, &call.alpha_stride);
  const bool beta_on_host = pointer_mode == lt::kHost || pointer_mode == lt::kAlphaVectorBetaHost;
  call.beta_zero = beta_on_host && ZeroOnHost(beta, scale_type);
  op.Get(kEpilogue, &call.epilogue);
  if (call.epilogue & (lt::kBias | lt::kBiasGradient | lt::kBgradA | lt::kBgradB)) {
    call.bias = op.Pointer(kBias);
    op.Get(kBiasStride, &call.bias_stride);
    op.Get(kBiasType, &call.bias_type);
  }
  if (call.epilogue & lt::kAux) {
    call.aux = op.Pointer(kAux);
    op.Get(kAuxLd, &call.aux_ld);
    op.Get(kAuxStride, &call.aux_stride);
    op.Get(kAuxType, &call.aux_type);
    call.scale_aux.address = op.Pointer(kScaleAux);
    call.aux_amax = op.Pointer(kAmaxAux);
    if (call.scale_aux.address) op.Get(kModeAux, &call.scale_aux.mode);
  }
  // Scales belong to 8-bit and smaller types; asking costs as much as all the rest.
  bool narrow = false;
  for (const lt::Matrix* matrix : {&call.a, &call.b, &call.c, &call.d})
    narrow |= blas::BitsOf(matrix->layout.type) <= 8;
  if (narrow) {
    const struct {
      lt::Scale* scale;
      int pointer, mode;
    } scales[] = {{&call.scale_a, kScaleA, kModeA},
                  {&call.scale_b, kScaleB, kModeB},
                  {&call.scale_c, kScaleC, kModeC},
                  {&call.scale_d, kScaleD, kModeD},
                  {&call.scale_out, kScaleOut, kModeOut}};
    for (const auto& [scale, pointer, mode] : scales) {
      scale->address = op.Pointer(pointer);
      if (scale->address) op.Get(mode, &scale->mode);
    }
    call.amax = op.Pointer(kAmaxD);
  }
  call.workspace_bytes =
      WorkspaceUsed(copy, handle, operation, a_layout, b_layout, c_layout, d_layout, algorithm, call, workspace_bytes);
  Describe(call, set);
}

void DescribeTransform(const Copy& copy, AccessSet* set, abi::P, abi::P operation, abi::C alpha, abi::C a,
                       abi::P a_layout, abi::C beta, abi::C b, abi::P b_layout, abi::P c, abi::P c_layout, abi::P) {
  auto* const layouts = copy.Find<abi::LtGetAttribute>("cublasLtMatrixLayoutGetAttribute");
  const Attributes op(copy.Find<abi::LtGetAttribute>("cublasLtMatrixTransformDescGetAttribute"), operation);
  lt::Transform call;
  int32_t scale_type = 0;
  if ((a && !ReadLayout({layouts, a_layout}, &call.a.layout)) ||
      (b && !ReadLayout({layouts, b_layout}, &call.b.layout)) || !ReadLayout({layouts, c_layout}, &call.c.layout) ||
      !op.Get(kTransformScaleType, &scale_type)) {
    return set->MarkUnknown(UnknownReason::kDescriptor);
  }
  op.Get(kTransformPointerMode, &call.pointer_mode);
  call.a.address = Address(a), call.b.address = Address(b), call.c.address = Address(c);
  call.alpha = Address(alpha), call.beta = Address(beta);
  call.scalar_bytes = blas::BytesOf(scale_type);
  call.beta_zero = call.pointer_mode == lt::kHost && ZeroOnHost(beta, scale_type);
  Describe(call, set);
}

}  // namespace

namespace entry {

int cublasLtMatmul(abi::P handle, abi::P operation, abi::C alpha, abi::C a, abi::P a_layout, abi::C b, abi::P b_layout,
                   abi::C beta, abi::C c, abi::P c_layout, abi::P d, abi::P d_layout, abi::C algorithm,
                   abi::P workspace, std::size_t bytes, abi::P stream) {
  return Forward<int>(
      "cublasLtMatmul",
      [&](const Copy& copy, AccessSet* set) {
        DescribeMatmul(copy, set, handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                       algorithm, workspace, bytes, stream);
      },
      handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, bytes,
      stream);
}

int cublasLtMatrixTransform(abi::P handle, abi::P operation, abi::C alpha, abi::C a, abi::P a_layout, abi::C beta,
                            abi::C b, abi::P b_layout, abi::P c, abi::P c_layout, abi::P stream) {
  return Forward<int>(
      "cublasLtMatrixTransform",
      [&](const Copy& copy, AccessSet* set) {
        DescribeTransform(copy, set, handle, operation, alpha, a, a_layout, beta, b, b_layout, c, c_layout, stream);
      },
      handle, operation, alpha, a, a_layout, beta, b, b_layout, c, c_layout, stream);
}

}  // namespace entry
}  // namespace sluice::libraries
