#include "scheduler/placement/fragmentation.h"

#include <algorithm>
#include <map>

#include "scheduler/placement/choices.h"

namespace sluice::scheduler {

RequestMix MixOf(std::span<const Request> requests) {
  std::map<Request, int> counts;
  for (const Request& request : requests) ++counts[request];
  RequestMix mix;
  mix.reserve(counts.size());
  for (const auto& [request, count] : counts) {
    mix.push_back({request, static_cast<double>(count) / static_cast<double>(requests.size())});
  }
  return mix;
}

double ExpectedFragment(const Node& node, const RequestMix& mix) {
  const int total = node.FreeUnits();
  double expected = 0;
  for (const auto& [request, weight] : mix) {
    int unusable = total;
    if (request.cards > 0 && HostFits(node, request)) {
      int usable_cards = 0, too_full = 0;
      for (const Card& card : node.cards) {
        if (card.free >= request.units) {
          ++usable_cards;
        } else {
          too_full += card.free;
        }
      }
      if (usable_cards >= request.cards) unusable = too_full;
    }
    expected += weight * unusable;
  }
  return expected;
}

FragmentTable::FragmentTable(const RequestMix& mix, int units_per_card) : mix_(mix) {
  RequestMix single;
  for (const WeightedRequest& entry : mix) {
    max_memory_mib_ = std::max(max_memory_mib_, entry.request.memory_mib);
    if (entry.request.cards == 1) {
      single.push_back(entry);
      single_weight_ += entry.weight;
    } else if (entry.request.cards == 0) {
      no_card_weight_ += entry.weight;
    } else {
      several_.push_back(entry);
    }
  }
  std::stable_sort(single.begin(), single.end(), [](const WeightedRequest& a, const WeightedRequest& b) {
    return a.request.cpu_milli < b.request.cpu_milli;
  });
  Level level{.weight_above = std::vector<double>(static_cast<std::size_t>(units_per_card) + 1, 0)};
  for (std::size_t i = 0; i < single.size(); ++i) {
    const auto& [request, weight] = single[i];
    level.cpu_milli = request.cpu_milli;
    level.weight += weight;
    const int above = std::min(request.units, units_per_card + 1);
    for (int free = 0; free < above; ++free) level.weight_above[free] += weight;
    if (i + 1 == single.size() || single[i + 1].request.cpu_milli != request.cpu_milli) levels_.push_back(level);
  }
}

double FragmentTable::Expected(const Node& node, const Request& request, const CardSet& cards) const {
  const std::int64_t cpu = node.cpu_milli_free - request.cpu_milli;
  const std::int64_t memory = node.memory_mib_free - request.memory_mib;
  if (memory < max_memory_mib_) {  // rare: nodes run out of cards or CPU first
    Node after = node;
    Take(after, request, cards);
    return ExpectedFragment(after, mix_);
  }
  auto level = std::upper_bound(levels_.begin(), levels_.end(), cpu,
                                [](std::int64_t value, const Level& l) { return value < l.cpu_milli; });
  const Level* const fits = level == levels_.begin() ? nullptr : &*std::prev(level);
  double total = 0, fragment = 0;
  auto taken = cards.begin();
  const auto free_of = [&](int index) {
    if (taken == cards.end() || *taken != index) return node.cards[index].free;
    ++taken;
    return node.cards[index].free - request.units;
  };
  const int count = static_cast<int>(node.cards.size());
  for (int i = 0; i < count; ++i) {
    const int free = free_of(i);
    total += free;
    if (fits != nullptr) fragment += free * fits->weight_above[free];
  }
  fragment += (no_card_weight_ + single_weight_ - (fits != nullptr ? fits->weight : 0)) * total;
  for (const auto& [wanted, weight] : several_) {
    int usable = 0;
    double too_full = 0;
    taken = cards.begin();
    for (int i = 0; i < count; ++i) {
      const int free = free_of(i);
      if (free >= wanted.units) {
        ++usable;
      } else {
        too_full += free;
      }
    }
    fragment += weight * (cpu >= wanted.cpu_milli && usable >= wanted.cards ? too_full : total);
  }
  return fragment;
}

}  // namespace sluice::scheduler
