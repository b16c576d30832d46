#include "hooklib/libraries/extents/region.h"

#include <algorithm>

namespace sluice::libraries {

namespace {

using Wide = __int128;  // of products of two 64-bit numbers
constexpr Wide kLimit = Wide{1} << 62;

// A region in one normal form: strides are not negative and grow outwards, no dimension has one position.
struct Box {
  Wide base = 0, run = 0;
  int rank = 0;
  std::array<Region::Dim, Region::kMaxRank> dims{};
  bool whole = true;
};

// The innermost dimension becomes part of one longer run.
void FoldInner(Box* box) {
  box->whole &= Wide{box->dims[0].stride} <= box->run;
  box->run += Wide{box->dims[0].stride} * (box->dims[0].count - 1);
  std::copy(box->dims.begin() + 1, box->dims.begin() + box->rank, box->dims.begin());
  --box->rank;
}

// Whether the runs of the innermost dimension stay apart: gaps of at least `gap` bytes are between them.
bool IsSparse(const Box& box, Wide gap) {
  const Wide free = Wide{box.dims[0].stride} - box.run;
  return free > 0 && free >= gap;
}

size_t Positions(const Box& box, size_t limit) {
  Wide n = 1;
  for (int d = 0; d < box.rank && n <= static_cast<Wide>(limit); ++d) n *= box.dims[d].count;
  return n > static_cast<Wide>(limit) ? limit + 1 : static_cast<size_t>(n);
}

// Sorts the ranges from `first` on, and joins those that touch or have less than `gap` bytes between them.
void Join(std::vector<Range>* out, size_t first, uint64_t gap) {
  const auto begin = out->begin() + static_cast<std::ptrdiff_t>(first);
  if (out->end() - begin < 2) return;
  std::sort(begin, out->end(), [](const Range& a, const Range& b) { return a.base < b.base; });
  auto last = begin;
  for (auto it = begin + 1; it != out->end(); ++it) {
    if (it->base <= last->end() || it->base - last->end() < gap) {
      last->whole = last->whole && it->whole && it->base <= last->end();
      last->bytes = std::max(last->end(), it->end()) - last->base;
    } else {
      *++last = *it;
    }
  }
  out->erase(last + 1, out->end());
}

bool AppendBox(Box box, uint64_t gap, size_t limit, std::vector<Range>* out) {
  std::sort(box.dims.begin(), box.dims.begin() + box.rank,
            [](const Region::Dim& a, const Region::Dim& b) { return a.stride < b.stride; });
  while (box.rank && (!IsSparse(box, gap) || Positions(box, limit) > limit)) FoldInner(&box);
  Wide end = box.base + box.run;
  for (int d = 0; d < box.rank; ++d) end += Wide{box.dims[d].stride} * (box.dims[d].count - 1);
  if (box.base < 0 || end > kLimit) return false;

  std::array<uint64_t, Region::kMaxRank> at{};
  for (;;) {
    uint64_t base = static_cast<uint64_t>(box.base);
    for (int d = 0; d < box.rank; ++d) base += at[d] * static_cast<uint64_t>(box.dims[d].stride);
    out->push_back({base, static_cast<uint64_t>(box.run), box.whole});
    int d = 0;
    while (d < box.rank && ++at[d] == box.dims[d].count) at[d++] = 0;
    if (d == box.rank) break;
  }
  return true;
}

}  // namespace

Region& Region::AddDimension(uint64_t count, int64_t stride) {
  if (count != 1) {
    if (rank == kMaxRank) {  // more than any library's descriptor holds
      run = 0;
      return *this;
    }
    dims[rank++] = {count, stride};
  } else if (run_step && rank == 0) {
    run_step = 0;
  }
  return *this;
}

bool Region::empty() const {
  if (run == 0 && run_step <= 0) return true;
  return std::any_of(dims.begin(), dims.begin() + rank, [](const Dim& d) { return d.count == 0; });
}

bool AppendRanges(const Region& region, uint64_t gap, size_t limit, std::vector<Range>* out) {
  if (region.empty()) return true;
  Box box;
  box.base = region.base;
  box.run = region.run;
  for (int d = 0; d < region.rank; ++d) {
    auto [count, stride] = region.dims[d];
    if (count > static_cast<uint64_t>(kLimit)) return false;
    const Wide span = Wide{stride} * (count - 1);
    if (span > kLimit || span < -kLimit) return false;
    if (region.run_step && d == 0) continue;
    if (stride < 0) {
      box.base += span;
      stride = -stride;
    }
    if (count > 1 && stride > 0) box.dims[box.rank++] = {count, stride};
  }
  const size_t first = out->size();
  if (!region.run_step) {
    if (!AppendBox(box, gap, limit, out)) return false;
    Join(out, first, gap);
    return true;
  }

  // A trapezoid: each column is a box of its own. Where there are many, groups of them become one hull that spans gaps.
  const auto [columns, stride] = region.rank ? region.dims[0] : Region::Dim{};
  auto run_of = [&](uint64_t c) { return Wide{region.run} + Wide{region.run_step} * c; };
  uint64_t column = 0, behind = columns;
  if (run_of(columns - 1) > kLimit) return false;
  while (column < behind && run_of(column) <= 0) ++column;  // at most one in a matrix' triangle
  while (column < behind && run_of(behind - 1) <= 0) --behind;
  const uint64_t count = behind - column, group = std::max<uint64_t>(1, count / limit + (count % limit ? 1 : 0));
  for (; column < behind; column += group) {
    const uint64_t last = std::min(column + group, behind) - 1;
    auto at = [&](uint64_t c) { return Wide{region.base} + Wide{stride} * c; };
    Box one = box;
    // The sides are straight, so the hull of the first and the last column holds the others.
    one.base = box.base - Wide{region.base} + std::min(at(column), at(last));
    one.run = std::max(at(column) + run_of(column), at(last) + run_of(last)) - std::min(at(column), at(last));
    one.whole = column == last;
    if (!AppendBox(one, gap, limit, out)) {
      out->resize(first);
      return false;
    }
  }
  Join(out, first, gap);
  return true;
}

}  // namespace sluice::libraries
