// Residency: which chunks a launch names, and what is noted of their use.
//
// Most launches of a program that has settled find all of theirs on the card. What is done for each of their chunks is
// all that such a launch costs beside its one look at the launch before: so nothing here asks a table twice, and who
// leaves first is only worked out when somebody has to (victims.cc).
#include <algorithm>

#include "hooklib/core/residency.h"

namespace sluice::core {

// Of [begin, end), whole chunks, those up to the first that the launch has named before; which that is. On its own and
// without a call: all that is asked of each stays at hand.
Chunk* Residency::Take(Chunk* begin, Chunk* end, Launch* launch, uint64_t waited_in, Chunk*** to) const {
  const uint64_t now = now_;
  const StreamId stream = launch->stream;
  bool lacks = false;
  Chunk** next = *to;
  Chunk* chunk = begin;
  for (; chunk < end && chunk->mark != now; ++chunk) {
    chunk->mark = now;
    chunk->named_bytes = kChunkBytes;
    if (!chunk->resident || (chunk->arrival_op > waited_in && chunk->arrival_stream == stream)) lacks = true;
    *next++ = chunk;
  }
  *to = next;
  if (lacks) launch->lacks = true;
  return chunk;
}

// Each chunk once, in the order in which they are named. How many are among the first `hotter` extents.
size_t Residency::Collect(std::span<const Extent> extents, size_t overwritten, std::optional<size_t> hotter,
                          const Queues& queues, Launch* launch) {
  size_t most = 0, hotter_chunks = 0;
  for (const Extent& extent : extents) most += std::min<size_t>(extent.bytes / kChunkBytes + 2, chunks_.size());
  if (room_.size() < most) room_.resize(most);
  Chunk** next = room_.data();
  operands_.resize(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i == hotter) hotter_chunks = static_cast<size_t>(next - room_.data());
    const Extent& extent = extents[i];
    const bool whole = i + overwritten >= extents.size();  // the others are before it, so what they name is marked
    // The same once more, as work in place names it: only of its ends may more be named.
    const bool again = i > 0 && extent == extents[i - 1];
    chunks_.ForEachRun(extent, [&](Chunk* const begin, Chunk* const end) {
      for (Chunk* chunk = begin; chunk < end;) {
        Chunk* const fresh = chunk;
        chunk = Take(fresh, end, launch, queues.waited_in, &next);
        if (chunk != fresh) {
          launch->names.Add(fresh->base, chunk[-1].base + kChunkBytes);
          if (fresh == begin) begin->named_bytes = Overlap(extent, *begin);
          if (chunk == end) end[-1].named_bytes = Overlap(extent, end[-1]);
          for (Chunk* at = fresh; whole && at < chunk; ++at) {
            if (at->named_bytes == kChunkBytes) at->overwritten_at = now_;
          }
        }
        for (; chunk < end && chunk->mark == now_; ++chunk) {
          chunk->named_bytes += std::min<uint32_t>(Overlap(extent, *chunk), kChunkBytes - chunk->named_bytes);
          if (again && chunk + 2 < end) chunk = end - 2;
        }
      }
    });
    const auto count = static_cast<size_t>(next - room_.data());
    operands_[i] = {extent.bytes, count};
  }
  set_ = {room_.data(), next};
  launch->place = launch->names.sum();
  return hotter && *hotter >= extents.size() ? set_.size() : hotter_chunks;
}

// What the set is named for, and that it is used: in one pass where nothing has to be done between the two.
template <bool kNames, bool kUses>
void Residency::NoteSet(const Launch& launch, Seq seq) {
  const StreamId stream = launch.stream;
  const uint64_t now = now_, window = window_, graph_before = graph_before_;
  const bool sparse = launch.seen.sparse, fetches = Fetches(launch);
  uint64_t between = 0;
  bool rest = false;  // of some there is more to do than most need
  for (Chunk* chunk : set_) {
    if constexpr (kNames) {
      CountLinkBytes(chunk, OverLink(*chunk, sparse), window);
      if (fetches) chunk->last_fetcher = now;
    }
    if constexpr (kUses) {
      if (chunk->last_use <= graph_before) between += kChunkBytes;
      chunk->last_use = now;
      chunk->content = true;
      Mark& use = chunk->use[chunk->use[0].stream == stream ? 0 : 1];
      if (use.stream == stream) use.seq = seq;
      if (use.stream != stream || !chunk->unranked || chunk->ahead) rest = true;
    }
  }
  between_ += between;
  if (!rest) return;
  for (Chunk* chunk : set_) {
    if (chunk->ahead) EndAhead(chunk);
    if (chunk->use[0].stream != stream && chunk->use[1].stream != stream) NoteUse(chunk, {stream, seq});
    if (chunk->resident) candidates_.Unrank(chunk);
  }
}
template void Residency::NoteSet<true, true>(const Launch&, Seq);
template void Residency::NoteSet<true, false>(const Launch&, Seq);
template void Residency::NoteSet<false, true>(const Launch&, Seq);

