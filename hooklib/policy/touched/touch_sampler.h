// The touch sampler: which chunks of large operands launches touch, whatever they name.
//
// A server names its whole paged cache in each launch and touches the pages of the sequences that run. The driver of a
// GPU does not tell accesses to resident pages, but faults on absent ones. So while launches lack bytes, a few absent
// chunks of an operand are left to faults (a sample). A chunk on which no launch faults in several uses is untouched:
// launches name it no more. One that faults is touched, and resident from then on.
//
// Samples are paid from credit in chunks moved over the link. A touched chunk costs several, since a fault is dearer
// than a fetch; an untouched one earns some. So a program that touches its operands whole pays for a few chunks once.
// Operands of one size are taken to be alike until their own chunks say otherwise.
//
// The state of a chunk lies in Chunk (touch); all else lies here. Not thread-safe: the device's lock
// is held.
#ifndef SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCH_SAMPLER_H_
#define SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCH_SAMPLER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/cost/link_model.h"
#include "hooklib/policy/memory_names.h"
#include "hooklib/policy/touched/companions.h"

namespace sluice::policy {

struct TouchStats {
  uint64_t samples = 0, touched = 0, untouched = 0;  // chunks that were tried, and the findings
  uint64_t late = 0;                                 // untouched chunks that launches touched later
};

class TouchSampler {
 public:
  static constexpr uint64_t kMinOperandBytes = uint64_t{16} << 20;  // smaller operands are named whole
  // Chunks of one launch's samples that may be expected to be touched: the driver's records of their faults fit its
  // queue, and so much may be resident beyond the capacity until the next launch.
  static const double kMaxTouched;

  explicit TouchSampler(const LinkModel* link);
  // Whether the driver records faults: without records nothing is tried.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_; }
  // Whether any chunk is left out of launches' sets, so that faults are to be recorded.
  bool leaves_out_any() const { return left_out_ != 0; }
  static bool IsLeftOut(const Chunk& chunk) {
    return chunk.touch == memory::Touch::kSampled || chunk.touch == memory::Touch::kUntouched;
  }
  const TouchStats& stats() const { return stats_; }

  // --- sampling ---
  // How many of `unknown` chunks of the operand may be tried now.
  // `*touched`: the tried chunks that the launch is expected to touch, of all its operands. This call subtracts its
  // own. `sparse`: the launch took less time than the link needs for its operands. So most of their chunks are
  // untouched. Samples of resident chunks alone may mislead there, since faults brought the touched ones.
  size_t Allowance(Extent operand, size_t unknown, double* touched, bool sparse = false);
  // The same of `old` chunks that were touched long ago.
  size_t AllowanceOfOld(Extent operand, size_t old, double* touched) const;
  // Whether most chunks of the operand, or of others of its size, were found untouched.
  bool IsSuspect(Extent operand) const;
  // Whether no more is to be learned of it: its chunks that were tried, or those of others of its size, were touched.
  bool IsTouchedWhole(Extent operand) const;
  // The chunk is absent or about to be, and left to faults from here on. A touched one is tried again.
  void Begin(Chunk* chunk, Extent operand);
  // Launch `now`, with this mark, names the chunk of a sample, which has left the GPU. `uses`: how much that counts.
  // The sample lasts for so many uses, and for `min_launches` from the first of them on.
  void NoteNamed(const Chunk& chunk, Mark mark, uint32_t uses, uint64_t now, uint64_t min_launches);
  // Once an iteration: ends samples whose chunk no launch has named for so many launches. They say nothing.
  void EndUnnamed(uint64_t now, uint64_t max_age, ChunkTable* chunks);
  // A launch faulted on the chunk. True: the chunk was left out, and is resident from here on.
  bool NoteFault(Chunk* chunk, uint64_t now);
  // Notes which samples' launches are over; is_done(Mark) asks the GPU.
  template <typename IsDone>
  void MarkOver(IsDone is_done) {
    for (auto& [base, sample] : samples_) sample.is_over = sample.counts_all && is_done(sample.mark);
  }
  // Ends the samples that are over and did not fault: all faults before MarkOver have been noted.
  void Conclude(ChunkTable* chunks);
  // The same, but some faults were lost. Such samples begin again; f(Va) is called for their chunks, of which pages may
  // be on the GPU.
  template <typename F>
  void Repeat(F f) {
    for (auto& [base, sample] : samples_) {
      if (!sample.is_over) continue;
      sample.is_over = sample.counts_all = false;
      sample.uses = 0;
      sample.named_at = 0;
      f(base);
    }
  }
  // Whether samples are under way.
  bool explores() const { return !samples_.empty(); }
  // Launches lacked so many bytes of their sets, or used them in host memory.
  void NoteLacking(uint64_t bytes);
  // An untouched chunk is taken for touched, since the one before it was.
  void Presume(Chunk* chunk, uint64_t now);
  // A chunk that is left out is touched again: with its companion, or by a copy, which would end each sample of it
  // while it comes with each iteration. That says nothing of the operand's other chunks.
  void Return(Chunk* chunk, uint64_t now);
  Companions& companions() { return companions_; }
  // The chunk's bytes were freed: nothing is known of it.
  void Forget(Chunk* chunk) {
    if (chunk->touch != memory::Touch::kUnknown) ForgetKnown(chunk);
  }
  void RemoveArena(Extent arena);  // its chunks were forgotten

 private:
  struct Sample {
    Extent operand;
    Mark mark{};              // of the last counted launch
    uint64_t named_at = 0;    // the first counted launch
    uint32_t uses = 0;        // counted
    uint64_t seen_at = 0;     // a launch named it, or EndUnnamed saw it first
    bool counts_all = false;  // no more are needed
    bool is_over = false;
    bool is_again = false;  // it says nothing of the operand's other chunks
    double paid = 0;        // for it
  };
  struct Counts {
    uint32_t tried = 0, touched = 0, pending = 0;
  };
  Counts OwnCounts(Extent operand) const;
  Counts AlikeCounts(Extent operand) const;    // of all operands of its size
  double FaultCost() const;                    // in chunks moved over the link
  double ProbabilityOf(Extent operand) const;  // that a chunk of it is touched
  void EndSample(const Sample& sample);
  void Count(const Sample& sample, bool is_touched);
  void ForgetKnown(Chunk* chunk);

  const LinkModel* link_;
  bool enabled_ = false;
  size_t left_out_ = 0;
  double credit_;
  Companions companions_;
  std::unordered_map<Va, Sample> samples_;      // by chunk
  std::unordered_map<Va, Counts> operands_;     // by base
  std::unordered_map<uint64_t, Counts> sizes_;  // of all operands of one size
  TouchStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCH_SAMPLER_H_
