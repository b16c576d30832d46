#include "scheduler/placement/node_ledger.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxCards = 64;

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
  card.nvlink = Integer(json, "nvlink", -1, 1024).value_or(-1);
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
  if (parsed.size() > kMaxCards) return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxCards, " cards"));
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
  for (const auto& [uid, status] : status_) ApplyAnnotation(uid);
  ListWaiting();
}

void NodeLedger::Put(const std::string& uid, PlacedPod pod) {
  status_[uid] = {.name = std::move(pod.name), .admitted = pod.admitted};
  // A bound pod's units and placement never change, so an existing entry stays, with its exchanges.
  if (pods_.emplace(uid, std::move(pod.live)).second) ApplyAnnotation(uid);
  ListWaiting();
}

void NodeLedger::Remove(const std::string& uid) {
  pods_.erase(uid);
  status_.erase(uid);
  ListWaiting();
}

void NodeLedger::ApplyAnnotation(const std::string& uid) {
  if (!exact_) return;
  ContainerCards actual;
  for (const NodeCard& card : cards_) {
    if (!card.pods) continue;
    const auto found = card.pods->find(uid);
    if (found == card.pods->end()) continue;
    for (const std::string& container : found->second) actual[container].push_back(card.uuid);
  }
  // Kubelet allocates container by container: until every container has its units, the others' reservations stay open.
  const std::vector<ContainerUnits>& containers = pods_.at(uid).containers;
  const bool complete = std::all_of(containers.begin(), containers.end(), [&](const ContainerUnits& container) {
    return container.units == 0 || actual.contains(container.name);
  });
  if (!actual.empty() && complete) RecordAdmission(pods_, uid, std::move(actual));
}

std::vector<int> NodeLedger::PendingUnits() const {
  int on_any_card = 0;  // for pods placed by another scheduler: any card may get them until kubelet has chosen
  for (const auto& [uid, pod] : pods_) {
    if (!pod.reserved.empty() || pod.actual) continue;
    for (const Chain& chain : pod.chains) on_any_card += chain.UnitsPerCard();
  }
  std::map<std::string, int> by_card;
  for (const OpenReservation& reservation : OpenReservations(pods_)) {
    for (const std::string& card : reservation.cards) by_card[card] += reservation.chain.UnitsPerCard();
  }
  std::vector<int> pending;
  pending.reserve(cards_.size());
  for (const NodeCard& card : cards_) pending.push_back(on_any_card + by_card[card.uuid]);
  return pending;
}

// The annotation may be out of date. If it names pods, the open reservations come off its figures. If it does not, it
// is unknown whether the annotation counts a pod. Then two accounts are kept: the annotation less the reservations that
// kubelet has not acknowledged, and a whole card less all reservations. The smaller one holds.
Node NodeLedger::Free() const {
  Node node;
  if (!cards_.empty()) node.model = cards_.front().model;
  if (exact_) {
    const std::vector<int> pending = PendingUnits();
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      node.cards.push_back(
          {.free = std::max(0, cards_[i].free - pending[i]), .numa = cards_[i].numa, .nvlink = cards_[i].nvlink});
    }
    return node;
  }
  std::map<std::string, int> reserved, pending;
  int on_any_card = 0;
  for (const auto& [uid, pod] : pods_) {
    const bool admitted = status_.at(uid).admitted;
    for (std::size_t c = 0; c < pod.chains.size(); ++c) {
      const int units = pod.chains[c].UnitsPerCard();
      if (pod.reserved.empty()) {
        if (!admitted) on_any_card += units;
        continue;
      }
      for (const std::string& card : pod.reserved[c]) {
        reserved[card] += units;
        if (!admitted) pending[card] += units;
      }
    }
  }
  for (const NodeCard& card : cards_) {
    const int free = std::min(card.free - pending[card.uuid] - on_any_card, kUnitsPerCard - reserved[card.uuid]);
    node.cards.push_back({.free = std::max(0, free), .numa = card.numa, .nvlink = card.nvlink});
  }
  return node;
}

Node NodeLedger::FreeOnceGone(const std::set<std::string>& uids) const {
  std::map<std::string, int> freed;
  for (const std::string& uid : uids) {
    const auto found = pods_.find(uid);
    if (found == pods_.end()) continue;
    const LivePod& pod = found->second;
    for (std::size_t c = 0; c < pod.chains.size(); ++c) {
      std::vector<std::string> cards;
      if (pod.actual) {
        cards = CardsOf(pod.chains[c], pod.containers, pod.actual.value());
      } else if (!pod.reserved.empty()) {
        cards = pod.reserved[c];
      }
      for (const std::string& card : cards) freed[card] += pod.chains[c].UnitsPerCard();
    }
  }
  Node node = Free();
  for (std::size_t i = 0; i < cards_.size(); ++i) {
    node.cards[i].free = std::min(kUnitsPerCard, node.cards[i].free + freed[cards_[i].uuid]);
  }
  return node;
}

void NodeLedger::ListWaiting() {
  waiting_.clear();
  for (const auto& [uid, pod] : pods_) {
    const PodStatus& status = status_.at(uid);
    if (pod.actual || status.admitted) continue;
    for (const Chain& chain : pod.chains) waiting_.push_back({chain.first, chain.total, chain.split, status.name});
  }
}

std::string NodeLedger::FindBlocker(const std::vector<Chain>& chains) const {
  for (const WaitingRequest& waiting : waiting_) {
    for (const Chain& chain : chains) {
      if (waiting.first != chain.first) continue;
      if (waiting.total != chain.total || waiting.split != chain.split) return waiting.pod;
    }
  }
  return "";
}

}  // namespace sluice::scheduler
