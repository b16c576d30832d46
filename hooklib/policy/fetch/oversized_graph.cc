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
// there already. What is missing of that moves from missing_ to hottest_, and as much of the rest leaves, if it may.
// `fits`: of the whole set, `more`: beside what of it is there.
void Residency::SplitHottest(StreamId stream, uint64_t fits, uint64_t more, size_t hotter, bool fetches) {
  const auto order = [&](const Chunk* chunk) {
    return (IsUsedBetween(*chunk) ? 0 : 4) + (fetches && IsCopied(*chunk) ? 2 : 0) + (chunk->resident ? 0 : 1);
  };
  std::stable_sort(set_.begin() + static_cast<std::ptrdiff_t>(hotter), set_.end(),
                   [&](const Chunk* a, const Chunk* b) { return order(a) < order(b); });
  const size_t held = std::min<size_t>(fits / kChunkBytes, set_.size());
  missing_.clear();
  for (size_t i = 0; i < set_.size(); ++i) {
    if (!set_[i]->resident) (i < held ? hottest_ : missing_).push_back(set_[i]);
  }
  uint64_t lacking = hottest_.size() * kChunkBytes;
  lacking -= std::min({lacking, more, Room(stream)});
  for (size_t i = set_.size(); i > held && lacking; --i) {
    Chunk* const chunk = set_[i - 1];
    if (!chunk->resident || !MayLeave(*chunk, stream)) continue;
    EvictChunk(chunk, stream, &plan_.now);
    missing_.push_back(chunk);
    lacking -= kChunkBytes;
  }
}

// Of a launch that cannot be held whole, and is no graph: an operand that is far smaller than its largest is likely to
// be used whole (a batch, a result, beside the table that its rows come from). Such ones come first in set_, the
// smallest first; how many chunks that are.
size_t Residency::SmallFirst(uint64_t fits) {
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
void Residency::TakeWay(GraphStrategy way, StreamId stream, uint64_t id) {
  rest_ = {};
  // Duplicates that the way before brought beyond the capacity are still there.
  bool settled = way == GraphStrategy::kFetch || beyond_.empty();
  if (way == GraphStrategy::kDemandPaging) {
    std::stable_partition(missing_.begin(), missing_.end(),
                          [this](const Chunk* chunk) { return IsUsedBetween(*chunk); });
  }
  std::erase_if(missing_, [&](Chunk* chunk) {
    // What was discarded or never written has no host pages worth using: to bring it moves nothing.
    if (!chunk->content || IsDiscarded(chunk, stream)) return false;
    NoteRest(*chunk);
    if (way == GraphStrategy::kDemandPaging || way == GraphStrategy::kFaults) {
      chunk->left_at = now_;
      UnmapRemote(chunk);
      return false;
    }
    // What is still on its way out cannot be mapped_remote yet, so that it would be sent away after each launch for
    // ever.
    const bool once = way == GraphStrategy::kFetch && may_map_remote_ && IsCopied(*chunk) && !MayDuplicate(*chunk);
    settled &= !once && !(way == GraphStrategy::kFetch && chunk->sent && IsCopied(*chunk)) &&
               !(way == GraphStrategy::kRemote && IsLeaving(*chunk));  // that would be found on the card
    if (way == GraphStrategy::kFetch && !once) return false;
    MapInHost(chunk);
    return true;
  });
  if (way == GraphStrategy::kDemandPaging || way == GraphStrategy::kFaults) ++stats_.left_launches;
  plan_.way = ways_.Planned(id, settled);
}

// Bytes of the chunks that other launches than the present graph, which does not name them, have used since the last.
uint64_t Residency::UsedBetween(uint64_t most) const {
  const auto named =
      std::count_if(set_.begin(), set_.end(), [this](const Chunk* chunk) { return IsUsedBetween(*chunk); });
  const uint64_t bytes = between_ - std::min(between_, static_cast<uint64_t>(named) * kChunkBytes);
  return std::min(bytes, RoundDown(most, kChunkBytes));
}

// Whether what is brought need not wait for what leaves behind a graph larger than the capacity. The card holds more
// than the budget until that is gone anyhow, and by faults nobody would wait: the launches between two graphs may bring
// a little. Not what is on its way out itself, which would leave again.
bool Residency::GoesBeside(Queues* queues, StreamId stream, const PlanStep& step) {
  constexpr uint64_t kBeside = uint64_t{32} << 20;
  uint64_t bytes = 0;
  for (const Extent& run : step.fetch) bytes += run.bytes;
  if (!queues->graph_out || queues->beside + bytes > kBeside || timeline_->OutDone(stream, queues->graph_out))
    return false;
  for (const Extent& run : step.fetch) {
    if (IsLeaving(*chunks_.Find(run.base))) return false;
  }
  queues->beside += bytes;
  return true;
}

void Residency::NoteRest(const Chunk& chunk) {
  uint64_t* const which = IsCopied(chunk)                         ? &rest_.copied
                          : chunk.live_bytes == 0                 ? &rest_.dead
                          : !read_mostly_                         ? &rest_.off
                          : chunk.withdrawn_until > now_          ? &rest_.withdrawn
                          : chunk.copied_bytes < chunk.live_bytes ? &rest_.written
                                                                  : &rest_.two_ways_out;
  *which += kChunkBytes;
}

}  // namespace sluice::policy
