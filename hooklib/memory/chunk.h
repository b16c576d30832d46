// One chunk: its state (chunk_state.h), and the policy's notes on it.
//
// Times are launch numbers, device-wide; iterations are those of policy/predict/iterations.h.
#ifndef SLUICE_HOOKLIB_MEMORY_CHUNK_H_
#define SLUICE_HOOKLIB_MEMORY_CHUNK_H_

#include <algorithm>
#include <cstdint>

#include "hooklib/memory/chunk_state.h"
#include "hooklib/memory/types.h"

namespace sluice::memory {

// Whether launches that name a chunk touch it (policy/touched/touch_sampler.h).
enum class Touch : uint8_t { kUnknown, kSampled, kUntouched, kTouched, kPresumed };

struct Chunk : ChunkState {
  // Every launch that names the chunk reads and writes these and the state, so they lie side by side.
  bool unranked = false;  // in Candidates' list: its rank is out of date
  bool first_of_arena = false;
  Va base = 0;
  Mark use[2];  // the last queued uses by two streams
  uint64_t last_use = 0;
  uint64_t next_use = kNever;     // predicted; kNever: not known
  uint64_t named_at = 0;          // by the newest launch that has the chunk in its set
  uint64_t last_required_at = 0;  // last use by work that requires it resident
  uint64_t link_iteration = 0;    // in which link_bytes counts
  uint32_t log_ref = 0;           // predictor's newest reference
  uint32_t log_match = 0;         // the reference that the newest use repeats, plus one; 0: none
  uint32_t named_bytes = 0;       // by the newest launch that has the chunk in its set
  uint32_t link_bytes = 0;        // named by launches; they cross the link if the chunk is host-resident
  // The other fields.
  Epoch use_epoch = 0;    // more than two streams: behind this fence all uses are over
  uint32_t freed_in = 0;  // launches from the last use until its bytes are freed, predicted; 0: not known
  Epoch freed_epoch = 0;  // the last live byte was freed before this fence closed
  uint64_t freed_at = 0;  // when that byte was freed
  uint32_t live_bytes = 0;
  uint32_t rank_stamp = 0;            // of Candidates' newest entry
  uint64_t live_since = 0;            // when its first live byte was allocated
  uint64_t required_until = 0;        // until then a launch is known to require it resident
  uint64_t required_by = 0;           // execution id of that launch
  uint64_t swapped_in_at = 0;         // last fetch although its launches could use it remotely
  uint64_t remote_until = 0;          // before then it is not swapped, since it did not stay
  uint64_t remote_iteration = 0;      // in which remote_uses counts
  uint64_t evicted_iteration = 0;     // last eviction of live bytes that are fetched again
  uint64_t demand_paged_at = 0;       // last launch that left it to demand faults by choice
  uint64_t overwritten_at = 0;        // last launch that overwrote it whole
  uint64_t repopulated_by = 0;        // execution id of the last launch that it was repopulated for
  uint64_t withdrawn_until = 0;       // before then not duplicated, since something wrote it
  uint64_t promote_iteration = 0;     // in which it is to be promoted in another chunk's place
  uint64_t top_user_id = 0;           // execution id of the launch that named most of it lately
  uint32_t previous_link_bytes = 0;   // link_bytes of the iteration before
  uint32_t top_user_bytes = 0;        // bytes that launch top_user_id named
  uint32_t copied_bytes = 0;          // live bytes whose only writer is a copy
  uint16_t remote_uses = 0;           // launches of this iteration that used it remotely
  bool evicted_repeatedly = false;    // also evicted one or two iterations before (remote_access.cc)
  bool cold = false;                  // used so little that a hot chunk takes its place (placement.cc)
  bool probe_victim = false;          // evicted to time a launch that has its whole set resident
  bool written_back = false;          // copied to the host since it was last a duplicate: to advise it costs more
  uint8_t withdrawals = 0;            // times that something wrote it while it was a duplicate
  bool ever_evicted = false;          // its host pages exist until the block is freed
  bool reused_after_discard = false;  // in Residency's list of chunks that were reused after a discard
  bool set_aside = false;             // Candidates protects it or has deferred it
  bool in_freed_list = false;         // in one of Residency's lists of freed chunks
  bool owned = false;                 // its bytes freed last belong to a live allocation that holds all of it
  Touch touch = Touch::kUnknown;
  bool unnamed_by_faults = false;  // resident, since a launch that did not name it has faulted
  uint64_t touched_at = 0;         // newest fault of a launch since it was last tried
  uint64_t unnamed_out = 0;  // when it was evicted, if only faults tell of its use (touched/unnamed_faults.cc); else 0
  uint32_t used_second = 0;  // of its newest use (policy/working_set/working_set.cc); 0: none
  uint16_t pins = 0;         // allocations in it that are live until their free (captured, or the host may write)
};

// Bytes of the chunk in the range. The two overlap.
inline uint32_t Overlap(const Extent& range, const Chunk& chunk) {
  return static_cast<uint32_t>(std::min(range.end(), chunk.base + kChunkBytes) - std::max(range.base, chunk.base));
}

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_CHUNK_H_
