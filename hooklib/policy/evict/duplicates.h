// Read duplication: chunks that copies alone wrote have a copy on both sides (read_mostly.cc).
#ifndef SLUICE_HOOKLIB_POLICY_EVICT_DUPLICATES_H_
#define SLUICE_HOOKLIB_POLICY_EVICT_DUPLICATES_H_

#include <vector>

#include "hooklib/policy/chunk_notes.h"

namespace sluice::policy {

class Duplicates : public ChunkNotes {
 public:
  // Whether chunks that copies alone wrote may be duplicated. false: duplicates are withdrawn.
  void set_read_mostly(bool may);
  // Something writes the range, or may. To be called before Prepare, so that nothing of it is fetched as a duplicate.
  void NoteWritten(Extent range);
  // A copy wrote the range. Behind Prepare.
  void NoteCopied(Extent range);
  // Anything may have been written unseen.
  void ForgetAllCopies();
  bool has_copies() const { return !copied_ranges_.empty(); }
  bool has_withdrawn() const { return !withdrawn_.empty(); }
  // Former duplicates: their advice is to be withdrawn at once, before anything else is done.
  std::vector<Extent> TakeWithdrawn();

 protected:
  using ChunkNotes::ChunkNotes;

  bool IsCopied(const Chunk& chunk) const;
  bool MayDuplicate(const Chunk& chunk);
  void ForgetCopies(Extent range);
  void Withdraw(Chunk* chunk);
  void Drop(Chunk* chunk, PlanStep* step);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_EVICT_DUPLICATES_H_
