// Lists of byte ranges: sorted, disjoint, none empty, once merged.
#ifndef SLUICE_TRACE_RANGES_H_
#define SLUICE_TRACE_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "reader.h"

namespace sluice::trace {

inline void Merge(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.address < b.address; });
  std::vector<Range> merged;
  for (const Range& r : ranges) {
    if (r.bytes == 0) continue;
    if (!merged.empty() && r.address <= merged.back().address + merged.back().bytes) {
      merged.back().bytes =
          std::max(merged.back().address + merged.back().bytes, r.address + r.bytes) - merged.back().address;
    } else {
      merged.push_back(r);
    }
  }
  ranges = std::move(merged);
}

inline uint64_t Bytes(const std::vector<Range>& ranges) {
  uint64_t sum = 0;
  for (const Range& r : ranges) sum += r.bytes;
  return sum;
}

// Bytes in both lists, both merged.
inline uint64_t Common(const std::vector<Range>& a, const std::vector<Range>& b) {
  uint64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint64_t a_end = a[i].address + a[i].bytes, b_end = b[j].address + b[j].bytes;
    const uint64_t first = std::max(a[i].address, b[j].address), last = std::min(a_end, b_end);
    if (first < last) sum += last - first;
    a_end < b_end ? ++i : ++j;
  }
  return sum;
}

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_RANGES_H_
