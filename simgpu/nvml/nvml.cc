// libnvidia-ml.so.1 of the simulated cards: initialisation, versions, handles of devices.
#include <dlfcn.h>
#include <strings.h>

#include <cstdio>

#include "../core/identity.h"
#include "call.h"

using simgpu::TheProfile;
using simgpu::nvml::Copy;
using simgpu::nvml::g_devices;
using simgpu::nvml::g_initialised;

namespace simgpu::nvml {

int g_initialised = 0;
nvmlDevice_st g_devices[kMaxCards];

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

void Copy(char* out, unsigned int length, const std::string& text) { std::snprintf(out, length, "%s", text.c_str()); }

}  // namespace simgpu::nvml

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

}  // extern "C"
