// Residency, placement: which chunks of streaming launches are worth residency.
//
// Assume that all launches stream and nothing moves any more (a decoder that needs twice its budget). Then each
// host-resident chunk costs its link bytes in every iteration, and a resident chunk saves them. An embedding table of
// which a lookup reads four rows saves next to nothing, nor does a key-value cache at its first positions; a weight
// saves all of its 2 MiB. So of two such chunks the one that is used whole is kept resident. A launch uses the bytes
// that it names, where these are known to the byte (extents of library calls, PyTorch's structs). It uses a sixteenth
// of them where it was seen to be done with host memory in a fraction of the link's time (launch_classifier.h).
//
// An exchange of two chunks costs 100 and 22 ms a GiB, once; it saves 24 in each iteration. So chunks are exchanged
// only for a large difference, and only where nothing else has moved for two iterations: a program whose working set
// moves places its chunks anyway.
//
// Then the order counts. A launch on resident chunks is over before the host has queued the next one, and the link
// idles; a launch on host-resident chunks keeps the link busy while the host queues the rest. So a chunk that is used
// first after a host synchronization makes room for one that is used much later.
#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {
constexpr uint32_t kMaxColdBytes = kChunkBytes / 8;  // of a chunk, in an iteration
constexpr uint32_t kMinHotBytes = kChunkBytes / 2;
constexpr uint64_t kMaxStillBytes = uint64_t{16} << 20;  // bytes that may move in an iteration that counts as still
constexpr uint32_t kMinStillIterations = 2;
constexpr uint64_t kMinExchangeBytes = uint64_t{8} << 20;    // less is not worth an exchange
constexpr uint64_t kMaxExchangeBytes = uint64_t{512} << 20;  // at once: 60 ms
constexpr uint64_t kMinOrderBytes = uint64_t{32} << 20;
}  // namespace

void Residency::NoteHostSync() {
  if (now_ - host_run_begin_ >= iterations_.length() / 2) {
    long_host_run_begin_ = host_run_begin_;
    long_host_run_ = now_ - host_run_begin_;
  }
  host_run_begin_ = now_;
}

// Launches between the host's synchronization and the chunk's newest use. Nothing: not used since the last two.
std::optional<uint64_t> Residency::PositionInHostRun(const Chunk& chunk) const {
  if (chunk.last_use > host_run_begin_) return chunk.last_use - host_run_begin_;
  if (chunk.last_use > long_host_run_begin_) return chunk.last_use - long_host_run_begin_;
  return std::nullopt;
}

// At the begin of an iteration: marks cold chunks that are to be demoted, and chunks that are to be promoted in their
// place.
void Residency::ExchangePlacement(const Predictor& predictor) {
  const uint64_t moved = stats_.bytes_in + stats_.bytes_out;
  const uint64_t own_bytes =
      // Moved by the exchanges of the iteration that is over.
      2 * (placement_stats_.demoted_bytes + probe_victim_bytes_);
  const bool still =
      moved - moved_before_iteration_ <= kMaxStillBytes + own_bytes && iterations_.length() == previous_length_;
  // One iteration in which nothing moved says as much as two in which little did.
  still_iterations_ = !still                             ? 0
                      : moved == moved_before_iteration_ ? std::max(kMinStillIterations, still_iterations_ + 1)
                                                         : still_iterations_ + 1;
  placement_stats_ = {
      iterations_.number(), previous_length_, moved - moved_before_iteration_, still_iterations_, 0, 0, 0, 0,
      promote_bytes_};
  moved_before_iteration_ = moved;
  previous_length_ = iterations_.length();
  promotions_chosen_ = seeks_probe_victim_ = false;
  probe_victim_bytes_ = 0;
  if (still_iterations_ < kMinStillIterations || promote_bytes_ || !may_map_remote_ || prefetch_ != Prefetch::kPredict)
    return;
  // Nothing was used remotely: no chunk needs room, and the resident chunks are many to look at.
  if (last_remote_iteration_ + 1 != iterations_.number()) return;
  std::vector<Chunk*> cold, first, hot;
  chunks_.ForAll([&](Chunk& chunk) {
    if (chunk.link_iteration + 1 != iterations_.number()) return;  // not used in the iteration that is over
    if (chunk.resident) {
      if (!chunk.live_bytes || chunk.named_at == now_ || !IsLongLived(chunk, 0)) return;
      const bool is_cold = std::max(chunk.link_bytes, chunk.previous_link_bytes) <= kMaxColdBytes;
      const bool is_streaming = chunk.last_required_at + iterations_.length() < now_;
      if (is_cold || (is_streaming && chunk.link_bytes >= kMinHotBytes)) (is_cold ? cold : first).push_back(&chunk);
    } else if (chunk.remote_iteration + 1 == iterations_.number() && chunk.link_bytes >= kMinHotBytes) {
      hot.push_back(&chunk);
    }
  });
  placement_stats_.cold_bytes = cold.size() * kChunkBytes;
  placement_stats_.hot_bytes = hot.size() * kChunkBytes;
  std::sort(cold.begin(), cold.end(), [](const Chunk* a, const Chunk* b) { return a->link_bytes < b->link_bytes; });
  if (cold.size() > hot.size()) cold.resize(hot.size());
  if (!cold.empty() || !ExchangeByPasses(predictor, &first, &hot, &cold)) ExchangeByOrder(&first, &hot, &cold);
  cold.resize(std::min<size_t>(cold.size(), kMaxExchangeBytes / kChunkBytes));
  const uint64_t bytes = cold.size() * kChunkBytes;
  if (bytes < kMinExchangeBytes) {
    promotions_chosen_ = false;
    seeks_probe_victim_ =
        !own_bytes && hot.size() * kChunkBytes >= kMinOrderBytes && iterations_.number() >= next_probe_victim_;
    return;
  }
  placement_stats_.demoted_bytes = bytes;
  for (Chunk* chunk : cold) {
    chunk->cold = true;
    candidates_.Unrank(chunk);
  }
  promote_bytes_ = bytes;
}

