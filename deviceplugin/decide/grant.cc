#include "deviceplugin/decide/grant.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

constexpr char kReasonPayload[] = "sluice.dev/reason";
constexpr size_t kIdLimit = size_t{64} * SLUICE_UNITS_PER_GPU;

std::string Split(const std::map<std::string, int>& units) {
  std::vector<std::string> parts;
  parts.reserve(units.size());
  for (const auto& [uuid, count] : units) parts.push_back(StrCat(count, " of ", uuid));
  return StrJoin(parts, ", ");
}

// Why the units are no share on as many cards as the container requests. Empty: they are.
std::string SplitProblem(const std::map<std::string, int>& units, int total, int cards) {
  const std::string spread = StrCat("the free units are spread over ", units.size(), " GPUs (", Split(units), ")");
  constexpr const char* kRemedy =
      ". Delete the pod so that it is placed again, request less, or let the sluice extender place such pods only "
      "where they fit (scheduler.mode=own in the chart)";
  if (cards == 1) {
    if (units.size() == 1) return "";
    return StrCat("the container requests ", total, " percent of one GPU, and no GPU of this node has ", total,
                  " percent free: ", spread, kRemedy);
  }
  const int each = total / cards;
  if (static_cast<int>(units.size()) == cards &&
      std::ranges::all_of(units, [&](const auto& card) { return card.second == each; })) {
    return "";
  }
  if (each == SLUICE_UNITS_PER_GPU) {
    return StrCat("the container requests ", cards, " whole GPUs, and fewer are entirely free on this node: ", spread);
  }
  return StrCat("the container requests ", each, " percent of each of ", cards, " GPUs, and fewer than ", cards,
                " GPUs of this node have ", each, " percent free: ", spread, kRemedy);
}

}  // namespace

int Grant::Units() const {
  int sum = 0;
  for (const GrantedCard& card : cards) sum += card.units;
  return sum;
}

std::string Grant::Fraction() const {
  int units = Units();
  if (units % SLUICE_UNITS_PER_GPU != 0 || cards.size() * SLUICE_UNITS_PER_GPU > static_cast<size_t>(units)) {
    units /= static_cast<int>(cards.size());
  }
  if (units % SLUICE_UNITS_PER_GPU == 0) return StrCat(units / SLUICE_UNITS_PER_GPU);
  return absl::StrFormat("%d.%02d", units / SLUICE_UNITS_PER_GPU, units % SLUICE_UNITS_PER_GPU);
}

absl::Status Refusal(std::string_view reason, std::string_view message) {
  absl::Status status = absl::FailedPreconditionError(StrCat(SLUICE_REFUSAL, message));
  status.SetPayload(kReasonPayload, absl::Cord(std::string(reason)));
  return status;
}

std::string RefusalReason(const absl::Status& status) {
  auto reason = status.GetPayload(kReasonPayload);
  return reason ? std::string(*reason) : "internal";
}

absl::StatusOr<Grant> DecideGrant(std::span<const std::string> ids, const Inventory& inventory, int cards) {
  if (ids.empty()) return Refusal("size", "no device was named; accepted: 1 to 100 units of one GPU, or whole GPUs");
  if (ids.size() > kIdLimit) {
    return Refusal("size", StrCat(ids.size(), " devices were named; accepted: at most ", kIdLimit));
  }
  std::map<std::string, int> units;
  std::set<std::string> seen;
  for (const std::string& text : ids) {
    auto id = ParseDeviceId(text);
    if (!id.ok()) return Refusal("malformed", std::string(id.status().message()));
    if (!seen.insert(text).second) return Refusal("duplicate", StrCat("device ", text, " was named twice"));
    ++units[id->uuid];
  }
  Grant grant;
  for (const auto& [uuid, count] : units) {
    const Card* card = inventory.Find(uuid);
    if (card == nullptr) {
      return Refusal("unknown", StrCat("GPU ", uuid, " is not on this node",
                                       inventory.problem.empty() ? "" : StrCat(" (", inventory.problem, ")")));
    }
    if (card->state != CardState::kHealthy) {
      return Refusal(card->state == CardState::kUnhealthy ? "unhealthy" : "not-offered",
                     StrCat("GPU ", uuid, " is ", ToString(card->state), ": ", card->detail));
    }
    grant.cards.push_back({uuid, count, card->minor});
  }
  const int total = static_cast<int>(ids.size());
  if (cards == 0) cards = std::max(1, total / SLUICE_UNITS_PER_GPU);
  if (total % cards != 0 || total / cards > SLUICE_UNITS_PER_GPU) {
    return Refusal(
        "size", StrCat(total, " units of ", SLUICE_RESOURCE, " are neither a share of ",
                       cards > 1 && total < cards * SLUICE_UNITS_PER_GPU ? StrCat("each of ", cards, " GPUs")
                                                                         : std::string("one GPU"),
                       " (1..", SLUICE_UNITS_PER_GPU, ") nor whole GPUs (a multiple of ", SLUICE_UNITS_PER_GPU, ")"));
  }
  if (const std::string problem = SplitProblem(units, total, cards); !problem.empty()) return Refusal("split", problem);
  grant.ids.assign(seen.begin(), seen.end());
  return grant;
}

}  // namespace sluice::deviceplugin
