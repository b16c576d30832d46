#include "deviceplugin/decide/unit_choice.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <tuple>

#include "deviceplugin/decide/device_id.h"
#include "scheduler/placement/choices.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

using Units = std::bitset<SLUICE_UNITS_PER_GPU>;

struct CardUnits {
  std::string uuid;
  scheduler::CardPlace place;
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

std::vector<CardUnits> Group(const UnitRequest& request, const scheduler::CardPlaces& places) {
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
        auto place = places.find(id->uuid);
        cards.push_back({id->uuid, place == places.end() ? scheduler::CardPlace() : place->second, {}, {}});
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
  for (const CardUnits& card : cards) out[card.place.numa] += card.Untouched();
  return out;
}

const CardUnits* OneCard(const std::vector<CardUnits>& cards, int size, bool any_must) {
  const auto untouched = UntouchedPerNode(cards);
  const CardUnits* best = nullptr;
  auto rank = [&](const CardUnits& card) { return std::tuple(card.Free(), untouched.at(card.place.numa)); };
  for (const CardUnits& card : cards) {
    if (card.Free() < size || (any_must && card.must.none())) continue;
    if (best == nullptr || rank(card) < rank(*best)) best = &card;
  }
  return best;
}

// The closest `count` cards with `each` units, among them those with must-include units; empty: there are not enough.
std::vector<const CardUnits*> SeveralCards(const std::vector<CardUnits>& cards, int count, int each) {
  scheduler::Node node;
  scheduler::CardSet from, must;
  for (size_t i = 0; i < cards.size(); ++i) {
    const CardUnits& card = cards[i];
    node.cards.push_back({.free = card.Free(), .numa = card.place.numa, .nvlink = card.place.nvlink});
    if (static_cast<int>(card.must.count()) > each) return {};
    if (card.Free() >= each) from.push_back(static_cast<int>(i));
    if (card.must.any()) must.push_back(static_cast<int>(i));
  }
  std::vector<const CardUnits*> out;
  for (const int card : scheduler::ClosestCards(node, from, must, count)) out.push_back(&cards[card]);
  return out;
}

// No card can hold the request: must-include units first, then the cards with most free units, so that the refusal
// names few cards.
std::vector<std::string> BestEffort(std::vector<CardUnits> cards, int size) {
  std::vector<std::string> ids;
  for (CardUnits& card : cards) {
    Take({card.uuid, card.place, card.must, card.must}, static_cast<int>(card.must.count()), &ids);
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

UnitChoice ChooseUnits(const UnitRequest& request, const scheduler::CardPlaces& places) {
  UnitChoice choice;
  if (request.size <= 0) return choice;
  const std::vector<CardUnits> cards = Group(request, places);
  const int count = request.cards > 0 ? request.cards : std::max(1, request.size / SLUICE_UNITS_PER_GPU);
  const int each = request.size / count;
  const bool is_even = request.size % count == 0 && each <= SLUICE_UNITS_PER_GPU;
  if (is_even && count == 1) {
    const auto with_must = std::count_if(cards.begin(), cards.end(), [](const CardUnits& c) { return c.must.any(); });
    const CardUnits* card = with_must <= 1 ? OneCard(cards, request.size, with_must == 1) : nullptr;
    if (card != nullptr) {
      Take(*card, request.size, &choice.ids);
      choice.fits = true;
    }
  } else if (is_even) {
    for (const CardUnits* card : SeveralCards(cards, count, each)) {
      Take(*card, each, &choice.ids);
      choice.fits = true;
    }
  }
  if (!choice.fits) choice.ids = BestEffort(cards, request.size);
  return choice;
}

}  // namespace sluice::deviceplugin
