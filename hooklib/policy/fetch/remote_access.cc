// Residency, remote access: the chunks that a launch uses in host memory, or leaves to demand faults, instead of a
// fetch.
//
// Mapping a chunk in host memory takes 0.1 ms and waits for the evictions in flight. By the driver's call it also makes
// each later eviction of the chunk cost more (100 ms a GiB instead of 70). So it pays only for a chunk that is used
// remotely for longer than it would have stayed resident. Chunks that other launches soon require resident, or that are
// allocated and freed within an iteration (activations), are fetched. On an H200 a convolution net's step took 243 ms
// and more where such chunks were mapped too, and 202 where none was.
#include "hooklib/policy/fetch/remote_access.h"

#include <algorithm>
#include <utility>

namespace sluice::policy {

namespace {
constexpr uint64_t kMinDominantBytes = uint64_t{32} << 20;
}  // namespace

bool RemoteAccess::UsesRemoteAccess(const LaunchProbe& probe) {
  return classifier_.ClassOf(probe.id, probe.oversize, now_) == LaunchClassifier::AccessClass::kStreaming;
}

bool RemoteAccess::NoteMeasured(const LaunchProbe& probe, uint64_t ns) {
  const bool settles = classifier_.NoteMeasured(probe, ns, now_);
  if (classifier_.TakeLeftRemote()) chunks_.ForAll([](Chunk& chunk) { chunk.remote_uses = 0; });
  return settles;
}

void RemoteAccess::NoteGapAfter(const GraphProbe& probe, uint64_t gap_ns, uint64_t eviction_ns) {
  graph_strategies_.NoteGapAfter(probe, gap_ns, eviction_ns);
}

void RemoteAccess::EndIteration(const StreamQueues& queues) {
  constexpr uint64_t kMarginBytes = uint64_t{128} << 20;
  placement_.promote_bytes =
      min_slack_bytes_ > kMarginBytes && placement_.promotion_pause == 0 ? min_slack_bytes_ - kMarginBytes : 0;
  if (placement_.promotion_pause) --placement_.promotion_pause;
  ScheduleSamples();
  min_slack_bytes_ = kNever;
  iterations_.Begin(now_);
  ExchangePlacement(queues.predictor.period() != 0);
}

// Whether the chunk is used remotely for longer than it would stay resident. `id`, whose launches stream, uses it now,
// and the next launch that requires it resident comes only after it would have been evicted.
bool RemoteAccess::StaysRemote(const Predictor& predictor, const Chunk& chunk, uint64_t id) {
  if (iterations_.number() == 1) return IsLongLived(chunk, id);
  if (CheaperSwapped(chunk)) return false;
  const auto next = predictor.NextRequiredUse(chunk, [this](uint64_t other) {
    return classifier_.ClassOf(other, false, now_) != LaunchClassifier::AccessClass::kStreaming;
  });
  // Half of the mean: evicted chunks are those that were used last.
  return next ? *next > reuse_distance_x64_ / 128 : IsLongLived(chunk, id);
}

// The range of set_ with a large operand beside which the launch names little; {0, 0}: none. A product reads an operand
// once for 256 rows of the other, so such launches pass over it once or twice, or use a part of it.
std::pair<size_t, size_t> RemoteAccess::DominantOperand() const {
  uint64_t all = 0, largest = 0;
  size_t at = 0;
  for (size_t i = 0; i < operands_.size(); ++i) {
    all += operands_[i].bytes;
    if (operands_[i].bytes > largest) largest = operands_[at = i].bytes;
  }
  const size_t begin = at ? operands_[at - 1].end : 0;
  const bool dominates = largest >= kMinDominantBytes && all - largest <= largest / 8;
  // Not where another operand before names much of it.
  if (!dominates || (operands_[at].end - begin + 2) * kChunkBytes < largest) return {0, 0};
  return {begin, operands_[at].end};
}

void RemoteAccess::SelectRemote(StreamId stream, uint64_t id, bool oversize) {
  using AccessClass = LaunchClassifier::AccessClass;
  const bool duplicates =
      std::all_of(missing_.begin(), missing_.end(), [this](const Chunk* chunk) { return MayDuplicate(*chunk); });
  const AccessClass access_class = classifier_.ClassOf(id, oversize, now_, duplicates);
  std::erase_if(missing_, [this](const Chunk* chunk) { return IsBeingProbed(*chunk); });
  uint64_t stay_bytes = 0;
  if (!classifier_.IsSlowRemote(id, oversize)) {
    stay_bytes = kChunkBytes * std::erase_if(missing_, [&](Chunk* chunk) {
                   return !IsDiscarded(chunk, stream) && KeepsColdRemote(chunk, id);
                 });
  }
  // The host had to wait for a probe, so it queues many launches, and all of them wait behind a slow probe.
  const bool is_awaited = classifier_.ShouldAwait(id);
  classifier_.NoteMissing(id, oversize, missing_.size() * kChunkBytes, capacity_);
  if (access_class == AccessClass::kFetch) return;
  const bool by_faults = access_class == AccessClass::kFaulting || access_class == AccessClass::kUnknownFaulting;
  const bool is_probe = access_class == AccessClass::kUnknown || access_class == AccessClass::kUnknownFaulting;
  const uint64_t need = missing_.size() * kChunkBytes;
  const uint64_t resident = set_.size() * kChunkBytes - need;
  uint64_t max_stay_bytes = kNever;
  bool only_cheaper_remote = false;  // only chunks that are cheaper remote stay
  if (is_probe) {
    if (!oversize) {
      const uint64_t room = Room(stream);
      // Nothing has to be evicted for it now; but chunks that were swapped so far will be.
      only_cheaper_remote = room >= need || room + DiscardableBytes(need - room, stream) >= need;
      const auto cheaper_remote = [this](const Chunk* chunk) { return CheaperRemote(*chunk); };
      if (only_cheaper_remote && (by_faults || std::none_of(missing_.begin(), missing_.end(), cheaper_remote))) return;
    }
    // For faults all that cannot be resident is probed, so that nothing else takes its time, and nothing is fetched
    // that the launch may not touch.
    if (!oversize || !by_faults) {
      max_stay_bytes = oversize ? set_.size() * kChunkBytes - RoundDown(capacity_, kChunkBytes)
                                : LaunchClassifier::ProbeBytes(access_class, resident);
    }
    // For a lookup the whole table would be fetched. Not once a launch has re-read its probe.
    if (!oversize && !by_faults && !is_awaited && !classifier_.probe_stats().slow_probes && DominantOperand().second)
      max_stay_bytes = kNever;
  }
  bool blocked = false;
  RemoteShare share;
  if (access_class == AccessClass::kFaulting && oversize) share = classifier_.ShareOf(id, need);
  uint64_t mapped_bytes = 0, remote_bytes = 0;
  // More uses in an iteration cost more over the link than a fetch and an eviction. But a launch over a list of tensors
  // names each of them whole and passes over a part (PyTorch's optimizers).
  constexpr uint16_t kMaxUses = 20;
  uint64_t used_bytes = 0;  // bytes that it names of the chunks that stay
  std::erase_if(missing_, [&](Chunk* chunk) {
    // A chunk that was discarded or never written has no host pages worth a remote use: its fetch moves nothing.
    if (!chunk->has_contents() || IsDiscarded(chunk, stream)) return false;
    if ((oversize ? stay_bytes : used_bytes) >= max_stay_bytes || (by_faults && MayDuplicate(*chunk))) return false;
    if (!oversize && access_class != AccessClass::kFaulting &&
        !(is_probe ? IsLongLived(*chunk, id) : StaysRemote(queues_[stream].predictor, *chunk, id)))
      return false;
    if (only_cheaper_remote && !CheaperRemote(*chunk)) return false;
    // A chunk whose eviction is in flight would be resident for the probe. A launch larger than the capacity always has
    // such chunks.
    if (is_probe && !oversize && IsEvicting(*chunk)) {
      blocked = true;
      return false;
    }
    // It was demoted when little of it was used. Its launches were not timed since, and may read it repeatedly.
    if (is_probe && chunk->cold && !chunk->probe_victim) return false;
    if (chunk->remote_iteration != iterations_.number()) {
      chunk->remote_iteration = placement_.last_remote_iteration = iterations_.number();
      chunk->remote_uses = 0;
    }
    // Pages that faults brought would stay resident without being counted: these are evicted first.
    if (oversize && !is_probe && !by_faults && chunk->has_fault_residue() && !chunk->mapped_remote()) {
      fault_residue_.SweepSoon();
      last_demand_paged_ = chunk->demand_paged_at = now_;
      return false;
    }
    if (share.stride && chunk->base / kChunkBytes % share.stride == 0 &&
        (chunk->mapped_remote() ||
         (mapped_bytes + kChunkBytes <= share.max_new_bytes && !chunk->has_fault_residue()))) {
      if (!chunk->mapped_remote()) mapped_bytes += kChunkBytes;
      remote_bytes += kChunkBytes;
      stay_bytes += kChunkBytes;
      MapRemote(chunk);
      return true;
    }
    if (by_faults && (is_probe || !chunk->mapped_remote() || chunk->remote_uses == 0)) {
      UnmapRemote(chunk);
      chunk->demand_paged_at = now_;
      stay_bytes += kChunkBytes;
      used_bytes += chunk->named_bytes;
      return false;
    }
    if (access_class == AccessClass::kStreaming && !oversize) {
      if (chunk->remote_uses >= kMaxUses) {
        NoteRequired(chunk, 0, 16);
        return false;
      }
      if (placement_.promote_bytes >= kChunkBytes &&
          (!placement_.promotions_chosen || chunk->promote_iteration == iterations_.number())) {
        placement_.promote_bytes -= kChunkBytes;
        return false;
      }
    }
    ++chunk->remote_uses;
    stay_bytes += kChunkBytes;
    used_bytes += chunk->named_bytes;
    MapRemote(chunk);
    chunk->SetProbed(is_probe);
    return true;
  });
  if (stay_bytes && by_faults) {
    ++stats_.demand_paged_launches;
    last_demand_paged_ = now_;
  }
  if (mapped_bytes) classifier_.NoteMapped(id, mapped_bytes);
  // Not all of it can be mapped at once; each part is touched alike in the mean.
  const bool is_part = share.stride && remote_bytes > need / share.stride / 2;
  const uint32_t stride = !by_faults ? 1 : is_part ? share.stride : 0;
  if (stay_bytes && (is_probe || classifier_.IsDue(id, oversize, stride)))
    plan_.probe = {id, stay_bytes, resident, oversize, by_faults, duplicates, is_probe, stride};
  if (stay_bytes && is_probe) classifier_.NoteProbe(plan_.probe, now_);
  if (blocked && !stay_bytes) classifier_.NoteBlocked(id);
}

}  // namespace sluice::policy
