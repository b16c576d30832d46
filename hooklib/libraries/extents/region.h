// The bytes that an operand covers: an exact strided box, and the list of ranges that represents it.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_REGION_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_REGION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::libraries {

// The bytes [base + sum(i_d * stride_d), ... + run) for every index vector. `run_step` makes trapezoids (the triangle
// of a matrix): at index i of dims[0] the run is run + i * run_step bytes long; a run that is not positive is empty.
struct Region {
  static constexpr int kMaxRank = 10;
  struct Dim {
    uint64_t count = 1;
    int64_t stride = 0;  // bytes
  };

  uint64_t base = 0;
  uint64_t run = 0;
  int64_t run_step = 0;
  int rank = 0;
  std::array<Dim, kMaxRank> dims{};

  static Region Bytes(uint64_t base, uint64_t bytes) { return {base, bytes, 0, 0, {}}; }
  Region& AddDimension(uint64_t count, int64_t stride);  // one more dimension, outside the ones before
  bool empty() const;
};

struct Range {  // [base, base + bytes)
  uint64_t base = 0, bytes = 0;
  bool whole = true;  // every byte of it is covered; false: it also spans gaps
  uint64_t end() const { return base + bytes; }
  bool operator==(const Range&) const = default;
};

// Appends the region as ranges, sorted and disjoint. Gaps of less than `gap` bytes are bridged (0: exact), and larger
// ones where the region would take more than `limit` ranges. False, and nothing is appended, where a size or address
// overflows: no such operand can exist.
bool AppendRanges(const Region& region, uint64_t gap, std::size_t limit, std::vector<Range>* out);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_REGION_H_
