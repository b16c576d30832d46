// Residency, working set: the bytes of chunks that work used within the last minute.
//
// Each chunk has the second of its newest use. Planned launches are counted by their numbers (Chunk::last_use), so a
// launch pays nothing for it: once a second the chunks with a newer number are stamped. Work that is not planned stamps
// its chunks itself, where it is looked at (use_watch.h).
#include "hooklib/policy/residency.h"

namespace sluice::policy {

size_t Residency::NoteUnplannedUse(Extent range, uint32_t second, uint32_t since) {
  size_t found = 0;
  chunks_.ForEach(range, [&](Chunk& chunk) {
    found += chunk.used_second < since;
    chunk.used_second = second;
  });
  return found;
}

UsedBytes Residency::CountUsed(uint64_t since_launch, uint32_t second) {
  constexpr uint32_t kMinute = 60;
  Settle();
  UsedBytes used;
  chunks_.ForAll([&](Chunk& chunk) {
    if (chunk.last_use > counted_launch_) chunk.used_second = second;
    if (chunk.touch == memory::Touch::kUntouched) return;
    if (chunk.last_use >= since_launch && chunk.last_use > 0 && chunk.live_bytes > 0) used.since_launch += kChunkBytes;
    // A chunk that is free at this moment counts: a buffer of each step is allocated again with the next one.
    const bool is_used = chunk.used_second != 0 && second - chunk.used_second < kMinute;
    if (is_used) used.within_minute += kChunkBytes;
  });
  counted_launch_ = now_;
  return used;
}

}  // namespace sluice::policy
