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
    // Reports end while a graph still uses the range: then the pointer may mean the whole segment.
    if (allocation->mapped) {
      const auto mapping = MappingAt(va);
      return mapping != mappings_.end() && mapping->second.pinned &&
             Store(va, {mapping->first, mapping->second.bytes}, false);
    }
    if (!allocation->captured) return false;
  }
  return Store(va, {base, allocation->bytes}, false);
}

std::vector<Va> LiveMap::Neighbors(Extent range, Extent reservation) {
  std::vector<Va> bases;
  Va base = 0;
  if (range.base > reservation.base && Find(range.base - 1, &base)) bases.push_back(base);
  if (range.end() < reservation.end() && Find(range.end(), &base)) bases.push_back(base);
  return bases;
}

Allocation* LiveMap::Map(Extent range, Extent reservation, const Allocation& allocation) {
  Allocation all = allocation;
  all.mapped = 1;
  Extent whole = range;
  for (const Va base : Neighbors(range, reservation)) {
    const Allocation& other = allocations_.at(base);
    all.reported |= other.reported;
    const Va begin = std::min(whole.base, base), end = std::max(whole.end(), base + other.bytes);
    whole = {begin, end - begin};
    allocations_.erase(base);
  }
  all.bytes = whole.bytes;
  mappings_[range.base] = {range.bytes, false};
  Invalidate(whole);
  return &(allocations_[whole.base] = all);
}

void LiveMap::Unmap(Extent range) {
  mappings_.erase(range.base);
  Va base = 0;
  const Allocation* const found = Find(range.base, &base);
  if (!found) return;
  Allocation part = *found;
  const Extent whole{base, part.bytes};
  Invalidate(whole);
  allocations_.erase(base);
  const auto keep = [&](Va begin, Va end) {
    if (begin >= end) return;
    part.bytes = end - begin;
    allocations_[begin] = part;
  };
  keep(whole.base, range.base);
  keep(range.end(), whole.end());
}

std::vector<Extent> LiveMap::ReportsIn(Extent range) const {
  std::vector<Extent> parts;
  auto it = reports_.upper_bound(range.base);
  if (it != reports_.begin() && std::prev(it)->first + std::prev(it)->second > range.base) --it;
  for (; it != reports_.end() && it->first < range.end(); ++it) {
    const Va begin = std::max(it->first, range.base), end = std::min(it->first + it->second, range.end());
    if (begin < end) parts.push_back({begin, end - begin});
  }
  return parts;
}

void LiveMap::ForgetReports(Extent reservation) {
  reports_.erase(reports_.lower_bound(reservation.base), reports_.lower_bound(reservation.end()));
}

std::map<Va, LiveMap::Mapping>::iterator LiveMap::MappingAt(Va va) {
  auto it = mappings_.upper_bound(va);
  if (it == mappings_.begin()) return mappings_.end();
  --it;
  return va < it->first + it->second.bytes ? it : mappings_.end();
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
