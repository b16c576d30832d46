// Companions of a chunk: chunks of one sequence lie in each layer's cache, and launches touch them in turn. Faults
// bring them one by one, some milliseconds apiece where a kernel writes them densely. So the fault on one brings the
// others:
//  - chunks that faulted in turn with it the last time, as when a server's slot is used again;
//  - chunks at the same place of operands of its size, as when a paged cache grows in all layers.
// Temporal groups as in prefetchers that replay a recorded miss sequence (Wenisch et al., "Temporal Streaming of Shared
// Memory", ISCA 2005). Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_TOUCHED_COMPANIONS_H_
#define SLUICE_HOOKLIB_POLICY_TOUCHED_COMPANIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class Companions {
 public:
  // An operand is tried, so its chunks may be left to faults. Forgets all operands where there are too many.
  void NoteOperand(Extent operand);
  // A launch faulted on a chunk that was left out. Chunks whose faults follow each other are one group from then on.
  // `now` counts launches.
  void NoteFault(Va chunk, uint64_t now);
  // A graph is launched, which is a whole iteration: later faults are another group.
  void EndGroup() { is_open_ = false; }
  // The chunks that faulted in turn with this one the last time, in the order of these faults.
  std::vector<Va> GroupOf(Va chunk) const;
  // The same place in all other operands of its size.
  std::vector<Va> AlikeOf(Va chunk) const;
  void RemoveArena(Extent arena);

 private:
  std::map<Va, uint64_t> operands_;            // bytes by base
  std::unordered_map<Va, uint64_t> group_of_;  // by chunk
  std::unordered_map<uint64_t, std::vector<Va>> groups_;
  uint64_t newest_ = 0, last_fault_at_ = 0;
  bool is_open_ = false;  // the newest group
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_TOUCHED_COMPANIONS_H_
