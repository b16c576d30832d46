// Residency, read duplication: a chunk that copies alone wrote, and that is only read since, is fetched as a duplicate
// of its host copy (UVM's read-mostly advice) and evicted by dropping the duplicate.
//
// Milliseconds for a GiB on an H200 with driver 580 (experiments/probes/read_mostly.cu):
//  - withdraw the advice, which drops the GPU's copy: 1.2 to 2.2 (write back: 70);
//  - advise it again in host memory: 5; the first time after a write-back: 70 to 85;
//  - fetch: 22 either way. A prefetch to the host drops nothing.
// A write to a duplicate takes 3.6 seconds (other GPUs: 43). So the advice is withdrawn before anything that may write
// is queued, before a byte is freed, and before one is allocated beside it. Advice is a call, in no stream's order: a
// chunk that unfinished work uses is not dropped, and a chunk that is still being evicted is not advised (it would stay
// resident).
#include <algorithm>
#include <utility>

#include "hooklib/policy/evict/duplicates.h"

namespace sluice::policy {

void Duplicates::set_read_mostly(bool may) {
  read_mostly_ = may;
  if (may) return;
  copied_ranges_.Clear();
  chunks_.ForAll([this](Chunk& chunk) {
    chunk.copied_bytes = 0;
    Withdraw(&chunk);
  });
}

void Duplicates::NoteCopied(Extent range) {
  if (!read_mostly_) return;
  copied_ranges_.Add(range, [this](Extent part) {
    chunks_.ForEach(part, [&](Chunk& chunk) { chunk.copied_bytes += Overlap(part, chunk); });
  });
}

void Duplicates::ForgetCopies(Extent range) {
  copied_ranges_.Remove(range, [this](Extent part) {
    chunks_.ForEach(part, [&](Chunk& chunk) {
      chunk.copied_bytes -= Overlap(part, chunk);
      Withdraw(&chunk);
    });
  });
}

// A chunk that is written now and then costs a fetch and two advices each time: it is not duplicated again for ever
// longer.
void Duplicates::NoteWritten(Extent range) {
  const size_t before = withdrawn_.size();
  ForgetCopies(range);
  for (size_t i = before; i < withdrawn_.size(); ++i) {
    Chunk* const chunk = chunks_.Find(withdrawn_[i].base);
    chunk->withdrawn_until = now_ + (uint64_t{1024} << (4 * std::min<unsigned>(chunk->withdrawals++, 8)));
  }
}

void Duplicates::ForgetAllCopies() { ForgetCopies({0, UINT64_MAX}); }

std::vector<Extent> Duplicates::TakeWithdrawn() {
  Merge(&withdrawn_);
  return std::exchange(withdrawn_, {});
}

// Whether only copies wrote it. It may still be resident, or its eviction in flight.
bool Duplicates::IsCopied(const Chunk& chunk) const {
  return read_mostly_ && prefetch_ != Prefetch::kOff && chunk.copied_bytes == chunk.live_bytes &&
         chunk.live_bytes > 0 && chunk.has_contents() && chunk.withdrawn_until <= now_ && !IsEvictingElsewhere(chunk);
}

bool Duplicates::MayDuplicate(const Chunk& chunk) {
  return IsCopied(chunk) && (chunk.duplicate() || (!chunk.has_fault_residue() && chunk.evict_op() &&
                                                   timeline_->OutDone(chunk.evict_stream(), chunk.evict_op())));
}

void Duplicates::Withdraw(Chunk* chunk) {
  if (!chunk->duplicate()) return;
  chunk->EndDuplicate();
  withdrawn_.push_back({chunk->base, kChunkBytes});
  // A fetch in flight goes on, as one of ordinary bytes.
  if (!chunk->resident() || (chunk->fetch_op() && !timeline_->InDone(chunk->fetch_stream(), chunk->fetch_op()))) return;
  EndPrefetch(chunk);
  SetResident(chunk, false);
  chunk->EndFetch();
  candidates_.Remove(chunk);
}

// Instead of EvictChunk: the chunk is duplicated, and nothing unfinished uses it.
void Duplicates::Drop(Chunk* chunk, PlanStep* step) {
  EndPrefetch(chunk);
  if (!chunk->cold) EndPromotion(chunk);
  SetResident(chunk, false);
  chunk->EndDuplicate();
  chunk->EndFetch();
  candidates_.Remove(chunk);
  step->drop.push_back({chunk->base, kChunkBytes});
  stats_.bytes_dropped += kChunkBytes;
}

}  // namespace sluice::policy
