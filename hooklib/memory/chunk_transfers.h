// The transfers of a chunk: the newest fetch and the newest eviction that were planned for it, by their queue and
// number. Operation 0: none.
#ifndef SLUICE_HOOKLIB_MEMORY_CHUNK_TRANSFERS_H_
#define SLUICE_HOOKLIB_MEMORY_CHUNK_TRANSFERS_H_

#include <cstdint>
#ifdef SLUICE_CHECKS_STATES
#include <stdexcept>
#endif

#include "hooklib/memory/types.h"

namespace sluice::memory {

class ChunkTransfers {
 public:
  uint64_t fetch_op() const { return fetch_op_; }  // on fetch_stream's in queue
  StreamId fetch_stream() const { return fetch_stream_; }
  bool fetches_contents() const { return fetches_contents_; }  // it had some when the fetch was planned
  bool prefetched() const { return prefetched_; }              // the fetch is for a later launch
  uint64_t evict_op() const { return evict_op_; }              // on evict_stream's out queue
  StreamId evict_stream() const { return evict_stream_; }
  // Evicted behind the launch that is being planned, by an operation that has no number yet: kNever.
  bool has_leave_pending() const { return evict_op_ == kNever; }
  bool evicting_elsewhere() const { return evicting_elsewhere_; }  // a queue other than evict_op's may evict it, too
  void BeginFetch(StreamId stream, uint64_t op, bool has_contents) {
    fetch_op_ = op;
    fetch_stream_ = stream;
    fetches_contents_ = has_contents;
  }
  void RenumberFetch(uint64_t to) { fetch_op_ = to; }
  void EndFetch() { fetch_op_ = 0; }  // it is over, or no work has to wait for it
  void SetPrefetched(bool prefetched) { prefetched_ = prefetched; }
  void NumberEviction(uint64_t op) {
    Expect(has_leave_pending());
    evict_op_ = op;
  }
  // Unless another eviction has begun since: behind the launch, say.
  void RenumberEviction(uint64_t from, uint64_t to) {
    if (evict_op_ == from) evict_op_ = to;
  }
  void SetEvictingElsewhere(bool elsewhere) { evicting_elsewhere_ = elsewhere; }
  void ForgetStream(StreamId stream) {
    if (fetch_stream_ == stream) EndFetch();
    if (evict_stream_ == stream) EndEviction();
  }

 protected:
  // The tests of the policy define it.
  static void Expect([[maybe_unused]] bool is_legal) {
#ifdef SLUICE_CHECKS_STATES
    if (!is_legal) throw std::logic_error("a chunk's state may not change so");
#endif
  }
  void SetEviction(StreamId stream, uint64_t op) {
    evict_op_ = op;
    evict_stream_ = stream;
  }
  void EndEviction() { evict_op_ = 0; }

 private:
  uint64_t fetch_op_ = 0, evict_op_ = 0;
  StreamId fetch_stream_ = 0, evict_stream_ = 0;
  bool fetches_contents_ = false, prefetched_ = false, evicting_elsewhere_ = false;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_CHUNK_TRANSFERS_H_
