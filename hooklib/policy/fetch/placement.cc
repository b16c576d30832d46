// Residency, placement: which chunks of streaming launches are worth residency.
//
// Assume that all launches stream and nothing moves any more (a decoder that needs twice its budget). Then each
// host-resident chunk costs its link bytes in every iteration, and a resident chunk saves them. An embedding table of
// which a lookup reads four rows saves next to nothing, nor does a key-value cache at its first positions; a weight
// saves all of its 2 MiB. So of two such chunks the one that is used whole is kept resident. A launch uses the bytes
// that it names, where these are known to the byte (extents of library calls, PyTorch's structs). It uses a sixteenth
// of them where it was seen to be done with host memory in a fraction of the link's time (launch_classifier.h).
//
// An exchange of two chunks costs a write-back and a fetch, once; a remote pass, which it saves in each iteration,
// takes half of that or less (cost/link_model.h). So chunks are exchanged only for a large difference, and only where
// nothing else has moved for two iterations: a program whose working set moves places its chunks anyway.
//
// Then the order counts. A launch on resident chunks is over before the host has queued the next one, and the link
// idles; a launch on host-resident chunks keeps the link busy while the host queues the rest. So a chunk that is used
// first after a host synchronization makes room for one that is used much later.
#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/fetch/remote_access.h"

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

void RemoteAccess::NoteHostSync() {
  if (now_ - placement_.host_run_begin >= iterations_.length() / 2) {
    placement_.long_host_run_begin = placement_.host_run_begin;
    placement_.long_host_run = now_ - placement_.host_run_begin;
  }
  placement_.host_run_begin = now_;
}

// Launches between the host's synchronization and the chunk's newest use. Nothing: not used since the last two.
std::optional<uint64_t> RemoteAccess::PositionInHostRun(const Chunk& chunk) const {
  if (chunk.last_use > placement_.host_run_begin) return chunk.last_use - placement_.host_run_begin;
  if (chunk.last_use > placement_.long_host_run_begin) return chunk.last_use - placement_.long_host_run_begin;
  return std::nullopt;
}

// At the begin of an iteration: marks cold chunks that are to be demoted, and chunks that are to be promoted in their
// place.
void RemoteAccess::ExchangePlacement(const Predictor& predictor) {
  const uint64_t moved = stats_.bytes_in + stats_.bytes_out;
  const uint64_t own_bytes =
      // Moved by the exchanges of the iteration that is over.
      2 * (placement_.stats.demoted_bytes + placement_.victim_bytes);
  const bool still = moved - placement_.moved_bytes_before <= kMaxStillBytes + own_bytes &&
                     iterations_.length() == placement_.previous_length;
  // One iteration in which nothing moved says as much as two in which little did.
  placement_.still_iterations = !still ? 0
                                : moved == placement_.moved_bytes_before
                                    ? std::max(kMinStillIterations, placement_.still_iterations + 1)
                                    : placement_.still_iterations + 1;
  placement_.stats = {iterations_.number(),
                      placement_.previous_length,
                      moved - placement_.moved_bytes_before,
                      placement_.still_iterations,
                      0,
                      0,
                      0,
                      0,
                      placement_.promote_bytes};
  placement_.moved_bytes_before = moved;
  placement_.previous_length = iterations_.length();
  placement_.promotions_chosen = seeks_probe_victim_ = false;
  placement_.victim_bytes = 0;
  if (placement_.still_iterations < kMinStillIterations || placement_.promote_bytes || !may_map_remote_ ||
      prefetch_ != Prefetch::kPredict)
    return;
  // Nothing was used remotely: no chunk needs room, and the resident chunks are many to look at.
  if (placement_.last_remote_iteration + 1 != iterations_.number()) return;
  std::vector<Chunk*> cold, first, hot;
  chunks_.ForAll([&](Chunk& chunk) {
    if (chunk.link_iteration + 1 != iterations_.number()) return;  // not used in the iteration that is over
    if (chunk.resident()) {
      if (!chunk.live_bytes || chunk.named_at == now_ || !IsLongLived(chunk, 0)) return;
      const bool is_cold = std::max(chunk.link_bytes, chunk.previous_link_bytes) <= kMaxColdBytes;
      const bool is_streaming = chunk.last_required_at + iterations_.length() < now_;
      if (is_cold || (is_streaming && chunk.link_bytes >= kMinHotBytes)) (is_cold ? cold : first).push_back(&chunk);
    } else if (chunk.remote_iteration + 1 == iterations_.number() && chunk.link_bytes >= kMinHotBytes) {
      hot.push_back(&chunk);
    }
  });
  placement_.stats.cold_bytes = cold.size() * kChunkBytes;
  placement_.stats.hot_bytes = hot.size() * kChunkBytes;
  std::sort(cold.begin(), cold.end(), [](const Chunk* a, const Chunk* b) { return a->link_bytes < b->link_bytes; });
  if (cold.size() > hot.size()) cold.resize(hot.size());
  if (!cold.empty() || !ExchangeByPasses(predictor, &first, &hot, &cold)) ExchangeByOrder(&first, &hot, &cold);
  cold.resize(std::min<size_t>(cold.size(), kMaxExchangeBytes / kChunkBytes));
  const uint64_t bytes = cold.size() * kChunkBytes;
  if (bytes < kMinExchangeBytes) {
    placement_.promotions_chosen = false;
    seeks_probe_victim_ =
        !own_bytes && hot.size() * kChunkBytes >= kMinOrderBytes && iterations_.number() >= placement_.next_victim;
    return;
  }
  placement_.stats.demoted_bytes = bytes;
  for (Chunk* chunk : cold) {
    chunk->cold = true;
    candidates_.Unrank(chunk);
  }
  placement_.promote_bytes = bytes;
}

