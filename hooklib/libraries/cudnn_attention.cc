// cuDNN: multi-head attention. The arrays of sequence lengths in device memory are small; the kernels' parameters name
// them.
#include "hooklib/libraries/cudnn_call.h"

namespace sluice::libraries::describe {

SLUICE_DESCRIBE(cudnnMultiHeadAttnForward, cudnnAttnDescriptor_t, int current, const int*, const int*, const int*,
                const int*, cudnnSeqDataDescriptor_t qd, ConstPointer q, ConstPointer residuals,
                cudnnSeqDataDescriptor_t kd, ConstPointer k, cudnnSeqDataDescriptor_t vd, ConstPointer v,
                cudnnSeqDataDescriptor_t od, Pointer o, std::size_t weight_bytes, ConstPointer weights,
                std::size_t bytes, Pointer workspace, std::size_t reserve_bytes, Pointer reserve) {
  CudnnCall call(copy, set);
  call.Sequence(qd, q, Use::kRead);
  if (residuals) call.Sequence(od, residuals, Use::kRead);
  call.Sequence(kd, k, Use::kRead);
  call.Sequence(vd, v, Use::kRead);
  call.Sequence(od, o, Use::kWrite);
  call.Bytes(weights, weight_bytes, Use::kRead);
  // One step at a time and without a reserve, the workspace keeps the results of earlier steps.
  if (current < 0 || reserve) {
    call.Workspace(workspace, bytes);
  } else {
    call.Bytes(workspace, bytes, Use::kUpdate);
  }
  call.Bytes(reserve, reserve_bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnMultiHeadAttnBackwardData, cudnnAttnDescriptor_t, const int*, const int*, const int*, const int*,
                cudnnSeqDataDescriptor_t dod, ConstPointer dout, cudnnSeqDataDescriptor_t dqd, Pointer dq,
                ConstPointer q, cudnnSeqDataDescriptor_t dkd, Pointer dk, ConstPointer k, cudnnSeqDataDescriptor_t dvd,
                Pointer dv, ConstPointer v, std::size_t weight_bytes, ConstPointer weights, std::size_t bytes,
                Pointer workspace, std::size_t reserve_bytes, Pointer reserve) {
  CudnnCall call(copy, set);
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
                cudnnSeqDataDescriptor_t qd, ConstPointer q, cudnnSeqDataDescriptor_t kd, ConstPointer k,
                cudnnSeqDataDescriptor_t vd, ConstPointer v, cudnnSeqDataDescriptor_t dod, ConstPointer dout,
                std::size_t weight_bytes, ConstPointer weights, Pointer dweights, std::size_t bytes, Pointer workspace,
                std::size_t reserve_bytes, Pointer reserve) {
  CudnnCall call(copy, set);
  call.Sequence(qd, q, Use::kRead);
  call.Sequence(kd, k, Use::kRead);
  call.Sequence(vd, v, Use::kRead);
  call.Sequence(dod, dout, Use::kRead);
  call.Bytes(weights, weight_bytes, Use::kRead);
  call.Bytes(dweights, weight_bytes, mode == CUDNN_WGRAD_MODE_SET ? Use::kWrite : Use::kUpdate);
  call.Bytes(workspace, bytes, Use::kUpdate);
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}

}  // namespace sluice::libraries::describe
