#include "hooklib/policy/predict/pointer_ranges.h"

#include <algorithm>

namespace sluice::policy {

namespace {
constexpr uint32_t kSteady = 2;       // the same pages so many times after the first
constexpr uint32_t kMostWatched = 8;  // launches of a kind of which nothing is known yet, those that faulted
constexpr uint32_t kMostEmpty = 64;   // those that did not, since what they used was there: they cost a short wait
constexpr uint32_t kBlind = 16, kMostBlind = 6;  // launches not asked about, doubled so often at most
constexpr uint32_t kMostThin = 3;                // those of which less than half of a part's chunks faulted
constexpr uint32_t kMostBlank = 4;  // those that used nothing else, of a kind of which something is believed
constexpr uint32_t kMostMissed = 4;
constexpr uint32_t kMostWrong = 4, kForgiven = 1024;      // times, launches after which these do not count any more
constexpr uint32_t kPause = 16, kLongestPause = 1 << 20;  // launches between two looks at the faults
// Faults since it was last watched: 14 MiB that an H200's kernel reads whole, and more of what was never written, which
// no count of bytes shows. Fewer are left alone, since what they brought stays, and does not fault again to be seen.
constexpr uint64_t kSuspicious = 1024;
constexpr size_t kMostKinds = 1 << 12;
}  // namespace

Extent PointerRanges::Narrow(uint64_t id, size_t place, Va pointer, Extent block) const {
  const Kind* const kind = Find(id);
  if (!kind || !kind->known) return block;
  for (const Part& part : kind->parts) {
    if (part.place != place) continue;
    const Va begin = part.begin < 0 && pointer - block.base < static_cast<uint64_t>(-part.begin)
                         ? block.base
                         : pointer + static_cast<uint64_t>(part.begin);
    const Va end = std::min(block.end(), pointer + static_cast<uint64_t>(part.end));
    return begin < end ? Extent{begin, end - begin} : block;
  }
  return block;
}

void PointerRanges::NoteTooLarge(uint64_t id) {
  if (const auto it = kinds_.find(id); it != kinds_.end()) {
    if (it->second.blind) --it->second.blind;
    return;
  }
  if (kinds_.size() >= kMostKinds) Stop();  // kinds of phases that are long over
  kinds_[id];
  ++wanting_;
}

void PointerRanges::NoteAllThere(uint64_t id) {
  const auto it = kinds_.find(id);
  if (it != kinds_.end()) it->second.blind = kBlind << std::min(it->second.blinded++, kMostBlind);
}

void PointerRanges::Want(Kind* kind, bool wants) {
  if (kind->wants == wants) return;
  kind->wants = wants;
  wanting_ += wants ? 1 : -1;
}

PointerRanges::Found PointerRanges::GiveUp(Kind* kind) {
  Want(kind, false);
  stats_.kinds -= kind->known;
  stats_.given_up += !kind->given_up;
  kind->known = false;
  kind->given_up = true;
  kind->parts = {};
  return Found::kNoPart;
}

void PointerRanges::Stop() {
  kinds_.clear();
  wanting_ = 0;
  stats_.kinds = 0;
}

void PointerRanges::Missed(uint64_t id) {
  const auto it = kinds_.find(id);
  if (it == kinds_.end() || ++it->second.missed < kMostMissed) return;
  Kind& kind = it->second;
  if (!kind.known) {
    GiveUp(&kind);
    return;
  }
  // What it believes stands until somebody sees otherwise.
  kind.pause = std::min(2 * kind.pause, kLongestPause);
  Rest(&kind);
}

PointerRanges::Fit PointerRanges::Widen(Part* part, const UnboundedPointer& word, std::span<const Va> pages) {
  // Beside a page that faults the driver brings others of its chunk, which do not fault then.
  const Va first = RoundDown(pages.front(), kChunkBytes);
  const Va last = RoundDown(pages.back(), kChunkBytes) + kChunkBytes;
  int64_t begin =
      first <= word.pointer && word.pointer <= pages.front() ? 0 : static_cast<int64_t>(first - word.pointer);
  int64_t end = static_cast<int64_t>(last - word.pointer);
  if (part->seen) {
    begin = std::min(begin, part->begin);
    end = std::max(end, part->end);
  }
  // Of chunks that lie in what is known already nobody asks how many were faulted on: they were there.
  uint64_t touched = part->seen ? static_cast<uint64_t>(part->end - part->begin) : 0;
  Va before = kNever;
  for (const Va page : pages) {
    const Va chunk = RoundDown(page, kChunkBytes);
    if (chunk == before) continue;
    before = chunk;
    const auto at = static_cast<int64_t>(page - word.pointer);
    if (!part->seen || at < part->begin || at >= part->end) touched += kChunkBytes;
  }
  const auto bytes = static_cast<uint64_t>(end - begin);
  if (bytes > word.block.bytes / 2) return Fit::kWide;
  if (touched < bytes / 2) return Fit::kThin;
  // Pointers lie anywhere in a chunk.
  const auto margin = static_cast<int64_t>(kChunkBytes);
  const bool more = !part->seen || part->begin - begin >= margin || end - part->end >= margin;
  part->steady = more ? 0 : part->steady + 1;
  if (more) part->begins = part->ends = false;
  part->begin = begin;
  part->end = end;
  part->seen = true;
  return more ? Fit::kMore : Fit::kInside;
}

// That it goes no further is seen where the chunk beside it was not there and did not fault. Before the pointer itself
// nobody asks.
void PointerRanges::NoteEnds(Part* part, const UnboundedPointer& word, const std::function<bool(Va)>& there) {
  const auto at = [&word](int64_t offset) { return word.pointer + static_cast<uint64_t>(offset); };
  const auto margin = static_cast<int64_t>(kChunkBytes);
  const Va before = at(part->begin - margin), after = at(part->end);
  part->begins |= part->begin == 0 || before - word.block.base >= word.block.bytes || !there(before);
  part->ends |= after - word.block.base >= word.block.bytes || !there(after);
}

PointerRanges::Found PointerRanges::Observe(uint64_t id, std::span<const UnboundedPointer> words,
                                            std::span<const Va> pages, const std::function<bool(Va)>& there) {
  const auto it = kinds_.find(id);
  if (it == kinds_.end() || !it->second.wants) return Found::kNothing;
  Kind& kind = it->second;
  ++stats_.watched;
  kind.blinded = 0;
  const bool empty = pages.empty();
  ++(empty ? kind.empty : kind.watched);
  bool more = false, thin = false, steady = true, any = false;
  for (const UnboundedPointer& word : words) {
    // A page is of the next pointer below it; before the first one, of that.
    Va from = word.block.base, to = word.block.end();
    for (const UnboundedPointer& other : words) {
      if (other.block.base != word.block.base) continue;
      if (other.pointer < word.pointer) from = word.pointer;
      if (other.pointer > word.pointer) to = std::min(to, other.pointer);
    }
    auto part =
        std::find_if(kind.parts.begin(), kind.parts.end(), [&word](const Part& p) { return p.place == word.place; });
    if (part == kind.parts.end()) part = kind.parts.insert(part, Part{.place = word.place});
    const auto begin = std::lower_bound(pages.begin(), pages.end(), from);
    const auto end = std::lower_bound(begin, pages.end(), to);
    // No page: that all of it was there is seen as little as that it uses nothing.
    if (begin != end) {
      const Fit fit = Widen(&*part, word, {begin, end});
      if (fit == Fit::kThin) thin = true;
      if (fit == Fit::kWide) {
        stats_.wrong += kind.known;
        return GiveUp(&kind);
      }
      if (fit == Fit::kInside || fit == Fit::kMore) NoteEnds(&*part, word, there);
      more |= fit == Fit::kMore;
    }
    any |= part->seen;
    steady &= !part->seen || (part->steady >= kSteady && part->begins && part->ends);
  }
  // The rest of it may have been there. Rows that are looked up are so each time.
  if (thin && ++kind.thin >= kMostThin) return GiveUp(&kind);
  if (!kind.known) {
    if (any && steady && !thin) return Believe(&kind);
    return kind.watched >= kMostWatched || kind.empty >= kMostEmpty ? GiveUp(&kind) : Found::kNothing;
  }
  // The faults were others', or it uses more than it did.
  if (more) {
    kind.blank = 0;
    ++stats_.wrong;
    if (kind.launches > kind.wrong_at + kForgiven) kind.wrong = 0;
    kind.wrong_at = kind.launches;
    kind.pause = kPause;
    return ++kind.wrong >= kMostWrong ? GiveUp(&kind) : Found::kMore;
  }
  if (++kind.blank < kMostBlank) return Found::kNothing;
  kind.pause = std::min(2 * kind.pause, kLongestPause);
  Rest(&kind);
  return Found::kNothing;
}

// Not watched until faults come that may be its own. Those of the first launches are of what was under way.
void PointerRanges::Rest(Kind* kind) {
  kind->blank = kind->missed = 0;
  kind->faults.reset();
  kind->look_at = kind->launches + kind->pause;
  Want(kind, false);
}

PointerRanges::Found PointerRanges::Believe(Kind* kind) {
  // What never faulted is small, or no pointer at all.
  for (Part& part : kind->parts) {
    if (!part.seen) part.end = kChunkBytes;
    part.seen = true;
  }
  kind->known = true;
  ++stats_.kinds;
  kind->pause = kPause;
  Rest(kind);
  return Found::kPart;
}

// Faults may be anybody's: whether they are this kind's is seen by watching it, ever more rarely where they are not.
bool PointerRanges::NoteNarrowed(uint64_t id, uint64_t faults) {
  ++stats_.narrowed;
  const auto it = kinds_.find(id);
  if (it == kinds_.end() || ++it->second.launches < it->second.look_at || it->second.wants) return false;
  Kind& kind = it->second;
  kind.look_at = kind.launches + kind.pause;
  if (!kind.faults) kind.faults = faults;
  if (faults < *kind.faults + kSuspicious) return false;
  Want(&kind, true);
  return true;
}

}  // namespace sluice::policy