// Among chunks that are used whole, those with fewer passes in an iteration make room for those with at least one pass
// more: an optimizer's first moments for its second. False: too few such chunks. Counted over the predictor's newest
// period, since an iteration is a little longer: some chunks are used twice as often in it.
bool RemoteAccess::ExchangeByPasses(const Predictor& predictor, std::vector<Chunk*>* first, std::vector<Chunk*>* hot,
                                    std::vector<Chunk*>* cold) {
  if (iterations_.number() < placement_.next_exchange || first->empty() || hot->empty()) return false;
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
  placement_.promotions_chosen = true;
  placement_.next_exchange = iterations_.number() + placement_.exchange_pause;
  placement_.exchange_pause = std::min(64u, 2 * placement_.exchange_pause);
  return true;
}

// `hot` may get more room than the `cold` chunks release: that of chunks used in the first half of a host run, for hot
// ones that are used much later. Of the hot chunks those used last are promoted.
void RemoteAccess::ExchangeByOrder(std::vector<Chunk*>* first, std::vector<Chunk*>* hot, std::vector<Chunk*>* cold) {
  const auto position = [this](const Chunk* chunk) { return PositionInHostRun(*chunk).value_or(0); };
  const auto unknown = [this](const Chunk* chunk) { return !PositionInHostRun(*chunk); };
  // One synchronization in an iteration, which is a little longer than a period.
  const bool once =
      placement_.long_host_run >= iterations_.length() * 3 / 4 && placement_.long_host_run <= iterations_.length();
  if (!once || placement_.host_run_begin + 2 * iterations_.length() < now_ ||
      std::any_of(hot->begin(), hot->end(), unknown)) {
    return;
  }
  std::erase_if(*first,
                [&](const Chunk* chunk) { return unknown(chunk) || position(chunk) > placement_.long_host_run / 2; });
  std::sort(first->begin(), first->end(), [&](const Chunk* a, const Chunk* b) { return position(a) < position(b); });
  std::sort(hot->begin(), hot->end(), [&](const Chunk* a, const Chunk* b) { return position(a) > position(b); });
  size_t changes = 0;
  if (iterations_.number() >= placement_.next_exchange) {
    const size_t limit = std::min(first->size(), hot->size() - cold->size());
    while (changes < limit &&
           position((*first)[changes]) + placement_.long_host_run / 8 < position((*hot)[cold->size() + changes]))
      ++changes;
  }
  if (changes * kChunkBytes >= kMinOrderBytes) {
    cold->insert(cold->end(), first->begin(), first->begin() + static_cast<std::ptrdiff_t>(changes));
    placement_.stats.first_used_bytes = std::min(
        changes * kChunkBytes, kMaxExchangeBytes - std::min(kMaxExchangeBytes, (cold->size() - changes) * kChunkBytes));
    placement_.next_exchange = iterations_.number() + placement_.exchange_pause;
    placement_.exchange_pause = std::min(64u, 2 * placement_.exchange_pause);
  }
  placement_.promotions_chosen = true;
  for (size_t i = 0; i < std::min(cold->size(), kMaxExchangeBytes / kChunkBytes); ++i)
    (*hot)[i]->promote_iteration = iterations_.number();
}

std::vector<PlacementRun> RemoteAccess::ListPlacement() {
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
                             chunk.resident(),
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
void RemoteAccess::MarkProbeVictims(uint64_t id) {
  const auto [from, end] = DominantOperand();
  if (!end) return;
  const size_t to = from + kMinExchangeBytes / kChunkBytes;
  for (size_t i = from; i < to; ++i) {
    if (!set_[i]->live_bytes || !IsLongLived(*set_[i], id)) return;
  }
  if (!placement_.probed_ids.insert(id).second) return;
  if (placement_.probed_ids.size() > 1024) placement_.probed_ids.clear();
  seeks_probe_victim_ = false;
  placement_.next_victim = iterations_.number() + placement_.victim_pause;
  placement_.victim_pause = std::min(64u, 2 * placement_.victim_pause);
  for (size_t i = from; i < to; ++i) {
    set_[i]->cold = set_[i]->probe_victim = true;
    candidates_.Unrank(set_[i]);
  }
  placement_.victim_bytes = kMinExchangeBytes;
  placement_.promote_bytes += kMinExchangeBytes;
}

// Whether a demoted chunk stays in host memory for this launch, which uses little of it. Launches of a new shape are
// not timed first: they name too little to matter.
bool RemoteAccess::KeepsColdRemote(Chunk* chunk, uint64_t id) {
  if (!chunk->cold || OverLink(*chunk, classifier_.IsSparse(id)) > kMaxColdBytes) return false;
  if (placement_.promote_bytes >= kChunkBytes && !placement_.promotions_chosen) {  // room that nothing else needs
    chunk->cold = false;
    return false;
  }
  MapRemote(chunk);
  return true;
}

}  // namespace sluice::policy
