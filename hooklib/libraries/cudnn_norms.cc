// cuDNN: batch normalization and its successor.
#include "hooklib/libraries/cudnn_call.h"

namespace sluice::libraries::describe {

// Running statistics are blended with their earlier values, so they are read and written.
SLUICE_DESCRIBE(cudnnBatchNormalizationForwardInference, cudnnBatchNormMode_t, ConstPointer, ConstPointer beta,
                TensorDesc xd, ConstPointer x, TensorDesc yd, Pointer y, TensorDesc sd, ConstPointer scale,
                ConstPointer bias, ConstPointer mean, ConstPointer variance, double) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
  CudnnCall call(copy, set);
  for (ConstPointer parameter : {scale, bias, mean, variance}) call.Operand(sd, parameter, Use::kRead);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationForwardTraining, cudnnBatchNormMode_t, ConstPointer, ConstPointer beta,
                TensorDesc xd, ConstPointer x, TensorDesc yd, Pointer y, TensorDesc sd, ConstPointer scale,
                ConstPointer bias, double, Pointer running_mean, Pointer running_variance, double, Pointer saved_mean,
                Pointer saved_variance) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
  CudnnCall call(copy, set);
  for (ConstPointer parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (Pointer running : {running_mean, running_variance}) call.Optional(sd, running, Use::kUpdate);
  for (Pointer saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kOverwrite);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationForwardTrainingEx, cudnnBatchNormMode_t, cudnnBatchNormOps_t, ConstPointer,
                ConstPointer beta, TensorDesc xd, ConstPointer x, TensorDesc zd, ConstPointer z, TensorDesc yd,
                Pointer y, TensorDesc sd, ConstPointer scale, ConstPointer bias, double, Pointer running_mean,
                Pointer running_variance, double, Pointer saved_mean, Pointer saved_variance,
                cudnnActivationDescriptor_t, Pointer workspace, std::size_t bytes, Pointer reserve,
                std::size_t reserve_bytes) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
  CudnnCall call(copy, set);
  call.Optional(zd, z, Use::kRead);
  for (ConstPointer parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (Pointer running : {running_mean, running_variance}) call.Optional(sd, running, Use::kUpdate);
  for (Pointer saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kOverwrite);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationBackward, cudnnBatchNormMode_t, ConstPointer, ConstPointer beta_data,
                ConstPointer, ConstPointer beta_parameters, TensorDesc xd, ConstPointer x, TensorDesc dyd,
                ConstPointer dy, TensorDesc dxd, Pointer dx, TensorDesc sd, ConstPointer scale, Pointer dscale,
                Pointer dbias, double, ConstPointer saved_mean, ConstPointer saved_variance) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Operand(dxd, dx, call.ResultUse(beta_data, dxd));
  call.Operand(sd, scale, Use::kRead);
  for (Pointer gradient : {dscale, dbias}) call.Operand(sd, gradient, call.ResultUse(beta_parameters, sd));
  for (ConstPointer saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kRead);
}
SLUICE_DESCRIBE(cudnnBatchNormalizationBackwardEx, cudnnBatchNormMode_t, cudnnBatchNormOps_t, ConstPointer,
                ConstPointer beta_data, ConstPointer, ConstPointer beta_parameters, TensorDesc xd, ConstPointer x,
                TensorDesc yd, ConstPointer y, TensorDesc dyd, ConstPointer dy, TensorDesc dzd, Pointer dz,
                TensorDesc dxd, Pointer dx, TensorDesc sd, ConstPointer scale, ConstPointer bias, Pointer dscale,
                Pointer dbias, double, ConstPointer saved_mean, ConstPointer saved_variance,
                cudnnActivationDescriptor_t, Pointer workspace, std::size_t bytes, Pointer reserve,
                std::size_t reserve_bytes) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Optional(yd, y, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Optional(dzd, dz, call.ResultUse(beta_data, dxd));  // whether it is blended as well is not documented
  call.Operand(dxd, dx, call.ResultUse(beta_data, dxd));
  call.Operand(sd, scale, Use::kRead);
  call.Optional(sd, bias, Use::kRead);
  for (Pointer gradient : {dscale, dbias}) call.Operand(sd, gradient, call.ResultUse(beta_parameters, sd));
  for (ConstPointer saved : {saved_mean, saved_variance}) call.Optional(sd, saved, Use::kRead);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}
