#include "scheduler/placement/node_ledger.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostCards = 64;

absl::Status Bad(std::size_t index, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("card ", index, ": ", what));
}

std::optional<int> Integer(const Json& card, const char* member, int low, int high) {
  const auto found = card.find(member);
  if (found == card.end() || !found->is_number_integer()) return std::nullopt;
  const auto value = found->get<std::int64_t>();
  if (value < low || value > high) return std::nullopt;
  return static_cast<int>(value);
}

absl::StatusOr<NodeCard> ParseCard(const Json& json, std::size_t index) {
  if (!json.is_object()) return Bad(index, "no object");
  NodeCard card;
  const auto uuid = json.find("uuid");
  if (uuid == json.end() || !uuid->is_string() || uuid->get_ref<const std::string&>().empty()) {
    return Bad(index, "no uuid");
  }
  card.uuid = *uuid;
  const auto free = Integer(json, "free", 0, kUnitsPerCard);
  if (!free) return Bad(index, "free is no number of 0..100");
  card.free = *free;
  card.numa = Integer(json, "numa", -1, 1024).value_or(-1);
  if (const auto model = json.find("model"); model != json.end() && model->is_string()) card.model = *model;
  if (const auto memory = json.find("memory"); memory != json.end() && memory->is_number_unsigned()) {
    card.memory_bytes = *memory;
  }
  if (const auto pods = json.find("pods"); pods != json.end() && pods->is_object()) {
    card.pods.emplace();
    for (const auto& [uid, containers] : pods->items()) {
      if (!containers.is_object()) continue;
      std::vector<std::string>& names = (*card.pods)[uid];
      for (const auto& [name, units] : containers.items()) names.push_back(name);
    }
  }
  return card;
}

}  // namespace

absl::StatusOr<std::vector<NodeCard>> ParseNodeCards(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array()) return absl::InvalidArgumentError("no JSON array");
  if (parsed.size() > kMostCards) return absl::InvalidArgumentError(absl::StrCat("more than ", kMostCards, " cards"));
  std::vector<NodeCard> cards;
  for (const Json& entry : parsed) {
    absl::StatusOr<NodeCard> card = ParseCard(entry, cards.size());
    if (!card.ok()) return card.status();
    cards.push_back(*std::move(card));
  }
  std::sort(cards.begin(), cards.end(), [](const NodeCard& a, const NodeCard& b) { return a.uuid < b.uuid; });
  for (std::size_t i = 1; i < cards.size(); ++i) {
    if (cards[i].uuid == cards[i - 1].uuid) return absl::InvalidArgumentError("uuid " + cards[i].uuid + " twice");
  }
  return cards;
}

void NodeLedger::SetCards(std::vector<NodeCard> cards) {
  cards_ = std::move(cards);
  exact_ = !cards_.empty() &&
           std::all_of(cards_.begin(), cards_.end(), [](const NodeCard& card) { return card.pods.has_value(); });
  for (const auto& [uid, about] : about_) LearnActual(uid);
  NoteWaiting();
}

void NodeLedger::Put(const std::string& uid, PlacedPod pod) {
  about_[uid] = {.name = std::move(pod.name), .admitted = pod.admitted};
  // A pod's units and placement never change once it is bound; its exchanges are kept.
  if (pods_.emplace(uid, std::move(pod.live)).second) LearnActual(uid);
  NoteWaiting();
}

void NodeLedger::Remove(const std::string& uid) {
  pods_.erase(uid);
  about_.erase(uid);
  NoteWaiting();
}

void NodeLedger::LearnActual(const std::string& uid) {
  if (!exact_) return;
  ContainerCards actual;
  for (const NodeCard& card : cards_) {
    if (!card.pods) continue;
    const auto found = card.pods->find(uid);
    if (found == card.pods->end()) continue;
    for (const std::string& container : found->second) actual[container].push_back(card.uuid);
  }
  // Kubelet gives a pod its units container by container: until all have theirs, the others are still reserved.
  const std::vector<ContainerUnits>& containers = pods_.at(uid).containers;
  const bool complete = std::all_of(containers.begin(), containers.end(), [&](const ContainerUnits& container) {
    return container.units == 0 || actual.contains(container.name);
  });
  if (!actual.empty() && complete) Settle(pods_, uid, std::move(actual));
}

std::vector<int> NodeLedger::PendingExact() const {
  int anywhere = 0;  // of pods placed by another scheduler: until kubelet has chosen, they may come to lie on any card
  for (const auto& [uid, pod] : pods_) {
    if (!pod.reserved.empty() || pod.actual) continue;
    for (const Chain& chain : pod.chains) anywhere += chain.UnitsPerCard();
  }
  std::map<std::string, int> by_card;
  for (const Slot& slot : OpenSlots(pods_)) {
    for (const std::string& card : slot.cards) by_card[card] += slot.chain.UnitsPerCard();
  }
  std::vector<int> pending;
  pending.reserve(cards_.size());
  for (const NodeCard& card : cards_) pending.push_back(anywhere + by_card[card.uuid]);
  return pending;
}

// The annotation is the truth of some moment ago. Where it names pods, what is reserved and not given yet comes off it.
// Where it does not, nobody knows whether it counts a pod yet: then two accounts are kept and the smaller holds: what
// the annotation says less the reservations that kubelet has not acknowledged, and a whole card less all reservations.
Node NodeLedger::Free() const {
  Node node;
  if (!cards_.empty()) node.model = cards_.front().model;
  if (exact_) {
    const std::vector<int> pending = PendingExact();
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      node.cards.push_back({.free = std::max(0, cards_[i].free - pending[i]), .numa = cards_[i].numa});
    }
    return node;
  }
  std::map<std::string, int> reserved, pending;
  int anywhere = 0;
  for (const auto& [uid, pod] : pods_) {
    const bool admitted = about_.at(uid).admitted;
    for (std::size_t c = 0; c < pod.chains.size(); ++c) {
      const int units = pod.chains[c].UnitsPerCard();
      if (pod.reserved.empty()) {
        if (!admitted) anywhere += units;
        continue;
      }
      for (const std::string& card : pod.reserved[c]) {
        reserved[card] += units;
        if (!admitted) pending[card] += units;
      }
    }
  }
  for (const NodeCard& card : cards_) {
    const int free = std::min(card.free - pending[card.uuid] - anywhere, kUnitsPerCard - reserved[card.uuid]);
    node.cards.push_back({.free = std::max(0, free), .numa = card.numa});
  }
  return node;
}

void NodeLedger::NoteWaiting() {
  waiting_.clear();
  for (const auto& [uid, pod] : pods_) {
    const About& about = about_.at(uid);
    if (pod.actual || about.admitted) continue;
    for (const Chain& chain : pod.chains) waiting_.push_back({chain.first, chain.total, about.name});
  }
}

std::string NodeLedger::Blocks(const std::vector<Chain>& chains) const {
  for (const Waiting& waiting : waiting_) {
    for (const Chain& chain : chains) {
      if (waiting.first == chain.first && waiting.total != chain.total) return waiting.pod;
    }
  }
  return "";
}

}  // namespace sluice::scheduler
