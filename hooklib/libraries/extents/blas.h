// Access sets of cuBLAS' calls. As in BLAS, matrices are column major, and leading dimensions and strides count
// elements. Pure: arguments in, an access set out.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_BLAS_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_BLAS_H_

#include <span>

#include "hooklib/libraries/extents/access_set.h"

namespace sluice::libraries::blas {

// Values of cuBLAS' enumerations (cublas_api.h; test/libraries compares them).
enum Op { kN = 0, kT = 1, kC = 2 };
enum Side { kLeft = 0, kRight = 1 };
enum Fill { kLower = 0, kUpper = 1, kFull = 2 };
enum Diag { kNonUnit = 0, kUnit = 1 };
enum PointerMode { kFactorsOnHost = 0, kFactorsOnDevice = 1 };
enum ComputeType {
  kCompute16F = 64,
  kCompute16FPedantic = 65,
  kCompute64F = 70,
  kCompute64FPedantic = 71,
  kCompute32I = 72,
  kCompute32IPedantic = 73,
  kCompute64FEmulated = 79
};
// Named as library_types.h names them.
struct CudaDataType {
  enum : int {
#define SLUICE_CUDA_DATA_TYPE(name, number, bits) CUDA_##name = (number),
#include "hooklib/libraries/cuda_data_types.def"
  };
};

struct Operand {
  uint64_t address = 0;
  int64_t ld = 0;      // of a vector: the increment, which may be negative
  uint64_t bytes = 0;  // one element
  int64_t stride = 0;  // to the next of a batch, in elements; may be 0 or negative
};
// alpha or beta. Where it is zero, C is written and not read.
struct Scalar {
  uint64_t device = 0;  // its address in device memory, where its value is not known; 0: it is on the host
  uint64_t bytes = 0;
  bool zero = false;
};

struct Gemm {
  int transa = kN, transb = kN;
  int64_t m = 0, n = 0, k = 0;
  Operand a, b, c;
  Scalar alpha, beta;
  int64_t batch = 1;
};
void Describe(const Gemm& call, AccessSet* set);

// A pointer array in device memory. `seen`: its contents, where the copy that wrote them was seen; else empty.
struct PointerArray {
  uint64_t address = 0;
  std::span<const uint64_t> seen;
};
struct BatchedGemm {
  Gemm one;  // operands' addresses and `batch` are not used
  PointerArray a, b, c;
  int64_t batch = 0;
};
void Describe(const BatchedGemm& call, AccessSet* set);

struct Gemv {
  int trans = kN;
  int64_t m = 0, n = 0;
  Operand a, x, y;
  Scalar alpha, beta;
  int64_t batch = 1;
};
void Describe(const Gemv& call, AccessSet* set);

struct Triangular {  // trsm: b is solved in place; trmm: c = op(a) b
  int side = kLeft, uplo = kLower, diag = kNonUnit;
  int64_t m = 0, n = 0;
  Operand a, b, c;
  Scalar alpha;
  bool in_place = true;
};
void Describe(const Triangular& call, AccessSet* set);

struct BatchedTrsm {
  Triangular one;
  PointerArray a, b;
  int64_t batch = 0;
};
void Describe(const BatchedTrsm& call, AccessSet* set);

struct Symm {  // symm, hemm
  int side = kLeft, uplo = kLower;
  int64_t m = 0, n = 0;
  Operand a, b, c;
  Scalar alpha, beta;
};
void Describe(const Symm& call, AccessSet* set);

struct Syrk {  // syrk, herk; with b: syr2k, her2k, syrkx, herkx
  int uplo = kLower, trans = kN;
  int64_t n = 0, k = 0;
  Operand a, b, c;
  Scalar alpha, beta;
  bool two = false;
};
void Describe(const Syrk& call, AccessSet* set);

struct Geam {
  int transa = kN, transb = kN;
  int64_t m = 0, n = 0;
  Operand a, b, c;
  Scalar alpha, beta;
};
void Describe(const Geam& call, AccessSet* set);

struct Dgmm {
  int side = kLeft;
  int64_t m = 0, n = 0;
  Operand a, x, c;
};
void Describe(const Dgmm& call, AccessSet* set);

// Bytes of a cudaDataType's element; 0 for an unknown type and for one smaller than a byte. BitsOf: 0 for unknown ones.
uint64_t BytesOf(int cuda_data_type);
uint64_t BitsOf(int cuda_data_type);

}  // namespace sluice::libraries::blas

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_BLAS_H_
