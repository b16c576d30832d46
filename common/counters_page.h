// Counters of one GPU in the page between hook and agent, which has two parts for them (sluice/wire.h). Pure,
// thread-safe.
#ifndef SLUICE_COMMON_COUNTERS_PAGE_H_
#define SLUICE_COMMON_COUNTERS_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "sluice/wire.h"

namespace sluice {

// Copies the counters that both structs have.
template <typename From, typename To>
void CopyCounters(const From& from, To& to) {
#define SLUICE_COUNTER(name, ...) \
  if constexpr (requires { from.name, to.name; }) to.name = from.name;
#include "counters.def"
}

// By relaxed 8-byte stores from the last word down to the one at `first_byte`.
template <typename Part>
void StorePart(const Part& from, size_t first_byte, Part* to) {
  uint64_t words[sizeof(Part) / sizeof(uint64_t)];
  std::memcpy(words, &from, sizeof words);
  auto* const target = reinterpret_cast<uint64_t*>(to);
  for (size_t i = std::size(words); i > first_byte / sizeof(uint64_t); --i)
    __atomic_store_n(&target[i - 1], words[i - 1], __ATOMIC_RELAXED);
}

// By relaxed 8-byte loads: the hook writes at the same time, any values.
template <typename Part>
Part LoadPart(const Part& from) {
  uint64_t words[sizeof(Part) / sizeof(uint64_t)];
  const auto* const source = reinterpret_cast<const uint64_t*>(&from);
  for (size_t i = 0; i < std::size(words); ++i) words[i] = __atomic_load_n(&source[i], __ATOMIC_RELAXED);
  Part part;
  std::memcpy(&part, words, sizeof part);
  return part;
}

// Stores all but the uuid, the generation last: an agent that reads a new one reads the values that follow it.
inline void StoreCounters(const sluice_gpu_counters& counters, size_t slot, sluice_page* page) {
  sluice_gpu_slot first{};
  sluice_gpu_slot_more more{};
  CopyCounters(counters, first);
  CopyCounters(counters, more);
  StorePart(more, 0, &page->gpu_more[slot]);
  StorePart(first, SLUICE_UUID_CHARS, &page->gpu[slot]);
}

// The uuid is left empty.
inline sluice_gpu_counters LoadCounters(const sluice_page& page, size_t slot) {
  sluice_gpu_counters out{};
  CopyCounters(LoadPart(page.gpu[slot]), out);
  CopyCounters(LoadPart(page.gpu_more[slot]), out);
  return out;
}

}  // namespace sluice

#endif  // SLUICE_COMMON_COUNTERS_PAGE_H_
