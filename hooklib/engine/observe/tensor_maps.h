// TMA descriptors in kernel parameters. Their 128 bytes are the driver's secret, so what each was made for is kept by
// its contents when it is made. Thread-safe.
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

// Which words a descriptor that was made may begin with, by hash: so that a launch without one pays a load a word.
extern std::array<std::atomic<bool>, 1024> g_tensor_map_begins;
inline size_t TensorMapSlot(uint64_t first_word) { return (first_word * 0x9e3779b97f4a7c15u) >> 54; }
inline bool MayBeTensorMap(uint64_t first_word) {
  return g_tensor_map_begins[TensorMapSlot(first_word)].load(std::memory_order_relaxed);
}

// The tensor that the descriptor at `at` (kTensorMapBytes long) was made for; nothing for other bytes.
std::optional<libraries::Reach> TensorMapAt(const void* at);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_TENSOR_MAPS_H_
