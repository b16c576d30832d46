// Chunks that launches name and do not touch (touched_chunks.cc), and faults on memory that no launch names
// (unnamed_faults.cc).
#ifndef SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCHED_CHUNKS_H_
#define SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCHED_CHUNKS_H_

#include <optional>
#include <span>

#include "hooklib/policy/fetch/fetches.h"

namespace sluice::policy {

class TouchedChunks : public Fetches {
 public:
  TouchSampler& touched() { return touched_; }
  void MarkTouchesOver();  // asks the GPU which samples' launches are over. Then their faults are collected:
  void ConcludeTouches(std::span<const Va> pages, bool lost);  // `lost`: there were others, too
  void ForgetTouches();                                        // no faults are known
  // All bytes that faults have brought so far, where the driver counts them.
  void NoteCountedFaults(uint64_t bytes);

 protected:
  using Fetches::Fetches;

  size_t CountInSet() const;
  bool MayTry(const Chunk& chunk, bool is_graph) const;
  size_t LeaveOutUntouched(std::span<const Extent> extents, std::optional<size_t> hot_extents,
                           const StreamQueues& queues, PlannedLaunch* launch, Seq seq);
  void SampleResident(std::span<const Extent> extents, PlannedLaunch* launch, double touched, size_t* most,
                      bool is_graph, bool sparse);
  void TryResident(Chunk* chunk, Extent operand, StreamId stream);
  void ScheduleSamples();
  void TakeCompanions(const Chunk& touched);
  void TakeFaultedIn(Chunk* chunk);
  void FetchTouched(StreamId stream);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_TOUCHED_TOUCHED_CHUNKS_H_
