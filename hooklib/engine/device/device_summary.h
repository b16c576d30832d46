// Figures of one device that only the lines on stderr have, beside sluice_gpu_counters.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_SUMMARY_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_SUMMARY_H_

#include <cstdint>

#include "hooklib/policy/residency.h"

namespace sluice {

struct DeviceSummary {
  uint64_t peak_live_bytes = 0;
  uint64_t fault_launches = 0;  // launches for which nothing was fetched, by choice
  uint64_t remote_bytes = 0;    // of host memory that launches used remotely, counted once a launch
  policy::ProbeStats probes;    // cost of the probes that found out which launches may
  uint64_t map_ns = 0;          // how long the calls that map host memory kept the calling threads
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_SUMMARY_H_
