#include "hooklib/policy/steady/steady_sets.h"

#include <algorithm>
#include <utility>

#include "hooklib/policy/fetch/link_bytes.h"

namespace sluice::policy {

namespace {
constexpr int kSetsShift = 64 - 13;
constexpr size_t kWays = 4;  // places that a launch may have: with one, two launches of a step may drive out each other
constexpr size_t kMinWideChunks = 512;              // 1 GiB
constexpr size_t kMaxKeptChunks = size_t{1} << 18;  // of all sets: 3 MiB of pointers and bytes
constexpr uint64_t kMaxUnusedLaunches = 1 << 14;    // of a set that stays where others need its place
}  // namespace

SteadySets::Set* SteadySets::Find(uint64_t now, StreamId stream, uint64_t id, std::span<const Extent> extents) {
  if (QuietSince(now) == kNever) return nullptr;
  if (sets_.empty()) sets_.resize(size_t{1} << (64 - kSetsShift));
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t key = id ^ uint64_t { stream } << 32;
  for (const Extent& extent : extents) key = (key ^ (extent.base + extent.bytes * kOdd)) * kOdd;
  Set* const places = &sets_[(key >> kSetsShift) & ~(kWays - 1)];
  Set* oldest = places;
  for (Set* set = places; set < places + kWays; ++set) {
    if (set->key_ == key) return set;
    if (set->NewestAt() < oldest->NewestAt()) oldest = set;
  }
  oldest->key_ = key;
  oldest->confirmed_at_ = 0;
  oldest->is_steady_ = false;  // its chunks stay until Confirm: launches may not be noted yet
  return oldest;
}

void SteadySets::Drop(Set* set) {
  kept_chunks_ -= set->chunks.size();
  set->chunks = {};
  set->named_bytes_ = {};
  set->is_steady_ = set->is_wide_ = false;
}

// Those of launches that did not come since the last time. The others stay: where an iteration's sets exceed the limit,
// each would be dropped before it is used again.
void SteadySets::DropOld(uint64_t now) {
  if (now < dropped_at_ + kMaxUnusedLaunches) return;
  for (Set& set : sets_) {
    if (set.last_launch_ <= dropped_at_) Drop(&set);
  }
  dropped_at_ = now;
}

void SteadySets::Confirm(Set* set, uint64_t now, StreamId stream, uint64_t set_hash, std::span<Chunk* const> chunks) {
  const auto is_noted = [stream](const Chunk* chunk) {  // not where more than two streams use it
    return chunk->use[0].stream == stream || chunk->use[1].stream == stream;
  };
  const bool again = set->confirmed_at_ > changed_at_;
  set->confirmed_at_ = now;
  set->is_steady_ = again && chunks.size() <= kMaxKeptChunks && std::all_of(chunks.begin(), chunks.end(), is_noted);
  if (!set->is_steady_) return Drop(set);
  if (kept_chunks_ - set->chunks.size() + chunks.size() > kMaxKeptChunks) {
    set->last_launch_ = now;
    DropOld(now);
    if (kept_chunks_ - set->chunks.size() + chunks.size() > kMaxKeptChunks) return Drop(set);
  }
  kept_chunks_ += chunks.size() - set->chunks.size();
  set->is_wide_ = chunks.size() >= kMinWideChunks;
  set->last_launch_ = now;
  set->stream = stream;
  set->set_hash = set_hash;
  set->chunks.assign(chunks.begin(), chunks.end());
  set->named_bytes_.resize(chunks.size());
  std::transform(chunks.begin(), chunks.end(), set->named_bytes_.begin(),
                 [](const Chunk* chunk) { return chunk->named_bytes; });
}

// As if each launch had been noted when it came: for a chunk in several sets the newest launch counts, and the bytes of
// all. A copy may have been noted since (Residency::LeavesSteadyState).
void SteadySets::SettleAll() {
  std::sort(unsettled_.begin(), unsettled_.end(),
            [](const Set* a, const Set* b) { return a->last_launch_ < b->last_launch_; });
  for (Set* const set : unsettled_) {
    set->is_pending_ = false;
    const uint32_t counted = std::exchange(set->counted_launches_, 0);
    for (size_t i = 0; i < set->chunks.size(); ++i) {
      Chunk* const chunk = set->chunks[i];
      const uint64_t bytes = uint64_t{counted} * OverLink(set->named_bytes_[i], set->usage_.touched);
      if (counted) CountLinkBytes(chunk, static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX)), set->iteration_);
      if (set->usage_.required) chunk->last_required_at = std::max(chunk->last_required_at, set->last_launch_);
      chunk->named_at = std::max(chunk->named_at, set->last_launch_);
      chunk->last_use = std::max(chunk->last_use, set->last_launch_);
      if (set->is_wide_) chunk->next_use = set->last_launch_ + set->gap_;
      Seq& seq = chunk->use[chunk->use[0].stream == set->stream ? 0 : 1].seq;
      seq = std::max(seq, set->seq_);
    }
  }
  unsettled_.clear();
}

}  // namespace sluice::policy