void Residency::NoteUse(Chunk* chunk, Mark mark) {
  const auto own = [&mark](const Mark& use) { return use.stream == mark.stream || use.stream == 0; };
  const auto over = [this](const Mark& use) { return timeline_->Done(use); };
  Mark* place = std::find_if(std::begin(chunk->use), std::end(chunk->use), own);
  if (place == std::end(chunk->use)) place = std::find_if(std::begin(chunk->use), std::end(chunk->use), over);
  if (place != std::end(chunk->use)) {
    *place = mark;
  } else {
    chunk->use_epoch = fences_->Use();  // closed when room is needed, behind this launch
  }
}

namespace {
constexpr int kStandingShift = 64 - 11;
constexpr size_t kMostStanding = 128;  // chunks of one: what names more runs for longer than it takes to look at it
constexpr uint64_t kQuiet = 64;        // launches: where something comes or goes more often than that, nothing stands
}  // namespace

// Its place among the sets that may stand; null: too much comes and goes.
Residency::Standing* Residency::FindStanding(StreamId stream, uint64_t id, std::span<const Extent> extents) {
  if (now_ <= changed_at_ + kQuiet) return nullptr;
  if (standing_.empty()) standing_.resize(size_t{1} << (64 - kStandingShift));
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t key = id ^ uint64_t { stream } << 32;
  for (const Extent& extent : extents) key = (key ^ (extent.base + extent.bytes * kOdd)) * kOdd;
  Standing* const standing = &standing_[key >> kStandingShift];
  if (standing->key == key) return standing;
  standing->key = key;
  standing->as_of = 0;
  standing->stands = false;
  return standing;
}

// All of the launch's set was on the card, and was noted just now. The second time that this is said of it, and nothing
// has come or gone since the first, the set stands: most sets of a program that takes new memory are met once.
void Residency::Stand(Standing* standing, const Launch& launch) {
  const auto noted = [&launch](const Chunk* chunk) {  // not where more than two streams use it
    return chunk->use[0].stream == launch.stream || chunk->use[1].stream == launch.stream;
  };
  const bool again = standing->as_of > changed_at_;
  standing->as_of = now_;
  standing->stands = again && set_.size() <= kMostStanding && std::all_of(set_.begin(), set_.end(), noted);
  if (!standing->stands) return;
  standing->stream = launch.stream;
  standing->place = launch.place;
  standing->set.assign(set_.begin(), set_.end());
  standing->named.resize(set_.size());
  std::transform(set_.begin(), set_.end(), standing->named.begin(),
                 [](const Chunk* chunk) { return chunk->named_bytes; });
}

void Residency::NoteAgain(Standing* standing, const Launch& launch, Seq seq) {
  const bool sparse = launch.seen.sparse, fetches = Fetches(launch);
  if (standing->launches && (standing->sparse != sparse || standing->fetches != fetches)) Settle();
  if (standing->launches++ == 0) unsettled_.push_back(standing);
  standing->last = now_;
  standing->seq = seq;
  standing->sparse = sparse;
  standing->fetches = fetches;
}

// As if each of the launches had been noted when it came: of those that name a chunk the last one counts, and how much
// all of them name.
void Residency::SettleAll() {
  std::sort(unsettled_.begin(), unsettled_.end(),
            [](const Standing* a, const Standing* b) { return a->last < b->last; });
  for (Standing* const standing : unsettled_) {
    const uint32_t launches = std::exchange(standing->launches, 0);
    for (size_t i = 0; i < standing->set.size(); ++i) {
      Chunk* const chunk = standing->set[i];
      CountLinkBytes(chunk, launches * OverLink(standing->named[i], standing->sparse), window_);
      if (standing->fetches) chunk->last_fetcher = standing->last;
      chunk->mark = chunk->last_use = standing->last;
      chunk->use[chunk->use[0].stream == standing->stream ? 0 : 1].seq = standing->seq;
    }
  }
  unsettled_.clear();
}

}  // namespace sluice::core
