// Units and identities that memory/ and policy/ share.
#ifndef SLUICE_HOOKLIB_MEMORY_TYPES_H_
#define SLUICE_HOOKLIB_MEMORY_TYPES_H_

#include <cstdint>
#include <limits>

namespace sluice::memory {

using Va = uint64_t;        // device virtual address
using StreamId = uint32_t;  // the engine's own number of an application stream; 0: none
using Seq = uint64_t;       // position in one stream's queue, from 1
using Epoch = uint64_t;     // number of a fence, from 1

// Residency is kept in chunks of the size in which UVM itself manages memory (one va_block).
inline constexpr uint64_t kChunkBytes = uint64_t{2} << 20;
inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

struct Extent {  // [base, base + bytes)
  Va base = 0;
  uint64_t bytes = 0;
  Va end() const { return base + bytes; }
  bool operator==(const Extent&) const = default;
};

constexpr uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }
constexpr uint64_t RoundDown(uint64_t value, uint64_t to) { return value / to * to; }

// A point in a stream's queue: reached when everything up to and including `seq` is done.
struct Mark {
  StreamId stream = 0;
  Seq seq = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_TYPES_H_
