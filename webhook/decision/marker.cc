#include "webhook/decision/marker.h"

#include <string>

#include "webhook/decision/json_reader.h"

namespace sluice::webhook {

bool Marker::HasComputed(std::string_view container, int64_t units, uint64_t memory) const {
  const Json* containers = Member(json_, "containers");
  const Json* c = containers == nullptr ? nullptr : Member(*containers, container);
  if (c == nullptr || Text(*c, "units") != "computed") return false;
  const Json* percent = Member(*c, "percent");
  const Json* bytes = Member(*c, "memory");
  return percent != nullptr && bytes != nullptr && *percent == units && *bytes == memory;
}

Marker ReadMarker(const PodView& view) {
  const std::string_view text =
      view.annotations == nullptr ? std::string_view() : Text(*view.annotations, kMarkerField);
  std::string unused;
  auto json = text.empty() ? std::nullopt : ReadJson(text, unused);
  return json ? Marker(std::move(*json)) : Marker();
}

}  // namespace sluice::webhook
