#include "activity.h"

#include <cupti.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <utility>

#include "calls.h"

namespace sluice::truth {

using trace::Access;
using trace::AccessRange;
using trace::AccessSource;

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr uint64_t kMaxLateNs =
    200'000;  // a record that began this long before the newest launch belongs to an older one

void CUPTIAPI BufferWanted(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *records = 0;
}

// The launch that a record belongs to: the one being measured, unless the record is late and began well before it,
// within an earlier one. Null: none. With g_data held.
Measured* Owner(const CUpti_ActivityUnifiedMemoryCounter3& r) {
  if (g_open.empty()) return nullptr;
  Measured& newest = g_open.back();
  if (g_measuring && r.start + kMaxLateNs >= newest.begin) return &newest;
  for (auto launch = g_open.rbegin(); launch != g_open.rend(); ++launch) {
    if (r.start < launch->begin) continue;
    if (r.start <= launch->end) {
      ++g_counters.late;
      return &*launch;
    }
    break;
  }
  return g_measuring ? &newest : nullptr;
}

void Transfer(const CUpti_ActivityUnifiedMemoryCounter3& r) {
  if (r.counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH && g_slow)
    g_counters.out_bytes += r.value;
  if (r.counterKind != CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD) return;
  const AccessRange range = {r.address, r.value, Access::kUnknown, AccessSource::kParameters};
  (g_measuring ? g_fetched : g_between).push_back(range);
  Measured* owner = Owner(r);
  if (owner == nullptr) return;
  ++g_counters.transfers;
  ++g_arrived;
  g_counters.in_bytes += r.value;
  if (r.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_PREFETCH) {
    ++g_counters.guesses;
    owner->guessed.push_back(range);
  } else {
    if (r.flags != CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE) ++g_counters.other_causes;
    owner->faulted.push_back(range);
  }
}

void CUPTIAPI BufferDone(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  std::lock_guard lock(g_data);
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) {
      Transfer(*reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter3*>(record));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* r = reinterpret_cast<CUpti_ActivityKernel10*>(record);
      const auto it = g_launch_of.find(r->correlationId);
      if (it == g_launch_of.end()) {
        ++g_counters.lost;
        continue;
      }
      g_recorder->Duration(it->second, std::max<uint64_t>(1, r->end - r->start));
      g_launch_of.erase(it);
    }
  }
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  g_counters.dropped += dropped;
  free(buffer);
}

void Print(const char* label, const Ranges& ranges) {
  std::fprintf(stderr, "   %s:", label);
  size_t shown = 0;
  for (const AccessRange& r : ranges) {
    auto block = g_blocks.upper_bound(r.address);
    const uint64_t base = block != g_blocks.begin() ? std::prev(block)->first : 0;
    if (++shown <= 10) {
      std::fprintf(stderr, " +%.3f..%.3f MiB", static_cast<double>(r.address - base) / 1048576.0,
                   static_cast<double>(r.address + r.bytes - base) / 1048576.0);
    }
  }
  std::fprintf(stderr, " (%zu ranges)\n", ranges.size());
}

}  // namespace

uint64_t Now() {
  uint64_t now = 0;
  cuptiGetTimestamp(&now);
  return now;
}

void RegisterActivity() { TRY(cuptiActivityRegisterCallbacks(BufferWanted, BufferDone)); }

Ranges Merged(Ranges ranges, uint64_t align) {
  for (AccessRange& r : ranges) {
    const uint64_t end = (r.address + r.bytes + align - 1) / align * align;
    r.address = r.address / align * align;
    r.bytes = end - r.address;
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const AccessRange& a, const AccessRange& b) { return a.address < b.address; });
  Ranges merged;
  for (const AccessRange& range : ranges) {
    if (!merged.empty() && range.address <= merged.back().address + merged.back().bytes) {
      merged.back().bytes =
          std::max(merged.back().address + merged.back().bytes, range.address + range.bytes) - merged.back().address;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

void WriteOut(const Measured& m) {
  const Ranges faulted = Merged(m.faulted, 4096), guessed = Merged(m.guessed, 4096);
  g_recorder->Truth(m.ordinal, faulted);
  g_recorder->Guessed(m.ordinal, guessed);
  if (m.compared) g_recorder->Changed(m.ordinal, m.changed);
  if (g_verbose) {
    std::fprintf(stderr, "launch %llu\n", static_cast<unsigned long long>(m.ordinal));
    Print("faulted", faulted);
    Print("guessed", guessed);
    Ranges changed, overwritten;
    for (const AccessRange& r : m.changed) (r.access == Access::kWrite ? overwritten : changed).push_back(r);
    Print("changed", changed);
    Print("overwritten", overwritten);
  }
}

void WriteAll() {
  std::lock_guard lock(g_data);
  for (const Measured& m : g_open) WriteOut(m);
  g_open.clear();
}

void Synchronise() {
  TRY(cuCtxSynchronize());
  TRY(cuptiActivityFlushAll(1));
}

void ConfigureOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
    if (g_slow_from < 0) return;
    CUpti_ActivityUnifiedMemoryCounterConfig config[2]{};
    for (auto& c : config) {
      c.scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
      c.deviceId = 0;
      c.enable = 1;
    }
    config[0].kind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
    config[1].kind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH;
    TRY(cuptiActivityConfigureUnifiedMemoryCounter(config, 2));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER));
  });
}

}  // namespace sluice::truth
