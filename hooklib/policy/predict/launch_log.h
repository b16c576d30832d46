// The predictor's record of a launch (predictor.h), and the hash that tells launches apart.
#ifndef SLUICE_HOOKLIB_POLICY_PREDICT_LAUNCH_LOG_H_
#define SLUICE_HOOKLIB_POLICY_PREDICT_LAUNCH_LOG_H_

#include <cstdint>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// A hash of a launch's id and its chunks, in order. For a run of chunks its begin and end suffice.
class LaunchHash {
 public:
  explicit LaunchHash(uint64_t id) : sum_(id) {}
  void Add(Va begin, Va end) {
    if (begin != end_) sum_ = Mix(Mix(sum_, end_), begin);
    end_ = end;
  }
  uint64_t sum() const { return Mix(sum_, end_); }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
    x ^= x >> 31;
    return x * 0xbf58476d1ce4e5b9u;
  }

 private:
  uint64_t sum_;
  Va end_ = 0;
};

// One launch of the log.
struct alignas(64) LogEntry {  // one cache line
  uint64_t id = 0;
  uint64_t set_hash = 0;  // of id and chunks
  uint64_t triple = 0;    // hash of the set_hash of this launch and of the two before it
  uint64_t older = 0;     // the next older position with the same bucket
  uint64_t now = 0;
  uint64_t first = 0;  // position of its references, never wrapped
  uint32_t count = 0;
  uint32_t live_chunks = 0;
  bool all_resident = false;  // it found all of its chunks on the GPU
};

// One use of a chunk by a launch of the log.
struct LogReference {
  Chunk* chunk;
  uint64_t next_pos;     // log position of the chunk's next use; 0: not yet seen
  uint32_t next_ref;     // its reference there
  uint32_t freed_after;  // launch numbers from this use until its bytes were freed; 0: used again
  // References as numbers of the ring plus 1; 0: none is known.
  uint32_t last_ref;      // to the same memory, before this one; kBorn: it was freed since
  uint32_t repeated_ref;  // of the launch that repeats this one, at the same place: maybe at another address
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_LAUNCH_LOG_H_
