#include "hooklib/memory/live_map.h"

#include <algorithm>
#include <iterator>

namespace sluice::memory {

std::optional<Allocation> LiveMap::Remove(Va base) {
  const auto it = allocations_.find(base);
  if (it == allocations_.end()) return std::nullopt;
  Allocation gone = it->second;
  Invalidate({base, gone.bytes});
  if (gone.reported) reports_.erase(reports_.lower_bound(base), reports_.lower_bound(base + gone.bytes));
  allocations_.erase(it);
  return gone;
}

Allocation* LiveMap::Find(Va va, Va* base) {
  auto it = allocations_.upper_bound(va);
  if (it == allocations_.begin()) return nullptr;
  --it;
  if (va >= it->first + it->second.bytes) return nullptr;
  if (base) *base = it->first;
  return &it->second;
}

std::vector<Va> LiveMap::In(Extent range) const {
  std::vector<Va> bases;
  for (auto it = allocations_.lower_bound(range.base); it != allocations_.end() && it->first < range.end(); ++it)
    bases.push_back(it->first);
  return bases;
}

bool LiveMap::Report(Extent range) {
  Va base = 0;
  Allocation* allocation = Find(range.base, &base);
  return allocation && Report(range, base, allocation);
}

bool LiveMap::Report(Extent range, Va base, Allocation* allocation) {
  if (range.end() > base + allocation->bytes) return false;
  Invalidate(allocation->reported ? range : Extent{base, allocation->bytes});
  allocation->reported = true;
  reports_[range.base] = range.bytes;
  return true;
}

std::optional<Extent> LiveMap::Unreport(Va base) {
  const auto it = reports_.find(base);
  if (it == reports_.end()) return std::nullopt;
  const Extent range{it->first, it->second};
  reports_.erase(it);
  Invalidate(range);
  return range;
}

void LiveMap::Invalidate(Extent range) {
  if (range.bytes > 64 * kChunkBytes) {
    ++all_invalidations_;
    return;
  }
  for (Va va = RoundDown(range.base, kChunkBytes); va < range.end(); va += kChunkBytes)
    ++region_invalidations_[Region(va)];
}

bool LiveMap::Search(Va va) {
  Va base = 0;
  Allocation* allocation = Find(va, &base);
  if (!allocation) return false;
  if (allocation->reported) {
    auto it = reports_.upper_bound(va);
    if (it != reports_.begin()) {
      --it;
      if (va < it->first + it->second) return Store(va, {it->first, it->second}, true);
    }
    // Reports end while a graph goes on using the range: then the whole segment may be meant.
    if (!allocation->captured) return false;
  }
  return Store(va, {base, allocation->bytes}, false);
}

std::optional<Extent> LiveMap::Resolve(Va va, Va begin, Va end) {
  const std::optional<Extent> all = Resolve(va);
  if (!all) return std::nullopt;
  begin = std::max(begin, all->base);
  end = std::min(end, all->end());
  if (begin >= end) return std::nullopt;
  return Extent{begin, end - begin};
}

}  // namespace sluice::memory
