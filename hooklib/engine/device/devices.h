// The devices of this process, and the device of an address.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICES_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICES_H_

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hooklib/engine/device/device.h"

namespace sluice {

// The device of the current context; null where there is none.
Device* CurrentDevice(CUcontext* context = nullptr);
Device* DeviceByOrdinal(CUdevice ordinal);
// All of them, once they are known. None in a forked child.
extern std::atomic<const std::vector<std::unique_ptr<Device>>*> g_devices;
inline std::span<const std::unique_ptr<Device>> Devices() {
  const auto* const devices = g_devices.load(std::memory_order_acquire);
  return devices ? std::span(*devices) : std::span<const std::unique_ptr<Device>>();
}

// Whether streams of the application were seen on several devices.
extern std::atomic<bool> g_several_devices_work;
// A stream of the device was seen. Called before its first work, without any lock.
void NoteDeviceWorks(Device* device) SLUICE_TAKES_DEVICE_LOCK;

// In a forked child: those of the process that it was forked from, as they were then; null: there were none.
const std::vector<std::unique_ptr<Device>>* InheritedDevices();

// The tracked allocation that holds the address, on whichever device. Takes the device's lock.
struct TrackedAddress {
  Device* device;
  memory::Va base;
  memory::Allocation allocation;
};
std::optional<TrackedAddress> FindTracked(CUdeviceptr pointer);
// Whether the address is in an arena of the engine's, and in no allocation: freed, or never given out. The driver would
// speak of the whole arena. Takes the device's lock where it may be so.
bool IsFreeInArena(CUdeviceptr pointer);
// False: the address is certainly in no arena of the engine's. Takes no lock.
inline bool MayBeTracked(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (device->MayHold(pointer)) return true;
  }
  return false;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICES_H_
