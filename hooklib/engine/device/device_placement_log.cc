// Device: at DEBUG, which chunks are on the GPU or in host memory, and why.
#include "hooklib/engine/device/device_counters.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void DeviceCounters::LogPlacement(const Work& work) {
  constexpr size_t kMaxKernelNames = 1 << 14;
  if (work.id && work.function && kernel_names_.size() < kMaxKernelNames)
    kernel_names_.try_emplace(work.id, work.function->name, 0, 60);
  const policy::PlacementStats& seen = residency.placement_stats();
  if (seen.iteration <= logged_iteration_) return;
  logged_iteration_ = seen.iteration;
  const auto mib = [](uint64_t bytes) { return static_cast<unsigned long long>(bytes >> 20); };
  Log(settings::LogLevel::kDebug,
      "iteration %llu: %llu MiB moved in %llu launches, unchanged for %u; on the GPU and little used %llu MiB, in host "
      "memory and much used %llu; %llu evicted to make room (%llu used first), %llu fill free room",
      static_cast<unsigned long long>(seen.iteration), mib(seen.moved_bytes),
      static_cast<unsigned long long>(seen.launches), seen.still_iterations, mib(seen.cold_bytes), mib(seen.hot_bytes),
      mib(seen.demoted_bytes), mib(seen.first_used_bytes), mib(seen.filled_bytes));
  // The whole list once the placement has settled, where it changes, and for iterations that are powers of two.
  if (seen.still_iterations != 2 && !seen.demoted_bytes && (seen.iteration & (seen.iteration - 1))) return;
  for (const policy::PlacementRun& run : residency.ListPlacement()) {
    const auto name = kernel_names_.find(run.id);
    Log(settings::LogLevel::kDebug, "  %llx, %llu MiB, %s, %s%s: %llu KiB a chunk and iteration, most by %llx %s",
        static_cast<unsigned long long>(run.range.base), mib(run.range.bytes),
        run.resident ? "on the GPU" : "in host memory", run.long_lived ? "long-lived" : "short-lived",
        run.recently_used ? "" : ", not used", static_cast<unsigned long long>(run.link_bytes >> 10),
        static_cast<unsigned long long>(run.id), name == kernel_names_.end() ? "" : name->second.c_str());
  }
}

}  // namespace sluice
