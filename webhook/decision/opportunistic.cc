#include "webhook/decision/opportunistic.h"

#include "sluice/names.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

std::string OpportunisticProblem(const RequestedShare& r, std::optional<int64_t> units) {
  const std::string field =
      SLUICE_DOMAIN "/" SLUICE_KEY_PRIORITY ": 'opportunistic' of container '" + r.container->name + "' ";
  if (!r.settings.gpu_percent && !r.settings.gpu_memory) {
    return field + "needs a size; accepted: with " SLUICE_DOMAIN "/" SLUICE_KEY_GPU_FRACTION " or " SLUICE_DOMAIN
                   "/" SLUICE_KEY_GPU_MEMORY;
  }
  if (r.settings.gpu_percent > SLUICE_UNITS_PER_GPU) {
    return field + "beside " SLUICE_KEY_GPU_FRACTION " '" + settings::FormatFraction(r.settings.gpu_percent.value()) +
           "' is not accepted; accepted: a fraction up to 1";
  }
  if (units && *units != 1) {
    return field + "contradicts " + r.container->field + ".resources, which requests " + std::to_string(*units) +
           " of " SLUICE_RESOURCE "; accepted: 1, or no such resource";
  }
  return {};
}

}  // namespace sluice::webhook
