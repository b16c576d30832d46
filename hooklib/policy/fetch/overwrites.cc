// Residency, overwrites: a chunk that a launch overwrites whole needs room, but no fetch.
//
// Discarding a GiB of host memory and populating it empty takes 10 ms, fetching it 22 of the link's time (H200, driver
// 580). The discard runs in the stream's order, right before the launch: until then the contents are the application's,
// and afterwards they are undefined. So only whole chunks count, live to the last byte, that nothing else of the launch
// names. Their eviction must be over, since a discard beside a transfer is undefined.
#include "hooklib/policy/fetch/fetches.h"

namespace sluice::policy {

namespace {
constexpr uint64_t kCopies = 1;  // stands for work without an execution id; ids are odd and large
}  // namespace

bool Fetches::MayRepopulate(const Chunk& chunk) {
  return repopulates_ && can_discard_ && chunk.overwritten_at == now_ && chunk.has_contents() &&
         chunk.live_bytes == kChunkBytes && chunk.pins == 0 && !IsEvictingElsewhere(chunk) &&
         (chunk.evict_op() == 0 || timeline_->OutDone(chunk.evict_stream(), chunk.evict_op()));
}

void Fetches::Repopulate(Chunk* chunk, uint64_t id) {
  SetResident(chunk, true);
  chunk->EndDiscard();
  chunk->EndFetch();  // resident for all work behind this launch, which alone may use it before
  chunk->repopulated_by = id ? id : kCopies;
  plan_.repopulate.push_back({chunk->base, kChunkBytes});
  stats_.bytes_saved += kChunkBytes;
}

// Whether a prefetch for launch `id` would fetch contents that this launch, or a copy before it, overwrites.
bool Fetches::IsRepopulatedBy(const Chunk& chunk, uint64_t id) const {
  return repopulates_ && chunk.has_contents() && chunk.repopulated_by &&
         (chunk.repopulated_by == id || chunk.repopulated_by == kCopies);
}

void Fetches::NoteNotRepopulated(const Plan& plan) {
  for (const Extent& run : plan.repopulate) {
    stats_.bytes_saved -= run.bytes;
    stats_.bytes_in += run.bytes;
  }
}

}  // namespace sluice::policy
