#include "test/libraries/fake_getters.h"

#include <algorithm>
#include <cstring>

#include "hooklib/libraries/blas_abi.h"

namespace sluice::libraries::test {

std::atomic<int> g_pointer_mode{0}, g_pointer_mode_calls{0};
std::atomic<bool> g_handle_is_destroyed{false};
int64_t g_plan_workspace = 0, g_algo_workspace = 0;
std::atomic<int> g_algo_calls{0};
int g_workspace_status = 0;

int AcceptWorkspace(void*, void*, std::size_t) { return g_workspace_status; }

namespace {

int PointerMode(void* handle, int* mode) {
  ++g_pointer_mode_calls;
  if (!handle || g_handle_is_destroyed) return 1;  // CUBLAS_STATUS_NOT_INITIALIZED
  *mode = g_pointer_mode;
  return 0;
}

template <typename T>
int Give(const T& value, void* to, std::size_t capacity, std::size_t* written) {
  if (capacity != sizeof value) return 7;
  std::memcpy(to, &value, sizeof value);
  *written = sizeof value;
  return 0;
}

int LayoutGet(void* of, int attribute, void* to, std::size_t capacity, std::size_t* written) {
  const auto* l = static_cast<const Layout*>(of);
  if (!l || l->mark != kAlive || !l->alive) return 7;  // CUBLAS_STATUS_INVALID_VALUE
  switch (attribute) {
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_TYPE:
      return Give(l->type, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ORDER:
      return Give(l->order, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_ROWS:
      return Give(l->rows, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_COLS:
      return Give(l->columns, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_LD:
      return Give(l->ld, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Give(l->batch, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Give(l->stride, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET:
      return Give(l->plane, to, capacity, written);
    case abi::LtLayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_MODE:
      return Give(l->batch_mode, to, capacity, written);
    default:
      return 7;
  }
}

int MatmulGet(void* of, int attribute, void* to, std::size_t capacity, std::size_t* written) {
  const auto* m = static_cast<const MatmulDesc*>(of);
  if (!m || m->mark != kAlive) return 7;
  switch (attribute) {
    case abi::LtMatmulAttribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return Give(m->scale_type, to, capacity, written);
    case abi::LtMatmulAttribute::CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return Give(m->pointer_mode, to, capacity, written);
    case abi::LtMatmulAttribute::CUBLASLT_MATMUL_DESC_TRANSA:
      return Give(m->transa, to, capacity, written);
    case abi::LtMatmulAttribute::CUBLASLT_MATMUL_DESC_TRANSB:
      return Give(m->transb, to, capacity, written);
    case abi::LtMatmulAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Give(m->epilogue, to, capacity, written);
    case abi::LtMatmulAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Give(m->bias, to, capacity, written);
    default:
      break;
  }
  const auto other = m->others.find(attribute);
  if (other == m->others.end() || other->second.size() != capacity) return 7;
  std::memcpy(to, other->second.data(), capacity);
  *written = capacity;
  return 0;
}

int TransformGet(void* of, int attribute, void* to, std::size_t capacity, std::size_t* written) {
  const auto* t = static_cast<const TransformDesc*>(of);
  if (!t || t->mark != kAlive || attribute > 1) return 7;
  return Give(attribute == abi::LtTransformAttribute::CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE ? t->scale_type
                                                                                                : t->pointer_mode,
              to, capacity, written);
}

int AlgoCheck(void*, void* operation, void* a, void*, void*, void* d, const abi::LtAlgo* algo,
              abi::LtAlgoResult* result) {
  ++g_algo_calls;
  if (g_algo_workspace < 0 || !operation || !a || !d || algo->data[0] != kAlive) return 15;  // NOT_SUPPORTED
  result->workspace = static_cast<std::size_t>(g_algo_workspace);
  return 0;
}

cudnnStatus_t TensorGet(const cudnnTensorDescriptor_t of, int, cudnnDataType_t* type, int* rank, int dims[],
                        int strides[]) {
  const auto* t = reinterpret_cast<const TensorDescriptor*>(of);
  if (t->mark != kAlive || !t->alive) return CUDNN_STATUS_BAD_PARAM;
  *type = t->type;
  *rank = t->rank;
  std::copy_n(t->dims.begin(), t->rank, dims);
  std::copy_n(t->strides.begin(), t->rank, strides);
  return CUDNN_STATUS_SUCCESS;
}

// A type whose elements are vectors has whole vectors of the second dimension.
cudnnStatus_t TensorSize(const cudnnTensorDescriptor_t of, std::size_t* bytes) {
  const auto* t = reinterpret_cast<const TensorDescriptor*>(of);
  if (t->mark != kAlive || !t->alive) return CUDNN_STATUS_BAD_PARAM;
  const int vector = t->type == CUDNN_DATA_INT8x32 ? 32 : 4;
  *bytes = 1;
  for (int d = 0; d < t->rank; ++d) {
    *bytes *= static_cast<std::size_t>(d == 1 ? (t->dims[1] + vector - 1) / vector * vector : t->dims[d]);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FilterGet(const cudnnFilterDescriptor_t of, int, cudnnDataType_t* type, cudnnTensorFormat_t* format,
                        int* rank, int*) {
  const auto* f = reinterpret_cast<const FilterDescriptor*>(of);
  if (f->mark != kAlive) return CUDNN_STATUS_BAD_PARAM;
  *type = f->type;
  *format = CUDNN_TENSOR_NCHW;
  *rank = 4;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t SequenceGet(const cudnnSeqDataDescriptor_t of, cudnnDataType_t* type, int* rank, int, int dims[],
                          cudnnSeqDataAxis_t axes[], std::size_t* lengths, std::size_t, int*, void*) {
  const auto* s = reinterpret_cast<const SequenceDescriptor*>(of);
  if (s->mark != kAlive) return CUDNN_STATUS_BAD_PARAM;
  *type = s->type;
  *rank = 4;
  *lengths = 0;
  for (int d = 0; d < 4; ++d) {
    dims[d] = s->dims[d];
    axes[d] = static_cast<cudnnSeqDataAxis_t>(d);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t OpTensorGet(const cudnnOpTensorDescriptor_t of, cudnnOpTensorOp_t* op, cudnnDataType_t* type,
                          cudnnNanPropagation_t* nan) {
  const auto* o = reinterpret_cast<const OpTensorDescriptor*>(of);
  if (o->mark != kAlive) return CUDNN_STATUS_BAD_PARAM;
  *op = o->op;
  *type = CUDNN_DATA_FLOAT;
  *nan = CUDNN_NOT_PROPAGATE_NAN;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FilterSize(const cudnnFilterDescriptor_t of, std::size_t* bytes) {
  const auto* f = reinterpret_cast<const FilterDescriptor*>(of);
  if (f->mark != kAlive) return CUDNN_STATUS_BAD_PARAM;
  *bytes = f->bytes;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t BackendGet(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t,
                         int64_t, int64_t* count, void* to) {
  if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) return CUDNN_STATUS_NOT_SUPPORTED;
  *count = 1;
  std::memcpy(to, &g_plan_workspace, sizeof g_plan_workspace);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

void* FakeGetter(const char* symbol) {
  const struct {
    const char* name;
    void* function;
  } all[] = {{"cublasGetPointerMode_v2", reinterpret_cast<void*>(&PointerMode)},
             {"cublasLtMatrixLayoutGetAttribute", reinterpret_cast<void*>(&LayoutGet)},
             {"cublasLtMatmulAlgoCheck", reinterpret_cast<void*>(&AlgoCheck)},
             {"cublasLtMatmulDescGetAttribute", reinterpret_cast<void*>(&MatmulGet)},
             {"cublasLtMatrixTransformDescGetAttribute", reinterpret_cast<void*>(&TransformGet)},
             {"cudnnGetTensorNdDescriptor", reinterpret_cast<void*>(&TensorGet)},
             {"cudnnGetTensorSizeInBytes", reinterpret_cast<void*>(&TensorSize)},
             {"cudnnGetFilterSizeInBytes", reinterpret_cast<void*>(&FilterSize)},
             {"cudnnGetFilterNdDescriptor", reinterpret_cast<void*>(&FilterGet)},
             {"cudnnGetSeqDataDescriptor", reinterpret_cast<void*>(&SequenceGet)},
             {"cudnnGetOpTensorDescriptor", reinterpret_cast<void*>(&OpTensorGet)},
             {"cudnnBackendGetAttribute", reinterpret_cast<void*>(&BackendGet)}};
  for (const auto& [name, function] : all) {
    if (std::strcmp(name, symbol) == 0) return function;
  }
  return nullptr;
}

}  // namespace sluice::libraries::test
