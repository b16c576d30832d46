#include "webhook/decision/units.h"

#include <algorithm>

#include "sluice/names.h"
#include "sluice/wire.h"

namespace sluice::webhook {
namespace {

bool AreUnitsAccepted(int64_t units, int64_t cards) {
  if (units <= 0) return false;
  if (cards > 1) return units % cards == 0 && units <= cards * SLUICE_UNITS_PER_GPU;
  return units <= SLUICE_UNITS_PER_GPU ||
         (units % SLUICE_UNITS_PER_GPU == 0 && units <= int64_t{SLUICE_UNITS_PER_GPU} * SLUICE_MAX_GPUS);
}

std::string Accepted(uint32_t cards) {
  const std::string whole = std::to_string(SLUICE_UNITS_PER_GPU);
  if (cards > 1) {
    return "a multiple of " + std::to_string(cards) + " up to " + std::to_string(cards * SLUICE_UNITS_PER_GPU) +
           ", as " SLUICE_KEY_GPU_COUNT " splits it over " + std::to_string(cards) + " GPUs";
  }
  return "a whole number from 1 to " + whole + ", or a multiple of " + whole + " up to " +
         std::to_string(SLUICE_UNITS_PER_GPU * SLUICE_MAX_GPUS);
}

bool IsSplit(const GrantedShare& s) { return s.cards > 1 && s.percent < SLUICE_UNITS_PER_GPU; }

// On how many GPUs kubelet's units are in all.
uint32_t AllCards(const GrantedShare& s) { return std::max(s.cards, s.percent / SLUICE_UNITS_PER_GPU); }

std::string Describe(const GrantedShare& s) {
  return std::to_string(s.Units()) + " of " SLUICE_RESOURCE " on " + std::to_string(AllCards(s)) +
         (AllCards(s) == 1 ? " GPU" : " GPUs");
}

std::string InitReuse(const GrantedShare& init, const GrantedShare& later, const std::string& accepted) {
  const Container &first = *init.requested->container, &second = *later.requested->container;
  return first.field + ".resources: init container '" + first.name + "' requests " + Describe(init) +
         ", and the later container '" + second.name + "', which gets its units, requests " + Describe(later) +
         "; accepted: " + accepted;
}

}  // namespace

std::string CountField(const RequestedShare& share) {
  for (const SettingSource& s : share.sources) {
    if (s.key->id == settings::Id::kGpuCount) return s.field;
  }
  return SLUICE_DOMAIN "/" SLUICE_KEY_GPU_COUNT;
}

bool CheckUnits(const Container& c, uint32_t cards, Findings& findings) {
  if (!c.requests_resource) return true;
  const std::string field = c.field + ".resources (" SLUICE_RESOURCE " of container '" + c.name + "')";
  const std::string refused = "' is not accepted; accepted: " + Accepted(cards);
  if (!c.invalid_quantity.empty()) {
    findings.Deny(Rule::kResourceValue, field + ": '" + c.invalid_quantity.substr(0, 64) + refused);
    return false;
  }
  for (const auto& units : {c.limit, c.request}) {
    if (units && !AreUnitsAccepted(*units, cards)) {
      findings.Deny(Rule::kResourceValue, field + ": '" + std::to_string(*units) + refused);
      return false;
    }
  }
  if (c.limit && c.request && *c.limit != *c.request) {
    findings.Deny(Rule::kRequestsDiffer, field + ": limits has " + std::to_string(*c.limit) + " and requests has " +
                                             std::to_string(*c.request) + "; accepted: the same number in both");
    return false;
  }
  return true;
}

void CheckInitReuse(const std::vector<GrantedShare>& shares, Findings& findings) {
  const GrantedShare* largest = nullptr;  // of the init containers with several whole GPUs so far
  const GrantedShare* from = nullptr;     // whose units the next container gets
  uint32_t left = 0;                      // of those units
  for (const GrantedShare& s : shares) {
    const Container& c = *s.requested->container;
    if (left > 0 && (IsSplit(*from) || IsSplit(s)) && (from->Units() != s.Units() || AllCards(*from) != AllCards(s))) {
      // Kubelet would choose at random among the units of several GPUs, or add others on top of them.
      return findings.Deny(Rule::kInitReuse, InitReuse(*from, s, "the same in both"));
    }
    if (largest != nullptr && s.Units() < largest->Units()) {
      return findings.Deny(Rule::kInitReuse,
                           InitReuse(*largest, s,
                                     "the same number in both, or at most " + std::to_string(SLUICE_UNITS_PER_GPU) +
                                         " in the init container"));
    }
    if (c.kind == ContainerKind::kInit) {
      if (AllCards(s) > 1 && !IsSplit(s)) largest = &s;
      if (s.Units() > left) {
        left = s.Units();
        from = &s;
      }
    } else {
      left -= std::min(left, s.Units());
    }
  }
}

}  // namespace sluice::webhook
