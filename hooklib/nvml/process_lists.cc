// Lists of processes with their memory.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "hooklib/nvml/nvml_view.h"
#include "hooklib/nvml/processes.h"
#include "hooklib/nvml/share_of_device.h"

namespace sluice {
namespace {

enum class ProcessKind : std::uint8_t { kCompute, kOther };

template <typename Info>
Info Entry(const ShareUser& user) {
  Info info{};
  info.pid = user.pid;
  info.usedGpuMemory = user.bytes;
  if constexpr (requires { info.gpuInstanceId; }) info.gpuInstanceId = info.computeInstanceId = 0xFFFFFFFFU;
  return info;
}

template <typename Info>
bool Lists(const std::vector<Info>& infos, unsigned pid) {
  return std::ranges::any_of(infos, [pid](const Info& info) { return info.pid == pid; });
}

// The agent's processes and figures: the driver's lack managed memory, its pids may be the host's, and on a machine
// without containers the processes of other shares are in the same cgroup.
template <typename Info>
std::vector<Info> ByAgent(const std::vector<ShareUser>& users, const std::vector<Info>& driver, const Container& here) {
  std::vector<Info> out;
  for (const ShareUser& user : users) {
    if (here.Holds(user.pid) && (user.bytes > 0 || Lists(driver, user.pid))) out.push_back(Entry<Info>(user));
  }
  return out;
}

// Without an agent: this process is listed with all that the container uses.
template <typename Info>
std::vector<Info> ByDriver(const Share& share, const std::vector<Info>& driver, const Container& here,
                           ProcessKind kind) {
  std::vector<Info> out;
  for (const Info& info : driver) {
    if (info.pid == here.self() && share.is_use_known) {
      out.push_back(info);
      out.back().usedGpuMemory = share.used;
    } else if (here.Holds(info.pid)) {
      out.push_back(info);
    }
  }
  if (kind == ProcessKind::kCompute && share.is_use_known && share.used > 0 && !Lists(out, here.self()))
    out.push_back(Entry<Info>({.pid = here.self(), .bytes = share.used}));
  return out;
}

template <typename Info, typename Real>
nvmlReturn_t RunningProcesses(Real real, nvmlDevice_t device, unsigned* count, Info* infos, ProcessKind kind) {
  if (count == nullptr || (infos == nullptr && *count != 0)) return real(device, count, infos);
  const auto view = ShareOfDevice(device);
  if (!view) return real(device, count, infos);

  constexpr unsigned kFirst = 64, kMaxProcesses = 4096;
  std::vector<Info> driver;
  nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned capacity = kFirst; result == NVML_ERROR_INSUFFICIENT_SIZE && capacity <= kMaxProcesses; capacity *= 4) {
    driver.assign(capacity, Info{});
    unsigned listed = capacity;
    result = real(device, &listed, driver.data());
    driver.resize(std::min(listed, capacity));
  }
  if (result != NVML_SUCCESS) return result;

  const Container here;
  std::vector<Info> kept;
  const auto users = kind == ProcessKind::kCompute ? UsersOf(*view) : std::nullopt;
  if (users) {
    kept = ByAgent(*users, driver, here);
  } else {
    kept = ByDriver(view->share, driver, here, kind);
  }
  const unsigned offered = *count;
  *count = static_cast<unsigned>(kept.size());
  if (kept.size() > offered) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::ranges::copy(kept, infos);
  return NVML_SUCCESS;
}

}  // namespace

namespace nvml_entry {

// NOLINTBEGIN(bugprone-macro-parentheses): names being declared.
#define SLUICE_PROCESS_CALL(name, Info, kind)                                            \
  nvmlReturn_t name(nvmlDevice_t device, unsigned* count, Info* infos) {                 \
    if (g_nvml.name == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;                    \
    return RunningProcesses<Info>(g_nvml.name, device, count, infos, ProcessKind::kind); \
  }
SLUICE_PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, kCompute)
SLUICE_PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, kCompute)
SLUICE_PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, kCompute)
SLUICE_PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, kOther)
SLUICE_PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, kOther)
SLUICE_PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, kOther)
SLUICE_PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, kOther)
SLUICE_PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, kOther)
SLUICE_PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, kOther)
#undef SLUICE_PROCESS_CALL
// NOLINTEND(bugprone-macro-parentheses)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  if (g_nvml.nvmlDeviceGetRunningProcessDetailList == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (list == nullptr || list->version != nvmlProcessDetailList_v1)
    return g_nvml.nvmlDeviceGetRunningProcessDetailList(device, list);
  constexpr unsigned kComputeMode = 0;
  const auto real = [list](nvmlDevice_t of, unsigned* count, nvmlProcessDetail_v1_t* details) {
    nvmlProcessDetailList_t own{list->version, list->mode, *count, details};
    const nvmlReturn_t result = g_nvml.nvmlDeviceGetRunningProcessDetailList(of, &own);
    *count = own.numProcArrayEntries;
    return result;
  };
  return RunningProcesses(real, device, &list->numProcArrayEntries, list->procArray,
                          list->mode == kComputeMode ? ProcessKind::kCompute : ProcessKind::kOther);
}

}  // namespace nvml_entry
}  // namespace sluice
