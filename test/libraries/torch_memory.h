// Tensors and kernel names for the tests of PyTorch's parameter structs.
#ifndef SLUICE_TEST_LIBRARIES_TORCH_MEMORY_H_
#define SLUICE_TEST_LIBRARIES_TORCH_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooklib/libraries/extents/torch_kernels.h"

namespace sluice::libraries::test {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr const char* kScalarKernel =
    "_ZN2at6native57_GLOBAL__N__e658eeb9_24_ForeachBinaryOpScalar_cu_86b9896c25multi_tensor_apply_kernelINS1_"
    "18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIN3c108BFloat16ELi1ELi1ELi0EEEJSt10multipliesIfEfEEEvT_T0_"
    "DpT1_";

inline std::string Foreach(const std::string& metadata, const std::string& functor) {
  return "_ZN2at6native50_GLOBAL__N__b6ca21f8_17_ForeachUnaryOp_cu_77fe623d25multi_tensor_apply_kernelINS1_" +
         metadata + "NS1_" + functor + "EEvT_T0_DpT1_";
}

inline constexpr const char* kStridedKernel =
    "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_"
    "18TensorIteratorBaseEENKUlvE1_clEvENKUlvE10_clEvEUlN3c108BFloat16EE_EEvS4_RKT_EUliE_EEviT1_";

// Tensors far apart, so that an address identifies its tensor.
struct Memory {
  static constexpr uint64_t kFirst = uint64_t{1} << 44, kApart = uint64_t{1} << 33;
  static uint64_t Base(uint64_t tensor) { return kFirst + tensor * kApart; }
  std::map<uint64_t, uint64_t> bytes;  // base -> size

  // The bytes of a reach as the engine resolves it: inside the tensor that holds its pointer.
  bool Clip(const Reach& reach, uint64_t* begin, uint64_t* end) const {
    auto it = bytes.upper_bound(reach.pointer);
    if (it == bytes.begin()) return false;
    --it;
    if (reach.pointer >= it->first + it->second) return false;
    *begin = std::max(reach.begin, it->first);
    *end = std::min(reach.end, it->first + it->second);
    return *begin < *end;
  }
  bool Covers(const std::vector<Reach>& reaches, uint64_t first, uint64_t last) const {  // [first, last)
    for (bool more = true; more && first < last;) {
      more = false;
      for (const Reach& reach : reaches) {
        uint64_t begin, end;
        if (Clip(reach, &begin, &end) && begin <= first && first < end) first = end, more = true;
      }
    }
    return first >= last;
  }
  uint64_t Bytes(const std::vector<Reach>& reaches) const {
    uint64_t sum = 0, begin, end;
    for (const Reach& reach : reaches) sum += Clip(reach, &begin, &end) ? end - begin : 0;
    return sum;
  }
};

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_TORCH_MEMORY_H_
