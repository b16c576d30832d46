#include "deviceplugin/decide/response.h"

#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {

std::string_view ToString(DriverAccess access) {
  switch (access) {
    case DriverAccess::kNvidiaCdi:
      return "nvidia-cdi";
    case DriverAccess::kNvidiaRuntime:
      return "nvidia-runtime";
    case DriverAccess::kOwn:
      return "own";
  }
  return "?";
}

ContainerResponse MakeResponse(const ResponseInput& input) {
  ContainerResponse out;
  out.mounts = {{SLUICE_CONTAINER_LIB_DIR, input.lib_dir}, {SLUICE_CONTAINER_RUN_DIR, input.run_dir}};
  // LD_PRELOAD here too, so that a pod that the webhook did not see is hooked with defaults. The webhook's value
  // overrides it.
  out.envs = {{"LD_PRELOAD", SLUICE_CONTAINER_SHIM},
              {SLUICE_ENV_SOCKET, SLUICE_CONTAINER_SOCKET},
              {SLUICE_ENV_GPU_FRACTION, input.grant->Fraction()}};
  // The webhook's share of several cards says the same; this one is for a pod that it did not see.
  const size_t cards = input.grant->cards.size();
  if (input.grant->Units() < static_cast<int>(cards) * SLUICE_UNITS_PER_GPU && cards > 1) {
    out.envs[SLUICE_ENV_GPU_COUNT] = StrCat(cards);
  }
  std::string uuids;
  for (const GrantedCard& card : input.grant->cards) {
    uuids += (uuids.empty() ? "" : ",") + card.uuid;
    if (input.access == DriverAccess::kNvidiaCdi) out.cdi_names.push_back(StrCat(kNvidiaCdiKind, "=", card.uuid));
    if (input.access == DriverAccess::kOwn) out.cdi_names.push_back(StrCat(kOwnCdiKind, "=", card.uuid));
  }
  // CUDA images set NVIDIA_VISIBLE_DEVICES=all. With NVIDIA's runtime as the node's default they would see every card.
  // NVIDIA_DRIVER_CAPABILITIES is the image's: a value here would replace it, and take a video image its encoder.
  out.envs["NVIDIA_VISIBLE_DEVICES"] = input.access == DriverAccess::kNvidiaRuntime ? uuids : "void";
  return out;
}

}  // namespace sluice::deviceplugin
