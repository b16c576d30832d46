// Decides the health of cards that kubelet is told. Pure.
#ifndef SLUICE_DEVICEPLUGIN_DRA_HEALTH_H_
#define SLUICE_DEVICEPLUGIN_DRA_HEALTH_H_

#include <string>
#include <vector>

#include "deviceplugin/decide/cards.h"

namespace sluice::deviceplugin::dra {

// What kubelet is told of one card.
struct DeviceHealth {
  enum class State { kUnknown, kHealthy, kUnhealthy };
  std::string device;
  State state = State::kUnknown;
  std::string message;  // at most 1024 bytes; empty if healthy
  bool operator==(const DeviceHealth&) const = default;
};

// All cards of the node that can have a device's name. A card that is not offered is unknown: its claims may run on.
std::vector<DeviceHealth> HealthOf(const Inventory& inventory);

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_HEALTH_H_
