// Launches on a fake GPU whose times follow from the bytes that they use remotely or fault in.
#ifndef SLUICE_TEST_UNIT_LAUNCHES_H_
#define SLUICE_TEST_UNIT_LAUNCHES_H_

#include <vector>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

// A GPU whose launches take a time that follows from their rate.
struct TimedGpu : FakeGpu {
  uint64_t mapped_remote = 0,
           unmapped = 0;           // bytes newly mapped remotely, and unmapped
  uint64_t late_bytes = 0;         // bytes with contents fetched for the launch itself
  uint64_t swept = 0, sweeps = 0;  // bytes evicted behind launches, and the number of these

  TimedGpu(uint64_t total, uint64_t capacity) : FakeGpu(total, capacity, Prefetch::kPredict) {}
  // `rate`: GB/s at which it uses its host-resident bytes; `touched`: the share of the bytes left to faults that it
  // touches.
  void Launch(uint64_t id, const std::vector<Extent>& set, double rate, double touched = 1) {
    const Plan& plan = Queue(set, 1, id);
    const LaunchProbe probe = plan.probe;
    mapped_remote += TotalBytes(plan.map_remote);
    unmapped += TotalBytes(plan.unmap_remote);
    late_bytes += ContentBytes(plan.now);
    swept += TotalBytes(plan.evict_after);
    sweeps += !plan.evict_after.empty();
    Finish();
    const double all = static_cast<double>(probe.host_bytes), remote = probe.stride ? all / probe.stride : 0;
    const double ns = probe.by_faults ? touched * ((all - remote) / 11 + remote / rate) : all / rate;
    if (probe.id) residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(ns));
  }
};

}  // namespace sluice::policy

#endif  // SLUICE_TEST_UNIT_LAUNCHES_H_
