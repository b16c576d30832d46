// What cublasLtMatmul and cublasLtMatrixTransform touch.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_LT_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_LT_H_

#include "hooklib/libraries/extents/blas.h"

namespace sluice::libraries::lt {

enum Order { kCol = 0, kRow = 1, kCol32 = 2, kCol4_4R2_8C = 3, kCol32_2R_4R4 = 4 };
enum PointerMode { kHost = 0, kDevice = 1, kDeviceVector = 2, kAlphaVectorBetaZero = 3, kAlphaVectorBetaHost = 4 };
// Bits of cublasLtEpilogue_t.
enum Epilogue : uint32_t {
  kRelu = 2,
  kBias = 4,
  kDrelu = 8,
  kBiasGradient = 16,
  kGelu = 32,
  kDgelu = 64,
  kAux = 128,
  kBgradA = 256,
  kBgradB = 512
};
constexpr uint32_t kEpilogues = 1023;  // all of them, and that there is none (1)
enum BatchMode { kStrided = 0, kPointerArray = 1 };
enum ScaleMode { kScalar32F = 0, kVec16 = 1, kVec32 = 2, kOuterVec = 3, kVec128 = 4, kBlock128 = 5 };

struct Layout {
  int type = 0;  // cudaDataType
  int order = kCol;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0;  // elements
  int batch = 1;
  int64_t stride = 0;  // elements; of planar complex ones, real parts
  int64_t plane = 0;   // bytes to the imaginary plane; 0: interleaved
  int batch_mode = kStrided;
};

struct Matrix {
  uint64_t address = 0;
  Layout layout;
};

struct Scale {
  uint64_t address = 0;
  int mode = kScalar32F;
};

struct Matmul {
  int transa = blas::kN, transb = blas::kN;
  Matrix a, b, c, d;
  int pointer_mode = kHost;
  uint64_t alpha = 0, beta = 0;  // where they lie, if on the device
  uint64_t scalar_bytes = 4;
  int64_t alpha_stride = 0;  // of a vector, to the next of a batch
  bool beta_zero = false;    // on the host, and zero
  uint32_t epilogue = 1;
  uint64_t bias = 0;
  int bias_type = -1;
  int64_t bias_stride = 0;
  uint64_t aux = 0;
  int aux_type = -1;
  int64_t aux_ld = 0, aux_stride = 0;
  Scale scale_a, scale_b, scale_c, scale_d, scale_aux, scale_out;
  uint64_t amax = 0, aux_amax = 0;
  uint64_t workspace = 0, workspace_bytes = 0;
};
void Describe(const Matmul& call, AccessSet* set);

struct Transform {
  Matrix a, b, c;
  int pointer_mode = kHost;
  uint64_t alpha = 0, beta = 0, scalar_bytes = 4;
  bool beta_zero = false;
};
void Describe(const Transform& call, AccessSet* set);

}  // namespace sluice::libraries::lt

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_LT_H_
