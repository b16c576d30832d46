#include "webhook/decision/marker.h"

#include <string>

#include "webhook/decision/json_reader.h"

namespace sluice::webhook {

const Json* Marker::Find(std::string_view container) const {
  const Json* containers = Member(json_, "containers");
  return containers == nullptr ? nullptr : Member(*containers, container);
}

bool Marker::IsComputed(std::string_view container) const {
  const Json* c = Find(container);
  return c != nullptr && Text(*c, "units") == "computed";
}

std::optional<uint64_t> Marker::Bytes(std::string_view container) const {
  const Json* c = Find(container);
  const Json* bytes = c == nullptr ? nullptr : Member(*c, "memory");
  return bytes != nullptr && bytes->is_number_unsigned() ? std::optional(bytes->get<uint64_t>()) : std::nullopt;
}

bool Marker::HasComputed(std::string_view container, int64_t units, uint64_t memory) const {
  const Json* c = Find(container);
  const Json* percent = c == nullptr ? nullptr : Member(*c, "percent");
  return percent != nullptr && *percent == units && IsComputed(container) && Bytes(container) == memory;
}

bool Marker::HasOtherSize(std::string_view container, int64_t units, const settings::Settings& size) const {
  const Json* c = Find(container);
  const Json* percent = c == nullptr ? nullptr : Member(*c, "percent");
  if (percent == nullptr || *percent != units) return false;
  const Json* bytes = Member(*c, "memory");
  if (size.gpu_memory) return bytes == nullptr || *bytes != *size.gpu_memory;
  return size.gpu_percent && (bytes != nullptr || *size.gpu_percent != units);
}

Marker ReadMarker(const PodView& view) {
  const std::string_view text =
      view.annotations == nullptr ? std::string_view() : Text(*view.annotations, kMarkerField);
  std::string unused;
  auto json = text.empty() ? std::nullopt : ReadJson(text, unused);
  return json ? Marker(std::move(*json)) : Marker();
}

}  // namespace sluice::webhook
