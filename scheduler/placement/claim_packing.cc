#include "scheduler/placement/claim_packing.h"

#include <algorithm>
#include <map>

#include "scheduler/placement/chains.h"

namespace sluice::scheduler {
namespace {

constexpr int kMaxSearchSteps = 5000;  // kube-scheduler searches longer; here only a score is lost

std::optional<TextHash> AttributeOf(const ClaimCard& card, TextHash name) {
  const auto found = std::ranges::find(card.attributes, name, &std::pair<TextHash, TextHash>::first);
  if (found == card.attributes.end()) return std::nullopt;
  return found->second;
}

bool Holds(const CardCondition& condition, const ClaimCard& card) {
  const auto value = AttributeOf(card, condition.attribute);
  return value && (condition.values.empty() || std::ranges::find(condition.values, *value) != condition.values.end());
}

bool Meets(const ClaimCard& card, const CardsRequest& wanted) {
  return std::ranges::all_of(wanted.terms, [&](const CardTerm& term) {
    return std::ranges::all_of(term.all, [&](const CardCondition& c) { return Holds(c, card); }) != term.is_negated;
  });
}

// A constraint may name a request or one of its alternatives.
bool IsNamed(const std::string& constrained, const std::string& request) {
  return constrained == request || (request.starts_with(constrained) && request.size() > constrained.size() &&
                                    request[constrained.size()] == '/');
}

class Allocation {
 public:
  Allocation(std::span<const ClaimCard> cards, std::vector<CardRoom> rooms, std::span<const CardsClaim* const> claims)
      : cards_(cards), rooms_(std::move(rooms)), claims_(claims) {}

  bool Run() { return Begin(0, 0); }
  std::vector<TakenCard> Result() && { return std::move(taken_); }

 private:
  bool Begin(std::size_t claim, std::size_t request) {
    if (claim == claims_.size()) return true;
    if (request == claims_[claim]->requests.size()) return Begin(claim + 1, 0);
    const CardsRequest& wanted = claims_[claim]->requests[request];
    if (wanted.alternatives.empty()) return Step(claim, request, wanted, 0, 0);
    return std::ranges::any_of(
        wanted.alternatives, [&](const CardsRequest& alternative) { return Step(claim, request, alternative, 0, 0); });
  }

  // The `index`-th card of a request, from the card `from` on: other orders of the same cards are not tried.
  bool Step(std::size_t claim, std::size_t request, const CardsRequest& wanted, int index, std::size_t from) {
    if (++steps_ > kMaxSearchSteps) return false;
    const int count = wanted.all ? static_cast<int>(cards_.size()) : wanted.count;
    if (index == count) return Begin(claim, request + 1);
    if (wanted.all) {
      const auto card = static_cast<std::size_t>(index);
      return Try(claim, wanted, card, [&] { return Step(claim, request, wanted, index + 1, 0); });
    }
    for (std::size_t card = from; card < cards_.size(); ++card) {
      if (Try(claim, wanted, card, [&] { return Step(claim, request, wanted, index + 1, card); })) return true;
    }
    return false;
  }

  template <class Rest>
  bool Try(std::size_t claim, const CardsRequest& wanted, std::size_t index, Rest rest) {
    const ClaimCard& card = cards_[index];
    CardRoom& room = rooms_[index];
    if ((card.is_tainted && !wanted.tolerates_taints) || !Meets(card, wanted)) return false;
    const std::int64_t memory = wanted.memory.value_or(card.memory_default);
    const std::int64_t compute = wanted.compute.value_or(card.compute_default);
    if (card.is_shareable ? memory > room.memory || compute > room.compute
                          : room.is_used || memory > card.memory || compute > card.compute) {
      return false;
    }
    if (!MeetsConstraints(claim, wanted.name, index)) return false;
    const CardRoom before = room;
    Take(card, memory, compute, room);
    taken_.push_back({static_cast<int>(claim), static_cast<int>(index), memory, compute});
    names_.push_back(&wanted.name);
    if (rest()) return true;
    names_.pop_back();
    taken_.pop_back();
    room = before;
    return false;
  }

