// Device: at DEBUG, which chunks are on the GPU or in host memory, and why.
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void Device::LogPlacement(const Work& work) {
  constexpr size_t kMaxKernelNames = 1 << 14;
  if (work.id && work.function && kernel_names_.size() < kMaxKernelNames)
    kernel_names_.try_emplace(work.id, work.function->name, 0, 60);
  const policy::PlacementStats& seen = residency.placement_stats();
  if (seen.window <= logged_iteration_) return;
  logged_iteration_ = seen.window;
  const auto mib = [](uint64_t bytes) { return static_cast<unsigned long long>(bytes >> 20); };
  Log(settings::LogLevel::kDebug,
      "iteration %llu: %llu MiB moved in %llu launches, unchanged for %u; on the GPU and little used %llu MiB, in host "
      "memory and much used %llu; %llu evicted to make room (%llu used first), %llu fill free room",
      static_cast<unsigned long long>(seen.window), mib(seen.moved), static_cast<unsigned long long>(seen.launches),
      seen.still, mib(seen.cold), mib(seen.hot), mib(seen.leaves), mib(seen.first), mib(seen.fills));
  // The whole list once the placement has settled, where it changes, and for iterations that are powers of two.
  if (seen.still != 2 && !seen.leaves && (seen.window & (seen.window - 1))) return;
  for (const policy::PlacementRun& run : residency.ListPlacement()) {
    const auto name = kernel_names_.find(run.id);
    Log(settings::LogLevel::kDebug, "  %llx, %llu MiB, %s, %s%s: %llu KiB a chunk and iteration, most by %llx %s",
        static_cast<unsigned long long>(run.range.base), mib(run.range.bytes),
        run.resident ? "on the GPU" : "in host memory", run.lasting ? "long-lived" : "short-lived",
        run.used ? "" : ", not used", static_cast<unsigned long long>(run.link_bytes >> 10),
        static_cast<unsigned long long>(run.id), name == kernel_names_.end() ? "" : name->second.c_str());
  }
}

}  // namespace sluice
