// What faults have scattered: launches that are larger than the capacity leave to faults what does not fit, and nobody
// knows which pages these bring, nor of which chunks. Here stands which chunks they may be of, about how many bytes
// they are, and when it is time to send them away; who may leave then is residency's to say.
//
// To send away all that a launch names takes 1.6 us a chunk even where nothing of it has come, which is more than a
// launch takes that looks up a few rows of a large table: so it is done together for many launches. Due it is once
// there are 64 MiB, by two measures: the times of launches, which tell it of launches that have not run yet; and what
// the driver counts, since a launch that finds what others' faults brought takes no time. Neither tells of pages that
// are born on the card where no launch of those was timed: while nothing leaves nothing faults, and it would stay so.
// Hence all of it leaves from time to time, soon after anything was named for the first time, then ever more rarely;
// and when no launch has brought any for a while.
// Times are launch numbers. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_EVICT_FAULT_RESIDUE_H_
#define SLUICE_HOOKLIB_POLICY_EVICT_FAULT_RESIDUE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class FaultResidue {
 public:
  bool empty() const { return chunks_.empty(); }
  // Whether launches have left anything to faults lately: that comes and goes all the time.
  bool IsRecent(uint64_t now) const { return noted_at_ && now < noted_at_ + kRecentLaunches; }
  // Faults may bring pages of the chunk, which is not counted as held.
  void Add(Chunk* chunk);
  // It leaves, or came whole, in another way.
  static void Remove(Chunk* chunk) { chunk->in_fault_residue = false; }
  // A launch is expected to bring so many bytes by faults.
  void NoteBytes(uint64_t bytes, uint64_t now) {
    expected_bytes_ += bytes;
    noted_at_ = now;
  }
  // Faults were of these pages, in order. What was never written is in no count of bytes.
  void NoteFaultedIn(std::span<const Va> pages);
  // So many bytes have faults brought in all, where the driver counts them.
  void set_counted_bytes(uint64_t bytes) { counted_bytes_ = bytes; }
  // It is due, however little it seems.
  void SweepSoon() { expected_bytes_ = kMaxBytes; }
  // Whether all of it is to be sent away now; asked before each launch. True: Sweep is called next.
  bool IsDue(uint64_t now);
  // Calls f(Chunk*) for each of them: true where it need not be looked at again.
  template <typename F>
  void Sweep(ChunkTable* table, uint64_t now, F f) {
    swept_at_ = noted_at_ = now;
    counted_at_sweep_ = counted_bytes_;
    expected_bytes_ = 0;
    std::erase_if(chunks_, [&](Va base) {
      Chunk* const chunk = table->Find(base);
      return !chunk || !chunk->in_fault_residue || f(chunk);
    });
  }

 private:
  static constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  static constexpr uint64_t kRecentLaunches = 1024;    // launches
  static constexpr uint64_t kFirstSweepLaunches = 16;  // launches
  // By address: arenas come and go. Whose chunk is not `scattered` any more is outdated.
  std::vector<Va> chunks_;
  uint64_t noted_at_ = 0;                          // when the last launch brought any, or it was swept
  uint64_t expected_bytes_ = 0;                    // about
  uint64_t sweep_interval_ = kFirstSweepLaunches;  // launches after which it goes, however little it seems
  uint64_t swept_at_ = 0;
  uint64_t counted_bytes_ = 0, counted_at_sweep_ = 0;  // bytes; as of the last sweep
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_EVICT_FAULT_RESIDUE_H_
