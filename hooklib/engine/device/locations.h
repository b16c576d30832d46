// CUmemLocation and the device that it names.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_LOCATIONS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_LOCATIONS_H_

#include <cstring>
#include <optional>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// The device whose memory the location is, the whole of it or one locality domain (CUDA 13.5); none: host memory, or a
// location that this engine does not know.
inline std::optional<CUdevice> DeviceOf(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  if (static_cast<int>(location.type) != cuda_newer::kLocationOfLocalityDomain) return std::nullopt;
  unsigned char device = 0;  // `localized.deviceId`, the union's first byte
  std::memcpy(&device, &location.id, sizeof device);
  return device;
}

// The location that older calls name by a device's number, or CU_DEVICE_CPU.
inline CUmemLocation LocationOf(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_LOCATIONS_H_
