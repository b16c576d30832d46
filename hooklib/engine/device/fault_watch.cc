#include "hooklib/engine/device/fault_watch.h"

#include <algorithm>
#include <utility>

#include "hooklib/engine/config.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

std::optional<memory::Extent> FaultWatch::ResolveWord(const Work& work, size_t place,
                                                      policy::UnboundedPointer* around) {
  bool part_known = false;
  const uint64_t word = work.words[place];
  const std::optional<memory::Extent> block = device_->live.Resolve(word, &part_known);
  around->block.bytes = 0;
  // A library call says which ranges it touches; nothing is learned of its kernels' other words.
  if (!block || part_known || block->bytes < policy::PointerRanges::kMinBlockBytes || !work.id || work.library)
    return block;
  *around = {place, word, *block};
  return ranges_.empty() ? block : ranges_.Narrow(work.id, place, word, *block);
}

bool FaultWatch::MustWaitFor(const Work& work) {
  Stream* const stream = work.stream;
  if (Watches(stream) && !device_->Done(watched_.mark)) return true;
  if (!work.id || !ranges_.ShouldWatch(work.id)) return false;
  // A launch may use more than the learned part. That rest is being evicted, and until it has gone a watched launch
  // would not fault on it.
  return stream->seq.load(std::memory_order_relaxed) > stream->completed ||
         (ranges_.IsLearned(work.id) && !device_->OutDone(stream->id, stream->evict_queue.newest));
}

uint64_t FaultWatch::Progress() {
  if (watched_.id) records_.Drain(&watched_.pages);  // the queue is short
  uint64_t done = device_->driver_counters.Faults() + device_->driver_counters.BytesToHost();
  for (const auto& stream : device_->streams) done += stream->completed;
  return done;
}

bool FaultWatch::IsAlone() {
  return std::all_of(device_->streams.begin(), device_->streams.end(), [this](const auto& stream) SLUICE_DEVICE_LOCKED {
    return !stream->context || device_->Done({stream->id, stream->seq.load(std::memory_order_acquire)});
  });
}

// Pages that faults bring of a block beyond the learned part stay on the GPU untracked, and fault no more.
void FaultWatch::NoteNarrowed(const Work& work, const AccessSet& set) {
  if (!set.has_narrowed || !ranges_.NoteNarrowed(work.id, device_->driver_counters.Faults())) return;
  for (const policy::UnboundedPointer& word : set.unbounded) device_->residency.NoteFaultResidue(word.block);
}

bool FaultWatch::NamesUnboundedPointers(const Work& work) {
  policy::UnboundedPointer around;
  for (size_t i = 0; i < work.words.size(); ++i) {
    if (ResolveWord(work, i, &around) && around.block.bytes) return true;
  }
  return false;
}

// A launch larger than the capacity faults in any case: naming its blocks whole is expensive.
bool FaultWatch::MayBegin(const Work& work, const AccessSet& set) const {
  return work.id && (!set.unbounded.empty() || device_->residency.named_bytes() > device_->residency.capacity());
}

void FaultWatch::Begin(const Work& work, const AccessSet& set, uint64_t seq) {
  const policy::Residency& residency = device_->residency;
  // All of it rests on the driver's counters and records.
  if (!GetConfig().learn || !device_->driver_counters.counting() || records_.refused() ||
      device_->budget.prefetch == SLUICE_PREFETCH_OFF)
    return;
  if (!ranges_.ShouldWatch(work.id)) {
    if (residency.named_bytes() > residency.capacity() && NamesUnboundedPointers(work)) ranges_.NoteTooLarge(work.id);
    return;
  }
  // Where only a part is named, the rest of the block may be in host memory although all named chunks are resident.
  if (!ranges_.IsLearned(work.id) && residency.HasAllResident()) return ranges_.NoteAllResident(work.id);
  if (!IsAlone()) {
    SLUICE_LOG(kDebug, "launch %llx is not watched: other work is unfinished",
               static_cast<unsigned long long>(work.id));
    return ranges_.NoteUnwatched(work.id);
  }
  if (!records_.Start(device_->UuidForDriver())) {
    SLUICE_LOG(kDebug, "fault_records gpu=%s use=pointer_ranges state=refused reason=\"%s\"", device_->uuid.c_str(),
               records_.why().c_str());
    return ranges_.Stop();
  }
  watched_.id = work.id;
  watched_.mark = {work.stream->id, seq};
  watched_.words = set.unbounded;
  watched_.kernel = work.function ? work.function->name.substr(0, 96) : "";
}

void FaultWatch::Close() {
  const uint64_t id = std::exchange(watched_.id, 0);
  std::vector<memory::Va> pages = std::exchange(watched_.pages, {});
  records_.Drain(&pages);
  records_.Stop();
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  device_->residency.NoteFaultedIn(pages);
  const bool is_over = device_->Done(watched_.mark);
  if (!is_over || records_.Lost()) {
    ranges_.NoteUnwatched(id);
    SLUICE_LOG(kDebug, "watched launch=%llx pages=%zu outcome=%s kernel=\"%s\"", static_cast<unsigned long long>(id),
               pages.size(), is_over ? "records_lost" : "unfinished", watched_.kernel.c_str());
    return;
  }
  const auto is_present = [this](memory::Va page) SLUICE_DEVICE_LOCKED {
    const memory::Chunk* const chunk = device_->residency.chunks().Find(page);
    return !chunk || chunk->resident() || chunk->mapped_remote();
  };
  LogOutcome(id, pages.size(), ranges_.Observe(id, watched_.words, pages, is_present));
}

void FaultWatch::LogOutcome(uint64_t id, size_t pages, policy::PointerRanges::Outcome outcome) {
  if (!LogEnabled(settings::LogLevel::kDebug)) return;
  using Outcome = policy::PointerRanges::Outcome;
  const auto number = static_cast<unsigned long long>(id);
  SLUICE_LOG(kDebug, "watched launch=%llx pages=%zu outcome=%s kernel=\"%s\"", number, pages,
             outcome == Outcome::kLearned   ? "learned"
             : outcome == Outcome::kWidened ? "uses_more"
             : outcome == Outcome::kGivenUp ? "no_part"
                                            : "none_yet",
             watched_.kernel.c_str());
  if (outcome != Outcome::kLearned && outcome != Outcome::kWidened) return;
  for (const policy::UnboundedPointer& word : watched_.words) {
    const memory::Extent part = ranges_.Narrow(id, word.word_index, word.pointer, word.block);
    SLUICE_LOG(kDebug, "learned_range launch=%llx word=%zu block_bytes=%llu bytes=%llu offset_bytes=%lld", number,
               word.word_index, static_cast<unsigned long long>(word.block.bytes),
               static_cast<unsigned long long>(part.bytes), static_cast<long long>(part.base - word.pointer));
  }
}

void FaultWatch::LogStats() const {
  const policy::PointerRangeStats& stats = ranges_.stats();
  if (stats.watched == 0) return;
  SLUICE_LOG(kDebug, "learned_ranges gpu=%s kinds=%llu given_up=%llu watched=%llu narrowed=%llu wrong=%llu",
             device_->uuid.c_str(), static_cast<unsigned long long>(stats.learned),
             static_cast<unsigned long long>(stats.given_up), static_cast<unsigned long long>(stats.watched),
             static_cast<unsigned long long>(stats.narrowed), static_cast<unsigned long long>(stats.wrong));
}

}  // namespace sluice
