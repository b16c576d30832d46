// Kernels of PyTorch whose parameters say more than where memory begins.
//
// Without a library call, a launch is assumed to touch all live memory around every word of its parameters that could
// be an address. That is too much in two cases. A struct in the parameters may name tensors of which the launch works
// on a part. And words that are no addresses (padding, unused slots) may hold values that an earlier call left on the
// stack.
//
// The structs are public: MultiTensorApply.cuh, OffsetCalculator.cuh, CUDALoops.cuh, Reduce.cuh and Shape.cu of PyTorch
// 2.0 to 2.11. A kernel is recognised by its name and the sizes of its parameters. A launch is read only where the
// values in the struct agree with each other; otherwise its words count as in any kernel. Only speed depends on it.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_TORCH_KERNELS_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_TORCH_KERNELS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace sluice::libraries {

// The part of the live memory around `pointer` that a launch touches: inside [begin, end). Without a pointer, the range
// itself.
struct Reach {
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  uint64_t pointer = 0, begin = 0, end = kAll;
  bool only_read = false;  // false: written, or not known
  bool operator==(const Reach&) const = default;
};

struct TorchKernel {
  enum class Family : uint8_t { kNone, kForeach, kStrided, kContiguous, kReduce, kCat };
  Family family = Family::kNone;
  uint8_t operands = 0;        // kForeach: lists of tensors; kStrided, kContiguous: operands
  uint8_t element = 0;         // kForeach: bytes of an element; 0: the name does not say
  uint8_t index = 0;           // kForeach: bytes of a tensor's number
  uint8_t vector = 1;          // kReduce: results of a thread
  uint16_t slots = 0;          // kForeach: capacity of a list, in tensors
  uint16_t blocks = 0;         // kForeach: blocks that a launch may have
  uint32_t tensor_of = 0;      // kForeach: offset of block_to_tensor
  uint32_t chunk_of = 0;       // kForeach: offset of block_to_chunk
  uint32_t steps = 0;          // kForeach: offset of state_steps_addresses, 0: none
  uint32_t bytes[2] = {0, 0};  // of the parameters that are read
};

struct LaunchShape {
  unsigned grid[3], block[3];
};

// `name`: the mangled name. `bytes`: sizes of the parameters, in order.
TorchKernel RecogniseTorchKernel(std::string_view name, std::span<const uint32_t> bytes);

// Appends the ranges that the launch touches through the parameters that it understands, and returns which these are:
// bit i for parameter i. The other parameters' words count as in any kernel. 0, and nothing is appended, where the
// values are not those of the struct that the kernel's name promises. Pointers may be null or no addresses at all.
uint32_t ReadTorchKernel(const TorchKernel& kernel, const LaunchShape& launch, void* const* parameters,
                         std::vector<Reach>* reaches);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_TORCH_KERNELS_H_
