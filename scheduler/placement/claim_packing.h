// The cards that kube-scheduler's allocator gives a pod's claims (Dynamic Resource Allocation) on one node, and a
// policy's score of them.
#ifndef SLUICE_SCHEDULER_PLACEMENT_CLAIM_PACKING_H_
#define SLUICE_SCHEDULER_PLACEMENT_CLAIM_PACKING_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/placement/node_model.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {

// A name or a value, as a number: thousands of cards have some of each, and all that is asked is whether two are equal.
using TextHash = std::uint64_t;
TextHash HashText(std::string_view text);

// A device of a ResourceSlice. Memory is in bytes, compute in percent of the card's time; 0: the card has no such
// capacity, and nothing is counted against it.
struct ClaimCard {
  TextHash name = 0;
  std::int64_t memory = 0, memory_default = 0;  // the default is for a request that names no amount
  std::int64_t compute = 0, compute_default = 0;
  bool is_shareable = false;  // by several claims; else a claim gets all of the card
  bool is_tainted = false;
  std::vector<std::pair<TextHash, TextHash>> attributes;  // full name, value
};

// Left of a card.
struct CardRoom {
  std::int64_t memory = 0, compute = 0;
  bool is_used = false;  // by any claim
};

// Whether a card has the attribute, with one of these values; without values, any.
struct CardCondition {
  TextHash attribute = 0;
  std::vector<TextHash> values;
};

// A part of a request's selectors.
struct CardTerm {
  bool is_negated = false;
  std::vector<CardCondition> all;  // conditions that hold together; negated: not all of them do
};

struct CardsRequest {
  std::string name;  // of an alternative: REQUEST/ALTERNATIVE
  int count = 1;
  bool all = false;                             // every card, instead of `count`
  std::optional<std::int64_t> memory, compute;  // on each card
  bool tolerates_taints = false;
  std::vector<CardTerm> terms;  // which the card must meet
  // Not empty: the first that fits is taken, and of the other members only the name counts.
  std::vector<CardsRequest> alternatives;
};

struct CardsConstraint {
  std::vector<std::string> requests;  // empty: all of the claim
  TextHash attribute = 0;
  bool is_distinct = false;  // the attribute's values are distinct; else they are equal
};

struct CardsClaim {
  std::vector<CardsRequest> requests;
  std::vector<CardsConstraint> constraints;
};

struct TakenCard {
  int claim = 0;  // index into the claims
  int card = 0;
  std::int64_t memory = 0, compute = 0;
};

// As the allocator does: claims, requests and alternatives in their order, for each the first cards that fit, with
// backtracking. It may give one shareable card twice. Of CEL selectors only `terms` are evaluated: the scheduler has
// evaluated all. nullopt: the claims do not fit, or the search was given up.
std::optional<std::vector<TakenCard>> AllocateCards(std::span<const ClaimCard> cards, std::vector<CardRoom> rooms,
                                                    std::span<const CardsClaim* const> claims);

// Hundredths of the card that are free: of memory or of compute, whichever has less.
int FreeUnits(const ClaimCard& card, const CardRoom& room);

// Subtracts the taken capacity of a card.
void Take(const ClaimCard& card, std::int64_t memory, std::int64_t compute, CardRoom& room);

// The policy's score for `node` (its cards' free units are FreeUnits) when these cards are taken. `before` is the
// policy's WorthOf(node); `host` has the pod's CPU and memory.
double RateTaken(Node node, const NodeWorth& before, const Request& host, std::span<const ClaimCard> cards,
                 std::vector<CardRoom> rooms, std::span<const TakenCard> taken, const PlacementPolicy& policy);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_CLAIM_PACKING_H_
