// The charge of a device's memory to the container's memory-limit (device_container.cc). It covers all bytes of
// `allocated_bytes` and `unmanaged_bytes`.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_CONTAINER_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_CONTAINER_H_

#include "hooklib/engine/device/device_state.h"

namespace sluice {

class DeviceContainer : public DeviceState {
 public:
  // False: the container's processes have no room for it together. Waits, without the lock, for the agent where this
  // process's lease is too small.
  bool ChargeContainer(uint64_t bytes) SLUICE_DEVICE_LOCKED;
  bool ChargeWithinLease(uint64_t bytes);
  void ReleaseContainer(uint64_t bytes);
  // Unmanaged memory that came (it exists already, so it cannot be refused) or, negative, went. Any thread.
  void CountUnmanaged(int64_t change);
  // Charged by the container's other processes. Asks the agent, unless this process is alone.
  uint64_t OthersBytes();
  uint64_t KnownOthersBytes();      // as last heard
  uint32_t ContainerUtilization();  // GPU time of the container in the last second, millionths; asks the agent
  void ReleaseUnmanaged(uint64_t bytes) { CountUnmanaged(-static_cast<int64_t>(bytes)); }

 protected:
  using DeviceState::DeviceState;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_CONTAINER_H_
