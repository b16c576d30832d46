#include "agent/neighbours.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

namespace sluice::agent {

std::vector<std::string> ChooseNeighbours(const std::vector<CardStatus>& cards, std::size_t count, uint32_t units) {
  std::map<int, std::vector<const CardStatus*>> by_numa;
  for (const CardStatus& card : cards) {
    if (card.free_units >= units) by_numa[card.numa].push_back(&card);
  }
  std::vector<std::string> out;
  while (out.size() < count && !by_numa.empty()) {
    const std::size_t missing = count - out.size();
    const auto rank = [missing](const auto& group) {
      const std::size_t here = group.second.size();
      const bool enough = here >= missing;
      return std::tuple(!enough, enough ? here : SIZE_MAX - here);
    };
    const auto best = std::ranges::min_element(by_numa, {}, rank);
    std::ranges::stable_sort(best->second, std::greater(), &CardStatus::free_units);
    for (const CardStatus* card : best->second) {
      if (out.size() < count) out.push_back(card->uuid);
    }
    by_numa.erase(best);
  }
  return out.size() == count ? out : std::vector<std::string>();
}

}  // namespace sluice::agent
