// What a cuDNN tensor covers: N-d, strided, of elements or of vectors of elements.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_TENSOR_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_TENSOR_H_

#include "hooklib/libraries/extents/access_set.h"

namespace sluice::libraries {

struct Tensor {
  static constexpr int kMaxRank = 8;  // CUDNN_DIM_MAX
  uint32_t bits = 0;                  // of one element; 0: a type that is not known
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{}, strides{};  // in elements, or in vectors
  int64_t vector = 1;                               // elements that lie together wherever an index points
  bool exact = true;  // false: elements may be packed more densely than their type says (boolean masks)
};

// False, with the set made doubtful, where the descriptor makes no sense.
bool AddTensor(uint64_t address, const Tensor& tensor, Use use, AccessSet* set);

// Bits of a cudnnDataType_t's element; 0: not known. Of INT8x4 and the like, of the whole vector.
uint32_t TensorBits(int cudnn_data_type);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_TENSOR_H_
