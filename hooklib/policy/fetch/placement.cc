// Residency, placement: which chunks of streaming launches are worth residency.
//
// Assume that all launches stream and nothing moves any more (a decoder that needs twice its budget). Then each
// host-resident chunk costs its link bytes in every iteration, and a resident chunk saves them. An embedding table of
// which a lookup reads four rows saves next to nothing, nor does a key-value cache at its first positions; a weight
// saves all of its 2 MiB. So of two such chunks the one that is used more is kept resident. A launch uses the bytes
// that it names, where these are known to the byte (extents of library calls, PyTorch's structs), and no more than the
// share of its chunks that it was seen to touch, by its time in host memory (launch_classifier.h).
//
// An exchange of two chunks costs a write-back and a fetch, once; a remote pass, which it saves in each iteration,
// takes half of that or less (cost/link_model.h). So chunks are exchanged only for a large difference, and only where
// nothing else has moved for two iterations: a program whose working set moves places its chunks anyway.
//
// Then the order counts. A launch on resident chunks is over before the host has queued the next one, and the link
// idles; a launch on host-resident chunks keeps the link busy while the host queues the rest. So a chunk that is used
// first after a host synchronization makes room for one of equal use that is used much later.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <tuple>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/fetch/remote_access.h"

namespace sluice::policy {

namespace {
constexpr uint32_t kMaxColdBytes = kChunkBytes / 8;  // of a chunk, in an iteration
// The least by which the uses of two exchanged chunks differ. An exchange costs two to three passes over a chunk, once.
constexpr uint32_t kMinGain = 3;
constexpr uint64_t kMaxStillBytes = uint64_t{16} << 20;  // bytes that may move in an iteration that counts as still
constexpr uint32_t kMinStillIterations = 2;
constexpr uint64_t kMinExchangeBytes = uint64_t{8} << 20;    // less is not worth an exchange
constexpr uint64_t kMaxExchangeBytes = uint64_t{512} << 20;  // at once: 60 ms
constexpr uint64_t kMinProbeBytes = uint64_t{32} << 20;
constexpr uint32_t kMaxPause = 64, kStillGap = 16;  // iterations
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

// Whether no launch named the chunk in the last two iterations. Nothing tells of uses without a name; a chunk that such
// a use brought back once is used (touched/unnamed_faults.cc).
bool RemoteAccess::IsUnused(const Chunk& chunk) const {
  const bool came_back = chunk.unnamed_by_faults && chunk.unnamed_out && chunk.last_use <= chunk.touched_at;
  return chunk.link_iteration + 2 < iterations_.number() && chunk.last_use + 2 * iterations_.length() < now_ &&
         !came_back;
}

// The chunk's link bytes in the iteration that is over. Of a resident chunk the most, and of a host-resident one the
// least of it and the one before: a use of one iteration alone changes no place.
uint32_t RemoteAccess::LinkBytesOf(const Chunk& chunk) const {
  if (chunk.resident() && IsUnused(chunk)) return 0;
  const auto [least, most] = std::minmax(chunk.link_bytes, chunk.previous_link_bytes);
  return chunk.resident() ? most : least;
}

// The same in eighths of a chunk.
uint32_t RemoteAccess::UseOf(const Chunk& chunk) const { return LinkBytesOf(chunk) / (kChunkBytes / 8); }

bool RemoteAccess::IsCold(const Chunk& chunk) const { return LinkBytesOf(chunk) <= kMaxColdBytes; }

// At the begin of an iteration: marks chunks that are to be demoted, and chunks that are to be promoted in their place.
// `repeats`: launches follow a period, so that the uses of an iteration tell those of the next.
void RemoteAccess::ExchangePlacement(bool repeats) {
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
  // Nothing was used remotely: no chunk needs room, and the resident chunks are many to look at. So they are in long
  // stillness.
  if (placement_.last_remote_iteration + 1 != iterations_.number() || iterations_.number() < placement_.next_exchange ||
      (placement_.still_iterations > kMaxPause && placement_.still_iterations % kStillGap))
    return;
  Settle();
  std::vector<Chunk*> resident, remote;
  size_t cold_chunks = 0;
  chunks_.ForAll([&](Chunk& chunk) {
    const bool is_used = chunk.link_iteration + 1 == iterations_.number();
    if (chunk.resident()) {
      if (!chunk.live_bytes || chunk.named_at == now_ || !IsLongLived(chunk, 0) || !(is_used || IsUnused(chunk)))
        return;
      cold_chunks += IsCold(chunk);
      if (IsCold(chunk) || chunk.last_required_at + iterations_.length() < now_) resident.push_back(&chunk);
    } else if (is_used && chunk.remote_iteration + 1 == iterations_.number() && UseOf(chunk) >= kMinGain) {
      remote.push_back(&chunk);
    }
  });
  placement_.stats.cold_bytes = cold_chunks * kChunkBytes;
  placement_.stats.hot_bytes = remote.size() * kChunkBytes;
  std::vector<Exchange> exchanges;
  if (!remote.empty()) exchanges = ExchangeByUse(repeats, &resident, &remote);
  const size_t by_use = exchanges.size();
  if (by_use < remote.size())
    ExchangeByOrder(std::span(resident).subspan(by_use), std::span(remote).subspan(by_use), &exchanges);
  const uint64_t bytes = exchanges.size() * kChunkBytes;
  if (bytes < kMinExchangeBytes) {
    seeks_probe_victim_ =
        !own_bytes && remote.size() * kChunkBytes >= kMinProbeBytes && iterations_.number() >= placement_.next_victim;
    return;
  }
  bool undoes = false;
  for (const auto& [demoted, promoted] : exchanges) {
    undoes |= demoted->promote_iteration && demoted->promote_iteration + 2 * kMaxPause > iterations_.number();
    demoted->cold = true;
    candidates_.Unrank(demoted);
    promoted->promote_iteration = iterations_.number();
  }
  // Uses that change to and fro are followed ever more rarely.
  if (iterations_.number() > placement_.next_exchange + 4 * kMaxPause) placement_.exchange_pause = 2;
  if (undoes) {
    placement_.next_exchange = iterations_.number() + placement_.exchange_pause;
    placement_.exchange_pause = std::min(kMaxPause, 2 * placement_.exchange_pause);
  }
  placement_.promotions_chosen = true;
  placement_.stats.demoted_bytes = placement_.promote_bytes = bytes;
  placement_.stats.first_used_bytes = (exchanges.size() - by_use) * kChunkBytes;
}

// Resident chunks make room for host-resident ones of which an iteration uses more: an embedding table for weights, an
// optimizer's first moments for its second, the pages of a cache for weights. Sorts both lists: by their use, and where
// that is equal, those of `resident` that are used first after the host waited come first, of `remote` those used last.
std::vector<RemoteAccess::Exchange> RemoteAccess::ExchangeByUse(bool repeats, std::vector<Chunk*>* resident,
                                                                std::vector<Chunk*>* remote) {
  const auto position = [this](const Chunk* chunk) { return PositionInHostRun(*chunk).value_or(0); };
  std::stable_sort(resident->begin(), resident->end(), [&](const Chunk* a, const Chunk* b) {
    return std::tuple(!IsCold(*a), UseOf(*a), position(a)) < std::tuple(!IsCold(*b), UseOf(*b), position(b));
  });
  std::stable_sort(remote->begin(), remote->end(), [&](const Chunk* a, const Chunk* b) {
    return std::tuple(UseOf(*a), position(a)) > std::tuple(UseOf(*b), position(b));
  });
  std::vector<Exchange> exchanges;
  const size_t limit = std::min({resident->size(), remote->size(), kMaxExchangeBytes / kChunkBytes});
  while (exchanges.size() < limit) {
    Chunk* const less = (*resident)[exchanges.size()];
    Chunk* const more = (*remote)[exchanges.size()];
    if (UseOf(*less) + kMinGain > UseOf(*more) || !(repeats || IsCold(*less))) break;
    exchanges.emplace_back(less, more);
  }
  return exchanges;
}

// Resident chunks that are used in the first half of a host run make room for host-resident ones of about the same use
// that are used much later.
void RemoteAccess::ExchangeByOrder(std::span<Chunk*> resident, std::span<Chunk*> remote,
                                   std::vector<Exchange>* exchanges) {
  const auto position = [this](const Chunk* chunk) { return PositionInHostRun(*chunk).value_or(0); };
  const auto unknown = [this](const Chunk* chunk) { return !PositionInHostRun(*chunk); };
  // One synchronization in an iteration, which is a little longer than a period.
  const uint64_t run = placement_.long_host_run;
  const bool once = run >= iterations_.length() * 3 / 4 && run <= iterations_.length();
  if (!once || placement_.host_run_begin + 2 * iterations_.length() < now_ || std::ranges::any_of(remote, unknown))
    return;
  // By use, each in the order of positions.
  std::map<uint32_t, std::deque<Chunk*>> early;
  std::ranges::sort(resident, {}, position);
  for (Chunk* chunk : resident) {
    if (!IsCold(*chunk) && !unknown(chunk) && position(chunk) <= run / 2) early[UseOf(*chunk)].push_back(chunk);
  }
  std::ranges::sort(remote, std::greater{}, position);
  for (Chunk* late : remote) {
    std::deque<Chunk*>* first = nullptr;  // of those that are used about as much, at most
    for (auto& [use, chunks] : early) {
      if (use > UseOf(*late) + 1) break;
      if (!chunks.empty() && (!first || position(chunks.front()) < position(first->front()))) first = &chunks;
    }
    if (!first) continue;
    if (position(first->front()) + run / 8 >= position(late) || exchanges->size() >= kMaxExchangeBytes / kChunkBytes)
      break;
    exchanges->emplace_back(first->front(), late);
    first->pop_front();
  }
}

std::vector<PlacementRun> RemoteAccess::ListPlacement() {
  Settle();
  std::vector<PlacementRun> places;
  const auto alike = [](const PlacementRun& a, const PlacementRun& b) {
    const auto degree = [](uint64_t bytes) { return bytes <= kMaxColdBytes ? 0 : bytes < kChunkBytes / 2 ? 1 : 2; };
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
  placement_.victim_pause = std::min(kMaxPause, 2 * placement_.victim_pause);
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
  if (!chunk->cold || OverLink(*chunk, classifier_.TouchedShare(id)) > kMaxColdBytes) return false;
  if (placement_.promote_bytes >= kChunkBytes && !placement_.promotions_chosen) {  // room that nothing else needs
    chunk->cold = false;
    return false;
  }
  MapRemote(chunk);
  return true;
}

}  // namespace sluice::policy
