// Live bytes whose only writer since their allocation is a copy: weights that were loaded. The ranges are disjoint and
// joined where they touch.
#ifndef SLUICE_HOOKLIB_MEMORY_COPIED_RANGES_H_
#define SLUICE_HOOKLIB_MEMORY_COPIED_RANGES_H_

#include <algorithm>
#include <iterator>
#include <map>

#include "hooklib/memory/types.h"

namespace sluice::memory {

class CopiedRanges {
 public:
  bool empty() const { return ranges_.empty(); }
  void Clear() { ranges_.clear(); }

  // Calls f for each part of the range that was not included before.
  template <typename F>
  void Add(Extent range, F f) {
    if (range.bytes == 0) return;
    Va begin = range.base, end = range.end(), at = range.base;
    auto it = ranges_.upper_bound(range.base);
    if (it != ranges_.begin() && std::prev(it)->second >= range.base) --it;
    while (it != ranges_.end() && it->first <= range.end()) {
      if (it->first > at) f(Extent{at, it->first - at});
      at = std::max(at, it->second);
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
      it = ranges_.erase(it);
    }
    if (at < range.end()) f(Extent{at, range.end() - at});
    ranges_[begin] = end;
  }

  // Calls f for each part of the range that was included.
  template <typename F>
  void Remove(Extent range, F f) {
    if (range.bytes == 0) return;
    auto it = ranges_.upper_bound(range.base);
    if (it != ranges_.begin() && std::prev(it)->second > range.base) --it;
    while (it != ranges_.end() && it->first < range.end()) {
      const Va begin = it->first, end = it->second;
      it = ranges_.erase(it);
      if (begin < range.base) ranges_[begin] = range.base;
      if (end > range.end()) it = ranges_.insert_or_assign(range.end(), end).first;
      const Va from = std::max(begin, range.base);
      f(Extent{from, std::min(end, range.end()) - from});
      if (end > range.end()) break;
    }
  }

 private:
  std::map<Va, Va> ranges_;  // begin, end
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_COPIED_RANGES_H_