  bool MeetsConstraints(std::size_t claim, const std::string& request, std::size_t card) const {
    for (const CardsConstraint& constraint : claims_[claim]->constraints) {
      const auto concerns = [&](const std::string& name) {
        return constraint.requests.empty() ||
               std::ranges::any_of(constraint.requests, [&](const std::string& c) { return IsNamed(c, name); });
      };
      if (!concerns(request)) continue;
      const auto value = AttributeOf(cards_[card], constraint.attribute);
      if (!value) return false;
      for (std::size_t i = 0; i < taken_.size(); ++i) {
        if (taken_[i].claim != static_cast<int>(claim) || !concerns(*names_[i])) continue;
        const bool is_equal = AttributeOf(cards_[taken_[i].card], constraint.attribute) == value;
        if (is_equal == constraint.is_distinct) return false;
      }
    }
    return true;
  }

  const std::span<const ClaimCard> cards_;
  std::vector<CardRoom> rooms_;
  const std::span<const CardsClaim* const> claims_;
  std::vector<TakenCard> taken_;
  std::vector<const std::string*> names_;  // of the requests in taken_
  int steps_ = 0;
};

// Rounded down; of at most 80 petabytes.
int Part(std::int64_t free, std::int64_t all) {
  if (all <= 0) return kUnitsPerCard;
  return static_cast<int>(std::clamp<std::int64_t>(free, 0, all) * kUnitsPerCard / all);
}

}  // namespace

TextHash HashText(std::string_view text) {
  TextHash hash = 14695981039346656037U;  // FNV-1a: equal in every process, so that tests can name cards
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

std::optional<std::vector<TakenCard>> AllocateCards(std::span<const ClaimCard> cards, std::vector<CardRoom> rooms,
                                                    std::span<const CardsClaim* const> claims) {
  Allocation allocation(cards, std::move(rooms), claims);
  if (!allocation.Run()) return std::nullopt;
  return std::move(allocation).Result();
}

int FreeUnits(const ClaimCard& card, const CardRoom& room) {
  if (card.is_tainted || (room.is_used && !card.is_shareable)) return 0;
  return std::min(Part(room.memory, card.memory), Part(room.compute, card.compute));
}

void Take(const ClaimCard& card, std::int64_t memory, std::int64_t compute, CardRoom& room) {
  room.is_used = true;
  if (!card.is_shareable) {
    room.memory = room.compute = 0;
    return;
  }
  room.memory -= memory;
  room.compute -= compute;
}

double RateTaken(Node node, const NodeWorth& before, const Request& host, std::span<const ClaimCard> cards,
                 std::vector<CardRoom> rooms, std::span<const TakenCard> taken, const PlacementPolicy& policy) {
  for (const TakenCard& one : taken) Take(cards[one.card], one.memory, one.compute, rooms[one.card]);
  std::map<int, CardSet> cards_by_units;
  for (int i = 0; i < static_cast<int>(cards.size()); ++i) {
    const bool is_taken = std::ranges::find(taken, i, &TakenCard::card) != taken.end();
    // An unhealthy card has no free units, and a share of it costs none.
    if (is_taken) cards_by_units[std::max(0, node.cards[i].free - FreeUnits(cards[i], rooms[i]))].push_back(i);
  }
  // The scheduler's figures of CPU are fresher than ours.
  node.cpu_milli_free = std::max(node.cpu_milli_free, host.cpu_milli);
  node.memory_mib_free = std::max(node.memory_mib_free, host.memory_mib);
  double score = 0;
  bool is_first = true;
  for (auto at = cards_by_units.rbegin(); at != cards_by_units.rend(); ++at) {
    const auto& [units, set] = *at;
    Request request{.cards = static_cast<int>(set.size()), .units = units};
    if (is_first) {
      request.cpu_milli = host.cpu_milli;
      request.memory_mib = host.memory_mib;
    }
    score += policy.Rate(node, is_first ? before : policy.WorthOf(node), request, set).node;
    Take(node, request, set);
    is_first = false;
  }
  return score;
}

}  // namespace sluice::scheduler
