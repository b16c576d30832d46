// Device: at DEBUG, what lies where on the card and why.
#include <algorithm>

#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void Device::LogPlacement(const Work& work) {
  if (work.id && work.function && names_.size() < 1 << 14) names_.try_emplace(work.id, work.function->name, 0, 60);
  const policy::PlacementStats& seen = residency.placement_stats();
  if (seen.window <= told_window_) return;
  told_window_ = seen.window;
  const auto mib = [](uint64_t bytes) { return static_cast<unsigned long long>(bytes >> 20); };
  Log(settings::LogLevel::kDebug,
      "window %llu: %llu MiB moved in %llu launches, still for %u; on the card and little used %llu MiB, in host "
      "memory "
      "and much used %llu; %llu make place (%llu used first), %llu fill what was free",
      static_cast<unsigned long long>(seen.window), mib(seen.moved), static_cast<unsigned long long>(seen.launches),
      seen.still, mib(seen.cold), mib(seen.hot), mib(seen.leaves), mib(seen.first), mib(seen.fills));
  if (seen.still != 2 && !seen.leaves && (seen.window & (seen.window - 1))) return;
  for (const policy::PlacementRun& place : residency.ListPlacement()) {
    const auto name = names_.find(place.id);
    Log(settings::LogLevel::kDebug, "  %llx, %llu MiB, %s, %s%s: %llu KiB a chunk and window, most by %llx %s",
        static_cast<unsigned long long>(place.range.base), mib(place.range.bytes),
        place.resident ? "on the card" : "in host memory", place.lasting ? "lasting" : "not lasting",
        place.used ? "" : ", not used", static_cast<unsigned long long>(place.link_bytes >> 10),
        static_cast<unsigned long long>(place.id), name == names_.end() ? "" : name->second.c_str());
  }
}

}  // namespace sluice
