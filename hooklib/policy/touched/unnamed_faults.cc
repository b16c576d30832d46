// Residency, unnamed faults: launches reach memory through pointers that lie on the GPU, in tables of matrices or
// trees. No name tells which. Pages that faults bring so are resident beyond all that residency knows of, and would
// stay for ever. So the driver's count of faulted bytes is compared with those that named chunks explain. Once more
// came, all absent chunks are evicted once, as fault residue, and faults are recorded from then on: their chunks are
// resident, and are evicted like others.
#include <algorithm>
#include <utility>

#include "hooklib/policy/touched/touched_chunks.h"

namespace sluice::policy {

namespace {
constexpr int64_t kMinUnnamedBytes = int64_t{64} << 20;
// The expected bytes are counted when a launch is planned, the driver's when it ran.
constexpr int64_t kMaxAheadBytes = int64_t{256} << 20;
constexpr uint64_t kExpectedLaunches = 1024;    // since named chunks were left to faults, whose bytes are a guess
constexpr uint64_t kWatchedLaunches = 1 << 16;  // since the last such fault
constexpr uint64_t kStayedIntervals = 64;       // from a chunk's eviction to its next fault
}  // namespace

void TouchedChunks::NoteCountedFaults(uint64_t bytes) {
  fault_residue_.set_counted_bytes(bytes);
  const uint64_t counted = bytes - std::min(bytes, unnamed_.counted);
  const uint64_t expected = stats_.fault_bytes - std::min(stats_.fault_bytes, unnamed_.expected);
  unnamed_.counted = bytes;
  unnamed_.expected = stats_.fault_bytes;
  const auto is_recent = [this](uint64_t at) { return at && now_ < at + kExpectedLaunches; };
  // Without records all absent chunks are residue again and again.
  const bool is_guess = (touched_.enabled() && fault_residue_.IsRecent(now_)) || is_recent(last_demand_paged_) ||
                        is_recent(last_graph_at_);
  if (is_guess || watches_unnamed()) return;
  unnamed_.bytes += static_cast<int64_t>(counted) - static_cast<int64_t>(expected);
  unnamed_.bytes = std::max(unnamed_.bytes, -kMaxAheadBytes);
  if (unnamed_.bytes < kMinUnnamedBytes) return;
  unnamed_.bytes = 0;
  if (touched_.enabled()) unnamed_.watched_until = now_ + kWatchedLaunches;
  Settle();
  NoteChange();
  chunks_.ForAll([this](Chunk& chunk) {
    if (!chunk.resident() && !chunk.mapped_remote() && chunk.live_bytes != 0 && chunk.has_contents())
      fault_residue_.Add(&chunk);
  });
  fault_residue_.SweepSoon();
}

// A launch that did not name the chunk has faulted on it. While it is resident nothing tells of its use. So a chunk
// that faults again soon after its eviction stays for as many times that long (as with refault distances in Linux's
// workingset.c), and is evicted after those whose next use is farther.
void TouchedChunks::TakeFaultedIn(Chunk* chunk) {
  if (chunk->has_fault_residue() || chunk->mapped_remote() || IsEvicting(*chunk) || chunk->live_bytes == 0) return;
  // The record may be of the bytes before: a discarded chunk that passed for resident would be written by faults.
  if (chunk->discarded() || chunk->reused_after_discard || !chunk->has_contents()) return;
  unnamed_.watched_until = std::max(unnamed_.watched_until, now_ + kWatchedLaunches);
  Settle();
  SetResident(chunk, true);
  chunk->last_use = now_;
  chunk->EndFetch();
  if (chunk->unnamed_out) chunk->next_use = now_ + kStayedIntervals * std::max<uint64_t>(1, now_ - chunk->unnamed_out);
  chunk->unnamed_by_faults = true;
  candidates_.Unrank(chunk);
  stats_.fault_bytes += kChunkBytes;
}

}  // namespace sluice::policy
