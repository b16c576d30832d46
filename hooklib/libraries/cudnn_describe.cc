// cuDNN's legacy calls: descriptors are read back by the library's own getters at the call, so what is described is
// what the library itself sees. One function for each SLUICE_CUDNN row of hooks.def, named as the call and with its
// arguments.
#include <cudnn.h>

#include <cstring>

#include "hooklib/libraries/entry.h"
#include "hooklib/libraries/extents/tensor.h"

namespace sluice::libraries {

namespace {

using TensorDesc = cudnnTensorDescriptor_t;
using FilterDesc = cudnnFilterDescriptor_t;
using P = void*;
using C = const void*;

// A call under description.
class Call {
 public:
  Call(const Copy& copy, AccessSet* set) : copy_(copy), set_(set) {}

  // `needed`: a null pointer or descriptor makes the set doubtful; else the operand is not given.
  void Operand(TensorDesc descriptor, C data, Use use, bool needed = true) {
    if (!needed && (!data || !descriptor)) return;
    Tensor tensor;
    uint64_t whole = 0;
    if (!Read(descriptor, &tensor, &whole)) return set_->MarkUnknown(UnknownReason::kDescriptor);
    if (whole) return Hull(data, whole, use);
    AddTensor(Address(data), tensor, use, set_);
  }
  void Optional(TensorDesc descriptor, C data, Use use) { Operand(descriptor, data, use, false); }
  void Filter(FilterDesc descriptor, C data, Use use) {
    auto* const get = copy_.Find<decltype(cudnnGetFilterSizeInBytes)>("cudnnGetFilterSizeInBytes");
    std::size_t bytes = 0;  // filters are packed in every format
    if (!descriptor || !get || get(descriptor, &bytes) != CUDNN_STATUS_SUCCESS || bytes > kMost)
      return set_->MarkUnknown(UnknownReason::kDescriptor);
    set_->Add(Region::Bytes(Address(data), bytes), use);
  }
  void Sequence(cudnnSeqDataDescriptor_t descriptor, C data, Use use) {
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
    // Steps beyond a sequence's length are neither read nor written: never wholly.
    AddTensor(Address(data), packed, use == Use::kOverwrite ? Use::kWrite : use, set_);
  }
  void Bytes(C data, std::size_t bytes, Use use) {
    if (bytes <= kMost) {
      set_->AddOptional(Region::Bytes(Address(data), bytes), use);
    } else {
      set_->MarkUnknown(UnknownReason::kUnsupported);
    }
  }
  void Workspace(C data, std::size_t bytes) { Bytes(data, bytes, Use::kScratch); }

  // How y = alpha op(x) + beta y uses y. Factors lie on the host: double for tensors of double, else float.
  Use Result(C beta, TensorDesc y) {
    if (!beta) return Use::kUpdate;
    Tensor tensor;
    uint64_t whole = 0;
    const bool is_double = Read(y, &tensor, &whole) && type_ == CUDNN_DATA_DOUBLE;
    return IsZero(beta, is_double) ? Use::kOverwrite : Use::kUpdate;
  }
  Use FilterResult(C beta, FilterDesc w) {
    auto* const get = copy_.Find<decltype(cudnnGetFilterNdDescriptor)>("cudnnGetFilterNdDescriptor");
    cudnnDataType_t type{};
    cudnnTensorFormat_t format{};
    int rank = 0, dims[CUDNN_DIM_MAX] = {};
    if (!beta || !get || !w || get(w, CUDNN_DIM_MAX, &type, &format, &rank, dims) != CUDNN_STATUS_SUCCESS)
      return Use::kUpdate;
    return IsZero(beta, type == CUDNN_DATA_DOUBLE) ? Use::kOverwrite : Use::kUpdate;
  }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 46;

