#include "scheduler/placement/chains.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::scheduler {
namespace {

// The units of init containers that have ended. They belong to one chain, because a new chain begins only when none are
// left.
struct Pool {
  int units = 0;
  std::size_t chain = 0;
};

absl::Status Bad(const ContainerUnits& container, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("container \"", container.name, "\" asks for ", container.units, " units, ", why));
}

// The container takes the whole pool and further units, on the same card.
absl::Status Grow(const ContainerUnits& container, const Pool& pool, Chain& chain) {
  const int total = chain.total + container.units - pool.units;
  // A container of whole cards can only take over units of cards on which no other container holds a part.
  const bool possible = container.units <= kUnitsPerCard ? total <= kUnitsPerCard : chain.total == pool.units;
  if (!possible) {
    return Bad(container,
               absl::StrCat("of which kubelet takes ", pool.units,
                            " from an init container, on a card that has no room for the rest: ask for fewer, or "
                            "for as many in the init container"));
  }
  chain.total = total;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Chain>> ChainsOf(const std::vector<ContainerUnits>& containers) {
  std::vector<Chain> chains;
  Pool pool;
  for (std::size_t i = 0; i < containers.size(); ++i) {
    const ContainerUnits& container = containers[i];
    if (container.units == 0) continue;
    const int split = container.IsSplit() ? container.cards : 1;
    if (split > 1 ? container.units % split != 0
                  : container.units < 0 || (container.units > kUnitsPerCard && container.units % kUnitsPerCard != 0)) {
      return Bad(container, split > 1 ? absl::StrCat("which cannot be split evenly over ", split, " cards")
                                      : "accepted are 1 to 100, or a multiple of 100 for whole cards");
    }
    if (pool.units == 0) {
      pool.chain = chains.size();
      chains.push_back({.first = container.units, .total = container.units, .containers = {}, .split = split});
    } else if (const Chain& chain = chains[pool.chain];
               (split > 1 || chain.split > 1) &&
               (split != chain.split || container.units != pool.units || container.units != chain.total)) {
      return Bad(container, absl::StrCat("and kubelet gives it ", pool.units,
                                         " units of an init container, split over other cards: ask for as many on as "
                                         "many cards in both"));
    } else if (container.units > pool.units) {
      if (absl::Status status = Grow(container, pool, chains[pool.chain]); !status.ok()) return status;
    } else if (container.units < pool.units && pool.units > kUnitsPerCard) {
      return Bad(container, absl::StrCat("which kubelet would pick at random from the ", pool.units / kUnitsPerCard,
                                         " cards of an init container: ask for as many there as here"));
    }
    chains[pool.chain].containers.push_back(static_cast<int>(i));
    if (container.kind == ContainerKind::kInit) {
      pool.units = std::max(pool.units, container.units);
    } else {
      pool.units = std::max(0, pool.units - container.units);
    }
  }
  // The plugin tells these apart by their cards: kubelet asks for the containers in their order.
  std::map<std::pair<int, int>, int> largest;
  for (const Chain& chain : chains) {
    int& total = largest[{chain.first, chain.split}];
    total = std::max(total, chain.total);
  }
  for (Chain& chain : chains) chain.total = largest[{chain.first, chain.split}];
  return chains;
}

}  // namespace sluice::scheduler
