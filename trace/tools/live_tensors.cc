#include "live_tensors.h"

namespace sluice::trace {

void LiveTensors::Apply(const Event& e) {
  if (e.type == Type::kAlloc && e.c != static_cast<uint64_t>(AllocKind::kHost)) {
    blocks_[e.a] = e.b;
  } else if (e.type == Type::kFree) {
    blocks_.erase(e.a);
    reported_.erase(e.a);
  } else if (e.type == Type::kReport) {
    if (static_cast<int64_t>(e.b) > 0) {
      tensors_[e.a] = e.b;
      if (const auto block = Containing(blocks_, e.a); block != blocks_.end()) reported_.insert(block->first);
    } else {
      tensors_.erase(e.a);
    }
  }
}

Range LiveTensors::At(uint64_t address) const {
  if (const auto t = Containing(tensors_, address); t != tensors_.end()) return {t->first, t->second};
  const auto b = Containing(blocks_, address);
  return b != blocks_.end() && !reported_.contains(b->first) ? Range{b->first, b->second} : Range{0, 0};
}

std::vector<Range> LiveTensors::Over(uint64_t address, uint64_t end) const {
  std::vector<Range> out;
  const auto add = [&](const Map& map, bool whole_blocks) {
    auto it = map.upper_bound(address);
    if (it != map.begin()) --it;
    for (; it != map.end() && it->first < end; ++it) {
      if (!Overlap(it->first, it->first + it->second, address, end)) continue;
      if (whole_blocks && reported_.contains(it->first)) continue;
      out.push_back({it->first, it->second});
    }
  };
  add(tensors_, false);
  add(blocks_, true);
  return out;
}

LiveTensors::Map::const_iterator LiveTensors::Containing(const Map& map, uint64_t address) {
  auto it = map.upper_bound(address);
  if (it == map.begin()) return map.end();
  --it;
  return address - it->first < it->second ? it : map.end();
}

}  // namespace sluice::trace
