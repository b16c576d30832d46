// Device: which tracked ranges a piece of work touches.
#include "hooklib/engine/device/device_counters.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

void DeviceCounters::Resolve(const Work& work, AccessSet* set) {
  size_t count = 0;
  const size_t max_extents = work.words.size() + work.reaches.size() + work.exact.size();
  if (set->extent_storage.size() < max_extents) {
    set->extent_storage.resize(max_extents);
    set->only_read_storage.resize(max_extents);
  }
  memory::Extent* const extents = set->extent_storage.data();
  char* const only_read = set->only_read_storage.data();
  const auto add = [&](const memory::Extent& extent, bool is_read) {
    extents[count] = extent;
    only_read[count++] = is_read;
  };
  set->unbounded.clear();
  set->has_narrowed = false;
  if (!fault_watch.has_ranges()) {
    for (const uint64_t word : work.words) {
      if (const memory::Extent* const extent = live.Lookup(word)) add(*extent, false);
    }
  } else {
    policy::UnboundedPointer around;
    for (size_t i = 0; i < work.words.size(); ++i) {
      const auto extent = fault_watch.ResolveWord(work, i, &around);
      if (!extent) continue;
      add(*extent, false);
      if (!around.block.bytes) continue;
      set->unbounded.push_back(around);
      set->has_narrowed |= around.block.bytes > extent->bytes;
    }
  }
  set->hot_count.reset();
  if (work.hot_reaches) set->hot_count = 0;
  for (size_t i = 0; i < work.reaches.size(); ++i) {
    if (const auto extent = Resolve(work.reaches[i])) add(*extent, work.reaches[i].only_read);
    if (work.hot_reaches && i < *work.hot_reaches) set->hot_count = count;
  }
  // Last, because the overwritten extents must be at the end.
  for (size_t i = 0; i < work.exact.size(); ++i) add(work.exact[i], i < work.read_only);
  set->extents = {extents, count};
  set->only_read = {only_read, count};
}

std::optional<memory::Extent> DeviceCounters::Resolve(const libraries::Reach& reach) {
  if (reach.pointer) return live.Resolve(reach.pointer, reach.begin, reach.end);
  return memory::Extent{reach.begin, reach.end - reach.begin};
}

}  // namespace sluice
