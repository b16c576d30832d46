// Device: launches that are watched, so that what their kind uses of a block is learnt (core/learnt.h). One at a time
// and alone on the card: before it the host waits for what its stream holds, with what comes next until it is over.
#include <algorithm>
#include <utility>

#include "hooklib/engine/config.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

std::optional<memory::Extent> Device::ResolveWord(const Work& work, size_t place, policy::UnboundedPointer* around) {
  bool told = false;
  const uint64_t word = work.words[place];
  const std::optional<memory::Extent> block = live.Resolve(word, &told);
  around->block.bytes = 0;
  // A library call says what it touches; what else its kernels' words name is not learnt.
  if (!block || told || block->bytes < policy::PointerRanges::kMinBlockBytes || !work.id || work.library) return block;
  *around = {place, word, *block};
  return learnt.empty() ? block : learnt.Narrow(work.id, place, word, *block);
}

bool Device::MustAwaitWatch(const Work& work) {
  Stream* const stream = work.stream;
  if (Watches(stream) && !Done(watch_.mark)) return true;
  if (!work.id || !learnt.ShouldWatch(work.id)) return false;
  // What is being sent away, because it may be more than is believed, is found where it was until it has gone.
  return stream->seq.load(std::memory_order_relaxed) > stream->completed ||
         (learnt.IsLearned(work.id) && !OutDone(stream->id, stream->out.newest));
}

uint64_t Device::WatchProgress() {
  if (watch_.id) records_.Drain(&watch_.pages);  // the queue is short
  uint64_t done = counts_.Faults() + counts_.ToHost();
  for (const auto& stream : streams) done += stream->completed;
  return done;
}

bool Device::IsAlone() {
  return std::all_of(streams.begin(), streams.end(), [this](const auto& stream) {
    return !stream->context || Done({stream->id, stream->seq.load(std::memory_order_acquire)});
  });
}

// What faults brought of a block beyond what is believed of it stays on the card, known to nobody, and faults no more.
void Device::NoteNarrowed(const Work& work) {
  if (!narrowed || !learnt.NoteNarrowed(work.id, counts_.Faults())) return;
  for (const policy::UnboundedPointer& word : loose) residency.NoteFaultResidue(word.block);
}

bool Device::AnyLoose(const Work& work) {
  policy::UnboundedPointer around;
  for (size_t i = 0; i < work.words.size(); ++i) {
    if (ResolveWord(work, i, &around) && around.block.bytes) return true;
  }
  return false;
}

// What comes by faults in any case is dear to name whole.
bool Device::MayWatch(const Work& work) const {
  return work.id && (!loose.empty() || residency.named_bytes() > residency.capacity());
}

void Device::BeginWatch(const Work& work, uint64_t seq) {
  // All of it rests on the driver's figures.
  if (!GetConfig().learn || !counts_.counting() || records_.refused() || budget.prefetch == SLUICE_PREFETCH_OFF) return;
  if (!learnt.ShouldWatch(work.id)) {
    if (residency.named_bytes() > residency.capacity() && AnyLoose(work)) learnt.NoteTooLarge(work.id);
    return;
  }
  // Of what is believed to be a part the rest may be away.
  if (!learnt.IsLearned(work.id) && residency.HasAllResident()) return learnt.NoteAllResident(work.id);
  if (!IsAlone()) {
    SLUICE_LOG(kDebug, "launch %llx is not watched: others are not over", static_cast<unsigned long long>(work.id));
    return learnt.NoteUnwatched(work.id);
  }
  if (!records_.Start(Devices().size() > 1 ? raw_uuid_ : nullptr)) {
    SLUICE_LOG(kDebug, "%s: the driver records no faults for us, nothing is learnt of them: %s", uuid.c_str(),
               records_.why().c_str());
    return learnt.Stop();
  }
  watch_.id = work.id;
  watch_.mark = {work.stream->id, seq};
  watch_.words = loose;
  watch_.name = work.function ? work.function->name.substr(0, 96) : "";
}

void Device::CloseWatch() {
  const uint64_t id = std::exchange(watch_.id, 0);
  std::vector<memory::Va> pages = std::exchange(watch_.pages, {});
  records_.Drain(&pages);
  records_.Stop();
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  residency.NoteFaultedIn(pages);
  const bool over = Done(watch_.mark);
  if (!over || records_.Lost()) {
    learnt.NoteUnwatched(id);
    SLUICE_LOG(kDebug, "launch %llx %s was watched in vain: %s, %zu pages told", static_cast<unsigned long long>(id),
               watch_.name.c_str(), over ? "records were lost" : "it is not over", pages.size());
    return;
  }
  const auto there = [this](memory::Va page) {
    const memory::Chunk* const chunk = residency.chunks().Find(page);
    return !chunk || chunk->resident || chunk->mapped_remote;
  };
  LogWatched(id, pages.size(), learnt.Observe(id, watch_.words, pages, there));
}

void Device::LogWatched(uint64_t id, size_t pages, policy::PointerRanges::Outcome found) {
  if (!LogEnabled(settings::LogLevel::kDebug)) return;
  using Found = policy::PointerRanges::Outcome;
  const auto number = static_cast<unsigned long long>(id);
  SLUICE_LOG(kDebug, "launch %llx %s was watched: it faulted on %zu pages, %s", number, watch_.name.c_str(), pages,
             found == Found::kLearned   ? "what its kind uses of its blocks is known"
             : found == Found::kWidened ? "more than its kind was believed to use"
             : found == Found::kGivenUp ? "and its kind uses no part of its blocks that could be told"
                                        : "nothing follows yet");
  if (found != Found::kLearned && found != Found::kWidened) return;
  for (const policy::UnboundedPointer& word : watch_.words) {
    const memory::Extent part = learnt.Narrow(id, word.word_index, word.pointer, word.block);
    SLUICE_LOG(kDebug, "launch %llx: of the %llu MiB around word %zu, %.2f MiB from %+.2f", number,
               static_cast<unsigned long long>(word.block.bytes >> 20), word.word_index,
               static_cast<double>(part.bytes) / 0x1p20,
               static_cast<double>(static_cast<int64_t>(part.base - word.pointer)) / 0x1p20);
  }
}

}  // namespace sluice
