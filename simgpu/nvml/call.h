// Common to the entry points of the simulated NVML: handles, state, checks of arguments.
#ifndef SIMGPU_NVML_CALL_H_
#define SIMGPU_NVML_CALL_H_

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>

#include <string>
#include <vector>

#include "../core/shared_state.h"

struct nvmlDevice_st {
  int card;
};

struct nvmlEventSet_st {
  std::vector<int> cards;
  uint32_t seen[simgpu::kMaxCards] = {};  // XIDs of each card that were reported
};

namespace simgpu::nvml {

extern int g_initialised;
extern nvmlDevice_st g_devices[kMaxCards];

// The driver's state if this process has loaded the driver, since private state is not visible elsewhere. Otherwise the
// shared file, or an idle card.
SharedState& State();

inline bool Valid(nvmlDevice_t d) { return d != nullptr && d >= g_devices && d < g_devices + TheProfile().gpus; }

void Copy(char* out, unsigned int length, const std::string& text);

}  // namespace simgpu::nvml

#define READY() \
  if (simgpu::nvml::g_initialised == 0) return NVML_ERROR_UNINITIALIZED
#define NEED(condition) \
  if (!(condition)) return NVML_ERROR_INVALID_ARGUMENT
#define NEED_DEVICE(d) \
  READY();             \
  NEED(simgpu::nvml::Valid(d))

#endif  // SIMGPU_NVML_CALL_H_
