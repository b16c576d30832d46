#include "hooklib/libraries/extents/access_set.h"

#include <algorithm>

namespace sluice::libraries {

void AccessSet::Clear() {
  ranges_.clear();
  unknown_reason_ = UnknownReason::kNone;
  streaming_ = assumed_ = false;
}

void AccessSet::MarkUnknown(UnknownReason reason) {
  if (unknown_reason_ == UnknownReason::kNone) unknown_reason_ = reason;
}

void AccessSet::Put(const Range& range, Use use) {
  LibraryRange out;
  out.address = range.base;
  out.bytes = range.bytes;
  out.read = use == Use::kRead || use == Use::kUpdate;
  out.written = use != Use::kRead;
  out.overwritten = use == Use::kOverwrite && range.whole;
  out.scratch = use == Use::kScratch;
  ranges_.push_back(out);
}

void AccessSet::Add(const Region& region, Use use) {
  if (region.empty()) return;
  if (region.base == 0) return MarkUnknown(UnknownReason::kNullOperand);
  scratch_.clear();
  if (!AppendRanges(region, gap_, limit_, &scratch_)) return MarkUnknown(UnknownReason::kUnsupported);
  for (const Range& range : scratch_) Put(range, use);
}

void AccessSet::AddUnbounded(uint64_t address, Use use) {
  if (address) Put({address, 0, false}, use);
}

void AccessSet::Close() {
  const bool sure = known() && !assumed_ &&
                    std::none_of(ranges_.begin(), ranges_.end(), [](const LibraryRange& r) { return !r.bytes; });
  if (!sure) {  // what is not known may read them
    for (LibraryRange& range : ranges_) range.overwritten = range.scratch = false;
  }
  if (ranges_.size() < 2) return;
  std::stable_sort(ranges_.begin(), ranges_.end(),
                   [](const LibraryRange& a, const LibraryRange& b) { return a.address < b.address; });
  // Neighbours in address order suffice to find every overlap: `reach` is the farthest end so far, `farthest` whose it
  // is.
  size_t farthest = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    LibraryRange &before = ranges_[farthest], &here = ranges_[i];
    if (here.address < before.address + before.bytes) {
      before.overwritten = before.scratch = false;
      here.overwritten = here.scratch = false;
    }
    if (here.address + here.bytes > before.address + before.bytes) farthest = i;
  }
  size_t out = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    LibraryRange &last = ranges_[out], &here = ranges_[i];
    const bool alike = last.bytes && here.bytes && last.read == here.read && last.written == here.written &&
                       last.overwritten == here.overwritten && last.scratch == here.scratch;
    if (alike && here.address <= last.address + last.bytes) {
      last.bytes = std::max(last.address + last.bytes, here.address + here.bytes) - last.address;
    } else {
      ranges_[++out] = here;
    }
  }
  ranges_.resize(out + 1);
}

}  // namespace sluice::libraries
