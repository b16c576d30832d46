#include "scheduler/placement/reservation_tracker.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/placement/choices.h"

namespace sluice::scheduler {
namespace {

int CountOf(const CardUnitCounts& counts, const std::string& card) {
  const auto found = counts.find(card);
  return found == counts.end() ? 0 : found->second;
}

// Whether the chain begins with a request for `size` units on so many cards; 0: on any number.
bool BeginsWith(const Chain& chain, int size, int cards) {
  return chain.first == size && (cards == 0 || chain.FirstCards() == cards);
}

std::vector<std::string> CardsOfRequest(const Chain& chain, const std::vector<std::string>& cards, int size) {
  if (chain.split == 1 && size <= kUnitsPerCard) return {cards.front()};
  return cards;
}

}  // namespace

absl::Status ReservationTracker::PodBound(const std::string& pod, const std::vector<ContainerUnits>& containers,
                                          const ContainerCards& cards) {
  if (pods_.contains(pod)) return absl::OkStatus();
  if (cards.empty()) return absl::InvalidArgumentError("placement is empty");
  absl::StatusOr<LivePod> live = MakeLivePod(containers, cards);
  if (!live.ok()) return live.status();
  const LivePod& added = pods_.emplace(pod, *std::move(live)).first->second;
  // The extender never reserves units that it counts as taken. If this account of exchanges contradicts the extender's,
  // the extender's holds.
  const auto too_much = [&](const std::vector<std::string>& chain_cards) {
    return std::any_of(chain_cards.begin(), chain_cards.end(),
                       [&](const std::string& card) { return CommittedUnits(pods_, card) > kUnitsPerCard; });
  };
  if (std::any_of(added.reserved.begin(), added.reserved.end(), too_much)) {
    for (auto& [uid, other] : pods_) {
      if (other.AwaitsAdmission()) other.reserved = other.annotated;
    }
  }
  Rebuild();
  return absl::OkStatus();
}

void ReservationTracker::PodAdmitted(const std::string& pod, const ContainerCards& cards) {
  const auto found = pods_.find(pod);
  if (found == pods_.end() || found->second.actual) return;
  RecordAdmission(pods_, pod, cards);
  for (const Chain& chain : found->second.chains) ClearUse(chain, CardsOf(chain, found->second.containers, cards));
  Rebuild();
}

void ReservationTracker::PodRemoved(const std::string& pod) {
  const auto found = pods_.find(pod);
  if (found == pods_.end()) return;
  if (!found->second.actual) {
    // Kubelet may have started to admit this pod and refused it later. If the mark belonged to another pod, PodAdmitted
    // for that pod follows at once.
    for (std::size_t i = 0; i < found->second.chains.size(); ++i) {
      ClearUse(found->second.chains[i], found->second.reserved[i]);
    }
  }
  pods_.erase(found);
  Rebuild();
}

void ReservationTracker::ClearUse(const Chain& chain, const std::vector<std::string>& cards) {
  TrackedReservation* best = nullptr;
  for (TrackedReservation& reservation : reservations_) {
    if (!reservation.used || !reservation.chain.HasShapeOf(chain)) continue;
    if (best == nullptr || reservation.cards == cards) best = &reservation;
  }
  if (best == nullptr) return;
  best->used = false;
  best->given = 0;
}

void ReservationTracker::Rebuild() {
  std::vector<TrackedReservation> before = std::move(reservations_);
  reservations_.clear();
  for (OpenReservation& reservation : OpenReservations(pods_)) reservations_.push_back({std::move(reservation)});
  for (const TrackedReservation& used : before) {
    if (!used.used) continue;
    TrackedReservation* best = nullptr;
    for (TrackedReservation& reservation : reservations_) {
      if (reservation.used || !reservation.chain.HasShapeOf(used.chain)) continue;
      if (best == nullptr || reservation.cards == used.cards) best = &reservation;
    }
    if (best != nullptr) *best = used;
  }
}

bool ReservationTracker::Fits(const TrackedReservation& reservation, const CardUnitCounts& free) const {
  return std::all_of(reservation.cards.begin(), reservation.cards.end(),
                     [&](const std::string& card) { return CountOf(free, card) >= reservation.chain.UnitsPerCard(); });
}

ReservationTracker::TrackedReservation* ReservationTracker::FindUnused(const CardUnitCounts& free, int size, int cards,
                                                                       const CardPlaces& places) {
  TrackedReservation* broken = nullptr;
  for (TrackedReservation& reservation : reservations_) {
    if (reservation.used || !BeginsWith(reservation.chain, size, cards)) continue;
    if (Fits(reservation, free)) return &reservation;
    broken = &reservation;
  }
  if (broken == nullptr) return nullptr;
  // The reserved card is unhealthy, or a pod that the extender did not place has taken it: any other card will do.
  TrackedReservation moved = *broken;
  broken->chain.total = 0;  // reserves nothing while another card is chosen for it
  const auto elsewhere = ChooseUnreserved(free, {}, moved.chain.total, moved.chain.Cards(), places);
  if (elsewhere.ok()) moved.cards = *elsewhere;
  *broken = std::move(moved);
  return elsewhere.ok() ? broken : nullptr;
}

ReservationTracker::TrackedReservation* ReservationTracker::FindStarted(const CardUnitCounts& must_include) {
  for (TrackedReservation& reservation : reservations_) {
    if (!reservation.used || reservation.given >= reservation.chain.total) continue;
    if (must_include.contains(reservation.cards.front())) return &reservation;
  }
  return nullptr;
}

absl::StatusOr<std::vector<std::string>> ReservationTracker::Choose(const CardUnitCounts& free,
                                                                    const CardUnitCounts& must_include, int size,
                                                                    int cards, const CardPlaces& places) {
  int had = 0;
  for (const auto& [card, units] : must_include) had += units;
  if (had == 0) {
    TrackedReservation* reservation = FindUnused(free, size, cards, places);
    if (reservation == nullptr) return ChooseUnreserved(free, {}, size, cards, places);
    reservation->used = true;
    reservation->given = size;
    return CardsOfRequest(reservation->chain, reservation->cards, size);
  }
  if (TrackedReservation* reservation = FindStarted(must_include);
      reservation != nullptr && reservation->chain.total - reservation->given >= size - had) {
    reservation->given += size - had;
    return CardsOfRequest(reservation->chain, reservation->cards, size);
  }
  return ChooseUnreserved(free, must_include, size, cards, places);
}

absl::StatusOr<std::vector<std::string>> ReservationTracker::ChooseUnreserved(const CardUnitCounts& free,
                                                                              const CardUnitCounts& must_include,
                                                                              int size, int cards,
                                                                              const CardPlaces& places) const {
  if (cards == 0) cards = std::max(1, size / kUnitsPerCard);
  const int each = size / cards;
  // The cards with room beside the reservations.
  Node node;
  std::vector<std::string> names;
  CardSet all, must;
  int largest = 0;
  for (const auto& [card, units] : free) {
    const int left = units - ReservedUnits(card);
    largest = std::max(largest, left);
    if (left < each) continue;
    const auto place = places.find(card);
    const CardPlace near = place == places.end() ? CardPlace() : place->second;
    if (must_include.contains(card)) must.push_back(static_cast<int>(names.size()));
    all.push_back(static_cast<int>(names.size()));
    names.push_back(card);
    node.cards.push_back({.free = left, .numa = near.numa, .nvlink = near.nvlink});
  }
  const bool has_must = must.size() == must_include.size();
  CardSet chosen;
  if (has_must && cards > 1) chosen = ClosestCards(node, all, must, cards);
  if (has_must && cards == 1 && must.size() <= 1) {
    const CardSet& from = must.empty() ? all : must;
    const auto best = std::min_element(from.begin(), from.end(),
                                       [&](int a, int b) { return node.cards[a].free < node.cards[b].free; });
    if (best != from.end()) chosen = {*best};
  }
  if (!chosen.empty()) {
    std::vector<std::string> out;
    for (const int card : chosen) out.push_back(names[card]);
    return out;
  }
  constexpr const char* kReserved = " and not reserved for a pod that the scheduler placed here";
  if (cards == 1) {
    return absl::NotFoundError(
        absl::StrCat("no single card has ", size, " units that are free", kReserved, "; the largest has ", largest));
  }
  if (each == kUnitsPerCard) {
    return absl::NotFoundError(
        absl::StrCat("fewer than ", cards, " whole cards are free", kReserved, ": ", names.size()));
  }
  return absl::NotFoundError(
      absl::StrCat("fewer than ", cards, " cards have ", each, " units that are free", kReserved, ": ", names.size()));
}

bool ReservationTracker::HasUnused(int size, int cards) const {
  return std::any_of(reservations_.begin(), reservations_.end(), [&](const TrackedReservation& reservation) {
    return !reservation.used && BeginsWith(reservation.chain, size, cards);
  });
}

int ReservationTracker::ReservedUnits(const std::string& card) const {
  int sum = 0;
  for (const TrackedReservation& reservation : reservations_) {
    for (std::size_t i = 0; i < reservation.cards.size(); ++i) {
      if (reservation.cards[i] != card || reservation.chain.total == 0) continue;
      const Chain& chain = reservation.chain;
      const int each = chain.UnitsPerCard();
      // A split share takes of all its cards at once, whole cards follow one another.
      const int given =
          chain.split > 1 ? reservation.given / chain.split : reservation.given - kUnitsPerCard * static_cast<int>(i);
      sum += each - std::clamp(given, 0, each);
    }
  }
  return sum;
}

}  // namespace sluice::scheduler
