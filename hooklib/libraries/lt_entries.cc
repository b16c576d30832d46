// cuBLASLt: layouts and operation are read back from the call's descriptors by the library's own getters.
#include <algorithm>
#include <array>
#include <cstring>

#include "hooklib/libraries/entries.h"
#include "hooklib/libraries/extents/lt.h"

namespace sluice::libraries {

namespace {

using LayoutAttribute = abi::LtLayoutAttribute;
using MatmulAttribute = abi::LtMatmulAttribute;
using TransformAttribute = abi::LtTransformAttribute;

// The getter of one descriptor. An attribute that an older library does not have keeps its default.
class Attributes {
 public:
  Attributes(abi::LtGetAttribute* get, abi::Pointer of) : get_(get), of_(of) {}
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
  uint64_t GetPointer(int attribute) const {
    void* value = nullptr;
    Get(attribute, &value);
    return Address(value);
  }

 private:
  abi::LtGetAttribute* get_;
  abi::Pointer of_;
};

bool ReadLayout(const Attributes& from, lt::Layout* out) {
  uint32_t type = 0, mode = 0;
  int32_t order = 0, batch = 1;
  if (!from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_TYPE, &type) ||
      !from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ROWS, &out->rows) ||
      !from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_COLS, &out->columns) ||
      !from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_LD, &out->ld)) {
    return false;
  }
  from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ORDER, &order);
  from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch);
  from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &out->stride);
  from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, &out->plane);
  from.Get(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, &mode);
  out->type = static_cast<int>(type);
  out->order = order;
  out->batch = batch;
  out->batch_mode = static_cast<int>(mode);
  return true;
}

// `type`: the scale type, a cudaDataType. Zero of an integer or float of that size; -0.0 counts as a value.
bool ZeroOnHost(const void* at, int type) {
  uint64_t parts[2] = {};
  const uint64_t bytes = blas::BytesOf(type);
  if (!at || bytes == 0 || bytes > sizeof parts) return false;
  std::memcpy(parts, at, bytes);
  return parts[0] == 0 && parts[1] == 0;
}

// The bytes of the workspace that the caller's algorithm uses: programs give 32 MiB to every call, and a
// split product uses a tenth of a MiB. The library is asked once for each shape. Only speed depends on the answer.
std::size_t WorkspaceUsed(const LibraryCopy& copy, abi::Pointer handle, abi::Pointer operation, abi::Pointer a,
                          abi::Pointer b, abi::Pointer c, abi::Pointer d, abi::ConstPointer algorithm,
                          const lt::Matmul& call, std::size_t given) {
  constexpr std::size_t kChunkBytes = std::size_t{2} << 20;
  if (!algorithm || !call.workspace || given <= kChunkBytes) return given;
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
  struct CheckedShape {
    uint64_t hash = 0;
    std::size_t bytes = 0;
  };
  static thread_local std::array<CheckedShape, 256> shapes;
  CheckedShape& slot = shapes[hash >> 56];
  if (slot.hash != hash) {
    auto* const check = copy.Find<abi::LtAlgoCheck>("cublasLtMatmulAlgoCheck");
    abi::LtAlgoResult result{};
    const bool answered = check && check(handle, operation, a, b, c, d, &algo, &result) == 0;
    slot = {hash, answered ? result.workspace : SIZE_MAX};
  }
  return std::min(given, slot.bytes);
}

