#include "hooklib/nvml/nvml_view.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>

#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/nvml/processes.h"

namespace sluice {
namespace {

struct View {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
};

// The fraction of this device, if the process has one.
std::optional<View> ViewOf(nvmlDevice_t device) {
  std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE> uuid{};
  if (g_nvml.nvmlDeviceGetUUID == nullptr ||
      g_nvml.nvmlDeviceGetUUID(device, uuid.data(), static_cast<unsigned>(uuid.size())) != NVML_SUCCESS) {
    return std::nullopt;
  }
  View view;
  if (!FractionView(uuid.data(), &view.total, &view.used)) return std::nullopt;
  view.used = std::min(view.used, view.total);
  return view;
}

// The driver's list without the processes of other containers. This process is listed with the bytes that it uses of
// the fraction: the driver's figure lacks managed memory, and its pids may be the host's.
template <typename Info>
nvmlReturn_t RunningProcesses(nvmlReturn_t (*real)(nvmlDevice_t, unsigned*, Info*), nvmlDevice_t device,
                              unsigned* count, Info* infos, bool may_add_self) {
  if (real == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (count == nullptr || (infos == nullptr && *count != 0)) return real(device, count, infos);
  const auto view = ViewOf(device);
  if (!view) return real(device, count, infos);

  constexpr unsigned kMaxProcesses = 4096;
  constexpr unsigned kOneMoreForSelf = 1;
  unsigned capacity = 64;
  std::unique_ptr<Info[]> all;
  unsigned listed = 0;
  nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
  while (result == NVML_ERROR_INSUFFICIENT_SIZE && capacity <= kMaxProcesses) {
    all.reset(new (std::nothrow) Info[capacity + kOneMoreForSelf]());
    if (!all) return NVML_ERROR_MEMORY;
    listed = capacity;
    result = real(device, &listed, all.get());
    capacity *= 4;
  }
  if (result != NVML_SUCCESS) return result;

  const Container here;
  bool self_seen = false;
  auto* const end = std::remove_if(all.get(), all.get() + listed, [&](Info& info) {
    if (info.pid == here.self()) {
      self_seen = true;
      info.usedGpuMemory = view->used;
      return false;
    }
    return !here.Holds(info.pid);
  });
  unsigned kept = static_cast<unsigned>(end - all.get());
  if (!self_seen && may_add_self && view->used > 0) {
    Info self{};
    self.pid = here.self();
    self.usedGpuMemory = view->used;
    if constexpr (requires { self.gpuInstanceId; }) self.gpuInstanceId = self.computeInstanceId = 0xFFFFFFFFU;
    all[kept++] = self;
  }
  const unsigned offered = *count;
  *count = kept;
  if (kept > offered) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::copy_n(all.get(), kept, infos);
  return NVML_SUCCESS;
}

}  // namespace

namespace nvml_entry {

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (g_nvml.nvmlDeviceGetMemoryInfo == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t result = g_nvml.nvmlDeviceGetMemoryInfo(device, memory);
  if (result != NVML_SUCCESS) return result;
  if (const auto view = ViewOf(device)) *memory = {view->total, view->total - view->used, view->used};
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (g_nvml.nvmlDeviceGetMemoryInfo_v2 == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t result = g_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
  if (result != NVML_SUCCESS) return result;
  if (const auto view = ViewOf(device)) {
    // A fraction is a share of the memory without the reserve, so the container has none of it.
    *memory = {memory->version, view->total, 0, view->total - view->used, view->used};
  }
  return result;
}

// NOLINTBEGIN(bugprone-macro-parentheses): names being declared.
#define SLUICE_PROCESS_CALL(name, Info, may_add_self)                                 \
  nvmlReturn_t name(nvmlDevice_t device, unsigned* count, Info* infos) {              \
    return RunningProcesses<Info>(g_nvml.name, device, count, infos, (may_add_self)); \
  }
SLUICE_PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
SLUICE_PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
SLUICE_PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, true)
SLUICE_PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
SLUICE_PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
SLUICE_PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, false)
SLUICE_PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
SLUICE_PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
SLUICE_PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, false)
#undef SLUICE_PROCESS_CALL
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace nvml_entry
}  // namespace sluice
