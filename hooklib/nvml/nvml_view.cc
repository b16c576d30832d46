// Total, used and free memory.
#include "hooklib/nvml/nvml_view.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hooklib/nvml/processes.h"
#include "hooklib/nvml/share_of_device.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxProcesses = 4096;

// Without an agent: the driver's count for the processes of this container.
std::uint64_t UsedByDriver(nvmlDevice_t device) {
  if (g_nvml.nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) return 0;
  std::vector<nvmlProcessInfo_t> all(kMaxProcesses);
  auto listed = static_cast<unsigned>(all.size());
  if (g_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &listed, all.data()) != NVML_SUCCESS) return 0;
  const Container here;
  std::uint64_t used = 0;
  for (unsigned i = 0; i < listed; ++i) {
    const bool is_known = all[i].usedGpuMemory != static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE);
    if (is_known && here.Holds(all[i].pid)) used += all[i].usedGpuMemory;
  }
  return used;
}

}  // namespace

std::optional<DeviceShare> ShareOfDevice(nvmlDevice_t device) {
  DeviceShare out;
  nvmlMemory_t card{};
  if (g_nvml.nvmlDeviceGetUUID == nullptr || g_nvml.nvmlDeviceGetMemoryInfo == nullptr ||
      g_nvml.nvmlDeviceGetUUID(device, out.uuid.data(), static_cast<unsigned>(out.uuid.size())) != NVML_SUCCESS ||
      g_nvml.nvmlDeviceGetMemoryInfo(device, &card) != NVML_SUCCESS ||
      !ShareOf(out.uuid.data(), card.total, &out.share))
    return std::nullopt;
  if (!out.share.is_use_known) out.share.used = UsedByDriver(device);
  out.share.used = std::min(out.share.used, out.share.total);
  return out;
}

std::optional<std::vector<ShareUser>> UsersOf(const DeviceShare& device) {
  std::vector<ShareUser> users(kMaxProcesses);
  const int count = ShareUsers(device.uuid.data(), users.data(), static_cast<int>(users.size()));
  if (count < 0) return std::nullopt;
  users.resize(static_cast<std::size_t>(count));
  return users;
}

namespace nvml_entry {

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (g_nvml.nvmlDeviceGetMemoryInfo == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t result = g_nvml.nvmlDeviceGetMemoryInfo(device, memory);
  if (result != NVML_SUCCESS) return result;
  if (const auto view = ShareOfDevice(device))
    *memory = {view->share.total, view->share.total - view->share.used, view->share.used};
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (g_nvml.nvmlDeviceGetMemoryInfo_v2 == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t result = g_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
  if (result != NVML_SUCCESS) return result;
  if (const auto view = ShareOfDevice(device)) {
    // A fraction is a share of the memory without the reserve, so the container has none of it.
    *memory = {memory->version, view->share.total, 0, view->share.total - view->share.used, view->share.used};
  }
  return result;
}

}  // namespace nvml_entry
}  // namespace sluice
