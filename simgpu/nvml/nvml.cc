// libnvidia-ml.so.1 of the simulated cards.
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <dlfcn.h>
#include <nvml.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../core/identity.h"
#include "../core/shared_state.h"

using simgpu::Card;
using simgpu::SharedState;
using simgpu::Slot;

struct nvmlDevice_st {
  int card;
};

struct nvmlEventSet_st {
  std::vector<int> cards;
  uint32_t seen[simgpu::kMaxCards] = {};
};

namespace {

int g_initialised = 0;
nvmlDevice_st g_devices[simgpu::kMaxCards];

// The driver's state when this process has it (private state is nobody else's), else the shared file, else an idle
// card.
SharedState& State() {
  static SharedState* state = [] {
    if (void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY); driver != nullptr) {
      using Get = void* (*)();
      if (const auto get = reinterpret_cast<Get>(dlsym(driver, "simgpu_state")); get != nullptr) {
        return static_cast<SharedState*>(get());
      }
    }
    return &simgpu::TheState();
  }();
  return *state;
}

const simgpu::Profile& TheProfile() { return simgpu::TheProfile(); }

bool Valid(nvmlDevice_t d) { return d != nullptr && d >= g_devices && d < g_devices + TheProfile().gpus; }

void Copy(char* out, unsigned int length, const std::string& text) { std::snprintf(out, length, "%s", text.c_str()); }

