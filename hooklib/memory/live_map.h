// Live memory by address: allocations that the engine serves, and inside them the ranges that a framework's allocator
// reported. Resolves a pointer to the extent that it may mean. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_MEMORY_LIVE_MAP_H_
#define SLUICE_HOOKLIB_MEMORY_LIVE_MAP_H_

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "hooklib/memory/types.h"

namespace sluice::memory {

// Packed: a map node with it takes 64 bytes, the hook's limit for one block.
struct Allocation {
  uint64_t bytes : 57 = 0;
  uint64_t sync_memops : 1 = 0;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, as the application set it
  uint64_t mapped : 1 = 0;          // VMM ranges that lie side by side (LiveMap::Map)
  uint64_t stream_ordered : 1 = 0;  // of a memory pool: belongs to no context
  uint64_t unevictable : 1 = 0;     // in unevictable device memory (Device::AllocateUnevictable), not residency's
  uint64_t app_managed : 1 = 0;     // asked for as managed: the host may read and write it at any time
  // A part of it was reported, allocated or named during a capture: live until its free.
  uint64_t captured : 1 = 0;
  uint64_t reported : 1 = 0;  // a framework reports the live ranges inside
  uint64_t id = 0;            // CU_POINTER_ATTRIBUTE_BUFFER_ID: unique, never reused
};
static_assert(sizeof(Allocation) == 16);

class LiveMap {
 public:
  Allocation* Add(Va base, const Allocation& allocation) {
    Invalidate({base, allocation.bytes});
    return &(allocations_[base] = allocation);
  }
  // The allocation at exactly `base`; removes its reports with it.
  std::optional<Allocation> Remove(Va base);
  // The allocation that contains the address.
  Allocation* Find(Va va, Va* base);

  // The bases of all allocations that begin in the range.
  std::vector<Va> In(Extent range) const;

  // --- VMM. Ranges are mapped and unmapped piece by piece, and one block of the application may reach over several of
  // them, so ranges side by side in one reservation are one allocation. ---
  struct Mapping {
    uint64_t bytes = 0;
    bool pinned = false;  // a part of it was reported, mapped or named during a capture: live until its unmapping
  };
  // The allocations right below and right above the range that it will be one with.
  std::vector<Va> Neighbors(Extent range, Extent reservation);
  Allocation* Map(Extent range, Extent reservation, const Allocation& allocation);
  // `range`: one mapping. Reports inside are kept for when it is mapped again: vLLM's sleep mode unmaps and maps below
  // PyTorch's allocator, whose blocks stay.
  void Unmap(Extent range);
  void ForgetReports(Extent reservation);
  std::map<Va, Mapping>& mappings() { return mappings_; }
  // The mapping that holds the address; end(): none.
  std::map<Va, Mapping>::iterator MappingAt(Va va);
  void InvalidateAnswers(Extent range) { Invalidate(range); }  // a mapping in it was pinned
  std::vector<Extent> ReportsIn(Extent range) const;           // the parts of reports inside the range

  // A framework's allocator took the range inside an allocation. False where no allocation holds it.
  bool Report(Extent range);
  // The same where `allocation`, found for the range's begin, is at `base`.
  bool Report(Extent range, Va base, Allocation* allocation);
  std::optional<Extent> Unreport(Va base);

  // The extent that a pointer of a kernel may reach: the reported range around it, else the whole allocation. Nothing
  // for an address that is not ours or that lies in free space of a reported segment. `is_reported`, if given: whether
  // the answer is a reported range, not the allocation for want of a report.
  std::optional<Extent> Resolve(Va va, bool* is_reported = nullptr) {
    const Answer* const known = FindAnswer(va);
    if (!known) return std::nullopt;
    if (is_reported) *is_reported = known->is_reported;
    return known->extent;
  }
  // The same without a copy; null: nothing. Valid until the next question. (An optional is copied in halves that
  // overlap and are read again before they are written: 15 cycles for each word of a launch.)
  const Extent* Lookup(Va va) {
    const Answer* const known = FindAnswer(va);
    return known ? &known->extent : nullptr;
  }
  // The part of it inside [begin, end).
  std::optional<Extent> Resolve(Va va, Va begin, Va end);

  const std::map<Va, uint64_t>& reports() const { return reports_; }
  size_t size() const { return allocations_.size(); }

 private:
  // Launches name the same addresses repeatedly: an answer holds until something changes in its region of the address
  // space.
  struct Answer {
    Va va = 0;
    uint64_t stamp = 0;
    Extent extent;
    bool is_reported = false;
  };
  static constexpr size_t kAnswerSlots = size_t{1} << 10, kRegions = 4096;
  const Answer* FindAnswer(Va va) {
    const Answer* const known = &answers_[Slot(va)];
    return (known->va == va && known->stamp == Stamp(va)) || Search(va) ? known : nullptr;
  }
  bool Search(Va va);
  bool Store(Va va, Extent extent, bool is_reported) {
    answers_[Slot(va)] = {va, Stamp(va), extent, is_reported};
    return true;
  }
  void Invalidate(Extent range);
  static size_t Slot(Va va) { return (va * 0x9e3779b97f4a7c15u) >> 54; }
  static size_t Region(Va va) { return va / kChunkBytes % kRegions; }
  uint64_t Stamp(Va va) const { return all_invalidations_ + region_invalidations_[Region(va)]; }

  std::array<Answer, kAnswerSlots> answers_;
  std::array<uint64_t, kRegions> region_invalidations_{};
  uint64_t all_invalidations_ = 1;  // times that all answers were invalidated
  std::map<Va, Allocation> allocations_;
  std::map<Va, uint64_t> reports_;
  std::map<Va, Mapping> mappings_;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_LIVE_MAP_H_
