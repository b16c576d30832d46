// cuDNN: convolutions, layers with one input and one output, operations on whole tensors, dropout.
#include "hooklib/libraries/cudnn_call.h"

namespace sluice::libraries::describe {

// --- convolutions ---

SLUICE_DESCRIBE(cudnnConvolutionForward, ConstPointer, TensorDesc xd, ConstPointer x, FilterDesc wd, ConstPointer w,
                cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, Pointer workspace, std::size_t bytes,
                ConstPointer beta, TensorDesc yd, Pointer y) {
  CudnnCall call(copy, set);
  call.Operand(xd, x, Use::kRead);
  call.Filter(wd, w, Use::kRead);
  call.Operand(yd, y, call.ResultUse(beta, yd));
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBiasActivationForward, ConstPointer, TensorDesc xd, ConstPointer x, FilterDesc wd,
                ConstPointer w, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, Pointer workspace,
                std::size_t bytes, ConstPointer alpha2, TensorDesc zd, ConstPointer z, TensorDesc bd, ConstPointer b,
                cudnnActivationDescriptor_t, TensorDesc yd, Pointer y) {
  CudnnCall call(copy, set);
  call.Operand(xd, x, Use::kRead);
  call.Filter(wd, w, Use::kRead);
  if (call.ResultUse(alpha2, zd) != Use::kOverwrite) call.Optional(zd, z, Use::kRead);
  call.Operand(bd, b, Use::kRead);
  call.Operand(yd, y, Use::kOverwrite);
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBackwardData, ConstPointer, FilterDesc wd, ConstPointer w, TensorDesc dyd,
                ConstPointer dy, cudnnConvolutionDescriptor_t, cudnnConvolutionBwdDataAlgo_t, Pointer workspace,
                std::size_t bytes, ConstPointer beta, TensorDesc dxd, Pointer dx) {
  CudnnCall call(copy, set);
  call.Filter(wd, w, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dxd, dx, call.ResultUse(beta, dxd));
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBackwardFilter, ConstPointer, TensorDesc xd, ConstPointer x, TensorDesc dyd,
                ConstPointer dy, cudnnConvolutionDescriptor_t, cudnnConvolutionBwdFilterAlgo_t, Pointer workspace,
                std::size_t bytes, ConstPointer beta, FilterDesc dwd, Pointer dw) {
  CudnnCall call(copy, set);
  call.Operand(xd, x, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Filter(dwd, dw, call.FilterResultUse(beta, dwd));
  call.Workspace(workspace, bytes);
}

SLUICE_DESCRIBE(cudnnConvolutionBackwardBias, ConstPointer, TensorDesc dyd, ConstPointer dy, ConstPointer beta,
                TensorDesc dbd, Pointer db) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dbd, db, call.ResultUse(beta, dbd));
}

// --- one input, one output ---

SLUICE_DESCRIBE(cudnnActivationForward, cudnnActivationDescriptor_t, ConstPointer, TensorDesc xd, ConstPointer x,
                ConstPointer beta, TensorDesc yd, Pointer y) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnActivationBackward, cudnnActivationDescriptor_t, ConstPointer, TensorDesc yd, ConstPointer y,
                TensorDesc dyd, ConstPointer dy, TensorDesc xd, ConstPointer x, ConstPointer beta, TensorDesc dxd,
                Pointer dx) {
  DescribeMapBackward(copy, set, yd, y, dyd, dy, xd, x, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnPoolingForward, cudnnPoolingDescriptor_t, ConstPointer, TensorDesc xd, ConstPointer x,
                ConstPointer beta, TensorDesc yd, Pointer y) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnPoolingBackward, cudnnPoolingDescriptor_t, ConstPointer, TensorDesc yd, ConstPointer y,
                TensorDesc dyd, ConstPointer dy, TensorDesc xd, ConstPointer x, ConstPointer beta, TensorDesc dxd,
                Pointer dx) {
  DescribeMapBackward(copy, set, yd, y, dyd, dy, xd, x, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnSoftmaxForward, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, ConstPointer, TensorDesc xd,
                ConstPointer x, ConstPointer beta, TensorDesc yd, Pointer y) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnSoftmaxBackward, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, ConstPointer, TensorDesc yd,
                ConstPointer y, TensorDesc dyd, ConstPointer dy, ConstPointer beta, TensorDesc dxd, Pointer dx) {
  DescribeMapBackward(copy, set, yd, y, dyd, dy, nullptr, nullptr, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnLRNCrossChannelForward, cudnnLRNDescriptor_t, cudnnLRNMode_t, ConstPointer, TensorDesc xd,
                ConstPointer x, ConstPointer beta, TensorDesc yd, Pointer y) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
}
SLUICE_DESCRIBE(cudnnLRNCrossChannelBackward, cudnnLRNDescriptor_t, cudnnLRNMode_t, ConstPointer, TensorDesc yd,
                ConstPointer y, TensorDesc dyd, ConstPointer dy, TensorDesc xd, ConstPointer x, ConstPointer beta,
                TensorDesc dxd, Pointer dx) {
  DescribeMapBackward(copy, set, yd, y, dyd, dy, xd, x, beta, dxd, dx);
}
SLUICE_DESCRIBE(cudnnDivisiveNormalizationForward, cudnnLRNDescriptor_t, cudnnDivNormMode_t, ConstPointer,
                TensorDesc xd, ConstPointer x, ConstPointer means, Pointer temp, Pointer temp2, ConstPointer beta,
                TensorDesc yd, Pointer y) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
  CudnnCall call(copy, set);
  call.Optional(xd, means, Use::kRead);
  call.Optional(xd, temp, Use::kScratch);
  call.Optional(xd, temp2, Use::kScratch);
}
SLUICE_DESCRIBE(cudnnDivisiveNormalizationBackward, cudnnLRNDescriptor_t, cudnnDivNormMode_t, ConstPointer,
                TensorDesc xd, ConstPointer x, ConstPointer means, ConstPointer dy, Pointer temp, Pointer temp2,
                ConstPointer beta, TensorDesc dxd, Pointer dx, Pointer dmeans) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Optional(xd, means, Use::kRead);
  call.Operand(xd, dy, Use::kRead);
  call.Optional(xd, temp, Use::kScratch);
  call.Optional(xd, temp2, Use::kScratch);
  call.Operand(dxd, dx, call.ResultUse(beta, dxd));
  call.Optional(dxd, dmeans, call.ResultUse(beta, dxd));
}

