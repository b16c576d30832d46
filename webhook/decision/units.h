// The units of sluice.dev/gpu-percent that a container requests, and how they are split over GPUs. Pure.
#ifndef SLUICE_WEBHOOK_DECISION_UNITS_H_
#define SLUICE_WEBHOOK_DECISION_UNITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "webhook/decision/findings.h"
#include "webhook/decision/requested_shares.h"
#include "webhook/decision/share_claim.h"

namespace sluice::webhook {

// The share that one container gets.
struct GrantedShare {
  const RequestedShare* requested;
  uint32_t percent;  // of each of `cards` GPUs; above 100: whole GPUs, and `cards` is 1
  uint32_t cards = 1;
  bool is_computed = false;          // the webhook chose the units, not the user
  bool is_resized = false;           // the pod comes back with a size that it got while it ran
  ClaimTemplate claim = {};          // an empty name: the share is units
  std::string size_annotation = {};  // the pod's claim needs this annotation beside those that it has; empty: none
  uint32_t Units() const { return percent * cards; }
};

// On how many GPUs of one node the share is, each with as much: gpu-count, or 1.
inline uint32_t CardsOf(const settings::Settings& settings) { return settings.gpu_count.value_or(1); }

// The annotation or variable that gives gpu-count, for messages.
std::string CountField(const RequestedShare& share);

// Whether the container's request is one that `cards` GPUs can serve; denies another.
bool CheckUnits(const Container& c, uint32_t cards, Findings& findings);

// Denies shares that kubelet would mix: it passes an init container's devices on to the later containers.
// `shares` is in the containers' order.
void CheckInitReuse(const std::vector<GrantedShare>& shares, Findings& findings);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_UNITS_H_
