// Residency: of a graph that cannot be held whole what it uses most stays on the card, and the rest goes the
// way that was measured to be the fastest (graph_strategy.h). Which part that is does not change from launch to launch,
// so nothing goes to and fro.
#include <algorithm>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {
constexpr uint64_t kFarSmaller = 4;  // an operand, than the largest
constexpr uint64_t kSmallShare = 4;  // all of them are at most such a share of what may be held
}  // namespace

// The first `hotter` of set_ are used by more of its nodes than the rest, most used first: as far as they fit, they are
// to be on the card, then what other launches have used since the last graph (they would wait for it to leave and
// come), then what may not be duplicated (to send that away takes 70 ms a GiB, to drop a duplicate 2), then what is
// there already. What is missing of that moves from missing_ to hot_missing_, and as much of the rest leaves, if it
// may. `fits`: of the whole set, `more`: beside what of it is there.
void Residency::SplitHotCold(StreamId stream, uint64_t fits, uint64_t more, size_t hotter, bool fetches) {
  const auto order = [&](const Chunk* chunk) {
    return (IsUsedSinceGraph(*chunk) ? 0 : 4) + (fetches && IsCopied(*chunk) ? 2 : 0) + (chunk->resident ? 0 : 1);
  };
  std::stable_sort(set_.begin() + static_cast<std::ptrdiff_t>(hotter), set_.end(),
                   [&](const Chunk* a, const Chunk* b) { return order(a) < order(b); });
  const size_t held = std::min<size_t>(fits / kChunkBytes, set_.size());
  missing_.clear();
  for (size_t i = 0; i < set_.size(); ++i) {
    if (!set_[i]->resident) (i < held ? hot_missing_ : missing_).push_back(set_[i]);
  }
  uint64_t lacking = hot_missing_.size() * kChunkBytes;
  lacking -= std::min({lacking, more, Room(stream)});
  for (size_t i = set_.size(); i > held && lacking; --i) {
    Chunk* const chunk = set_[i - 1];
    if (!chunk->resident || !MayEvict(*chunk, stream)) continue;
    EvictChunk(chunk, stream, &plan_.now);
    missing_.push_back(chunk);
    lacking -= kChunkBytes;
  }
}

// Of a launch that cannot be held whole, and is no graph: an operand that is far smaller than its largest is likely to
// be used whole (a batch, a result, beside the table that its rows come from). Such ones come first in set_, the
// smallest first; how many chunks that are.
size_t Residency::SmallOperandsFirst(uint64_t fits) {
  uint64_t largest = 0, bytes = 0;
  for (const Operand& operand : operands_) largest = std::max(largest, operand.bytes);
  std::vector<std::pair<uint64_t, size_t>> small;  // bytes, place among the operands
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].bytes <= largest / kFarSmaller) small.emplace_back(operands_[i].bytes, i);
  }
  std::sort(small.begin(), small.end());
  const std::vector<Chunk*> all(set_.begin(), set_.end());
  std::vector<bool> taken(all.size());
  size_t first = 0;
  for (const auto& [size, i] : small) {
    if ((bytes += size) > fits / kSmallShare) break;
    for (size_t at = i ? operands_[i - 1].end : 0; at < operands_[i].end; ++at) {
      set_[first++] = all[at];
      taken[at] = true;
    }
  }
  for (size_t at = 0, next = first; at < all.size(); ++at) {
    if (!taken[at]) set_[next++] = all[at];
  }
  return first;
}

// Of a graph that is larger than the capacity: the way that it goes. Takes out of missing_ what it uses in host
// memory, and marks what is left to faults.
void Residency::ApplyStrategy(GraphStrategy way, StreamId stream, uint64_t id) {
  graph_remainder_ = {};
  // Duplicates that the way before brought beyond the capacity are still there.
  bool settled = way == GraphStrategy::kFetch || excess_duplicates_.empty();
  if (way == GraphStrategy::kDemandPaging) {
    std::stable_partition(missing_.begin(), missing_.end(),
                          [this](const Chunk* chunk) { return IsUsedSinceGraph(*chunk); });
  }
  std::erase_if(missing_, [&](Chunk* chunk) {
    // What was discarded or never written has no host pages worth using: to bring it moves nothing.
    if (!chunk->has_contents || IsDiscarded(chunk, stream)) return false;
    NoteRemainder(*chunk);
    if (way == GraphStrategy::kDemandPaging || way == GraphStrategy::kFaults) {
      chunk->demand_paged_at = now_;
      UnmapRemote(chunk);
      return false;
    }
    // What is still on its way out cannot be mapped_remote yet, so that it would be sent away after each launch for
    // ever.
    const bool once = way == GraphStrategy::kFetch && may_map_remote_ && IsCopied(*chunk) && !MayDuplicate(*chunk);
    settled &= !once && !(way == GraphStrategy::kFetch && chunk->written_back && IsCopied(*chunk)) &&
               !(way == GraphStrategy::kRemote && IsEvicting(*chunk));  // that would be found on the card
    if (way == GraphStrategy::kFetch && !once) return false;
    MapRemote(chunk);
    return true;
  });
  if (way == GraphStrategy::kDemandPaging || way == GraphStrategy::kFaults) ++stats_.demand_paged_launches;
  plan_.graph_probe = graph_strategies_.Planned(id, settled);
}

// Bytes of the chunks that other launches than the present graph, which does not name them, have used since the last.
uint64_t Residency::BytesUsedSinceGraph(uint64_t most) const {
  const auto named =
      std::count_if(set_.begin(), set_.end(), [this](const Chunk* chunk) { return IsUsedSinceGraph(*chunk); });
  const uint64_t bytes = bytes_since_graph_ - std::min(bytes_since_graph_, static_cast<uint64_t>(named) * kChunkBytes);
  return std::min(bytes, RoundDown(most, kChunkBytes));
}

// Whether what is brought need not wait for what leaves behind a graph larger than the capacity. The card holds more
// than the budget until that is gone anyhow, and by faults nobody would wait: the launches between two graphs may bring
// a little. Not what is on its way out itself, which would leave again.
bool Residency::MayOverlapEviction(StreamQueues* queues, StreamId stream, const PlanStep& step) {
  constexpr uint64_t kBeside = uint64_t{32} << 20;
  uint64_t bytes = 0;
  for (const Extent& run : step.fetch) bytes += run.bytes;
  if (!queues->graph_out_op || queues->bytes_beside_graph + bytes > kBeside ||
      timeline_->OutDone(stream, queues->graph_out_op))
    return false;
  for (const Extent& run : step.fetch) {
    if (IsEvicting(*chunks_.Find(run.base))) return false;
  }
  queues->bytes_beside_graph += bytes;
  return true;
}

void Residency::NoteRemainder(const Chunk& chunk) {
  uint64_t* const which = IsCopied(chunk)                         ? &graph_remainder_.copied
                          : chunk.live_bytes == 0                 ? &graph_remainder_.freed
                          : !read_mostly_                         ? &graph_remainder_.disabled
                          : chunk.withdrawn_until > now_          ? &graph_remainder_.withdrawn
                          : chunk.copied_bytes < chunk.live_bytes ? &graph_remainder_.written
                                                                  : &graph_remainder_.evicting_elsewhere;
  *which += kChunkBytes;
}

}  // namespace sluice::policy
