// Device: at DEBUG, what lies where on the card and why.
#include <algorithm>

#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void Device::LogPlacement(const Work& work) {
  if (work.id && work.function && names_.size() < 1 << 14) names_.try_emplace(work.id, work.function->name, 0, 60);
  const policy::PlacementStats& seen = residency.placement_stats();
  if (seen.iteration <= told_window_) return;
  told_window_ = seen.iteration;
  const auto mib = [](uint64_t bytes) { return static_cast<unsigned long long>(bytes >> 20); };
  Log(settings::LogLevel::kDebug,
      "window %llu: %llu MiB moved in %llu launches, still for %u; on the card and little used %llu MiB, in host "
      "memory "
      "and much used %llu; %llu make place (%llu used first), %llu fill what was free",
      static_cast<unsigned long long>(seen.iteration), mib(seen.moved_bytes),
      static_cast<unsigned long long>(seen.launches), seen.still_iterations, mib(seen.cold_bytes), mib(seen.hot_bytes),
      mib(seen.demoted_bytes), mib(seen.first_used_bytes), mib(seen.filled_bytes));
  if (seen.still_iterations != 2 && !seen.demoted_bytes && (seen.iteration & (seen.iteration - 1))) return;
  for (const policy::PlacementRun& place : residency.ListPlacement()) {
    const auto name = names_.find(place.id);
    Log(settings::LogLevel::kDebug, "  %llx, %llu MiB, %s, %s%s: %llu KiB a chunk and window, most by %llx %s",
        static_cast<unsigned long long>(place.range.base), mib(place.range.bytes),
        place.resident ? "on the card" : "in host memory", place.long_lived ? "lasting" : "not lasting",
        place.recently_used ? "" : ", not used", static_cast<unsigned long long>(place.link_bytes >> 10),
        static_cast<unsigned long long>(place.id), name == names_.end() ? "" : name->second.c_str());
  }
}

}  // namespace sluice
