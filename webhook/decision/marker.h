// The annotation sluice.dev/injected, as an earlier admission left it.
#ifndef SLUICE_WEBHOOK_DECISION_MARKER_H_
#define SLUICE_WEBHOOK_DECISION_MARKER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

inline constexpr std::string_view kMarkerField = SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED;
inline constexpr std::string_view kInjectField = SLUICE_DOMAIN "/" SLUICE_KEY_INJECT;
inline constexpr std::string_view kPlacementField = SLUICE_DOMAIN "/" SLUICE_KEY_PLACEMENT;
inline constexpr std::string_view kGrantedField = SLUICE_DOMAIN "/" SLUICE_KEY_GRANTED;

class Marker {
 public:
  Marker() = default;
  explicit Marker(Json json) : json_(std::move(json)) {}

  // Whether the webhook itself chose these units for this many bytes. Other GPUs may need other units for them: the
  // pod may come back in another cluster.
  bool HasComputed(std::string_view container, int64_t units, uint64_t memory) const;
  // Whether an earlier admission gave the container these units for another size: the running pod got this size later.
  // On how many GPUs its share is cannot change.
  bool HasOtherSize(std::string_view container, int64_t units, const settings::Settings& size) const;
  bool Has(std::string_view container) const { return Find(container) != nullptr; }
  // Whether the webhook itself chose the container's units, for the bytes below.
  bool IsComputed(std::string_view container) const;
  // The gpu-memory of the admission; nullopt: none.
  std::optional<uint64_t> Bytes(std::string_view container) const;

 private:
  const Json* Find(std::string_view container) const;
  // The units of an earlier admission, on all GPUs together; nullopt: not known.
  std::optional<int64_t> Units(std::string_view container) const;
  int64_t Cards(std::string_view container) const;

  Json json_;
};

// A marker that cannot be read is empty.
Marker ReadMarker(const PodView& view);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_MARKER_H_
