// Residency: which of what streaming launches use is worth its place on the card.
//
// Where everything streams and nothing moves any more (a decoder that holds twice its budget), each chunk that lies in
// host memory costs what launches use of it, over the link, in every round; a chunk on the card saves that. An
// embedding table of which a lookup reads four rows, or a cache of keys and values at its first positions, saves next
// to nothing, a weight all of its 2 MiB. So of two such chunks the one that is used whole is kept. What a launch uses
// is what it names, to the byte where that is known (extents of library calls, PyTorch's structs); a sixteenth of that
// where it was seen to be done with host memory in a fraction of the time that the link takes (launch_classifier.h).
//
// To exchange two chunks costs 100 and 22 ms a GiB, once; it saves 24 in each round. So only what differs by much is
// exchanged, and only where nothing else has moved for two rounds: a program whose working set comes and goes places
// its chunks anyway.
//
// Then the order: what a launch uses on the card is done before the host has queued the next one, and the link has
// nothing to do meanwhile; what it uses in host memory crosses the link while the host queues the rest. So what is used
// first after the host has waited makes place for what is used much later.
#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {
constexpr uint32_t kLittle = kChunkBytes / 8;  // of a chunk, in a round
constexpr uint32_t kMuch = kChunkBytes / 2;
constexpr uint64_t kStill = uint64_t{16} << 20;  // bytes a window that may move all the same
constexpr uint32_t kStillWindows = 2;
constexpr uint64_t kLeast = uint64_t{8} << 20;   // less is not worth a look
constexpr uint64_t kMost = uint64_t{512} << 20;  // at once: 60 ms
constexpr uint64_t kLeastOrder = uint64_t{32} << 20;
}  // namespace

void Residency::NoteHostSync() {
  if (now_ - host_run_begin_ >= iterations_.length() / 2) {
    long_host_run_begin_ = host_run_begin_;
    long_host_run_ = now_ - host_run_begin_;
  }
  host_run_begin_ = now_;
}

// How many launches after the host began anew its newest one came; nothing: not since the last two times.
std::optional<uint64_t> Residency::PositionInHostRun(const Chunk& chunk) const {
  if (chunk.last_use > host_run_begin_) return chunk.last_use - host_run_begin_;
  if (chunk.last_use > long_host_run_begin_) return chunk.last_use - long_host_run_begin_;
  return std::nullopt;
}

// When a window has just begun: what of the chunks would leave their places for others.
void Residency::ExchangePlacement(const Predictor& predictor) {
  const uint64_t moved = stats_.bytes_in + stats_.bytes_out;
  const uint64_t own =
      2 * (placement_stats_.demoted_bytes + probe_victim_bytes_);  // by what was changed in the window that is over
  const bool still = moved - moved_before_iteration_ <= kStill + own && iterations_.length() == previous_length_;
  // One in which nothing moved at all says as much as two in which little did.
  still_iterations_ = !still                             ? 0
                      : moved == moved_before_iteration_ ? std::max(kStillWindows, still_iterations_ + 1)
                                                         : still_iterations_ + 1;
  placement_stats_ = {
      iterations_.number(), previous_length_, moved - moved_before_iteration_, still_iterations_, 0, 0, 0, 0,
      promote_bytes_};
  moved_before_iteration_ = moved;
  previous_length_ = iterations_.length();
  promotions_chosen_ = seeks_probe_victim_ = false;
  probe_victim_bytes_ = 0;
  if (still_iterations_ < kStillWindows || promote_bytes_ || !may_map_remote_ || prefetch_ != Prefetch::kPredict)
    return;
  // Nothing was used in host memory: nothing waits for a place, and all chunks of the card are many.
  if (last_remote_iteration_ + 1 != iterations_.number()) return;
  std::vector<Chunk*> cold, first, hot;
  chunks_.ForAll([&](Chunk& chunk) {
    if (chunk.link_iteration + 1 != iterations_.number()) return;  // not used in the window that is over
    if (chunk.resident) {
      if (!chunk.live_bytes || chunk.named_at == now_ || !IsLongLived(chunk, 0)) return;
      const bool little = std::max(chunk.link_bytes, chunk.previous_link_bytes) <= kLittle;
      const bool streams = chunk.last_required_at + iterations_.length() < now_;
      if (little || (streams && chunk.link_bytes >= kMuch)) (little ? cold : first).push_back(&chunk);
    } else if (chunk.remote_iteration + 1 == iterations_.number() && chunk.link_bytes >= kMuch) {
      hot.push_back(&chunk);
    }
  });
  placement_stats_.cold_bytes = cold.size() * kChunkBytes;
  placement_stats_.hot_bytes = hot.size() * kChunkBytes;
  std::sort(cold.begin(), cold.end(), [](const Chunk* a, const Chunk* b) { return a->link_bytes < b->link_bytes; });
  if (cold.size() > hot.size()) cold.resize(hot.size());
  if (!cold.empty() || !ExchangeByPasses(predictor, &first, &hot, &cold)) ExchangeByOrder(&first, &hot, &cold);
  cold.resize(std::min<size_t>(cold.size(), kMost / kChunkBytes));
  const uint64_t bytes = cold.size() * kChunkBytes;
  if (bytes < kLeast) {
    promotions_chosen_ = false;
    seeks_probe_victim_ = !own && hot.size() * kChunkBytes >= kLeastOrder && iterations_.number() >= next_probe_victim_;
    return;
  }
  placement_stats_.demoted_bytes = bytes;
  for (Chunk* chunk : cold) {
    chunk->cold = true;
    candidates_.Unrank(chunk);
  }
  promote_bytes_ = bytes;
}

