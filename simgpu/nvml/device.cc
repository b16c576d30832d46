// Properties and figures of a device.
#include <algorithm>
#include <cstring>

#include "../core/identity.h"
#include "call.h"

using simgpu::Card;
using simgpu::TheProfile;
using simgpu::nvml::Copy;
using simgpu::nvml::State;

extern "C" {

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

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfoV_t* out) {
  NEED_DEVICE(d);
  NEED(out != nullptr);
  if (TheProfile().clique_cards == 0) return NVML_ERROR_NOT_SUPPORTED;
  if (out->version != nvmlGpuFabricInfo_v2 && out->version != nvmlGpuFabricInfo_v3)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  std::memset(out->clusterUuid, 0x5c, sizeof out->clusterUuid);
  out->status = NVML_SUCCESS;
  out->state = NVML_GPU_FABRIC_STATE_COMPLETED;
  out->cliqueId = static_cast<unsigned>(d->card / TheProfile().clique_cards);
  out->healthMask = 0;
  if (out->version == nvmlGpuFabricInfo_v3) out->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY;
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
  // The share of the virtual time since the card was made.
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

}  // extern "C"
