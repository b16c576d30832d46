#include "hooklib/policy/predict/pointer_ranges.h"

#include <algorithm>

namespace sluice::policy {

namespace {
constexpr uint32_t kMinSteadyTimes = 2;  // repetitions of the same range after the first
constexpr uint32_t kMaxWatched = 8;      // watched launches with faults, of an id without a range
constexpr uint32_t kMaxEmpty = 64;       // and without faults, since their pages were resident: each costs a short wait
constexpr uint32_t kFirstBlindLaunches = 16,
                   // Launches that are not asked about, and how often that number is doubled at most.
    kMaxBlindDoublings = 6;
constexpr uint32_t kMaxSparse = 3;     // launches that faulted on less than half of a range's chunks
constexpr uint32_t kMaxUnchanged = 4;  // launches within the range, of an id with one
constexpr uint32_t kMaxUnwatched = 4;
constexpr uint32_t kMaxWrong = 4,
                   kForgivenLaunches = 1024;  // times, and launches after which earlier ones do not count
constexpr uint32_t kFirstPauseLaunches = 16, kMaxPauseLaunches = 1 << 20;  // between two looks at the faults
// Faults since the last watched launch that call for another one: 14 MiB that an H200's kernel reads whole, and more of
// memory that was never written, which no count of bytes shows. Fewer faults are ignored: their pages stay, and do not
// fault again.
constexpr uint64_t kMinSuspiciousFaults = 1024;
constexpr size_t kMaxRecords = 1 << 12;
}  // namespace

Extent PointerRanges::Narrow(uint64_t id, size_t word_index, Va pointer, Extent block) const {
  const LaunchRecord* const record = RecordOf(id);
  if (!record || !record->is_learned) return block;
  for (const Range& range : record->ranges) {
    if (range.word_index != word_index) continue;
    const Va begin = range.begin < 0 && pointer - block.base < static_cast<uint64_t>(-range.begin)
                         ? block.base
                         : pointer + static_cast<uint64_t>(range.begin);
    const Va end = std::min(block.end(), pointer + static_cast<uint64_t>(range.end));
    return begin < end ? Extent{begin, end - begin} : block;
  }
  return block;
}

void PointerRanges::NoteTooLarge(uint64_t id) {
  if (const auto it = records_.find(id); it != records_.end()) {
    if (it->second.blind_launches) --it->second.blind_launches;
    return;
  }
  if (records_.size() >= kMaxRecords) Stop();  // ids of phases that are long over
  records_[id];
  ++watching_;
}

void PointerRanges::NoteAllResident(uint64_t id) {
  const auto it = records_.find(id);
  if (it != records_.end())
    it->second.blind_launches = kFirstBlindLaunches << std::min(it->second.blind_times++, kMaxBlindDoublings);
}

void PointerRanges::SetWatched(LaunchRecord* record, bool is_watched) {
  if (record->is_watched == is_watched) return;
  record->is_watched = is_watched;
  watching_ += is_watched ? 1 : -1;
}

PointerRanges::Outcome PointerRanges::GiveUp(LaunchRecord* record) {
  SetWatched(record, false);
  stats_.learned -= record->is_learned;
  stats_.given_up += !record->given_up;
  record->is_learned = false;
  record->given_up = true;
  record->ranges = {};
  return Outcome::kGivenUp;
}

void PointerRanges::Stop() {
  records_.clear();
  watching_ = 0;
  stats_.learned = 0;
}

void PointerRanges::NoteUnwatched(uint64_t id) {
  const auto it = records_.find(id);
  if (it == records_.end() || ++it->second.unwatched < kMaxUnwatched) return;
  LaunchRecord& record = it->second;
  if (!record.is_learned) {
    GiveUp(&record);
    return;
  }
  // A learned range holds until a launch shows otherwise.
  record.pause_launches = std::min(2 * record.pause_launches, kMaxPauseLaunches);
  StopWatching(&record);
}

PointerRanges::Fit PointerRanges::Widen(Range* range, const UnboundedPointer& word, std::span<const Va> pages) {
  // Beside a faulted page the driver brings others of its chunk, which do not fault then.
  const Va first = RoundDown(pages.front(), kChunkBytes);
  const Va last = RoundDown(pages.back(), kChunkBytes) + kChunkBytes;
  int64_t begin =
      first <= word.pointer && word.pointer <= pages.front() ? 0 : static_cast<int64_t>(first - word.pointer);
  int64_t end = static_cast<int64_t>(last - word.pointer);
  if (range->seen) {
    begin = std::min(begin, range->begin);
    end = std::max(end, range->end);
  }
  // Chunks within the known range were resident and do not fault: they count as touched.
  uint64_t touched = range->seen ? static_cast<uint64_t>(range->end - range->begin) : 0;
  Va before = kNever;
  for (const Va page : pages) {
    const Va chunk = RoundDown(page, kChunkBytes);
    if (chunk == before) continue;
    before = chunk;
    const auto at = static_cast<int64_t>(page - word.pointer);
    if (!range->seen || at < range->begin || at >= range->end) touched += kChunkBytes;
  }
  const auto bytes = static_cast<uint64_t>(end - begin);
  if (bytes > word.block.bytes / 2) return Fit::kTooWide;
  if (touched < bytes / 2) return Fit::kSparse;
  // Pointers lie anywhere in a chunk.
  const auto margin = static_cast<int64_t>(kChunkBytes);
  const bool widened = !range->seen || range->begin - begin >= margin || end - range->end >= margin;
  range->steady = widened ? 0 : range->steady + 1;
  if (widened) range->begin_known = range->end_known = false;
  range->begin = begin;
  range->end = end;
  range->seen = true;
  return widened ? Fit::kWidened : Fit::kInside;
}

// A range ends where the neighbouring chunk was absent and did not fault. Chunks before the pointer itself are not
// asked about.
void PointerRanges::NoteBounds(Range* range, const UnboundedPointer& word,
                               const std::function<bool(Va)>& was_resident) {
  const auto at = [&word](int64_t offset) { return word.pointer + static_cast<uint64_t>(offset); };
  const auto margin = static_cast<int64_t>(kChunkBytes);
  const Va before = at(range->begin - margin), after = at(range->end);
  range->begin_known |= range->begin == 0 || before - word.block.base >= word.block.bytes || !was_resident(before);
  range->end_known |= after - word.block.base >= word.block.bytes || !was_resident(after);
}

PointerRanges::Outcome PointerRanges::Observe(uint64_t id, std::span<const UnboundedPointer> words,
                                              std::span<const Va> pages, const std::function<bool(Va)>& was_resident) {
  const auto it = records_.find(id);
  if (it == records_.end() || !it->second.is_watched) return Outcome::kNothing;
  LaunchRecord& record = it->second;
  ++stats_.watched;
  record.blind_times = 0;
  const bool empty = pages.empty();
  ++(empty ? record.empty : record.watched);
  bool widened = false, sparse = false, steady = true, any_seen = false;
  for (const UnboundedPointer& word : words) {
    // A page belongs to the next pointer below it; before the first pointer, to that one.
    Va from = word.block.base, to = word.block.end();
    for (const UnboundedPointer& other : words) {
      if (other.block.base != word.block.base) continue;
      if (other.pointer < word.pointer) from = word.pointer;
      if (other.pointer > word.pointer) to = std::min(to, other.pointer);
    }
    auto range = std::find_if(record.ranges.begin(), record.ranges.end(),
                              [&word](const Range& p) { return p.word_index == word.word_index; });
    if (range == record.ranges.end()) range = record.ranges.insert(range, Range{.word_index = word.word_index});
    const auto begin = std::lower_bound(pages.begin(), pages.end(), from);
    const auto end = std::lower_bound(begin, pages.end(), to);
    // Without pages nothing is known: its range may have been resident, or it uses nothing.
    if (begin != end) {
      const Fit fit = Widen(&*range, word, {begin, end});
      if (fit == Fit::kSparse) sparse = true;
      if (fit == Fit::kTooWide) {
        stats_.wrong += record.is_learned;
        return GiveUp(&record);
      }
      if (fit == Fit::kInside || fit == Fit::kWidened) NoteBounds(&*range, word, was_resident);
      widened |= fit == Fit::kWidened;
    }
    any_seen |= range->seen;
    steady &= !range->seen || (range->steady >= kMinSteadyTimes && range->begin_known && range->end_known);
  }
  // The rest of it may have been resident. Looked-up rows are sparse each time.
  if (sparse && ++record.sparse >= kMaxSparse) return GiveUp(&record);
  if (!record.is_learned) {
    if (any_seen && steady && !sparse) return Learn(&record);
    return record.watched >= kMaxWatched || record.empty >= kMaxEmpty ? GiveUp(&record) : Outcome::kNothing;
  }
  // The faults were those of other launches, or it uses more than before.
  if (widened) {
    record.unchanged = 0;
    ++stats_.wrong;
    if (record.launches > record.wrong_at + kForgivenLaunches) record.wrong = 0;
    record.wrong_at = record.launches;
    record.pause_launches = kFirstPauseLaunches;
    return ++record.wrong >= kMaxWrong ? GiveUp(&record) : Outcome::kWidened;
  }
  if (++record.unchanged < kMaxUnchanged) return Outcome::kNothing;
  record.pause_launches = std::min(2 * record.pause_launches, kMaxPauseLaunches);
  StopWatching(&record);
  return Outcome::kNothing;
}

// Not watched until was_resident are faults that may be its own. Faults of the first launches belong to work that was
// already queued.
void PointerRanges::StopWatching(LaunchRecord* record) {
  record->unchanged = record->unwatched = 0;
  record->faults.reset();
  record->look_at = record->launches + record->pause_launches;
  SetWatched(record, false);
}

PointerRanges::Outcome PointerRanges::Learn(LaunchRecord* record) {
  // A word that never faulted points at something small, or is no pointer.
  for (Range& range : record->ranges) {
    if (!range.seen) range.end = kChunkBytes;
    range.seen = true;
  }
  record->is_learned = true;
  ++stats_.learned;
  record->pause_launches = kFirstPauseLaunches;
  StopWatching(record);
  return Outcome::kLearned;
}

// The faults may be those of other launches. Watching one tells, ever more rarely where they are.
bool PointerRanges::NoteNarrowed(uint64_t id, uint64_t faults) {
  ++stats_.narrowed;
  const auto it = records_.find(id);
  if (it == records_.end() || ++it->second.launches < it->second.look_at || it->second.is_watched) return false;
  LaunchRecord& record = it->second;
  record.look_at = record.launches + record.pause_launches;
  if (!record.faults) record.faults = faults;
  if (faults < *record.faults + kMinSuspiciousFaults) return false;
  SetWatched(&record, true);
  return true;
}

}  // namespace sluice::policy