// Of what is used whole, that which is passed over less often in each round makes place for what is passed over once
// more and oftener: an optimizer's first moments for its second. False: there is too little of it. Counted over the
// newest round, since a window is a little longer than one: some is used twice as often in it.
bool Residency::ExchangeByPasses(const Predictor& predictor, std::vector<Chunk*>* first, std::vector<Chunk*>* hot,
                                 std::vector<Chunk*>* cold) {
  if (iterations_.number() < next_exchange_ || first->empty() || hot->empty()) return false;
  for (std::vector<Chunk*>* list : {first, hot}) {
    for (Chunk* chunk : *list) chunk->iteration_uses = 0;
  }
  if (!predictor.ForEachUseInPeriod([](Chunk* chunk) { chunk->iteration_uses += chunk->iteration_uses < UINT16_MAX; }))
    return false;
  std::stable_sort(first->begin(), first->end(),
                   [](const Chunk* a, const Chunk* b) { return a->iteration_uses < b->iteration_uses; });
  // Of what was not named whole each time less.
  const auto passes = [](const Chunk* chunk) {
    const uint32_t whole = std::max(chunk->link_bytes, chunk->previous_link_bytes) / static_cast<uint32_t>(kChunkBytes);
    return std::min<uint32_t>(chunk->iteration_uses, whole);
  };
  std::stable_sort(hot->begin(), hot->end(), [&](const Chunk* a, const Chunk* b) { return passes(a) > passes(b); });
  size_t changes = 0;
  const size_t limit = std::min({first->size(), hot->size(), kMost / kChunkBytes});
  while (changes < limit && (*first)[changes]->iteration_uses < passes((*hot)[changes])) ++changes;
  if (changes * kChunkBytes < kLeastOrder) return false;
  cold->assign(first->begin(), first->begin() + static_cast<std::ptrdiff_t>(changes));
  for (size_t i = 0; i < changes; ++i) (*hot)[i]->promote_iteration = iterations_.number();
  promotions_chosen_ = true;
  next_exchange_ = iterations_.number() + exchange_pause_;
  exchange_pause_ = std::min(64u, 2 * exchange_pause_);
  return true;
}

