// Event sets: XID errors that simgpu_inject_xid made.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "call.h"

using simgpu::Card;
using simgpu::nvml::g_devices;
using simgpu::nvml::State;

extern "C" {

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
