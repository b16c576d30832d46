// The annotation sluice.dev/injected, as an earlier admission left it. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_MARKER_H_
#define SLUICE_WEBHOOK_DECISION_MARKER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "sluice/names.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

inline constexpr std::string_view kMarkerField = SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED;
inline constexpr std::string_view kInjectField = SLUICE_DOMAIN "/" SLUICE_KEY_INJECT;
inline constexpr std::string_view kPlacementField = SLUICE_DOMAIN "/" SLUICE_KEY_PLACEMENT;

class Marker {
 public:
  Marker() = default;
  explicit Marker(Json json) : json_(std::move(json)) {}

  // Whether the webhook itself chose these units for this many bytes. Other GPUs may need other units for them: the
  // pod may come back in another cluster.
  bool HasComputed(std::string_view container, int64_t units, uint64_t memory) const;

 private:
  Json json_;
};

// A marker that cannot be read is empty.
Marker ReadMarker(const PodView& view);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_MARKER_H_