// `hot` may have more places than the `cold` leave: those of the first half of what follows when the host begins anew,
// where they are used much later themselves. Of who comes then, those are chosen that are used last.
void Residency::ExchangeByOrder(std::vector<Chunk*>* first, std::vector<Chunk*>* hot, std::vector<Chunk*>* cold) {
  const auto place = [this](const Chunk* chunk) { return PositionInHostRun(*chunk).value_or(0); };
  const auto unknown = [this](const Chunk* chunk) { return !PositionInHostRun(*chunk); };
  // Once a round, which a window is a little longer than.
  const bool once = long_host_run_ >= iterations_.length() * 3 / 4 && long_host_run_ <= iterations_.length();
  if (!once || host_run_begin_ + 2 * iterations_.length() < now_ || std::any_of(hot->begin(), hot->end(), unknown)) {
    return;
  }
  std::erase_if(*first, [&](const Chunk* chunk) { return unknown(chunk) || place(chunk) > long_host_run_ / 2; });
  std::sort(first->begin(), first->end(), [&](const Chunk* a, const Chunk* b) { return place(a) < place(b); });
  std::sort(hot->begin(), hot->end(), [&](const Chunk* a, const Chunk* b) { return place(a) > place(b); });
  size_t changes = 0;
  if (iterations_.number() >= next_exchange_) {
    const size_t most = std::min(first->size(), hot->size() - cold->size());
    while (changes < most && place((*first)[changes]) + long_host_run_ / 8 < place((*hot)[cold->size() + changes]))
      ++changes;
  }
  if (changes * kChunkBytes >= kLeastOrder) {
    cold->insert(cold->end(), first->begin(), first->begin() + static_cast<std::ptrdiff_t>(changes));
    placement_stats_.first_used_bytes =
        std::min(changes * kChunkBytes, kMost - std::min(kMost, (cold->size() - changes) * kChunkBytes));
    next_exchange_ = iterations_.number() + exchange_pause_;
    exchange_pause_ = std::min(64u, 2 * exchange_pause_);
  }
  promotions_chosen_ = true;
  for (size_t i = 0; i < std::min(cold->size(), kMost / kChunkBytes); ++i)
    (*hot)[i]->promote_iteration = iterations_.number();
}

std::vector<PlacementRun> Residency::ListPlacement() {
  Settle();
  std::vector<PlacementRun> places;
  const auto alike = [](const PlacementRun& a, const PlacementRun& b) {
    const auto degree = [](uint64_t bytes) { return bytes <= kLittle ? 0 : bytes < kMuch ? 1 : 2; };
    return a.range.end() == b.range.base && a.resident == b.resident && a.long_lived == b.long_lived &&
           a.recently_used == b.recently_used && a.id == b.id && degree(a.link_bytes) == degree(b.link_bytes);
  };
  chunks_.ForAll([&](const Chunk& chunk) {
    if (!chunk.live_bytes) return;
    const PlacementRun place{{chunk.base, kChunkBytes},
                             chunk.resident,
                             IsLongLived(chunk, 0),
                             chunk.link_iteration + 1 >= iterations_.number(),
                             std::max(chunk.link_bytes, chunk.previous_link_bytes),
                             chunk.top_user_id};
    if (!places.empty() && alike(places.back(), place)) {
      places.back().range.bytes += kChunkBytes;
      places.back().link_bytes = std::max(places.back().link_bytes, place.link_bytes);
    } else {
      places.push_back(place);
    }
  });
  return places;
}

// A launch that has all that it names on the card, and was never timed on host memory, may use little of it, as a
// lookup does in a table that was there first: then others had better have the place. Of one that names little beside
// one large operand (a product of many rows does not, and would re-read it) a few chunks leave, so that it is tried;
// each kind once, and ever more rarely.
void Residency::MarkProbeVictims(uint64_t id) {
  const auto [from, end] = DominantOperand();
  if (!end) return;
  const size_t to = from + kLeast / kChunkBytes;
  for (size_t i = from; i < to; ++i) {
    if (!set_[i]->live_bytes || !IsLongLived(*set_[i], id)) return;
  }
  if (!probed_ids_.insert(id).second) return;
  if (probed_ids_.size() > 1024) probed_ids_.clear();
  seeks_probe_victim_ = false;
  next_probe_victim_ = iterations_.number() + probe_victim_pause_;
  probe_victim_pause_ = std::min(64u, 2 * probe_victim_pause_);
  for (size_t i = from; i < to; ++i) {
    set_[i]->cold = set_[i]->probe_victim = true;
    candidates_.Unrank(set_[i]);
  }
  probe_victim_bytes_ = kLeast;
  promote_bytes_ += kLeast;
}

// Whether a launch uses so little of it that it stays in host memory, where it was put to make place. Launches of a
// shape never met before are not timed first: what they name is too little to matter.
bool Residency::KeepsColdRemote(Chunk* chunk, uint64_t id) {
  if (!chunk->cold || OverLink(*chunk, classifier_.IsSparse(id)) > kLittle) return false;
  MapRemote(chunk);
  return true;
}

}  // namespace sluice::policy
