// cuDNN's backend API as a program calls it, through its entries, over a library that accepts every call.
#ifndef SLUICE_TEST_LIBRARIES_BACKEND_H_
#define SLUICE_TEST_LIBRARIES_BACKEND_H_

#include <cudnn.h>

#include <cstring>
#include <vector>

#include "test/libraries/fake_getters.h"
#include "test/libraries/library.h"

namespace sluice::libraries::test {

// Tensors, an operation, a graph, heuristics, a configuration, a plan, a pack.
struct Backend {
  using Create = Library<decltype(::cudnnBackendCreateDescriptor)>;
  using Set = decltype(::cudnnBackendSetAttribute);
  static inline uint64_t next = 0x9000;
  static cudnnStatus_t RealCreate(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* out) {
    *out = reinterpret_cast<cudnnBackendDescriptor_t>(next += 64);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t RealSet(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                               int64_t, const void*) {
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t RealGet(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                               int64_t, int64_t* count, void* at) {
    if (count) *count = 1;
    if (text) std::memcpy(at, text, *count = static_cast<int64_t>(std::strlen(text)) + 1);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t RealOne(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
  static inline const char* text = nullptr;

  template <typename Function, typename... Args>
  static void Entry(const char* symbol, Function* real, Args... args) {
    t_real = reinterpret_cast<void*>(real);
    REQUIRE(reinterpret_cast<Function*>(LibraryEntry(symbol))(args...) == CUDNN_STATUS_SUCCESS);
  }
  static cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = nullptr;
    Entry("cudnnBackendCreateDescriptor", &RealCreate, type, &d);
    return d;
  }
  static void Put(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  int64_t count, const void* at) {
    Entry("cudnnBackendSetAttribute", &RealSet, d, name, type, count, at);
  }
  static void Link(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t to) {
    Put(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to);
  }
  static void Fetch(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t room, int64_t* count, void* at) {
    Entry("cudnnBackendGetAttribute", &RealGet, d, name, type, room, count, at);
  }
  static void Finalize(cudnnBackendDescriptor_t d) { Entry("cudnnBackendFinalize", &RealOne, d); }
  static void Destroy(cudnnBackendDescriptor_t d) { Entry("cudnnBackendDestroyDescriptor", &RealOne, d); }
  static int Execute(cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    return Library<decltype(::cudnnBackendExecute)>::Call("cudnnBackendExecute", nullptr, plan, pack);
  }
  static cudnnBackendDescriptor_t TensorOf(int64_t id, std::vector<int64_t> dims, bool is_virtual = false) {
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t d = dims.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * dims[d];
    const cudnnDataType_t type = CUDNN_DATA_HALF;
    cudnnBackendDescriptor_t t = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const auto rank = static_cast<int64_t>(dims.size());
    Put(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    Put(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims.data());
    Put(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides.data());
    Put(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    Put(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    Finalize(t);
    return t;
  }
  static cudnnBackendDescriptor_t PackOf(std::vector<int64_t> ids, std::vector<uint64_t> pointers, uint64_t workspace) {
    cudnnBackendDescriptor_t pack = Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const auto n = static_cast<int64_t>(ids.size());
    Put(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids.data());
    Put(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers.data());
    Put(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    Finalize(pack);
    return pack;
  }
  // x w -> t (virtual) by a convolution, t b -> y by a pointwise operation.
  static cudnnBackendDescriptor_t Plan() {
    cudnnBackendDescriptor_t x = TensorOf(1, {8, 16, 32, 32}), w = TensorOf(2, {16, 16, 3, 3}),
                             t = TensorOf(3, {8, 16, 32, 32}, true), b = TensorOf(4, {1, 16, 1, 1}),
                             y = TensorOf(5, {8, 16, 32, 32});
    cudnnBackendDescriptor_t convolution = Make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    Link(convolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
    Link(convolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
    Link(convolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, t);
    const float beta = 0;
    Put(convolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &beta);
    cudnnBackendDescriptor_t add = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    Link(add, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, t);
    Link(add, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    Link(add, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    const cudnnBackendDescriptor_t operations[] = {convolution, add};
    cudnnBackendDescriptor_t graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    Put(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, operations);
    // The program destroys its descriptors here; the plan keeps the values that it needs.
    for (cudnnBackendDescriptor_t d : {x, w, t, b, y, convolution, add}) Destroy(d);
    cudnnBackendDescriptor_t heuristics = Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    Link(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    cudnnBackendDescriptor_t configuration = Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t count = 0;
    Fetch(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &configuration);
    cudnnBackendDescriptor_t plan = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Link(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    g_plan_workspace = 4096;
    Finalize(plan);
    for (cudnnBackendDescriptor_t d : {graph, heuristics, configuration}) Destroy(d);
    return plan;
  }
};

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_BACKEND_H_