// NVML counts a process' plain memory, not what is managed.
template <class Info>
nvmlReturn_t Processes(nvmlDevice_t d, unsigned int* count, Info* infos) {
  SharedState& state = State();
  state.Reap();
  std::vector<std::pair<unsigned, uint64_t>> found;
  for (int i = 0; i < simgpu::kMaxSlots; ++i) {
    Slot& s = state.header().slots[i];
    if (s.pid == 0 || s.plain[d->card] == 0) continue;
    const int pid = state.Owner(i);  // as the asker knows it: the agent's pids are the host's
    if (pid >= 0) found.emplace_back(static_cast<unsigned>(pid > 0 ? pid : s.pid.load()), s.plain[d->card].load());
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

#define READY() \
  if (g_initialised == 0) return NVML_ERROR_UNINITIALIZED
#define NEED(condition) \
  if (!(condition)) return NVML_ERROR_INVALID_ARGUMENT
#define NEED_DEVICE(d) \
  READY();             \
  NEED(Valid(d))

extern "C" {

nvmlReturn_t nvmlInit_v2(void) {
  for (int i = 0; i < simgpu::kMaxCards; ++i) g_devices[i].card = i;
  ++g_initialised;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int) { return nvmlInit_v2(); }
nvmlReturn_t nvmlShutdown(void) {
  READY();
  --g_initialised;
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* out, unsigned int length) {
  READY();
  NEED(out != nullptr);
  Copy(out, length, TheProfile().DriverVersion());
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char* out, unsigned int length) {
  READY();
  NEED(out != nullptr);
  Copy(out, length, std::to_string(TheProfile().CudaVersion() / 1000) + "." + TheProfile().DriverVersion());
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* out) {
  READY();
  NEED(out != nullptr);
  *out = TheProfile().CudaVersion();
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  READY();
  NEED(count != nullptr);
  *count = static_cast<unsigned>(TheProfile().gpus);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* out) {
  READY();
  NEED(out != nullptr && index < static_cast<unsigned>(TheProfile().gpus));
  *out = &g_devices[index];
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* out) {
  READY();
  NEED(uuid != nullptr && out != nullptr);
  for (int i = 0; i < TheProfile().gpus; ++i) {
    if (simgpu::Uuid(i) != uuid) continue;
    *out = &g_devices[i];
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* out) {
  READY();
  NEED(id != nullptr && out != nullptr);
  for (int i = 0; i < TheProfile().gpus; ++i) {
    const std::string mine = simgpu::PciBusId(i);
    if (strcasecmp(mine.c_str(), id) != 0 && strcasecmp(mine.c_str() + 4, id) != 0) continue;
    *out = &g_devices[i];
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, out);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int* index) {
  NEED_DEVICE(d);
  NEED(index != nullptr);
  *index = static_cast<unsigned>(d->card);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int* minor) { return nvmlDeviceGetIndex(d, minor); }

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char* out, unsigned int length) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  if (length < 41) return NVML_ERROR_INSUFFICIENT_SIZE;
  Copy(out, length, simgpu::Uuid(d->card));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char* out, unsigned int length) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  Copy(out, length, TheProfile().name);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t d, nvmlBrandType_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = NVML_BRAND_NVIDIA;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t d, nvmlDeviceArchitecture_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = NVML_DEVICE_ARCH_HOPPER;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int* major, int* minor) {
  NEED_DEVICE(d);
  NEED(major != nullptr && minor != nullptr);
  *major = 9;
  *minor = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  std::memset(out, 0, sizeof *out);
  out->bus = 0x10u + static_cast<unsigned>(d->card);
  out->pciDeviceId = 0x233510DE;
  Copy(out->busId, sizeof out->busId, simgpu::PciBusId(d->card));
  Copy(out->busIdLegacy, sizeof out->busIdLegacy, simgpu::PciBusId(d->card).substr(4));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t d, nvmlPciInfo_t* out) { return nvmlDeviceGetPciInfo_v3(d, out); }
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, nvmlPciInfo_t* out) { return nvmlDeviceGetPciInfo_v3(d, out); }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  State().Reap();
  const auto total = static_cast<uint64_t>(TheProfile().memory);
  out->total = total;
  out->used = std::min(total, State().Used(d->card));
  out->free = total - out->used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  State().Reap();
  const auto total = static_cast<uint64_t>(TheProfile().memory);
  const uint64_t used = std::min(total, State().Used(d->card));
  out->total = total;
  out->reserved = std::min<uint64_t>(static_cast<uint64_t>(TheProfile().reserve), used);
  out->used = used - out->reserved;
  out->free = total - used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  out->bar1Total = 1ull << 38;
  out->bar1Used = 1 << 20;
  out->bar1Free = out->bar1Total - out->bar1Used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t d, unsigned int* node) {
  NEED_DEVICE(d);
  NEED(node != nullptr);
  *node = static_cast<unsigned>(TheProfile().numa);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, nvmlEnableState_t* current, nvmlEnableState_t* pending) {
  NEED_DEVICE(d);
  NEED(current != nullptr && pending != nullptr);
  *current = *pending = TheProfile().ecc != 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, nvmlComputeMode_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = NVML_COMPUTEMODE_DEFAULT;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, nvmlEnableState_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int* current, unsigned int* pending) {
  NEED_DEVICE(d);
  NEED(current != nullptr && pending != nullptr);
  *current = *pending = NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int* count) {
  NEED_DEVICE(d);
  NEED(count != nullptr);
  *count = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned int* is) {
  NEED_DEVICE(d);
  NEED(is != nullptr);
  *is = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  // Of the virtual time since the card was made.
  Card& card = State().card(d->card);
  const int64_t now = std::max<int64_t>(1, State().header().now);
  out->gpu = static_cast<unsigned>(std::min<int64_t>(100, card.busy_ns * 100 / now));
  out->memory = out->gpu / 2;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t, unsigned int* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = 40;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = 120000;
  return NVML_SUCCESS;
}

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

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* out) {
  READY();
  NEED(out != nullptr);
  *out = new nvmlEventSet_st;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  *out = nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long, nvmlEventSet_t set) {
  NEED_DEVICE(d);
  NEED(set != nullptr);
  if (std::find(set->cards.begin(), set->cards.end(), d->card) == set->cards.end()) {
    set->cards.push_back(d->card);
    set->seen[d->card] = State().card(d->card).xid_count;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* out, unsigned int timeout_ms) {
  READY();
  NEED(set != nullptr && out != nullptr);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    for (const int card : set->cards) {
      Card& c = State().card(card);
      if (set->seen[card] == c.xid_count) continue;
      std::memset(out, 0, sizeof *out);
      out->device = &g_devices[card];
      out->eventType = nvmlEventTypeXidCriticalError;
      out->eventData = c.xid[set->seen[card]++ % simgpu::kMaxXids];
      out->gpuInstanceId = out->computeInstanceId = 0xFFFFFFFFu;
      return NVML_SUCCESS;
    }
    if (std::chrono::steady_clock::now() >= until) return NVML_ERROR_TIMEOUT;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(5u, timeout_ms)));
  }
}
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* out, unsigned int timeout_ms) {
  return nvmlEventSetWait_v2(set, out, timeout_ms);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  READY();
  delete set;
  return NVML_SUCCESS;
}

}  // extern "C"
