// Fault residue: pages that demand faults of launches larger than the capacity brought. Faults do not say which pages,
// nor of which chunks. This class keeps the chunks in question, an estimate of their bytes, and the time of the next
// sweep, which evicts them. Residency says which chunks may be evicted then.
//
// An eviction of all chunks that a launch names takes 1.6 us a chunk even where no page is resident. A launch that
// looks up a few rows of a large table takes less, so one sweep serves many launches. It is due at 64 MiB, by either of
// two measures. The times of launches predict it for launches that have not run yet. The driver's count includes
// launches that took no time, since they found pages that other faults had brought. Neither measure sees pages that are
// populated empty where no such launch was timed: without evictions there are no faults, and the pages would stay. So a
// sweep also runs from time to time: soon after the first chunk is named, then ever more rarely, and once no launch has
// left residue for a while.
//
// Times are launch numbers. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_EVICT_FAULT_RESIDUE_H_
#define SLUICE_HOOKLIB_POLICY_EVICT_FAULT_RESIDUE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class FaultResidue {
 public:
  bool empty() const { return chunks_.empty(); }
  // Whether launches have left residue lately: chunks of the kind are evicted and faulted in all the time.
  bool IsRecent(uint64_t now) const { return noted_at_ && now < noted_at_ + kRecentLaunches; }
  // Faults may bring pages of the chunk, which does not count as resident.
  void Add(Chunk* chunk);
  // The same of a chunk that a sweep has left out, since it was free.
  void List(const Chunk* chunk) { chunks_.push_back(chunk->base); }
  // A launch is expected to fault in so many bytes.
  void NoteBytes(uint64_t bytes, uint64_t now) {
    expected_bytes_ += std::min(bytes, kMaxBytes >> distrust_);
    noted_at_ = now;
  }
  // Faults were on these pages, in order. Pages that were never written are in no count of bytes.
  void NoteFaultedIn(std::span<const Va> pages);
  // All bytes that faults have brought so far, where the driver counts them.
  void set_counted_bytes(uint64_t bytes) {
    counts_ = true;
    counted_bytes_ = bytes;
  }
  // The next sweep is due, however small the estimate.
  void SweepSoon() { sweep_soon_ = true; }
  // Whether all residue is to be evicted now. Asked before each launch; if true, Sweep is called next.
  bool IsDue(uint64_t now);
  // Calls f(Chunk*) for each chunk; f returns whether it is done with the chunk.
  template <typename F>
  void Sweep(ChunkTable* table, uint64_t now, F f) {
    Calibrate();
    swept_at_ = noted_at_ = now;
    counted_at_sweep_ = counted_bytes_;
    expected_bytes_ = 0;
    sweep_soon_ = false;
    is_counted_ = true;
    std::erase_if(chunks_, [&](Va base) {
      Chunk* const chunk = table->Find(base);
      return !chunk || !chunk->has_fault_residue() || f(chunk);
    });
  }

 private:
  static constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  static constexpr uint64_t kRecentLaunches = 1024;
  static constexpr uint64_t kFirstSweepLaunches = 16;
  static constexpr uint32_t kMaxDistrust = 6;
  // Compares the bytes expected since the last sweep with the bytes counted.
  void Calibrate();
  // By address, since arenas are returned. An entry is outdated once its chunk has no fault residue.
  std::vector<Va> chunks_;
  uint64_t noted_at_ = 0;                          // the last launch that left residue, or the last sweep
  uint64_t expected_bytes_ = 0;                    // an estimate
  uint32_t distrust_ = 0;                          // a launch adds at most kMaxBytes, halved so often
  bool sweep_soon_ = false;                        // whatever it is
  bool counts_ = false;                            // the driver does
  bool is_counted_ = true;                         // all that may have come since the last sweep has contents
  uint64_t sweep_interval_ = kFirstSweepLaunches;  // launches between two sweeps, whatever the estimate
  uint64_t swept_at_ = 0;
  uint64_t counted_bytes_ = 0, counted_at_sweep_ = 0;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_EVICT_FAULT_RESIDUE_H_
