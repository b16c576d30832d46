// NVML, loaded at run time, so that daemons run on nodes without a driver. Hooked processes do not use it: hooklib/nvml
// is theirs. NVML is thread-safe.
#ifndef SLUICE_COMMON_NVML_LIBRARY_H_
#define SLUICE_COMMON_NVML_LIBRARY_H_

#include <nvml.h>

#include <string>

// The functions under their exported names, as nvml.h's macros rename some. REQUIRED: every driver since 450 has them.
// OPTIONAL: the members are null on drivers without them.
#define SLUICE_NVML_FUNCTIONS(REQUIRED, OPTIONAL)                     \
  REQUIRED(init, nvmlInit_v2)                                         \
  REQUIRED(shutdown, nvmlShutdown)                                    \
  REQUIRED(error_string, nvmlErrorString)                             \
  REQUIRED(driver_version, nvmlSystemGetDriverVersion)                \
  REQUIRED(count, nvmlDeviceGetCount_v2)                              \
  REQUIRED(by_index, nvmlDeviceGetHandleByIndex_v2)                   \
  REQUIRED(uuid, nvmlDeviceGetUUID)                                   \
  REQUIRED(name, nvmlDeviceGetName)                                   \
  REQUIRED(memory, nvmlDeviceGetMemoryInfo)                           \
  OPTIONAL(by_uuid, nvmlDeviceGetHandleByUUID)                        \
  OPTIONAL(memory_v2, nvmlDeviceGetMemoryInfo_v2)                     \
  OPTIONAL(minor, nvmlDeviceGetMinorNumber)                           \
  OPTIONAL(pci, nvmlDeviceGetPciInfo_v3)                              \
  OPTIONAL(affinity, nvmlDeviceGetMemoryAffinity)                     \
  OPTIONAL(ecc, nvmlDeviceGetEccMode)                                 \
  OPTIONAL(compute_mode, nvmlDeviceGetComputeMode)                    \
  OPTIONAL(mig, nvmlDeviceGetMigMode)                                 \
  OPTIONAL(virtualization, nvmlDeviceGetVirtualizationMode)           \
  OPTIONAL(fields, nvmlDeviceGetFieldValues)                          \
  OPTIONAL(architecture, nvmlDeviceGetArchitecture)                   \
  OPTIONAL(fabric, nvmlDeviceGetGpuFabricInfoV)                       \
  OPTIONAL(p2p, nvmlDeviceGetP2PStatus)                               \
  OPTIONAL(link_generation, nvmlDeviceGetMaxPcieLinkGeneration)       \
  OPTIONAL(link_width, nvmlDeviceGetMaxPcieLinkWidth)                 \
  OPTIONAL(processes, nvmlDeviceGetComputeRunningProcesses_v3)        \
  OPTIONAL(mps_processes, nvmlDeviceGetMPSComputeRunningProcesses_v3) \
  OPTIONAL(utilization, nvmlDeviceGetProcessUtilization)              \
  OPTIONAL(set_memory_limits, nvmlDeviceSetMemoryLimits_v1)           \
  OPTIONAL(set_create, nvmlEventSetCreate)                            \
  OPTIONAL(set_free, nvmlEventSetFree)                                \
  OPTIONAL(register_events, nvmlDeviceRegisterEvents)                 \
  OPTIONAL(wait, nvmlEventSetWait_v2)

namespace sluice::nvml {

struct Library {
  void* handle = nullptr;  // of dlopen; the user closes it, or keeps it for other threads' calls
#define SLUICE_NVML_MEMBER(member, exported) decltype(&::exported) member = nullptr;
  SLUICE_NVML_FUNCTIONS(SLUICE_NVML_MEMBER, SLUICE_NVML_MEMBER)
#undef SLUICE_NVML_MEMBER
};

enum class LoadResult { kStarted, kNoLibrary, kLacksFunctions, kDoesNotStart };

// Loads and starts the library, whose name is passed to dlopen. Else `error` is a sentence, and `out` is unchanged.
LoadResult Load(const std::string& name, Library* out, std::string* error);

// As sysfs names the GPU: "0000:65:00.0". Empty: not known.
std::string PciBusId(const Library& library, nvmlDevice_t device);

}  // namespace sluice::nvml

#endif  // SLUICE_COMMON_NVML_LIBRARY_H_
