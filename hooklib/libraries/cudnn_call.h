// cuDNN's legacy calls. Descriptors are read back by the library's own getters at the call, so a description sees the
// same values as the library. There is one description for each SLUICE_CUDNN row of hooks.def, named as the call and
// with its arguments: cudnn_layers.cc, cudnn_norms.cc, cudnn_attention.cc.
#ifndef SLUICE_HOOKLIB_LIBRARIES_CUDNN_CALL_H_
#define SLUICE_HOOKLIB_LIBRARIES_CUDNN_CALL_H_

#include <cudnn.h>

#include "hooklib/libraries/call_scope.h"
#include "hooklib/libraries/extents/tensor.h"

namespace sluice::libraries {

using TensorDesc = cudnnTensorDescriptor_t;
using FilterDesc = cudnnFilterDescriptor_t;
using Pointer = void*;
using ConstPointer = const void*;

// A call under description: operands go into its set with the bytes that their descriptors cover.
class CudnnCall {
 public:
  CudnnCall(const LibraryCopy& copy, AccessSet* set) : copy_(copy), set_(set) {}

  // `needed`: a null pointer or descriptor makes the set incomplete. Otherwise it means that the operand is not given.
  void Operand(TensorDesc descriptor, ConstPointer data, Use use, bool needed = true);
  void Optional(TensorDesc descriptor, ConstPointer data, Use use) { Operand(descriptor, data, use, false); }
  void Filter(FilterDesc descriptor, ConstPointer data, Use use);
  void Sequence(cudnnSeqDataDescriptor_t descriptor, ConstPointer data, Use use);
  // A null pointer: not given.
  void Bytes(ConstPointer data, std::size_t bytes, Use use);
  void Workspace(ConstPointer data, std::size_t bytes) { Bytes(data, bytes, Use::kScratch); }

  // How y = alpha op(x) + beta y uses y. Factors are on the host: double for tensors of double, else float.
  Use ResultUse(ConstPointer beta, TensorDesc y);
  Use FilterResultUse(ConstPointer beta, FilterDesc w);

 private:
  bool Read(TensorDesc descriptor, Tensor* out, uint64_t* vector_bytes);

  const LibraryCopy& copy_;
  AccessSet* set_;
  cudnnDataType_t type_{};  // of the tensor that was read last
};

// One input x, one output y.
void DescribeMap(const LibraryCopy& copy, AccessSet* set, TensorDesc xd, ConstPointer x, ConstPointer beta,
                 TensorDesc yd, Pointer y);
// Backward: y, dy and x are read, dx is written. x and y may be absent where the operation needs only one of them.
void DescribeMapBackward(const LibraryCopy& copy, AccessSet* set, TensorDesc yd, ConstPointer y, TensorDesc dyd,
                         ConstPointer dy, TensorDesc xd, ConstPointer x, ConstPointer beta, TensorDesc dxd, Pointer dx);

template <typename Call>
struct DescriptionOf;
template <typename... Args>
struct DescriptionOf<cudnnStatus_t(Args...)> {
  using Type = void(const LibraryCopy&, AccessSet*, Args...);
};

// The descriptions. A row without one does not link.
namespace describe {
#define SLUICE_CUDNN(symbol) DescriptionOf<decltype(::symbol)>::Type symbol;
#include "hooklib/hooks.def"
}  // namespace describe

// The head of a description; `...`: the call's parameters after the handle.
#define SLUICE_DESCRIBE(symbol, ...) \
  void symbol(const LibraryCopy& copy, AccessSet* set, cudnnHandle_t __VA_OPT__(, ) __VA_ARGS__)

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_CUDNN_CALL_H_
