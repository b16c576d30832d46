// Device ids: "<GPU uuid>::<unit>", unit 0..99. Kubelet checkpoints them, so the format must never change.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_DEVICE_ID_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_DEVICE_ID_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice::deviceplugin {

struct DeviceId {
  std::string uuid;
  int unit = 0;
  auto operator<=>(const DeviceId&) const = default;
};

std::string FormatDeviceId(std::string_view uuid, int unit);

// INVALID_ARGUMENT with the text and the accepted format. Refuses "GPU-x::07": each device has exactly one id.
absl::StatusOr<DeviceId> ParseDeviceId(std::string_view text);

// Letters, digits and '-', short enough that the id with separator and unit fits into kubelet's 63 characters.
bool IsCardUuid(std::string_view uuid);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_DEVICE_ID_H_
