#include "deviceplugin/decide/unit_choice.h"

#include <algorithm>
#include <bitset>
#include <tuple>

#include "deviceplugin/decide/device_id.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

using Units = std::bitset<SLUICE_UNITS_PER_GPU>;

struct CardUnits {
  std::string uuid;
  int numa = -1;
  Units free;  // includes `must`
  Units must;
  int Free() const { return static_cast<int>(free.count()); }
  bool Untouched() const { return free.all(); }
};

// Appends units of this card until `count` are in: first those of `must`, then the lowest free ones.
void Take(const CardUnits& card, int count, std::vector<std::string>* ids) {
  int taken = 0;
  for (const bool must : {true, false}) {
    for (int unit = 0; unit < SLUICE_UNITS_PER_GPU && taken < count; ++unit) {
      if (must ? !card.must[unit] : (card.must[unit] || !card.free[unit])) continue;
      ids->push_back(FormatDeviceId(card.uuid, unit));
      ++taken;
    }
  }
}

std::vector<CardUnits> Group(const UnitRequest& request, const std::map<std::string, int>& numa) {
  std::vector<CardUnits> cards;
  // Kubelet's lists are unordered, but few cards occur in them, so the last card found is tried first.
  size_t last = 0;
  auto add = [&](const std::string& text, bool must) {
    auto id = ParseDeviceId(text);
    if (!id.ok()) return;
    if (last >= cards.size() || cards[last].uuid != id->uuid) {
      last = static_cast<size_t>(std::find_if(cards.begin(), cards.end(), [&](auto& c) { return c.uuid == id->uuid; }) -
                                 cards.begin());
      if (last == cards.size()) {
        auto node = numa.find(id->uuid);
        cards.push_back({id->uuid, node == numa.end() ? -1 : node->second, {}, {}});
      }
    }
    cards[last].free.set(id->unit);
    if (must) cards[last].must.set(id->unit);
  };
  for (const std::string& id : request.available) add(id, false);
  for (const std::string& id : request.must_include) add(id, true);
  std::sort(cards.begin(), cards.end(), [](auto& a, auto& b) { return a.uuid < b.uuid; });
  return cards;
}

std::map<int, int> UntouchedPerNode(const std::vector<CardUnits>& cards) {
  std::map<int, int> out;
  for (const CardUnits& card : cards) out[card.numa] += card.Untouched();
  return out;
}

const CardUnits* OneCard(const std::vector<CardUnits>& cards, int size, bool any_must) {
  const auto untouched = UntouchedPerNode(cards);
  const CardUnits* best = nullptr;
  auto rank = [&](const CardUnits& card) { return std::tuple(card.Free(), untouched.at(card.numa)); };
  for (const CardUnits& card : cards) {
    if (card.Free() < size || (any_must && card.must.none())) continue;
    if (best == nullptr || rank(card) < rank(*best)) best = &card;
  }
  return best;
}

// The whole cards for `count`, cards with must-include units first; empty: there are not enough.
std::vector<const CardUnits*> WholeCards(const std::vector<CardUnits>& cards, int count) {
  std::vector<const CardUnits*> chosen, rest;
  for (const CardUnits& card : cards) {
    if (card.must.any() && !card.Untouched()) return {};
    if (card.Untouched()) (card.must.any() ? chosen : rest).push_back(&card);
  }
  if (static_cast<int>(chosen.size()) > count || static_cast<int>(chosen.size() + rest.size()) < count) return {};
  while (static_cast<int>(chosen.size()) < count) {
    // Prefer a NUMA node that is in use already, then the smallest that holds all missing cards, then the one with the
    // most cards.
    const int missing = count - static_cast<int>(chosen.size());
    std::map<int, int> per_node;
    for (const CardUnits* card : rest) ++per_node[card->numa];
    auto rank = [&](const CardUnits* card) {
      const bool on = std::any_of(chosen.begin(), chosen.end(), [&](auto* c) { return c->numa == card->numa; });
      const int here = per_node[card->numa];
      const bool enough = here >= missing;
      return std::tuple(!on, !enough, enough ? here : -here, card->numa, card->uuid);
    };
    auto next = std::min_element(rest.begin(), rest.end(), [&](auto* a, auto* b) { return rank(a) < rank(b); });
    chosen.push_back(*next);
    rest.erase(next);
  }
  return chosen;
}

// No card can hold the request: must-include units first, then the cards with most free units, so that the refusal
// names few cards.
std::vector<std::string> BestEffort(std::vector<CardUnits> cards, int size) {
  std::vector<std::string> ids;
  for (CardUnits& card : cards) {
    Take({card.uuid, card.numa, card.must, card.must}, static_cast<int>(card.must.count()), &ids);
    card.free &= ~card.must;
    card.must.reset();
  }
  std::stable_sort(cards.begin(), cards.end(), [](auto& a, auto& b) { return a.Free() > b.Free(); });
  for (const CardUnits& card : cards) {
    const int missing = size - static_cast<int>(ids.size());
    if (missing <= 0) break;
    Take(card, missing, &ids);
  }
  return ids;
}

}  // namespace

UnitChoice ChooseUnits(const UnitRequest& request, const std::map<std::string, int>& numa) {
  UnitChoice choice;
  if (request.size <= 0) return choice;
  const std::vector<CardUnits> cards = Group(request, numa);
  int with_must = 0;
  for (const CardUnits& card : cards) with_must += card.must.any();
  if (request.size <= SLUICE_UNITS_PER_GPU) {
    const CardUnits* card = with_must <= 1 ? OneCard(cards, request.size, with_must == 1) : nullptr;
    if (card != nullptr) {
      Take(*card, request.size, &choice.ids);
      choice.fits = true;
    }
  } else if (request.size % SLUICE_UNITS_PER_GPU == 0) {
    for (const CardUnits* card : WholeCards(cards, request.size / SLUICE_UNITS_PER_GPU)) {
      Take(*card, SLUICE_UNITS_PER_GPU, &choice.ids);
      choice.fits = true;
    }
  }
  if (!choice.fits) choice.ids = BestEffort(cards, request.size);
  return choice;
}

}  // namespace sluice::deviceplugin
