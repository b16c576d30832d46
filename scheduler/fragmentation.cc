#include "scheduler/fragmentation.h"

#include <map>

#include "scheduler/choices.h"

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

}  // namespace sluice::scheduler
