// The processes on a device.
#include <utility>

#include "call.h"

using simgpu::SharedState;
using simgpu::Slot;
using simgpu::nvml::Copy;
using simgpu::nvml::State;

namespace {

// NVML counts a process' unmanaged memory and not its managed memory.
template <class Info>
nvmlReturn_t Processes(nvmlDevice_t d, unsigned int* count, Info* infos) {
  SharedState& state = State();
  state.Reap();
  std::vector<std::pair<unsigned, uint64_t>> found;
  for (int i = 0; i < simgpu::kMaxSlots; ++i) {
    Slot& s = state.header().slots[i];
    if (s.pid == 0 || s.unmanaged[d->card] == 0) continue;
    const int pid = state.Owner(i);  // as the caller sees it: the agent uses the host's pids
    if (pid >= 0) found.emplace_back(static_cast<unsigned>(pid > 0 ? pid : s.pid.load()), s.unmanaged[d->card].load());
  }
  const unsigned room = *count;
  *count = static_cast<unsigned>(found.size());
  if (room < found.size()) return found.empty() ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < found.size(); ++i) {
    infos[i] = Info{};
    infos[i].pid = found[i].first;
    infos[i].usedGpuMemory = found[i].second;
    if constexpr (requires { infos[i].gpuInstanceId; })
      infos[i].gpuInstanceId = infos[i].computeInstanceId = 0xFFFFFFFFu;
  }
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_t* infos) {
  NEED_DEVICE(d);
  NEED(count != nullptr && (infos != nullptr || *count == 0));
  return Processes(d, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_v2_t* infos) {
  NEED_DEVICE(d);
  NEED(count != nullptr && (infos != nullptr || *count == 0));
  return Processes(d, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_v1_t* infos) {
  NEED_DEVICE(d);
  NEED(count != nullptr && (infos != nullptr || *count == 0));
  return Processes(d, count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_t*) {
  NEED_DEVICE(d);
  NEED(count != nullptr);
  *count = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_v2_t*) {
  return nvmlDeviceGetGraphicsRunningProcesses_v3(d, count, nullptr);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_v1_t*) {
  return nvmlDeviceGetGraphicsRunningProcesses_v3(d, count, nullptr);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int* count, nvmlProcessInfo_t*) {
  return nvmlDeviceGetGraphicsRunningProcesses_v3(d, count, nullptr);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* out, unsigned int length) {
  READY();
  NEED(out != nullptr && length != 0);
  for (Slot& s : State().header().slots) {
    if (s.pid == static_cast<int>(pid)) {
      Copy(out, length, s.name);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

}  // extern "C"
