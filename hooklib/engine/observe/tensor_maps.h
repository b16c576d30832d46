// TMA descriptors in kernel parameters. The layout of their 128 bytes is not documented, so the tensor of each is kept
// by the descriptor's contents when the driver makes it. Thread-safe.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_TENSOR_MAPS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_TENSOR_MAPS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/libraries/extents/torch_kernels.h"

namespace sluice {

inline constexpr uint64_t kTensorMapBytes = sizeof(CUtensorMap);

// First words of all descriptors so far, by hash: a launch without a descriptor pays one load a word.
extern std::array<std::atomic<bool>, 1024> g_tensor_map_begins;
inline size_t TensorMapSlot(uint64_t first_word) { return (first_word * 0x9e3779b97f4a7c15u) >> 54; }
inline bool MayBeTensorMap(uint64_t first_word) {
  return g_tensor_map_begins[TensorMapSlot(first_word)].load(std::memory_order_relaxed);
}

// The tensor of the descriptor at `at` (kTensorMapBytes long); nothing for other bytes.
std::optional<libraries::Reach> TensorMapAt(const void* at);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_TENSOR_MAPS_H_