SLUICE_DESCRIBE(cudnnNormalizationForwardInference, cudnnNormMode_t, cudnnNormOps_t, cudnnNormAlgo_t, ConstPointer,
                ConstPointer beta, TensorDesc xd, ConstPointer x, TensorDesc sd, ConstPointer scale, ConstPointer bias,
                TensorDesc md, ConstPointer mean, ConstPointer variance, TensorDesc zd, ConstPointer z,
                cudnnActivationDescriptor_t, TensorDesc yd, Pointer y, double, int) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
  CudnnCall call(copy, set);
  call.Optional(zd, z, Use::kRead);
  for (ConstPointer parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (ConstPointer estimate : {mean, variance}) call.Operand(md, estimate, Use::kRead);
}
SLUICE_DESCRIBE(cudnnNormalizationForwardTraining, cudnnNormMode_t, cudnnNormOps_t, cudnnNormAlgo_t, ConstPointer,
                ConstPointer beta, TensorDesc xd, ConstPointer x, TensorDesc sd, ConstPointer scale, ConstPointer bias,
                double, TensorDesc md, Pointer running_mean, Pointer running_variance, double, Pointer saved_mean,
                Pointer saved_variance, cudnnActivationDescriptor_t, TensorDesc zd, ConstPointer z, TensorDesc yd,
                Pointer y, Pointer workspace, std::size_t bytes, Pointer reserve, std::size_t reserve_bytes, int) {
  DescribeMap(copy, set, xd, x, beta, yd, y);
  CudnnCall call(copy, set);
  call.Optional(zd, z, Use::kRead);
  for (ConstPointer parameter : {scale, bias}) call.Operand(sd, parameter, Use::kRead);
  for (Pointer running : {running_mean, running_variance}) call.Optional(md, running, Use::kUpdate);
  for (Pointer saved : {saved_mean, saved_variance}) call.Optional(md, saved, Use::kOverwrite);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kWrite);
}
SLUICE_DESCRIBE(cudnnNormalizationBackward, cudnnNormMode_t, cudnnNormOps_t, cudnnNormAlgo_t, ConstPointer,
                ConstPointer beta_data, ConstPointer, ConstPointer beta_parameters, TensorDesc xd, ConstPointer x,
                TensorDesc yd, ConstPointer y, TensorDesc dyd, ConstPointer dy, TensorDesc dzd, Pointer dz,
                TensorDesc dxd, Pointer dx, TensorDesc sd, ConstPointer scale, ConstPointer bias, Pointer dscale,
                Pointer dbias, double, TensorDesc md, ConstPointer saved_mean, ConstPointer saved_variance,
                cudnnActivationDescriptor_t, Pointer workspace, std::size_t bytes, Pointer reserve,
                std::size_t reserve_bytes, int) {
  CudnnCall call(copy, set);
  set->MarkStreaming();
  call.Operand(xd, x, Use::kRead);
  call.Optional(yd, y, Use::kRead);
  call.Operand(dyd, dy, Use::kRead);
  call.Optional(dzd, dz, call.ResultUse(beta_data, dxd));  // whether it is blended as well is not documented
  call.Operand(dxd, dx, call.ResultUse(beta_data, dxd));
  call.Operand(sd, scale, Use::kRead);
  call.Optional(sd, bias, Use::kRead);
  for (Pointer gradient : {dscale, dbias}) call.Operand(sd, gradient, call.ResultUse(beta_parameters, sd));
  for (ConstPointer saved : {saved_mean, saved_variance}) call.Optional(md, saved, Use::kRead);
  call.Workspace(workspace, bytes);
  call.Bytes(reserve, reserve_bytes, Use::kUpdate);
}

}  // namespace sluice::libraries::describe