  static bool IsZero(C at, bool is_double) {
    uint64_t bits = 0;
    std::memcpy(&bits, at, is_double ? 8 : 4);
    return is_double ? bits << 1 == 0 : (bits & 0x7fffffff) == 0;
  }
  void Hull(C data, uint64_t bytes, Use use) {
    set_->Add(Region::Bytes(Address(data), bytes), use == Use::kOverwrite ? Use::kWrite : use);
  }
  // `whole`, if set: a type whose elements are vectors; what it covers is the library's own size of it.
  bool Read(TensorDesc descriptor, Tensor* out, uint64_t* whole) {
    auto* const get = copy_.Find<decltype(cudnnGetTensorNdDescriptor)>("cudnnGetTensorNdDescriptor");
    int rank = 0, dims[CUDNN_DIM_MAX] = {}, strides[CUDNN_DIM_MAX] = {};
    if (!descriptor || !get || get(descriptor, CUDNN_DIM_MAX, &type_, &rank, dims, strides) != CUDNN_STATUS_SUCCESS ||
        rank < 1 || rank > CUDNN_DIM_MAX) {
      return false;
    }
    if (type_ == CUDNN_DATA_INT8x4 || type_ == CUDNN_DATA_UINT8x4 || type_ == CUDNN_DATA_INT8x32) {
      auto* const size = copy_.Find<decltype(cudnnGetTensorSizeInBytes)>("cudnnGetTensorSizeInBytes");
      std::size_t bytes = 0;
      if (!size || size(descriptor, &bytes) != CUDNN_STATUS_SUCCESS || bytes == 0 || bytes > kMost) return false;
      *whole = bytes;
      return true;
    }
    out->bits = TensorBits(type_);
    out->exact = type_ != CUDNN_DATA_BOOLEAN;
    out->rank = rank;
    for (int d = 0; d < rank; ++d) out->dims[d] = dims[d], out->strides[d] = strides[d];
    return true;
  }

