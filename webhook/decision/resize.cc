#include "webhook/decision/resize.h"

#include <algorithm>

#include "sluice/names.h"
#include "webhook/decision/units.h"

namespace sluice::webhook {
namespace {

bool IsAlias(std::string_view annotation) {
  return annotation == SLUICE_KEY_GPU_FRACTION || annotation == SLUICE_KEY_GPU_MEMORY;
}

// The container that the annotation names; empty: it names none.
std::string_view ContainerOf(std::string_view annotation) {
  const auto key = ParseOwnKey(annotation);
  return key && key->by_name ? key->container : std::string_view();
}

}  // namespace

std::string ResizeProblem(const RequestedShare& share) {
  const Container& c = *share.container;
  if (!share.settings.gpu_percent && !share.settings.gpu_memory) return {};
  std::optional<int64_t> units = c.limit ? c.limit : c.request;
  if (!units) {
    return share.sized_by + ": container '" + c.name +
           "' has no share of a GPU, and a running pod gets none; accepted: a new pod";
  }
  *units /= CardsOf(share.settings);  // of each GPU, as the annotations' sizes are
  const auto percent = share.settings.gpu_percent;
  if (!percent || *percent == *units || (*units <= SLUICE_UNITS_PER_GPU && *percent <= SLUICE_UNITS_PER_GPU)) return {};
  const bool is_split = CardsOf(share.settings) > 1;
  const int64_t cards = is_split ? CardsOf(share.settings) : std::max<int64_t>(1, *units / SLUICE_UNITS_PER_GPU);
  return share.sized_by + ": '" + settings::FormatFraction(*percent) + "' is not accepted, because container '" +
         c.name + "' runs on " + std::to_string(cards) +
         (cards == 1 ? " GPU"
          : is_split ? " GPUs"
                     : " whole GPUs") +
         " and keeps this number; accepted: " +
         (cards == 1 || is_split ? "0.01 to 1" : "'" + std::to_string(cards) + "', or a new pod");
}

bool IsSizeAnnotation(std::string_view annotation, bool aliases) {
  if (aliases && IsAlias(annotation)) return true;
  const auto key = ParseOwnKey(annotation);
  const settings::Key* known = key ? settings::Find(key->key) : nullptr;
  return known != nullptr && IsSize(*known);
}

bool HasOtherSize(const std::map<std::string, std::string>& annotations, std::string_view removed, bool aliases) {
  return std::any_of(annotations.begin(), annotations.end(), [&](const auto& entry) {
    return IsSizeAnnotation(entry.first, aliases) && ContainerOf(entry.first) == ContainerOf(removed);
  });
}

}  // namespace sluice::webhook
