// Getters of libraries in miniature: descriptors are plain structs of the test.
#ifndef SLUICE_TEST_LIBRARIES_FAKE_GETTERS_H_
#define SLUICE_TEST_LIBRARIES_FAKE_GETTERS_H_

#include <cudnn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

namespace sluice::libraries::test {

extern std::atomic<int> g_pointer_mode, g_pointer_mode_asked;
extern std::atomic<bool> g_handle_is_gone;
extern int64_t g_plan_workspace;
// What cublasLtMatmulAlgoCheck answers, and how often it was asked; below 0: it refuses.
extern int64_t g_algo_workspace;
extern std::atomic<int> g_algo_asked;
extern int g_workspace_status;
int AcceptWorkspace(void* handle, void* workspace, std::size_t bytes);

constexpr uint64_t kAlive = 0x616c697665;  // descriptors that a test makes hold it
struct Layout {
  uint32_t type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t order = 0, batch = 1;
  int64_t stride = 0;
  bool alive = true;
  uint64_t mark = kAlive;
  int64_t plane = 0;
  uint32_t batch_mode = 0;
};
struct MatmulDesc {
  uint32_t epilogue = 1;
  void* bias = nullptr;
  int32_t pointer_mode = 0, transa = 0, transb = 0, scale_type = 0;
  uint64_t mark = kAlive;
  std::map<int, std::vector<char>> others;  // by their numbers
};
struct TransformDesc {
  int32_t scale_type = 0, pointer_mode = 0;
  uint64_t mark = kAlive;
};
struct TensorDescriptor {
  cudnnDataType_t type;
  std::array<int, 8> dims, strides;
  bool alive = true;
  uint64_t mark = kAlive;
  int rank = 4;
};
struct FilterDescriptor {
  cudnnDataType_t type;
  std::size_t bytes;
  uint64_t mark = kAlive;
};
struct SequenceDescriptor {
  cudnnDataType_t type;
  std::array<int, 4> dims;
  uint64_t mark = kAlive;
};
struct OpTensorDescriptor {
  cudnnOpTensorOp_t op;
  uint64_t mark = kAlive;
};
inline cudnnTensorDescriptor_t Opaque(TensorDescriptor* t) { return reinterpret_cast<cudnnTensorDescriptor_t>(t); }
inline cudnnFilterDescriptor_t Opaque(FilterDescriptor* f) { return reinterpret_cast<cudnnFilterDescriptor_t>(f); }
inline cudnnSeqDataDescriptor_t Opaque(SequenceDescriptor* s) { return reinterpret_cast<cudnnSeqDataDescriptor_t>(s); }
inline cudnnOpTensorDescriptor_t Opaque(OpTensorDescriptor* o) {
  return reinterpret_cast<cudnnOpTensorDescriptor_t>(o);
}

// The library's function of that name, or null.
void* FakeGetter(const char* symbol);

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_FAKE_GETTERS_H_
