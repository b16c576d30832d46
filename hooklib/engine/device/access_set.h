// The tracked ranges that one piece of work touches.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_ACCESS_SET_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_ACCESS_SET_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "hooklib/memory/types.h"
#include "hooklib/policy/predict/pointer_ranges.h"

namespace sluice {

// As the work's words and reaches resolve at this moment (Device::Resolve). Not thread-safe.
struct AccessSet {
  std::span<const memory::Extent> extents;
  std::span<const char> only_read;  // of each extent: the work is known not to write it
  std::optional<size_t> hot_count;  // of a graph: so many extents at the start are used by most nodes
  // Words that lead into blocks of which no part is known to be meant. Empty until pointer ranges are learned.
  std::vector<policy::UnboundedPointer> unbounded;
  bool has_narrowed = false;  // for one of these, less than the block is named
  // Storage behind the two spans, reused.
  std::vector<memory::Extent> extent_storage;
  std::vector<char> only_read_storage;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_ACCESS_SET_H_