  const Copy& copy_;
  AccessSet* set_;
  cudnnDataType_t type_{};  // of the tensor read last
};

// What every description begins with.
#define SLUICE_DESCRIBE(symbol, ...) \
  void symbol(const Copy& copy, AccessSet* set, cudnnHandle_t __VA_OPT__(, ) __VA_ARGS__)

namespace describe {

// --- convolutions ---

SLUICE_DESCRIBE(cudnnConvolutionForward, C, TensorDesc xd, C x, FilterDesc wd, C w, cudnnConvolutionDescriptor_t,
                cudnnConvolutionFwdAlgo_t, P workspace, std::size_t bytes, C beta, TensorDesc yd, P y) {
  Call call(copy, set);
  call.Operand(xd, x, Use::kRead);
  call.Filter(wd, w, Use::kRead);
  call.Operand(yd, y, call.Result(beta, yd));
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBiasActivationForward, C, TensorDesc xd, C x, FilterDesc wd, C w,
                cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, P workspace, std::size_t bytes, C alpha2,
                TensorDesc zd, C z, TensorDesc bd, C b, cudnnActivationDescriptor_t, TensorDesc yd, P y) {
  Call call(copy, set);
  call.Operand(xd, x, Use::kRead);
  call.Filter(wd, w, Use::kRead);
  if (call.Result(alpha2, zd) != Use::kOverwrite) call.Optional(zd, z, Use::kRead);
  call.Operand(bd, b, Use::kRead);
  call.Operand(yd, y, Use::kOverwrite);
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBackwardData, C, FilterDesc wd, C w, TensorDesc dyd, C dy, cudnnConvolutionDescriptor_t,
                cudnnConvolutionBwdDataAlgo_t, P workspace, std::size_t bytes, C beta, TensorDesc dxd, P dx) {
  Call call(copy, set);
  call.Filter(wd, w, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dxd, dx, call.Result(beta, dxd));
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBackwardFilter, C, TensorDesc xd, C x, TensorDesc dyd, C dy,
                cudnnConvolutionDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, P workspace, std::size_t bytes, C beta,
                FilterDesc dwd, P dw) {
  Call call(copy, set);
  call.Operand(xd, x, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Filter(dwd, dw, call.FilterResult(beta, dwd));
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBackwardBias, C, TensorDesc dyd, C dy, C beta, TensorDesc dbd, P db) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dbd, db, call.Result(beta, dbd));
}

// --- one input, one output ---

void Map(const Copy& copy, AccessSet* set, TensorDesc xd, C x, C beta, TensorDesc yd, P y) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(yd, y, call.Result(beta, yd));
}
// Backward: y, dy, x in; dx out. x and y may not be given where the operation does without.
void MapBackward(const Copy& copy, AccessSet* set, TensorDesc yd, C y, TensorDesc dyd, C dy, TensorDesc xd, C x, C beta,
                 TensorDesc dxd, P dx) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Optional(yd, y, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Optional(xd, x, Use::kRead);
  call.Operand(dxd, dx, call.Result(beta, dxd));
}

SLUICE_DESCRIBE(cudnnActivationForward, cudnnActivationDescriptor_t, C, TensorDesc xd, C x, C beta, TensorDesc yd,
                P y) {
  Map(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnActivationBackward, cudnnActivationDescriptor_t, C, TensorDesc yd, C y, TensorDesc dyd, C dy,
                TensorDesc xd, C x, C beta, TensorDesc dxd, P dx) {
  MapBackward(copy, set, yd, y, dyd, dy, xd, x, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnPoolingForward, cudnnPoolingDescriptor_t, C, TensorDesc xd, C x, C beta, TensorDesc yd, P y) {
  Map(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnPoolingBackward, cudnnPoolingDescriptor_t, C, TensorDesc yd, C y, TensorDesc dyd, C dy,
                TensorDesc xd, C x, C beta, TensorDesc dxd, P dx) {
  MapBackward(copy, set, yd, y, dyd, dy, xd, x, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnSoftmaxForward, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, C, TensorDesc xd, C x, C beta,
                TensorDesc yd, P y) {
  Map(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnSoftmaxBackward, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, C, TensorDesc yd, C y,
                TensorDesc dyd, C dy, C beta, TensorDesc dxd, P dx) {
  MapBackward(copy, set, yd, y, dyd, dy, nullptr, nullptr, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnLRNCrossChannelForward, cudnnLRNDescriptor_t, cudnnLRNMode_t, C, TensorDesc xd, C x, C beta,
                TensorDesc yd, P y) {
  Map(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnLRNCrossChannelBackward, cudnnLRNDescriptor_t, cudnnLRNMode_t, C, TensorDesc yd, C y,
                TensorDesc dyd, C dy, TensorDesc xd, C x, C beta, TensorDesc dxd, P dx) {
  MapBackward(copy, set, yd, y, dyd, dy, xd, x, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnDivisiveNormalizationForward, cudnnLRNDescriptor_t, cudnnDivNormMode_t, C, TensorDesc xd, C x,
                C means, P temp, P temp2, C beta, TensorDesc yd, P y) {
  Map(copy, set, xd, x, beta, yd, y);
  Call call(copy, set);
  call.Optional(xd, means, Use::kRead);
  call.Optional(xd, temp, Use::kScratch);
  call.Optional(xd, temp2, Use::kScratch);
}
SLUICE_DESCRIBE(cudnnDivisiveNormalizationBackward, cudnnLRNDescriptor_t, cudnnDivNormMode_t, C, TensorDesc xd, C x,
                C means, C dy, P temp, P temp2, C beta, TensorDesc dxd, P dx, P dmeans) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Optional(xd, means, Use::kRead);
  call.Operand(xd, dy, Use::kRead);
  call.Optional(xd, temp, Use::kScratch);
  call.Optional(xd, temp2, Use::kScratch);
  call.Operand(dxd, dx, call.Result(beta, dxd));
  call.Optional(dxd, dmeans, call.Result(beta, dxd));
}

// --- tensors themselves ---

SLUICE_DESCRIBE(cudnnTransformTensor, C, TensorDesc xd, C x, C beta, TensorDesc yd, P y) {
  Map(copy, set, xd, x, beta, yd, y);
}
// Folding and padding change what the destination's elements are: never called wholly written.
SLUICE_DESCRIBE(cudnnTransformTensorEx, cudnnTensorTransformDescriptor_t, C, TensorDesc xd, C x, C beta, TensorDesc yd,
                P y) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(yd, y, call.Result(beta, yd) == Use::kOverwrite ? Use::kWrite : Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnTransformFilter, cudnnTensorTransformDescriptor_t, C, FilterDesc xd, C x, C beta, FilterDesc yd,
                P y) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Filter(xd, x, Use::kRead);
  call.Filter(yd, y, call.FilterResult(beta, yd) == Use::kOverwrite ? Use::kWrite : Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnAddTensor, C, TensorDesc ad, C a, C beta, TensorDesc cd, P c) {
  Map(copy, set, ad, a, beta, cd, c);
}
SLUICE_DESCRIBE(cudnnScaleTensor, TensorDesc yd, P y, C) {
  set->MarkStreaming();
  Call(copy, set).Operand(yd, y, Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnSetTensor, TensorDesc yd, P y, C) {
  set->MarkStreaming();
  Call(copy, set).Operand(yd, y, Use::kOverwrite);
}
// Square root and negation do without the second input.
SLUICE_DESCRIBE(cudnnOpTensor, cudnnOpTensorDescriptor_t op, C, TensorDesc ad, C a, C, TensorDesc bd, C b, C beta,
                TensorDesc cd, P c) {
  Call call(copy, set);
  set->MarkStreaming();
  auto* const get = copy.Find<decltype(cudnnGetOpTensorDescriptor)>("cudnnGetOpTensorDescriptor");
  cudnnOpTensorOp_t kind{};
  cudnnDataType_t type{};
  cudnnNanPropagation_t nan{};
  if (!op || !get || get(op, &kind, &type, &nan) != CUDNN_STATUS_SUCCESS)
    return set->MarkUnknown(UnknownReason::kDescriptor);
  call.Operand(ad, a, Use::kRead);
  if (kind != CUDNN_OP_TENSOR_SQRT && kind != CUDNN_OP_TENSOR_NOT) call.Operand(bd, b, Use::kRead);
  call.Operand(cd, c, call.Result(beta, cd));
}
SLUICE_DESCRIBE(cudnnReduceTensor, cudnnReduceTensorDescriptor_t, P indices, std::size_t index_bytes, P workspace,
                std::size_t bytes, C, TensorDesc ad, C a, C beta, TensorDesc cd, P c) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(ad, a, Use::kRead);
  call.Operand(cd, c, call.Result(beta, cd));
  call.Bytes(indices, index_bytes, Use::kWrite);
  call.Workspace(workspace, bytes);
}

// --- dropout: the generator's states belong to the descriptor and cannot be measured through it ---

SLUICE_DESCRIBE(cudnnDropoutForward, cudnnDropoutDescriptor_t, TensorDesc xd, C x, TensorDesc yd, P y, P reserve,
                std::size_t bytes) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(yd, y, Use::kOverwrite);
  call.Bytes(reserve, bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnDropoutBackward, cudnnDropoutDescriptor_t, TensorDesc dyd, C dy, TensorDesc dxd, P dx, P reserve,
                std::size_t bytes) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dxd, dx, Use::kOverwrite);
  call.Bytes(reserve, bytes, Use::kRead);
}

// --- batch norm and its successor ---

// Running statistics are blended with what they were: read and written.
SLUICE_DESCRIBE(cudnnBatchNormalizationForwardInference, cudnnBatchNormMode_t, C, C beta, TensorDesc xd, C x,
                TensorDesc yd, P y, TensorDesc sd, C scale, C bias, C mean, C variance, double) {
  Map(copy, set, xd, x, beta, yd, y);
  Call call(copy, set);
  for (C parameter : {scale, bias, mean, variance}) call.Operand(sd, parameter, Use::kRead);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationForwardTraining, cudnnBatchNormMode_t, C, C beta, TensorDesc xd, C x,
                TensorDesc yd, P y, TensorDesc sd, C scale, C bias, double, P running_mean, P running_variance, double,
                P saved_mean, P saved_variance) {
  Map(copy, set, xd, x, beta, yd, y);
  Call call(copy, set);
  for (C parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (P running : {running_mean, running_variance}) call.Optional(sd, running, Use::kUpdate);
  for (P saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kOverwrite);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationForwardTrainingEx, cudnnBatchNormMode_t, cudnnBatchNormOps_t, C, C beta,
                TensorDesc xd, C x, TensorDesc zd, C z, TensorDesc yd, P y, TensorDesc sd, C scale, C bias, double,
                P running_mean, P running_variance, double, P saved_mean, P saved_variance, cudnnActivationDescriptor_t,
                P workspace, std::size_t bytes, P reserve, std::size_t reserve_bytes) {
  Map(copy, set, xd, x, beta, yd, y);
  Call call(copy, set);
  call.Optional(zd, z, Use::kRead);
  for (C parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (P running : {running_mean, running_variance}) call.Optional(sd, running, Use::kUpdate);
  for (P saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kOverwrite);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationBackward, cudnnBatchNormMode_t, C, C beta_data, C, C beta_parameters,
                TensorDesc xd, C x, TensorDesc dyd, C dy, TensorDesc dxd, P dx, TensorDesc sd, C scale, P dscale,
                P dbias, double, C saved_mean, C saved_variance) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dxd, dx, call.Result(beta_data, dxd));
  call.Operand(sd, scale, Use::kRead);
  for (P gradient : {dscale, dbias}) call.Operand(sd, gradient, call.Result(beta_parameters, sd));
  for (C saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kRead);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationBackwardEx, cudnnBatchNormMode_t, cudnnBatchNormOps_t, C, C beta_data, C,
                C beta_parameters, TensorDesc xd, C x, TensorDesc yd, C y, TensorDesc dyd, C dy, TensorDesc dzd, P dz,
                TensorDesc dxd, P dx, TensorDesc sd, C scale, C bias, P dscale, P dbias, double, C saved_mean,
                C saved_variance, cudnnActivationDescriptor_t, P workspace, std::size_t bytes, P reserve,
                std::size_t reserve_bytes) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Optional(yd, y, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Optional(dzd, dz, call.Result(beta_data, dxd));  // whether it is blended, too, is nowhere written
  call.Operand(dxd, dx, call.Result(beta_data, dxd));
  call.Operand(sd, scale, Use::kRead);
  call.Optional(sd, bias, Use::kRead);
  for (P gradient : {dscale, dbias}) call.Operand(sd, gradient, call.Result(beta_parameters, sd));
  for (C saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kRead);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnNormalizationForwardInference, cudnnNormMode_t, cudnnNormOps_t, cudnnNormAlgo_t, C, C beta,
                TensorDesc xd, C x, TensorDesc sd, C scale, C bias, TensorDesc md, C mean, C variance, TensorDesc zd,
                C z, cudnnActivationDescriptor_t, TensorDesc yd, P y, double, int) {
  Map(copy, set, xd, x, beta, yd, y);
  Call call(copy, set);
  call.Optional(zd, z, Use::kRead);
  for (C parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (C estimate : {mean, variance}) call.Operand(md, estimate, Use::kRead);
}
SLUICE_DESCRIBE(cudnnNormalizationForwardTraining, cudnnNormMode_t, cudnnNormOps_t, cudnnNormAlgo_t, C, C beta,
                TensorDesc xd, C x, TensorDesc sd, C scale, C bias, double, TensorDesc md, P running_mean,
                P running_variance, double, P saved_mean, P saved_variance, cudnnActivationDescriptor_t, TensorDesc zd,
                C z, TensorDesc yd, P y, P workspace, std::size_t bytes, P reserve, std::size_t reserve_bytes, int) {
  Map(copy, set, xd, x, beta, yd, y);
  Call call(copy, set);
  call.Optional(zd, z, Use::kRead);
  for (C parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (P running : {running_mean, running_variance}) call.Optional(md, running, Use::kUpdate);
  for (P saved : {saved_mean, saved_variance}) call.Optional(md, saved, Use::kOverwrite);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnNormalizationBackward, cudnnNormMode_t, cudnnNormOps_t, cudnnNormAlgo_t, C, C beta_data, C,
                C beta_parameters, TensorDesc xd, C x, TensorDesc yd, C y, TensorDesc dyd, C dy, TensorDesc dzd, P dz,
                TensorDesc dxd, P dx, TensorDesc sd, C scale, C bias, P dscale, P dbias, double, TensorDesc md,
                C saved_mean, C saved_variance, cudnnActivationDescriptor_t, P workspace, std::size_t bytes, P reserve,
                std::size_t reserve_bytes, int) {
  Call call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Optional(yd, y, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Optional(dzd, dz, call.Result(beta_data, dxd));  // whether it is blended, too, is nowhere written
  call.Operand(dxd, dx, call.Result(beta_data, dxd));
  call.Operand(sd, scale, Use::kRead);
  call.Optional(sd, bias, Use::kRead);
  for (P gradient : {dscale, dbias}) call.Operand(sd, gradient, call.Result(beta_parameters, sd));
  for (C saved : {saved_mean, saved_variance}) call.Optional(md, saved, Use::kRead);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}

// --- attention; sequence lengths are small arrays on the card, found by the kernels' parameters ---

SLUICE_DESCRIBE(cudnnMultiHeadAttnForward, cudnnAttnDescriptor_t, int current, const int*, const int*, const int*,
                const int*, cudnnSeqDataDescriptor_t qd, C q, C residuals, cudnnSeqDataDescriptor_t kd, C k,
                cudnnSeqDataDescriptor_t vd, C v, cudnnSeqDataDescriptor_t od, P o, std::size_t weight_bytes, C weights,
                std::size_t bytes, P workspace, std::size_t reserve_bytes, P reserve) {
  Call call(copy, set);
  call.Sequence(qd, q, Use::kRead);
  if (residuals) call.Sequence(od, residuals, Use::kRead);
  call.Sequence(kd, k, Use::kRead);
  call.Sequence(vd, v, Use::kRead);
  call.Sequence(od, o, Use::kWrite);
  call.Bytes(weights, weight_bytes, Use::kRead);
  // One time step after another keeps what the steps before computed in both.
  if (current < 0 || reserve) {
    call.Workspace(workspace, bytes);
  } else {
    call.Bytes(workspace, bytes, Use::kUpdate);
  }
  call.Bytes(reserve, reserve_bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnMultiHeadAttnBackwardData, cudnnAttnDescriptor_t, const int*, const int*, const int*, const int*,
                cudnnSeqDataDescriptor_t dod, C dout, cudnnSeqDataDescriptor_t dqd, P dq, C q,
                cudnnSeqDataDescriptor_t dkd, P dk, C k, cudnnSeqDataDescriptor_t dvd, P dv, C v,
                std::size_t weight_bytes, C weights, std::size_t bytes, P workspace, std::size_t reserve_bytes,
                P reserve) {
  Call call(copy, set);
  call.Sequence(dod, dout, Use::kRead);
  call.Sequence(dqd, dq, Use::kWrite);
  call.Sequence(dqd, q, Use::kRead);
  call.Sequence(dkd, dk, Use::kWrite);
  call.Sequence(dkd, k, Use::kRead);
  call.Sequence(dvd, dv, Use::kWrite);
  call.Sequence(dvd, v, Use::kRead);
  call.Bytes(weights, weight_bytes, Use::kRead);
  call.Bytes(workspace, bytes, Use::kUpdate);  // the weights' gradients read it next
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnMultiHeadAttnBackwardWeights, cudnnAttnDescriptor_t, cudnnWgradMode_t mode,
                cudnnSeqDataDescriptor_t qd, C q, cudnnSeqDataDescriptor_t kd, C k, cudnnSeqDataDescriptor_t vd, C v,
                cudnnSeqDataDescriptor_t dod, C dout, std::size_t weight_bytes, C weights, P dweights,
                std::size_t bytes, P workspace, std::size_t reserve_bytes, P reserve) {
  Call call(copy, set);
  call.Sequence(qd, q, Use::kRead);
  call.Sequence(kd, k, Use::kRead);
  call.Sequence(vd, v, Use::kRead);
  call.Sequence(dod, dout, Use::kRead);
  call.Bytes(weights, weight_bytes, Use::kRead);
  call.Bytes(dweights, weight_bytes, mode == CUDNN_WGRAD_MODE_SET ? Use::kWrite : Use::kUpdate);
  call.Bytes(workspace, bytes, Use::kUpdate);
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}

}  // namespace describe

#define SLUICE_CUDNN(symbol) \
  {#symbol, reinterpret_cast<void*>(&Entry<#symbol, decltype(::symbol), &describe::symbol>::Call)},
const EntryRow kRows[] = {
#include "hooklib/hooks.def"
};

}  // namespace

std::span<const EntryRow> CudnnEntries() { return kRows; }

}  // namespace sluice::libraries
