#include "webhook/decision/marker.h"

#include <string>

#include "sluice/wire.h"
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

int64_t Marker::Cards(std::string_view container) const {
  const Json* c = Find(container);
  const Json* cards = c == nullptr ? nullptr : Member(*c, "cards");
  return cards != nullptr && cards->is_number_unsigned() && *cards <= SLUICE_MAX_GPUS ? cards->get<int64_t>() : 1;
}

std::optional<int64_t> Marker::Units(std::string_view container) const {
  const Json* c = Find(container);
  const Json* percent = c == nullptr ? nullptr : Member(*c, "percent");
  if (percent == nullptr || !percent->is_number_unsigned() || *percent > SLUICE_UNITS_PER_GPU * SLUICE_MAX_GPUS) {
    return std::nullopt;
  }
  return percent->get<int64_t>() * Cards(container);
}

bool Marker::HasComputed(std::string_view container, int64_t units, uint64_t memory) const {
  return Units(container) == units && IsComputed(container) && Bytes(container) == memory;
}

bool Marker::HasOtherSize(std::string_view container, int64_t units, const settings::Settings& size) const {
  const int64_t cards = size.gpu_count.value_or(1);
  if (Units(container) != units || Cards(container) != cards) return false;
  const Json* bytes = Member(*Find(container), "memory");
  if (size.gpu_memory) return bytes == nullptr || *bytes != *size.gpu_memory;
  return size.gpu_percent && (bytes != nullptr || *size.gpu_percent * cards != units);
}

Marker ReadMarker(const PodView& view) {
  const std::string_view text =
      view.annotations == nullptr ? std::string_view() : Text(*view.annotations, kMarkerField);
  std::string unused;
  auto json = text.empty() ? std::nullopt : ReadJson(text, unused);
  return json ? Marker(std::move(*json)) : Marker();
}

}  // namespace sluice::webhook
