// The container's share of an NVML device.
#ifndef SLUICE_HOOKLIB_NVML_SHARE_OF_DEVICE_H_
#define SLUICE_HOOKLIB_NVML_SHARE_OF_DEVICE_H_

#include <array>
#include <optional>
#include <vector>

#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/nvml_api.h"

namespace sluice {

using NvmlUuid = std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE>;

struct DeviceShare {
  NvmlUuid uuid{};
  Share share;
};

// Nothing: the container has no share of this device, or NVML does not name it.
std::optional<DeviceShare> ShareOfDevice(nvmlDevice_t device);

// The container's processes on the device, as the agent knows them. Nothing: no agent says it.
std::optional<std::vector<ShareUser>> UsersOf(const DeviceShare& device);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_NVML_SHARE_OF_DEVICE_H_