// --- whole tensors ---

SLUICE_DESCRIBE(cudnnTransformTensor, ConstPointer, TensorDesc xd, ConstPointer x, ConstPointer beta, TensorDesc yd,
                Pointer y) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
}
// Folding and padding change which elements the destination has, so it is never taken for written whole.
SLUICE_DESCRIBE(cudnnTransformTensorEx, cudnnTensorTransformDescriptor_t, ConstPointer, TensorDesc xd, ConstPointer x,
                ConstPointer beta, TensorDesc yd, Pointer y) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(yd, y, call.ResultUse(beta, yd) == Use::kOverwrite ? Use::kWrite : Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnTransformFilter, cudnnTensorTransformDescriptor_t, ConstPointer, FilterDesc xd, ConstPointer x,
                ConstPointer beta, FilterDesc yd, Pointer y) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Filter(xd, x, Use::kRead);
  call.Filter(yd, y, call.FilterResultUse(beta, yd) == Use::kOverwrite ? Use::kWrite : Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnAddTensor, ConstPointer, TensorDesc ad, ConstPointer a, ConstPointer beta, TensorDesc cd,
                Pointer c) {
  DescribeMap(copy, set, ad, a, beta, cd, c);
}
SLUICE_DESCRIBE(cudnnScaleTensor, TensorDesc yd, Pointer y, ConstPointer) {
  set->MarkStreaming();
  CudnnCall(copy, set).Operand(yd, y, Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnSetTensor, TensorDesc yd, Pointer y, ConstPointer) {
  set->MarkStreaming();
  CudnnCall(copy, set).Operand(yd, y, Use::kOverwrite);
}
// Square root and negation have no second input.
SLUICE_DESCRIBE(cudnnOpTensor, cudnnOpTensorDescriptor_t op, ConstPointer, TensorDesc ad, ConstPointer a, ConstPointer,
                TensorDesc bd, ConstPointer b, ConstPointer beta, TensorDesc cd, Pointer c) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  auto* const get = copy.Find<decltype(cudnnGetOpTensorDescriptor)>("cudnnGetOpTensorDescriptor");
  cudnnOpTensorOp_t kind{};
  cudnnDataType_t type{};
  cudnnNanPropagation_t nan{};
  if (!op || !get || get(op, &kind, &type, &nan) != CUDNN_STATUS_SUCCESS)
    return set->MarkUnknown(UnknownReason::kDescriptor);
  call.Operand(ad, a, Use::kRead);
  if (kind != CUDNN_OP_TENSOR_SQRT && kind != CUDNN_OP_TENSOR_NOT) call.Operand(bd, b, Use::kRead);
  call.Operand(cd, c, call.ResultUse(beta, cd));
}
SLUICE_DESCRIBE(cudnnReduceTensor, cudnnReduceTensorDescriptor_t, Pointer indices, std::size_t index_bytes,
                Pointer workspace, std::size_t bytes, ConstPointer, TensorDesc ad, ConstPointer a, ConstPointer beta,
                TensorDesc cd, Pointer c) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(ad, a, Use::kRead);
  call.Operand(cd, c, call.ResultUse(beta, cd));
  call.Bytes(indices, index_bytes, Use::kWrite);
  call.Workspace(workspace, bytes);
}

// --- dropout; the generator's states belong to the descriptor, which has no getter for their size ---

SLUICE_DESCRIBE(cudnnDropoutForward, cudnnDropoutDescriptor_t, TensorDesc xd, ConstPointer x, TensorDesc yd, Pointer y,
                Pointer reserve, std::size_t bytes) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(yd, y, Use::kOverwrite);
  call.Bytes(reserve, bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnDropoutBackward, cudnnDropoutDescriptor_t, TensorDesc dyd, ConstPointer dy, TensorDesc dxd,
                Pointer dx, Pointer reserve, std::size_t bytes) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dxd, dx, Use::kOverwrite);
  call.Bytes(reserve, bytes, Use::kRead);
}

}  // namespace sluice::libraries::describe
