// The touch sampler: which chunks of large operands launches touch, whatever they name.
//
// A server names its whole paged cache in each launch and touches the pages of the sequences that run. The driver of a
// GPU does not tell accesses to resident pages, but faults on absent ones. So while launches lack bytes, a few absent
// chunks of an operand are left to faults (a trial). A chunk on which no launch faults in several uses is untouched:
// launches name it no more. One that faults is touched, and resident from then on.
//
// Trials are paid from credit in chunks moved over the link. A touched chunk costs several, since a fault is dearer
// than a fetch; an untouched one earns some. So a program that touches what it names pays the initial credit once, and
// from then on a small share of the bytes that its launches lack. Operands of one size are taken to be alike until
// their own chunks say otherwise.
//
// The state of a chunk lies in Chunk (touch, touched_granules); all else lies here. Not thread-safe: the device's lock
// is held.
#ifndef SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCH_SAMPLER_H_
#define SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCH_SAMPLER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

struct TouchStats {
  uint64_t trials = 0, touched = 0, untouched = 0;  // chunks that were tried, and what was found
  uint64_t late = 0;                                // untouched chunks that launches touched later
};

class TouchSampler {
 public:
  static constexpr uint64_t kMinOperandBytes = uint64_t{16} << 20;  // smaller operands are named whole

  // Whether the driver records faults: without records nothing is tried.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_; }
  // Whether any chunk is left out of launches' sets, so that faults are to be recorded.
  bool leaves_out_any() const { return left_out_ != 0; }
  static bool IsLeftOut(const Chunk& chunk) {
    return chunk.touch == memory::Touch::kTrial || chunk.touch == memory::Touch::kUntouched;
  }
  const TouchStats& stats() const { return stats_; }

  // --- trials ---
  // How many of `unknown` chunks of the operand may be tried now.
  size_t Allowance(Extent operand, size_t unknown);
  // Whether most chunks of the operand, or of others of its size, were found untouched.
  bool IsSuspect(Extent operand) const;
  // Whether no more is to be learned of it: what was tried of it, or of others of its size, was touched.
  bool IsTouchedWhole(Extent operand) const;
  // The chunk is absent or about to be, and left to faults from here on.
  void Begin(Chunk* chunk, Extent operand);
  // A launch with this mark names the chunk of a trial, which has left the GPU. `uses`: how much that counts.
  void NoteNamed(const Chunk& chunk, Mark mark, uint32_t uses);
  // A launch faulted on this page of the chunk. True: the chunk was left out, and is resident from here on.
  bool NoteFault(Chunk* chunk, Va page, uint64_t now);
  // Notes which trials' launches are over; is_done(Mark) asks the GPU.
  template <typename IsDone>
  void MarkOver(IsDone is_done) {
    for (auto& [base, trial] : trials_) trial.is_over = trial.uses >= kUses && is_done(trial.mark);
  }
  // Ends the trials that are over and did not fault. All faults before MarkOver have been noted, unless `lost`.
  void Conclude(ChunkTable* chunks, bool lost);
  // Whether a chunk that was found touched may be tried again; pays for it.
  bool PayForReview() {
    const bool pays = reserve_ >= kFaultCost;
    if (pays) reserve_ -= kFaultCost;
    return pays;
  }
  // Launches lacked so many bytes of their sets, or used them in host memory.
  void NoteLacking(uint64_t bytes) {
    reserve_ = std::min(kMaxReserve, reserve_ + static_cast<double>(bytes) / kChunkBytes * kLackingShare);
  }
  // The chunk's bytes were freed, or something fetched it: nothing is known of it.
  void Forget(Chunk* chunk) {
    if (chunk->touch != memory::Touch::kUnknown) ForgetKnown(chunk);
  }
  void RemoveArena(Extent arena);
  // Operands with resident chunks that are worth a sample, in turns. Calls sample(Extent, size_t): as many chunks of
  // the operand, at most, may be evicted to be tried; it returns how many were.
  template <typename Sample>
  void SampleInTurn(Sample sample) {
    for (size_t n = std::min<size_t>(order_.size(), kOperandsPerSample); n > 0; --n) {
      const Extent operand = order_[next_sampled_++ % order_.size()];
      const size_t allowance = IsTouchedWhole(operand) ? 0 : std::min(Allowance(operand, kMaxSample), kMaxSample);
      if (allowance && sample(operand, allowance)) return;
    }
  }

 private:
  static constexpr uint32_t kUses = 4;  // launches that name a chunk and do not touch it
  static constexpr size_t kOperandsPerSample = 4, kMaxSample = 16;
  static constexpr double kFaultCost = 5, kSuccessGain = 2, kLackingShare = 0.005;
  static constexpr double kInitialCredit = 128, kMaxCredit = 4096, kMaxReserve = 32;
  struct Trial {
    Extent operand;
    Mark mark{};        // of the last counted launch
    uint32_t uses = 0;  // counted
    bool is_over = false;
    double paid = 0;  // for it
  };
  struct Counts {
    uint32_t tried = 0, touched = 0, pending = 0;
    // Of a chunk to be touched, by the rule of succession.
    double Probability() const { return (touched + 1.0) / (tried + 2.0); }
  };
  const Counts& CountsOf(Extent operand) const;
  double CostOf(Extent operand) const { return kFaultCost * CountsOf(operand).Probability(); }
  void NoteUntouched(Chunk* chunk, Extent operand);
  void Count(Extent operand, bool is_touched);
  void ForgetKnown(Chunk* chunk);

  bool enabled_ = false;
  size_t left_out_ = 0;
  double credit_ = kInitialCredit;  // for operands that may be untouched
  double reserve_ = 0;              // for those that were found touched
  std::unordered_map<Va, Trial> trials_;        // by chunk
  std::unordered_map<Va, Counts> operands_;     // by base
  std::unordered_map<uint64_t, Counts> sizes_;  // of all operands of one size
  std::vector<Extent> order_;                   // operands in the order in which they were met
  size_t next_sampled_ = 0;
  TouchStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCH_SAMPLER_H_
