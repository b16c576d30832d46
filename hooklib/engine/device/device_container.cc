// Device: the container's memory-limit and its use, which its processes share.
#include "hooklib/engine/device/device_container.h"

#include "hooklib/client/agent_client.h"
#include "hooklib/engine/device/budget_follower.h"

namespace sluice {

namespace {

// A restarted agent answers when the container's other processes have had a second to return.
constexpr int kMaxLeaseMs = 3000;
constexpr int kMaxViewMs = 200;

}  // namespace

bool DeviceContainer::ChargeWithinLease(uint64_t bytes) { return lease < 0 || Client()->Charge(lease, bytes, 0); }

bool DeviceContainer::ChargeContainer(uint64_t bytes) {
  if (ChargeWithinLease(bytes)) return true;
  DeviceUnlock unlocked(mutex);
  return Client()->Charge(lease, bytes, kMaxLeaseMs);
}

void DeviceContainer::ReleaseContainer(uint64_t bytes) {
  if (lease >= 0) Client()->Recharge(lease, -static_cast<int64_t>(bytes));
}

void DeviceContainer::CountUnmanaged(int64_t change) {
  unmanaged_bytes.fetch_add(static_cast<uint64_t>(change));
  if (lease >= 0) Client()->Recharge(lease, change);
}

uint64_t DeviceContainer::OthersBytes() {
  return lease < 0 ? 0 : Client()->AskMemory(lease, false, kMaxViewMs).others_bytes;
}

uint64_t DeviceContainer::KnownOthersBytes() {
  return lease < 0 ? 0 : Client()->AskMemory(lease, false, 0).others_bytes;
}

uint32_t DeviceContainer::ContainerUtilization() {
  return lease < 0 ? 0 : Client()->AskMemory(lease, true, kMaxViewMs).utilization;
}

}  // namespace sluice
