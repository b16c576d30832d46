#include "hooklib/engine/device/range_notes.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "common/mutex.h"

namespace sluice {

namespace {

using memory::Extent;
using memory::Va;

struct Piece {
  Va end;
  RangeNotes notes;
};
Mutex g_mutex;  // guards the map; no other lock is taken inside
// By begin. Ranges of which nothing was said have no piece.
std::map<Va, Piece>& Pieces() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<Va, Piece>();
  return map;
}

Extent InPages(Extent range, Extent block) {
  constexpr uint64_t kPageBytes = 4096;
  const Va begin = std::max(range.base / kPageBytes * kPageBytes, block.base);
  const Va end = std::min(memory::RoundUp(range.end(), kPageBytes), block.end());
  return {begin, end > begin ? end - begin : 0};
}

// No piece reaches over the address behind it.
void CutAt(Va at) SLUICE_REQUIRES(g_mutex) {
  auto& pieces = Pieces();
  auto it = pieces.upper_bound(at);
  if (it == pieces.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  pieces.emplace(at, Piece{it->second.end, it->second.notes});
  it->second.end = at;
}

bool IsSame(const CUmemLocation& a, const CUmemLocation& b) { return a.type == b.type && a.id == b.id; }
bool IsSame(const RangeNotes& a, const RangeNotes& b) {
  return a.read_mostly == b.read_mostly && a.accessed_by == b.accessed_by && IsSame(a.preferred, b.preferred) &&
         IsSame(a.last_prefetch, b.last_prefetch);
}

// Pieces side by side with the same notes become one: a program may go over a block in small steps.
void MergeIn(Extent range) SLUICE_REQUIRES(g_mutex) {
  auto& pieces = Pieces();
  auto it = pieces.lower_bound(range.base);
  if (it != pieces.begin()) --it;
  while (it != pieces.end() && it->first < range.end()) {
    const auto next = std::next(it);
    if (next != pieces.end() && next->first == it->second.end && IsSame(it->second.notes, next->second.notes)) {
      it->second.end = next->second.end;
      pieces.erase(next);
    } else {
      it = next;
    }
  }
}

template <typename Change>
void ChangeAll(Extent range, Change change) {
  if (range.bytes == 0) return;
  MutexLock lock(g_mutex);
  auto& pieces = Pieces();
  CutAt(range.base);
  CutAt(range.end());
  Va at = range.base;
  for (auto it = pieces.lower_bound(at); at < range.end();) {
    if (it == pieces.end() || it->first > at) {
      const Va end = it == pieces.end() ? range.end() : std::min(it->first, range.end());
      it = pieces.emplace_hint(it, at, Piece{end, {}});
    }
    change(&it->second.notes);
    at = it->second.end;
    ++it;
  }
  MergeIn(range);
}

// Bits of RangeNotes::accessed_by.
uint64_t BitOf(CUmemLocation location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return 1;
  return location.id >= 0 && location.id < 63 ? uint64_t{2} << location.id : 0;
}

int OldNameOf(CUmemLocation location) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CU_DEVICE_INVALID;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

}  // namespace

void NoteAdviceOf(Extent range, Extent block, CUmem_advise advice, CUmemLocation location) {
  ChangeAll(InPages(range, block), [&](RangeNotes* notes) {
    switch (advice) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        notes->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        notes->preferred = location;
        break;
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        notes->preferred = {};
        break;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
        notes->accessed_by |= BitOf(location);
        break;
      case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        notes->accessed_by &= ~BitOf(location);
        break;
      default:
        break;
    }
  });
}

void NotePrefetchOf(Extent range, Extent block, CUmemLocation location) {
  ChangeAll(InPages(range, block), [&](RangeNotes* notes) { notes->last_prefetch = location; });
}

void ForgetNotesOf(Extent block) {
  MutexLock lock(g_mutex);
  auto& pieces = Pieces();
  if (pieces.empty()) return;
  CutAt(block.base);
  CutAt(block.end());
  pieces.erase(pieces.lower_bound(block.base), pieces.lower_bound(block.end()));
}

RangeNotes NotesOf(Extent range, Extent block) {
  const Extent pages = InPages(range, block);
  RangeNotes common{true, {}, {}, ~uint64_t{0}};
  MutexLock lock(g_mutex);
  const auto& pieces = Pieces();
  auto it = pieces.upper_bound(pages.base);
  if (it != pieces.begin()) --it;
  bool is_first = true;
  for (Va at = pages.base; at < pages.end();) {
    while (it != pieces.end() && it->second.end <= at) ++it;
    if (it == pieces.end() || it->first > at) return {};  // of this part nothing was said
    const RangeNotes& notes = it->second.notes;
    if (is_first) {
      common.preferred = notes.preferred;
      common.last_prefetch = notes.last_prefetch;
    }
    is_first = false;
    common.read_mostly &= notes.read_mostly;
    common.accessed_by &= notes.accessed_by;
    if (!IsSame(common.preferred, notes.preferred)) common.preferred = {};
    if (!IsSame(common.last_prefetch, notes.last_prefetch)) common.last_prefetch = {};
    at = it->second.end;
  }
  return is_first ? RangeNotes{} : common;
}

std::optional<CUresult> AnswerRange(const RangeNotes& notes, CUmem_range_attribute attribute, void* data,
                                    size_t bytes) {
  const auto put = [&](int value) {
    if (bytes != sizeof value) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return put(notes.read_mostly ? 1 : 0);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return put(OldNameOf(notes.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return put(OldNameOf(notes.last_prefetch));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return put(static_cast<int>(notes.preferred.type));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return put(notes.preferred.id);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return put(static_cast<int>(notes.last_prefetch.type));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return put(notes.last_prefetch.id);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (bytes == 0 || bytes % sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
      auto* const list = static_cast<char*>(data);
      const size_t room = bytes / sizeof(int);
      size_t written = 0;
      const auto add = [&](int value) { std::memcpy(list + written++ * sizeof value, &value, sizeof value); };
      for (int bit = 0; bit < 64 && written < room; ++bit) {
        if (notes.accessed_by >> bit & 1) add(bit == 0 ? CU_DEVICE_CPU : bit - 1);
      }
      while (written < room) add(CU_DEVICE_INVALID);
      return CUDA_SUCCESS;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace sluice
