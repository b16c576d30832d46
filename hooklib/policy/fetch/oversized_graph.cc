// Residency, graphs larger than the capacity: the part that most nodes use stays resident, and the rest takes the
// strategy that was measured to be the fastest (graph_strategy.h). The hot part is the same for each launch, so nothing
// is exchanged between launches.
#include <algorithm>

#include "hooklib/policy/fetch/remote_access.h"

namespace sluice::policy {

namespace {
constexpr uint64_t kMinSizeRatio = 4;   // an operand is small if it has at most such a share of the largest
constexpr uint64_t kMinSmallShare = 8;  // of the capacity: fewer bytes of small operands make no difference
}  // namespace

// Splits set_ into a hot part, which is to be resident as far as it fits, and a cold rest. The hot part is filled in
// this order:
//  - the first `hot_chunks` chunks of set_, which more nodes use, most used first;
//  - chunks that other launches used since the last graph (these would wait for their eviction and fetch);
//  - chunks that may not be duplicated (a write-back takes 30 ms a GiB, dropping a duplicate 2);
//  - resident chunks.
// Missing hot chunks move from missing_ to
// hot_missing_, and as many cold chunks are evicted, if they may be. `fits`: bytes for the whole set. `more`: bytes
// beside its resident ones.
void RemoteAccess::SplitHotCold(StreamId stream, uint64_t fits, uint64_t more, size_t hot_chunks, bool fetches) {
  const auto order = [&](const Chunk* chunk) {
    return (IsUsedSinceGraph(*chunk) ? 0 : 4) + (fetches && IsCopied(*chunk) ? 2 : 0) + (chunk->resident() ? 0 : 1);
  };
  std::stable_sort(set_.begin() + static_cast<std::ptrdiff_t>(hot_chunks), set_.end(),
                   [&](const Chunk* a, const Chunk* b) { return order(a) < order(b); });
  const size_t hot = std::min<size_t>(fits / kChunkBytes, set_.size());
  missing_.clear();
  for (size_t i = 0; i < set_.size(); ++i) {
    if (!set_[i]->resident()) (i < hot ? hot_missing_ : missing_).push_back(set_[i]);
  }
  uint64_t lacking = hot_missing_.size() * kChunkBytes;
  lacking -= std::min({lacking, more, Room(stream)});
  for (size_t i = set_.size(); i > hot && lacking; --i) {
    Chunk* const chunk = set_[i - 1];
    if (!chunk->resident() || !MayEvict(*chunk, stream)) continue;
    EvictChunk(chunk, stream, &plan_.now);
    missing_.push_back(chunk);
    lacking -= kChunkBytes;
  }
}

uint64_t RemoteAccess::MaxSmallOperandBytes() const {
  uint64_t largest = 0;
  for (const Operand& operand : operands_) largest = std::max(largest, operand.bytes);
  return largest / kMinSizeRatio;
}

// Whether to keep the small operands of a graph resident would make a difference to a capacity.
bool RemoteAccess::SizesDiffer(uint64_t capacity) const {
  const uint64_t max_small = MaxSmallOperandBytes();
  uint64_t bytes = 0;
  for (const Operand& operand : operands_) bytes += operand.bytes <= max_small ? operand.bytes : 0;
  return bytes >= capacity / kMinSmallShare;
}

// Of a launch that exceeds the capacity. An operand far smaller than the largest is likely to be used whole: a batch or
// a result beside a table of rows, weights beside a paged cache. Moves such operands to the begin of set_, smallest
// first, `most` bytes of them at most. Returns their number of chunks.
size_t RemoteAccess::SmallOperandsFirst(uint64_t most) {
  const uint64_t max_small = MaxSmallOperandBytes();
  uint64_t bytes = 0;
  std::vector<std::pair<uint64_t, size_t>> small;  // bytes, index of the operand
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].bytes <= max_small) small.emplace_back(operands_[i].bytes, i);
  }
  std::sort(small.begin(), small.end());
  const std::vector<Chunk*> all(set_.begin(), set_.end());
  std::vector<bool> taken(all.size());
  size_t first = 0;
  for (const auto& [size, i] : small) {
    bytes += size;
    if (bytes > most) break;
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

// Plans the strategy of a graph larger than the capacity: takes the chunks that it uses remotely out of missing_, and
// marks those that are left to demand faults. `id` 0: it is not timed.
void RemoteAccess::ApplyStrategy(GraphStrategy strategy, StreamId stream, uint64_t id) {
  graph_remainder_ = {};
  const bool is_remote = strategy == GraphStrategy::kRemote || strategy == GraphStrategy::kRemoteLargest;
  // Duplicates that the strategy before fetched beyond the capacity are still resident.
  bool settled = strategy == GraphStrategy::kFetch || excess_duplicates_.empty();
  if (strategy == GraphStrategy::kDemandPaging) {
    std::stable_partition(missing_.begin(), missing_.end(),
                          [this](const Chunk* chunk) { return IsUsedSinceGraph(*chunk); });
  }
  std::erase_if(missing_, [&](Chunk* chunk) {
    // A chunk that was discarded or never written has no host pages worth a remote use: its fetch moves nothing.
    if (!chunk->has_contents() || IsDiscarded(chunk, stream)) return false;
    NoteRemainder(*chunk);
    if (strategy == GraphStrategy::kDemandPaging || strategy == GraphStrategy::kFaults) {
      chunk->demand_paged_at = now_;
      UnmapRemote(chunk);
      return false;
    }
    // A chunk whose eviction is in flight cannot be duplicated yet. Without this it would be written back after every
    // launch.
    const bool is_remote_once =
        strategy == GraphStrategy::kFetch && may_map_remote_ && IsCopied(*chunk) && !MayDuplicate(*chunk);
    settled &= !is_remote_once && !(strategy == GraphStrategy::kFetch && chunk->written_back && IsCopied(*chunk)) &&
               !(is_remote && IsEvicting(*chunk));  // it would be resident for this launch
    if (strategy == GraphStrategy::kFetch && !is_remote_once) return false;
    MapRemote(chunk);
    return true;
  });
  if (strategy == GraphStrategy::kDemandPaging || strategy == GraphStrategy::kFaults) ++stats_.demand_paged_launches;
  if (id) plan_.graph_probe = graph_strategies_.Planned(id, settled);
}

// Bytes of chunks that other launches have used since the last graph and that this graph does not name.
uint64_t RemoteAccess::BytesUsedSinceGraph(uint64_t max_bytes) const {
  const auto named =
      std::count_if(set_.begin(), set_.end(), [this](const Chunk* chunk) { return IsUsedSinceGraph(*chunk); });
  const uint64_t bytes = bytes_since_graph_ - std::min(bytes_since_graph_, static_cast<uint64_t>(named) * kChunkBytes);
  return std::min(bytes, RoundDown(max_bytes, kChunkBytes));
}

void RemoteAccess::NoteRemainder(const Chunk& chunk) {
  uint64_t* const which = IsCopied(chunk)                         ? &graph_remainder_.copied
                          : chunk.live_bytes == 0                 ? &graph_remainder_.freed
                          : !read_mostly_                         ? &graph_remainder_.disabled
                          : chunk.withdrawn_until > now_          ? &graph_remainder_.withdrawn
                          : chunk.copied_bytes < chunk.live_bytes ? &graph_remainder_.written
                                                                  : &graph_remainder_.evicting_elsewhere;
  *which += kChunkBytes;
}

}  // namespace sluice::policy
