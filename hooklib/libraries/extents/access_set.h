// The access set of one library call: ranges in bytes, each with its direction.
#ifndef SLUICE_HOOKLIB_LIBRARIES_EXTENTS_ACCESS_SET_H_
#define SLUICE_HOOKLIB_LIBRARIES_EXTENTS_ACCESS_SET_H_

#include <span>
#include <vector>

#include "hooklib/libraries/extents/region.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice::libraries {

enum class Use : uint8_t {
  kRead,
  kWrite,      // some of it, or all of it after a read: earlier contents count
  kOverwrite,  // every byte, and none is read before
  kUpdate,     // read and written
  kScratch     // a workspace: contents count neither before nor after the call
};

// Why a set does not hold all that a call touches. Counted by reason.

// Filled by one description, then closed. Keeps its buffers from call to call. Not thread-safe.
class AccessSet {
 public:
  // Gaps below `gap` bytes are bridged, and larger ones where an operand would take more than `limit` ranges. The
  // default gap is a chunk: a finer set would fetch the same.
  explicit AccessSet(uint64_t gap = uint64_t{2} << 20, size_t limit = 64) : gap_(gap), limit_(limit) {}

  void Clear();
  // A null operand that covers bytes makes the set incomplete; for AddOptional, null means "not given".
  void Add(const Region& region, Use use);
  void AddOptional(const Region& region, Use use) {
    if (region.base) Add(region, use);
  }
  void AddUnbounded(uint64_t address, Use use);  // a pointer of unknown reach
  // The set does not hold everything. The first reason counts.
  void MarkUnknown(UnknownReason reason);
  void MarkStreaming() { streaming_ = true; }
  // The set is assumed, not proven: none of its ranges counts as overwritten.
  void MarkAssumed() { assumed_ = true; }
  // Joins ranges of one use. Overwritten bytes that another operand covers count as read too.
  void Close();

  std::span<const LibraryRange> ranges() const { return ranges_; }
  bool known() const { return unknown_reason_ == UnknownReason::kNone; }
  UnknownReason unknown_reason() const { return unknown_reason_; }
  bool streaming() const { return streaming_; }

 private:
  void Put(const Range& range, Use use);

  const uint64_t gap_;
  const size_t limit_;
  std::vector<Range> scratch_;
  std::vector<LibraryRange> ranges_;
  UnknownReason unknown_reason_ = UnknownReason::kNone;
  bool streaming_ = false, assumed_ = false;
};

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_EXTENTS_ACCESS_SET_H_
