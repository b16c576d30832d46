#include "hooklib/libraries/cudnn_call.h"

#include <cstring>

namespace sluice::libraries {

namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 46;

bool IsZero(ConstPointer at, bool is_double) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, is_double ? 8 : 4);
  return is_double ? bits << 1 == 0 : (bits & 0x7fffffff) == 0;
}

}  // namespace

void CudnnCall::Operand(TensorDesc descriptor, ConstPointer data, Use use, bool needed) {
  if (!needed && (!data || !descriptor)) return;
  Tensor tensor;
  uint64_t vector_bytes = 0;
  if (!Read(descriptor, &tensor, &vector_bytes)) return set_->MarkUnknown(UnknownReason::kDescriptor);
  if (vector_bytes) {
    set_->Add(Region::Bytes(Address(data), vector_bytes), use == Use::kOverwrite ? Use::kWrite : use);
  } else {
    AddTensor(Address(data), tensor, use, set_);
  }
}

void CudnnCall::Filter(FilterDesc descriptor, ConstPointer data, Use use) {
  auto* const get = copy_.Find<decltype(cudnnGetFilterSizeInBytes)>("cudnnGetFilterSizeInBytes");
  std::size_t bytes = 0;  // filters are packed in every format
  if (!descriptor || !get || get(descriptor, &bytes) != CUDNN_STATUS_SUCCESS || bytes > kMaxBytes)
    return set_->MarkUnknown(UnknownReason::kDescriptor);
  set_->Add(Region::Bytes(Address(data), bytes), use);
}

void CudnnCall::Sequence(cudnnSeqDataDescriptor_t descriptor, ConstPointer data, Use use) {
  auto* const get = copy_.Find<decltype(cudnnGetSeqDataDescriptor)>("cudnnGetSeqDataDescriptor");
  cudnnDataType_t type{};
  int rank = 0, dims[CUDNN_SEQDATA_DIM_COUNT] = {};
  cudnnSeqDataAxis_t axes[CUDNN_SEQDATA_DIM_COUNT] = {};
  std::size_t lengths = 0;
  if (!descriptor || !get ||
      get(descriptor, &type, &rank, CUDNN_SEQDATA_DIM_COUNT, dims, axes, &lengths, 0, nullptr, nullptr) !=
          CUDNN_STATUS_SUCCESS ||
      rank != CUDNN_SEQDATA_DIM_COUNT) {
    return set_->MarkUnknown(UnknownReason::kDescriptor);
  }
  Tensor packed;
  packed.bits = TensorBits(type);
  packed.rank = 1;
  packed.strides[0] = 1;
  packed.dims[0] = 1;
  for (const int n : dims) {
    if (n < 0 || __builtin_mul_overflow(packed.dims[0], n, &packed.dims[0]))
      return set_->MarkUnknown(UnknownReason::kUnsupported);
  }
  // Steps beyond a sequence's length are neither read nor written, so it is never written whole.
  AddTensor(Address(data), packed, use == Use::kOverwrite ? Use::kWrite : use, set_);
}

void CudnnCall::Bytes(ConstPointer data, std::size_t bytes, Use use) {
  if (bytes <= kMaxBytes) {
    set_->AddOptional(Region::Bytes(Address(data), bytes), use);
  } else {
    set_->MarkUnknown(UnknownReason::kUnsupported);
  }
}

Use CudnnCall::ResultUse(ConstPointer beta, TensorDesc y) {
  if (!beta) return Use::kUpdate;
  Tensor tensor;
  uint64_t vector_bytes = 0;
  const bool is_double = Read(y, &tensor, &vector_bytes) && type_ == CUDNN_DATA_DOUBLE;
  return IsZero(beta, is_double) ? Use::kOverwrite : Use::kUpdate;
}

Use CudnnCall::FilterResultUse(ConstPointer beta, FilterDesc w) {
  auto* const get = copy_.Find<decltype(cudnnGetFilterNdDescriptor)>("cudnnGetFilterNdDescriptor");
  cudnnDataType_t type{};
  cudnnTensorFormat_t format{};
  int rank = 0, dims[CUDNN_DIM_MAX] = {};
  if (!beta || !get || !w || get(w, CUDNN_DIM_MAX, &type, &format, &rank, dims) != CUDNN_STATUS_SUCCESS)
    return Use::kUpdate;
  return IsZero(beta, type == CUDNN_DATA_DOUBLE) ? Use::kOverwrite : Use::kUpdate;
}

// `vector_bytes`, if set: the elements are vectors, and the tensor covers at most this size of the library's own.
bool CudnnCall::Read(TensorDesc descriptor, Tensor* out, uint64_t* vector_bytes) {
  auto* const get = copy_.Find<decltype(cudnnGetTensorNdDescriptor)>("cudnnGetTensorNdDescriptor");
  int rank = 0, dims[CUDNN_DIM_MAX] = {}, strides[CUDNN_DIM_MAX] = {};
  if (!descriptor || !get || get(descriptor, CUDNN_DIM_MAX, &type_, &rank, dims, strides) != CUDNN_STATUS_SUCCESS ||
      rank < 1 || rank > CUDNN_DIM_MAX) {
    return false;
  }
  if (type_ == CUDNN_DATA_INT8x4 || type_ == CUDNN_DATA_UINT8x4 || type_ == CUDNN_DATA_INT8x32) {
    auto* const size = copy_.Find<decltype(cudnnGetTensorSizeInBytes)>("cudnnGetTensorSizeInBytes");
    std::size_t bytes = 0;
    if (!size || size(descriptor, &bytes) != CUDNN_STATUS_SUCCESS || bytes == 0 || bytes > kMaxBytes) return false;
    *vector_bytes = bytes;
    return true;
  }
  out->bits = TensorBits(type_);
  out->exact = type_ != CUDNN_DATA_BOOLEAN;
  out->rank = rank;
  for (int d = 0; d < rank; ++d) out->dims[d] = dims[d], out->strides[d] = strides[d];
  return true;
}

void DescribeMap(const LibraryCopy& copy, AccessSet* set, TensorDesc xd, ConstPointer x, ConstPointer beta,
                 TensorDesc yd, Pointer y) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(yd, y, call.ResultUse(beta, yd));
}
void DescribeMapBackward(const LibraryCopy& copy, AccessSet* set, TensorDesc yd, ConstPointer y, TensorDesc dyd,
                         ConstPointer dy, TensorDesc xd, ConstPointer x, ConstPointer beta, TensorDesc dxd,
                         Pointer dx) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Optional(yd, y, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Optional(xd, x, Use::kRead);
  call.Operand(dxd, dx, call.ResultUse(beta, dxd));
}

}  // namespace sluice::libraries
