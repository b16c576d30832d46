// Decides whether the devices that kubelet passes to Allocate form a valid share. Pure.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_GRANT_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_GRANT_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/decide/cards.h"

namespace sluice::deviceplugin {

struct GrantedCard {
  std::string uuid;
  int units = 0;
  int minor = -1;
  bool operator==(const GrantedCard&) const = default;
};

// One card with up to 100 units, several whole cards, or as many units of each of several cards.
struct Grant {
  std::vector<GrantedCard> cards;  // ordered by uuid
  std::vector<std::string> ids;    // as requested, sorted
  int Units() const;
  std::string Fraction() const;  // "0.50" (of each card), "1", "2" (whole cards)
};

// The error holds the message for `kubectl describe pod` and a reason for the metric: malformed, duplicate, unknown,
// unhealthy, not-offered, split, size. Keeps no ledger: kubelet ensures that a unit is given out only once.
// `cards`: over which the units are to be split evenly; 0: one card up to 100 units, whole cards above.
absl::StatusOr<Grant> DecideGrant(std::span<const std::string> ids, const Inventory& inventory, int cards = 0);

absl::Status Refusal(std::string_view reason, std::string_view message);
std::string RefusalReason(const absl::Status& status);  // "internal" for a status that Refusal did not make

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_GRANT_H_
