// What one library call touches: ranges with directions, in bytes.
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
  // Gaps below `gap` bytes are bridged, and more where an operand takes more than `limit` ranges. The default is the
  // size in which unified memory is moved: a finer set would fetch the same.
  explicit AccessSet(uint64_t gap = uint64_t{2} << 20, size_t limit = 64) : gap_(gap), limit_(limit) {}

  void Clear();
  // A null operand where bytes are covered makes the set doubtful; AddOptional takes null for "not given".
  void Add(const Region& region, Use use);
  void AddOptional(const Region& region, Use use) {
    if (region.base) Add(region, use);
  }
  void AddUnbounded(uint64_t address, Use use);  // a pointer of unknown reach
  void MarkUnknown(UnknownReason reason);
  void MarkStreaming() { streaming_ = true; }
  // Where the set is believed, not proven: nothing of it counts as overwritten.
  void MarkAssumed() { assumed_ = true; }
  // Joins what is alike. Where something else of the call covers bytes that are overwritten, they count as read too.
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
