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

bool SameKind(const Chain& a, const Chain& b) { return a.first == b.first && a.total == b.total; }

}  // namespace

absl::Status ReservationTracker::Bound(const std::string& pod, const std::vector<ContainerUnits>& containers,
                                       const ContainerCards& cards) {
  if (pods_.contains(pod)) return absl::OkStatus();
  if (cards.empty()) return absl::InvalidArgumentError("placement is empty");
  absl::StatusOr<LivePod> live = MakeLivePod(containers, cards);
  if (!live.ok()) return live.status();
  const LivePod& added = pods_.emplace(pod, *std::move(live)).first->second;
  // The extender would not have reserved what it counts as taken: where our account of exchanges says otherwise, its
  // account holds.
  const auto too_much = [&](const std::vector<std::string>& chain_cards) {
    return std::any_of(chain_cards.begin(), chain_cards.end(),
                       [&](const std::string& card) { return Committed(pods_, card) > kUnitsPerCard; });
  };
  if (std::any_of(added.reserved.begin(), added.reserved.end(), too_much)) {
    for (auto& [uid, other] : pods_) {
      if (other.Waits()) other.reserved = other.annotated;
    }
  }
  Reseat();
  return absl::OkStatus();
}

void ReservationTracker::Admitted(const std::string& pod, const ContainerCards& cards) {
  const auto found = pods_.find(pod);
  if (found == pods_.end() || found->second.actual) return;
  Settle(pods_, pod, cards);
  for (const Chain& chain : found->second.chains) EndUse(chain, CardsOf(chain, found->second.containers, cards));
  Reseat();
}

void ReservationTracker::Gone(const std::string& pod) {
  const auto found = pods_.find(pod);
  if (found == pods_.end()) return;
  if (!found->second.actual) {
    // Kubelet may have begun with this pod and refused it later. If the use was another pod's, that one's Admitted
    // follows at once.
    for (std::size_t i = 0; i < found->second.chains.size(); ++i) {
      EndUse(found->second.chains[i], found->second.reserved[i]);
    }
  }
  pods_.erase(found);
  Reseat();
}

void ReservationTracker::EndUse(const Chain& chain, const std::vector<std::string>& cards) {
  Seat* best = nullptr;
  for (Seat& seat : seats_) {
    if (!seat.used || !SameKind(seat.chain, chain)) continue;
    if (best == nullptr || seat.cards == cards) best = &seat;
  }
  if (best == nullptr) return;
  best->used = false;
  best->given = 0;
}

void ReservationTracker::Reseat() {
  std::vector<Seat> before = std::move(seats_);
  seats_.clear();
  for (Slot& slot : OpenSlots(pods_)) seats_.push_back({std::move(slot)});
  for (const Seat& used : before) {
    if (!used.used) continue;
    Seat* best = nullptr;
    for (Seat& seat : seats_) {
      if (seat.used || !SameKind(seat.chain, used.chain)) continue;
      if (best == nullptr || seat.cards == used.cards) best = &seat;
    }
    if (best != nullptr) *best = used;
  }
}

bool ReservationTracker::Holds(const Seat& seat, const CardUnitCounts& free) const {
  return std::all_of(seat.cards.begin(), seat.cards.end(),
                     [&](const std::string& card) { return CountOf(free, card) >= seat.chain.UnitsPerCard(); });
}

ReservationTracker::Seat* ReservationTracker::FindWaiting(const CardUnitCounts& free, int size) {
  Seat* broken = nullptr;
  for (Seat& seat : seats_) {
    if (seat.used || seat.chain.first != size) continue;
    if (Holds(seat, free)) return &seat;
    broken = &seat;
  }
  if (broken == nullptr) return nullptr;
  // The reserved card is sick, or taken by a pod that the extender did not place: another place will do as well.
  Seat moved = *broken;
  broken->chain.total = 0;  // does not reserve anything while its new place is sought
  const auto elsewhere = ChooseUnreserved(free, {}, moved.chain.total);
  if (elsewhere.ok()) moved.cards = *elsewhere;
  *broken = std::move(moved);
  return elsewhere.ok() ? broken : nullptr;
}

ReservationTracker::Seat* ReservationTracker::FindStarted(const CardUnitCounts& must_include) {
  for (Seat& seat : seats_) {
    if (!seat.used || seat.given >= seat.chain.total) continue;
    if (must_include.contains(seat.cards.front())) return &seat;
  }
  return nullptr;
}

absl::StatusOr<std::vector<std::string>> ReservationTracker::Choose(const CardUnitCounts& free,
                                                                    const CardUnitCounts& must_include, int size) {
  int had = 0;
  for (const auto& [card, units] : must_include) had += units;
  if (had == 0) {
    Seat* seat = FindWaiting(free, size);
    if (seat == nullptr) return ChooseUnreserved(free, {}, size);
    seat->used = true;
    seat->given = size;
    if (size <= kUnitsPerCard) return std::vector<std::string>{seat->cards.front()};
    return seat->cards;
  }
  if (Seat* seat = FindStarted(must_include); seat != nullptr && seat->chain.total - seat->given >= size - had) {
    seat->given += size - had;
    if (size <= kUnitsPerCard) return std::vector<std::string>{seat->cards.front()};
    return seat->cards;
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
    const int left = units - Reserved(card);
    largest = std::max(largest, left);
    const bool must = must_include.contains(card);
    // Whole cards: those that must be in come first.
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

bool ReservationTracker::Waits(int size) const {
  return std::any_of(seats_.begin(), seats_.end(),
                     [size](const Seat& seat) { return !seat.used && seat.chain.first == size; });
}

int ReservationTracker::Reserved(const std::string& card) const {
  int sum = 0;
  for (const Seat& seat : seats_) {
    for (std::size_t i = 0; i < seat.cards.size(); ++i) {
      if (seat.cards[i] != card || seat.chain.total == 0) continue;
      const int each = seat.chain.UnitsPerCard();
      sum += each - std::clamp(seat.given - kUnitsPerCard * static_cast<int>(i), 0, each);
    }
  }
  return sum;
}

}  // namespace sluice::scheduler
