#include "scheduler/placement/pod_reservations.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::scheduler {
absl::StatusOr<ContainerCards> ParsePlacement(const std::string& json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError("placement is no JSON object");
  ContainerCards cards;
  for (const auto& [container, uuids] : parsed.items()) {
    if (!uuids.is_array()) return absl::InvalidArgumentError("placement: a container's value is no array");
    std::vector<std::string>& list = cards[container];
    for (const auto& uuid : uuids) {
      if (!uuid.is_string()) return absl::InvalidArgumentError("placement: a card is no string");
      list.push_back(uuid.get<std::string>());
    }
  }
  return cards;
}

std::string FormatPlacement(const ContainerCards& cards) { return nlohmann::json(cards).dump(); }

std::vector<std::string> CardsOf(const Chain& chain, const std::vector<ContainerUnits>& containers,
                                 const ContainerCards& cards) {
  std::set<std::string> all;
  for (int container : chain.containers) {
    if (auto found = cards.find(containers[container].name); found != cards.end()) {
      all.insert(found->second.begin(), found->second.end());
    }
  }
  return {all.begin(), all.end()};
}

absl::StatusOr<LivePod> MakeLivePod(std::vector<ContainerUnits> containers, const ContainerCards& placement) {
  absl::StatusOr<std::vector<Chain>> chains = ChainsOf(containers);
  if (!chains.ok()) return chains.status();
  LivePod pod{.containers = std::move(containers), .chains = *std::move(chains)};
  if (placement.empty()) return pod;
  for (const Chain& chain : pod.chains) {
    pod.annotated.push_back(CardsOf(chain, pod.containers, placement));
    if (static_cast<int>(pod.annotated.back().size()) != chain.Cards()) {
      return absl::InvalidArgumentError(absl::StrCat("placement names ", pod.annotated.back().size(), " cards for ",
                                                     chain.total, " units, which take ", chain.Cards()));
    }
  }
  pod.reserved = pod.annotated;
  return pod;
}

void RecordAdmission(LivePods& pods, const std::string& uid, ContainerCards actual) {
  LivePod& pod = pods.at(uid);
  if (pod.actual) return;
  pod.actual = std::move(actual);
  std::vector<std::vector<std::string>> given;
  given.reserve(pod.chains.size());
  for (const Chain& chain : pod.chains) given.push_back(CardsOf(chain, pod.containers, *pod.actual));
  // Within the pod first: it does not matter which of its chains got the cards of which of its own reservations.
  for (std::size_t i = 0; i < pod.reserved.size(); ++i) {
    for (std::size_t j = 0; j < pod.reserved.size() && pod.reserved[i] != given[i]; ++j) {
      const bool kept = pod.reserved[j] == given[j];
      if (!kept && pod.chains[i].HasShapeOf(pod.chains[j]) && pod.reserved[j] == given[i]) {
        std::swap(pod.reserved[i], pod.reserved[j]);
      }
    }
  }
  const LivePods before = pods;
  std::vector<std::string> moved_to;
  for (std::size_t i = 0; i < pod.reserved.size(); ++i) {
    for (auto& [other_uid, other] : pods) {
      if (!other.AwaitsAdmission()) continue;
      for (std::size_t j = 0; j < other.reserved.size() && pod.reserved[i] != given[i]; ++j) {
        if (!other.chains[j].HasShapeOf(pod.chains[i]) || other.reserved[j] != given[i]) continue;
        moved_to.insert(moved_to.end(), pod.reserved[i].begin(), pod.reserved[i].end());
        std::swap(other.reserved[j], pod.reserved[i]);
      }
    }
  }
  // A process that started late cannot tell an exchange from a reservation that was closed long ago: its pod was
  // deleted and another pod got its units. A real exchange never commits more units than a card has.
  const bool too_much = std::any_of(moved_to.begin(), moved_to.end(), [&](const std::string& card) {
    return CommittedUnits(pods, card) > kUnitsPerCard;
  });
  if (too_much) pods = before;
}

std::vector<OpenReservation> OpenReservations(const LivePods& pods) {
  std::vector<OpenReservation> open;
  for (const auto& [uid, pod] : pods) {
    if (!pod.AwaitsAdmission()) continue;
    open.reserve(open.size() + pod.reserved.size());
    for (std::size_t i = 0; i < pod.reserved.size(); ++i) open.push_back({pod.chains[i], pod.reserved[i]});
  }
  return open;
}

int CommittedUnits(const LivePods& pods, const std::string& card) {
  int sum = 0;
  for (const auto& [uid, pod] : pods) {
    for (std::size_t i = 0; i < pod.chains.size(); ++i) {
      std::vector<std::string> cards;
      if (pod.actual) {
        cards = CardsOf(pod.chains[i], pod.containers, *pod.actual);
      } else if (!pod.reserved.empty()) {
        cards = pod.reserved[i];
      }
      sum += static_cast<int>(std::count(cards.begin(), cards.end(), card)) * pod.chains[i].UnitsPerCard();
    }
  }
  return sum;
}

}  // namespace sluice::scheduler
