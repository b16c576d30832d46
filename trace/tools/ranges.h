// Lists of byte ranges. A merged list is sorted and disjoint and holds no empty range; neighbours with different access
// stay separate.
#ifndef SLUICE_TRACE_TOOLS_RANGES_H_
#define SLUICE_TRACE_TOOLS_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

inline Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}

// Merges the list. Bytes in several ranges get the access of all of them.
inline void Merge(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.address < b.address; });
  std::vector<Range> merged;
  const auto append = [&merged](Range r) {
    if (r.bytes == 0) return;
    if (!merged.empty() && merged.back().access == r.access &&
        merged.back().address + merged.back().bytes == r.address) {
      merged.back().bytes += r.bytes;
    } else {
      merged.push_back(r);
    }
  };
  std::vector<Range> open;  // those that cover bytes from `at` on
  uint64_t at = 0;
  const auto advance = [&](uint64_t until) {
    while (!open.empty() && at < until) {
      uint64_t stop = until;
      Access access = Access::kUnknown;
      for (const Range& r : open) {
        stop = std::min(stop, r.address + r.bytes);
        access = access | r.access;
      }
      append({at, stop - at, access});
      at = stop;
      std::erase_if(open, [at](const Range& r) { return r.address + r.bytes <= at; });
    }
    at = until;
  };
  for (const Range& r : ranges) {
    advance(r.address);
    if (r.bytes != 0) open.push_back(r);
  }
  advance(UINT64_MAX);
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

#endif  // SLUICE_TRACE_TOOLS_RANGES_H_
