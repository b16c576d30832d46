// Residency: what a launch is about to overwrite whole need not be brought for it, only its place.
//
// Discarding a GiB that lies in host memory and bringing it back empty takes 10 ms, fetching it 22 of the link's time
// (H200, driver 580). The discard runs in the stream's order, right before the launch: until then the contents are the
// application's, from then on nobody's. So only whole chunks count, alive to the last byte and named by nothing else
// of the same launch, and none that the driver may still be sending away (a discard beside a transfer is undefined).
#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {
constexpr uint64_t kCopies = 1;  // stands for work without an execution id; those are odd and large
}  // namespace

bool Residency::MayRepopulate(const Chunk& chunk) {
  return repopulates_ && can_discard_ && chunk.overwritten_at == now_ && chunk.has_contents &&
         chunk.live_bytes == kChunkBytes && chunk.pins == 0 && !chunk.evicting_elsewhere &&
         (chunk.evict_op == 0 || timeline_->OutDone(chunk.evict_stream, chunk.evict_op));
}

void Residency::Repopulate(Chunk* chunk, uint64_t id) {
  SetResident(chunk, true);
  chunk->discarded = false;
  chunk->fetch_op = 0;  // there for whatever comes behind this launch, which alone may use it before
  chunk->repopulated_by = id ? id : kCopies;
  plan_.repopulate.push_back({chunk->base, kChunkBytes});
  stats_.bytes_saved += kChunkBytes;
}

// Whether to bring it ahead of launch `id` would only bring what that launch, or a copy before it, overwrites.
bool Residency::IsRepopulatedBy(const Chunk& chunk, uint64_t id) const {
  return repopulates_ && chunk.has_contents && chunk.repopulated_by &&
         (chunk.repopulated_by == id || chunk.repopulated_by == kCopies);
}

void Residency::NoteNotRepopulated(const Plan& plan) {
  for (const Extent& run : plan.repopulate) {
    stats_.bytes_saved -= run.bytes;
    stats_.bytes_in += run.bytes;
  }
}

}  // namespace sluice::policy