// Among chunks that are used whole, those with fewer passes in an iteration make room for those with at least one pass
// more: an optimizer's first moments for its second. False: too few such chunks. Counted over the predictor's newest
// period, since an iteration is a little longer: some chunks are used twice as often in it.
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
  // Fewer, where it was not named whole each time.
  const auto passes = [](const Chunk* chunk) {
    const uint32_t whole = std::max(chunk->link_bytes, chunk->previous_link_bytes) / static_cast<uint32_t>(kChunkBytes);
    return std::min<uint32_t>(chunk->iteration_uses, whole);
  };
  std::stable_sort(hot->begin(), hot->end(), [&](const Chunk* a, const Chunk* b) { return passes(a) > passes(b); });
  size_t changes = 0;
  const size_t limit = std::min({first->size(), hot->size(), kMaxExchangeBytes / kChunkBytes});
  while (changes < limit && (*first)[changes]->iteration_uses < passes((*hot)[changes])) ++changes;
  if (changes * kChunkBytes < kMinOrderBytes) return false;
  cold->assign(first->begin(), first->begin() + static_cast<std::ptrdiff_t>(changes));
  for (size_t i = 0; i < changes; ++i) (*hot)[i]->promote_iteration = iterations_.number();
  promotions_chosen_ = true;
  next_exchange_ = iterations_.number() + exchange_pause_;
  exchange_pause_ = std::min(64u, 2 * exchange_pause_);
  return true;
}

// `hot` may get more room than the `cold` chunks leave: that of chunks used in the first half of a host run, for hot
// ones that are used much later. Of the hot chunks those used last are promoted.
void Residency::ExchangeByOrder(std::vector<Chunk*>* first, std::vector<Chunk*>* hot, std::vector<Chunk*>* cold) {
  const auto position = [this](const Chunk* chunk) { return PositionInHostRun(*chunk).value_or(0); };
  const auto unknown = [this](const Chunk* chunk) { return !PositionInHostRun(*chunk); };
  // One synchronization in an iteration, which is a little longer than a period.
  const bool once = long_host_run_ >= iterations_.length() * 3 / 4 && long_host_run_ <= iterations_.length();
  if (!once || host_run_begin_ + 2 * iterations_.length() < now_ || std::any_of(hot->begin(), hot->end(), unknown)) {
    return;
  }
  std::erase_if(*first, [&](const Chunk* chunk) { return unknown(chunk) || position(chunk) > long_host_run_ / 2; });
  std::sort(first->begin(), first->end(), [&](const Chunk* a, const Chunk* b) { return position(a) < position(b); });
  std::sort(hot->begin(), hot->end(), [&](const Chunk* a, const Chunk* b) { return position(a) > position(b); });
  size_t changes = 0;
  if (iterations_.number() >= next_exchange_) {
    const size_t limit = std::min(first->size(), hot->size() - cold->size());
    while (changes < limit &&
           position((*first)[changes]) + long_host_run_ / 8 < position((*hot)[cold->size() + changes]))
      ++changes;
  }
  if (changes * kChunkBytes >= kMinOrderBytes) {
    cold->insert(cold->end(), first->begin(), first->begin() + static_cast<std::ptrdiff_t>(changes));
    placement_stats_.first_used_bytes = std::min(
        changes * kChunkBytes, kMaxExchangeBytes - std::min(kMaxExchangeBytes, (cold->size() - changes) * kChunkBytes));
    next_exchange_ = iterations_.number() + exchange_pause_;
    exchange_pause_ = std::min(64u, 2 * exchange_pause_);
  }
  promotions_chosen_ = true;
  for (size_t i = 0; i < std::min(cold->size(), kMaxExchangeBytes / kChunkBytes); ++i)
    (*hot)[i]->promote_iteration = iterations_.number();
}

std::vector<PlacementRun> Residency::ListPlacement() {
  Settle();
  std::vector<PlacementRun> places;
  const auto alike = [](const PlacementRun& a, const PlacementRun& b) {
    const auto degree = [](uint64_t bytes) { return bytes <= kMaxColdBytes ? 0 : bytes < kMinHotBytes ? 1 : 2; };
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

// A launch whose set is resident, and that was never timed on host memory, may use little of the set: a lookup in a
// table that was fetched first. Other chunks had better have that room. If the launch names little beside one large
// operand, a few of the operand's chunks are evicted to probe it (a product of many rows names more, and would re-read
// it). Each id is probed once, and ids ever more rarely.
void Residency::MarkProbeVictims(uint64_t id) {
  const auto [from, end] = DominantOperand();
  if (!end) return;
  const size_t to = from + kMinExchangeBytes / kChunkBytes;
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
  probe_victim_bytes_ = kMinExchangeBytes;
  promote_bytes_ += kMinExchangeBytes;
}

// Whether a demoted chunk stays in host memory for this launch, which uses little of it. Launches of a new shape are
// not timed first: they name too little to matter.
bool Residency::KeepsColdRemote(Chunk* chunk, uint64_t id) {
  if (!chunk->cold || OverLink(*chunk, classifier_.IsSparse(id)) > kMaxColdBytes) return false;
  MapRemote(chunk);
  return true;
}

}  // namespace sluice::policy