void DescribeMatmul(const LibraryCopy& copy, AccessSet* set, abi::Pointer handle, abi::Pointer operation,
                    abi::ConstPointer alpha, abi::ConstPointer a, abi::Pointer a_layout, abi::ConstPointer b,
                    abi::Pointer b_layout, abi::ConstPointer beta, abi::ConstPointer c, abi::Pointer c_layout,
                    abi::Pointer d, abi::Pointer d_layout, abi::ConstPointer algorithm, abi::Pointer workspace,
                    std::size_t workspace_bytes, abi::Pointer) {
  auto* const layouts = copy.Find<abi::LtGetAttribute>("cublasLtMatrixLayoutGetAttribute");
  const Attributes op(copy.Find<abi::LtGetAttribute>("cublasLtMatmulDescGetAttribute"), operation);
  lt::Matmul call;
  call.workspace = Address(workspace);
  call.a.address = Address(a), call.b.address = Address(b), call.c.address = Address(c), call.d.address = Address(d);
  int32_t pointer_mode = 0, transa = 0, transb = 0, scale_type = 0;
  if (!ReadLayout({layouts, a_layout}, &call.a.layout) || !ReadLayout({layouts, b_layout}, &call.b.layout) ||
      !ReadLayout({layouts, c_layout}, &call.c.layout) || !ReadLayout({layouts, d_layout}, &call.d.layout) ||
      !op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &transa) ||
      !op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &transb) ||
      !op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale_type)) {
    return set->MarkUnknown(UnknownReason::kDescriptor);
  }
  op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointer_mode);
  call.transa = transa, call.transb = transb, call.pointer_mode = pointer_mode;
  call.alpha = Address(alpha), call.beta = Address(beta);
  call.scalar_bytes = blas::BytesOf(scale_type);
  if (pointer_mode > lt::kDevice)
    op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, &call.alpha_stride);
  const bool beta_on_host = pointer_mode == lt::kHost || pointer_mode == lt::kAlphaVectorBetaHost;
  call.beta_zero = beta_on_host && ZeroOnHost(beta, scale_type);
  op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &call.epilogue);
  if (call.epilogue & (lt::kBias | lt::kBiasGradient | lt::kBgradA | lt::kBgradB)) {
    call.bias = op.GetPointer(MatmulAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &call.bias_stride);
    op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &call.bias_type);
  }
  if (call.epilogue & lt::kAux) {
    call.aux = op.GetPointer(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &call.aux_ld);
    op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &call.aux_stride);
    op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &call.aux_type);
    call.scale_aux.address = op.GetPointer(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER);
    call.aux_amax = op.GetPointer(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER);
    if (call.scale_aux.address)
      op.Get(MatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, &call.scale_aux.mode);
  }
  // Only 8-bit and smaller types have scales; asking for them costs as much as all other attributes.
  bool narrow = false;
  for (const lt::Matrix* matrix : {&call.a, &call.b, &call.c, &call.d})
    narrow |= blas::BitsOf(matrix->layout.type) <= 8;
  if (narrow) {
    const struct {
      lt::Scale* scale;
      int pointer, mode;
    } scales[] = {{&call.scale_a, MatmulAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                   MatmulAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE},
                  {&call.scale_b, MatmulAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                   MatmulAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE},
                  {&call.scale_c, MatmulAttribute::CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
                   MatmulAttribute::CUBLASLT_MATMUL_DESC_C_SCALE_MODE},
                  {&call.scale_d, MatmulAttribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
                   MatmulAttribute::CUBLASLT_MATMUL_DESC_D_SCALE_MODE},
                  {&call.scale_out, MatmulAttribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER,
                   MatmulAttribute::CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE}};
    for (const auto& [scale, pointer, mode] : scales) {
      scale->address = op.GetPointer(pointer);
      if (scale->address) op.Get(mode, &scale->mode);
    }
    call.amax = op.GetPointer(MatmulAttribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
  }
  call.workspace_bytes =
      WorkspaceUsed(copy, handle, operation, a_layout, b_layout, c_layout, d_layout, algorithm, call, workspace_bytes);
  Describe(call, set);
}

void DescribeTransform(const LibraryCopy& copy, AccessSet* set, abi::Pointer, abi::Pointer operation,
                       abi::ConstPointer alpha, abi::ConstPointer a, abi::Pointer a_layout, abi::ConstPointer beta,
                       abi::ConstPointer b, abi::Pointer b_layout, abi::Pointer c, abi::Pointer c_layout,
                       abi::Pointer) {
  auto* const layouts = copy.Find<abi::LtGetAttribute>("cublasLtMatrixLayoutGetAttribute");
  const Attributes op(copy.Find<abi::LtGetAttribute>("cublasLtMatrixTransformDescGetAttribute"), operation);
  lt::Transform call;
  int32_t scale_type = 0;
  if ((a && !ReadLayout({layouts, a_layout}, &call.a.layout)) ||
      (b && !ReadLayout({layouts, b_layout}, &call.b.layout)) || !ReadLayout({layouts, c_layout}, &call.c.layout) ||
      !op.Get(TransformAttribute::CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, &scale_type)) {
    return set->MarkUnknown(UnknownReason::kDescriptor);
  }
  op.Get(TransformAttribute::CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE, &call.pointer_mode);
  call.a.address = Address(a), call.b.address = Address(b), call.c.address = Address(c);
  call.alpha = Address(alpha), call.beta = Address(beta);
  call.scalar_bytes = blas::BytesOf(scale_type);
  call.beta_zero = call.pointer_mode == lt::kHost && ZeroOnHost(beta, scale_type);
  Describe(call, set);
}

}  // namespace

namespace entry {

int cublasLtMatmul(abi::Pointer handle, abi::Pointer operation, abi::ConstPointer alpha, abi::ConstPointer a,
                   abi::Pointer a_layout, abi::ConstPointer b, abi::Pointer b_layout, abi::ConstPointer beta,
                   abi::ConstPointer c, abi::Pointer c_layout, abi::Pointer d, abi::Pointer d_layout,
                   abi::ConstPointer algorithm, abi::Pointer workspace, std::size_t bytes, abi::Pointer stream) {
  return Forward<int>(
      "cublasLtMatmul",
      [&](const LibraryCopy& copy, AccessSet* set) {
        DescribeMatmul(copy, set, handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                       algorithm, workspace, bytes, stream);
      },
      handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, bytes,
      stream);
}

int cublasLtMatrixTransform(abi::Pointer handle, abi::Pointer operation, abi::ConstPointer alpha, abi::ConstPointer a,
                            abi::Pointer a_layout, abi::ConstPointer beta, abi::ConstPointer b, abi::Pointer b_layout,
                            abi::Pointer c, abi::Pointer c_layout, abi::Pointer stream) {
  return Forward<int>(
      "cublasLtMatrixTransform",
      [&](const LibraryCopy& copy, AccessSet* set) {
        DescribeTransform(copy, set, handle, operation, alpha, a, a_layout, beta, b, b_layout, c, c_layout, stream);
      },
      handle, operation, alpha, a, a_layout, beta, b, b_layout, c, c_layout, stream);
}

}  // namespace entry
}  // namespace sluice::libraries
