#include "scheduler/placement/reservation_tracker.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::scheduler {
namespace {

int CountOf(const CardUnitCounts& counts, const std::string& card) {
  const auto found = counts.find(card);
  return found == counts.end() ? 0 : found->second;
}

bool HaveSameShape(const Chain& a, const Chain& b) { return a.first == b.first && a.total == b.total; }

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
    if (!reservation.used || !HaveSameShape(reservation.chain, chain)) continue;
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
      if (reservation.used || !HaveSameShape(reservation.chain, used.chain)) continue;
      if (best == nullptr || reservation.cards == used.cards) best = &reservation;
    }
    if (best != nullptr) *best = used;
  }
}

bool ReservationTracker::Fits(const TrackedReservation& reservation, const CardUnitCounts& free) const {
  return std::all_of(reservation.cards.begin(), reservation.cards.end(),
                     [&](const std::string& card) { return CountOf(free, card) >= reservation.chain.UnitsPerCard(); });
}

ReservationTracker::TrackedReservation* ReservationTracker::FindUnused(const CardUnitCounts& free, int size) {
  TrackedReservation* broken = nullptr;
  for (TrackedReservation& reservation : reservations_) {
    if (reservation.used || reservation.chain.first != size) continue;
    if (Fits(reservation, free)) return &reservation;
    broken = &reservation;
  }
  if (broken == nullptr) return nullptr;
  // The reserved card is unhealthy, or a pod that the extender did not place has taken it: any other card will do.
  TrackedReservation moved = *broken;
  broken->chain.total = 0;  // reserves nothing while another card is chosen for it
  const auto elsewhere = ChooseUnreserved(free, {}, moved.chain.total);
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
                                                                    const CardUnitCounts& must_include, int size) {
  int had = 0;
  for (const auto& [card, units] : must_include) had += units;
  if (had == 0) {
    TrackedReservation* reservation = FindUnused(free, size);
    if (reservation == nullptr) return ChooseUnreserved(free, {}, size);
    reservation->used = true;
    reservation->given = size;
    if (size <= kUnitsPerCard) return std::vector<std::string>{reservation->cards.front()};
    return reservation->cards;
  }
  if (TrackedReservation* reservation = FindStarted(must_include);
      reservation != nullptr && reservation->chain.total - reservation->given >= size - had) {
    reservation->given += size - had;
    if (size <= kUnitsPerCard) return std::vector<std::string>{reservation->cards.front()};
    return reservation->cards;
  }
  return ChooseUnreserved(free, must_include, size);
}

absl::StatusOr<std::vector<std::string>> ReservationTracker::ChooseUnreserved(const CardUnitCounts& free,
                                                                              const CardUnitCounts& must_include,
                                                                              int size) const {
  std::vector<std::string> whole;
  std::string best;
  int least_left = 0, largest = 0;
  for (const auto& [card, units] : free) {
    const int left = units - ReservedUnits(card);
    largest = std::max(largest, left);
    const bool must = must_include.contains(card);
    // Whole cards: cards of must_include come first.
    if (left >= kUnitsPerCard) whole.insert(must ? whole.begin() : whole.end(), card);
    if (left < size || (!must_include.empty() && !must)) continue;
    if (best.empty() || left < least_left) {
      best = card;
      least_left = left;
    }
  }
  if (size <= kUnitsPerCard) {
    if (!best.empty() && must_include.size() <= 1) return std::vector<std::string>{best};
    return absl::NotFoundError(absl::StrCat("no single card has ", size,
                                            " units that are free and not reserved for a pod that ",
                                            "the scheduler placed here; the largest has ", largest));
  }
  const auto cards = static_cast<std::size_t>(size / kUnitsPerCard);
  const auto musts = static_cast<std::size_t>(
      std::count_if(whole.begin(), whole.end(), [&](const std::string& card) { return must_include.contains(card); }));
  if (whole.size() < cards || musts < must_include.size()) {
    return absl::NotFoundError(absl::StrCat("fewer than ", cards,
                                            " whole cards are free and not reserved for a pod that ",
                                            "the scheduler placed here: ", whole.size()));
  }
  whole.resize(cards);
  return whole;
}

bool ReservationTracker::HasUnused(int size) const {
  return std::any_of(reservations_.begin(), reservations_.end(), [size](const TrackedReservation& reservation) {
    return !reservation.used && reservation.chain.first == size;
  });
}

int ReservationTracker::ReservedUnits(const std::string& card) const {
  int sum = 0;
  for (const TrackedReservation& reservation : reservations_) {
    for (std::size_t i = 0; i < reservation.cards.size(); ++i) {
      if (reservation.cards[i] != card || reservation.chain.total == 0) continue;
      const int each = reservation.chain.UnitsPerCard();
      sum += each - std::clamp(reservation.given - kUnitsPerCard * static_cast<int>(i), 0, each);
    }
  }
  return sum;
}

}  // namespace sluice::scheduler
