// Separates the bytes that the driver moved on its own from those that the engine requested. The driver counts all
// bytes that it moved each way. Requested bytes that have not moved yet are owed; bytes that move beyond the owed ones
// are unrequested.
#ifndef SLUICE_HOOKLIB_POLICY_BUDGET_FAULT_LEDGER_H_
#define SLUICE_HOOKLIB_POLICY_BUDGET_FAULT_LEDGER_H_

#include <algorithm>
#include <cstdint>

#include "hooklib/memory/types.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// One direction.
class MigrationLedger {
 public:
  // The driver begins to count now; `requested` bytes were requested before.
  void Begin(uint64_t requested) {
    requested_ = requested;
    counting_ = true;
  }
  bool counting() const { return counting_; }
  // Whether Update would change nothing. The usual case: a launch whose set is resident.
  bool IsUnchanged(uint64_t moved, uint64_t requested) const {
    return moved == moved_ && requested == requested_ && owed_ == 0;
  }
  // Totals: bytes moved, bytes requested, and requested bytes that may still be in flight. At most `max_unrequested` of
  // the new bytes are unrequested. To be called often: within one interval only the sum of requested and unrequested
  // bytes is known.
  void Update(uint64_t moved, uint64_t requested, uint64_t in_flight, uint64_t max_unrequested = kNever) {
    const uint64_t arrived = moved - std::min(moved, moved_);
    owed_ += requested - std::min(requested, requested_);
    owed_ -= std::min(owed_, requested_ - std::min(requested, requested_));  // the driver refused some
    const uint64_t unrequested = std::min(arrived - std::min(arrived, owed_), max_unrequested);
    unrequested_ += unrequested;
    // Bytes that are no longer in flight have moved, or were resident already.
    owed_ = std::min(owed_ - std::min(owed_, arrived - unrequested), in_flight);
    moved_ = moved;
    requested_ = requested;
  }
  uint64_t bytes() const { return unrequested_; }  // unrequested

 private:
  bool counting_ = false;
  uint64_t moved_ = 0, requested_ = 0;  // as of the last Update
  uint64_t owed_ = 0, unrequested_ = 0;
};

// Towards the GPU: unrequested bytes that move while there are faults were brought by them.
class FaultLedger {
 public:
  void Begin(uint64_t requested) { moves_.Begin(requested); }
  bool counting() const { return moves_.counting(); }
  bool IsUnchanged(uint64_t moved, uint64_t faults, uint64_t requested) const {
    return faults == faults_ && moves_.IsUnchanged(moved, requested);
  }
  void Update(uint64_t moved, uint64_t faults, uint64_t requested, uint64_t in_flight) {
    const uint64_t faulted = faults - std::min(faults, faults_);
    // A fault is counted before its bytes: these may belong to faults of the last interval. A fault brings one chunk at
    // most.
    moves_.Update(moved, requested, in_flight, (faulted + faulted_) * kChunkBytes);
    faults_ = faults;
    faulted_ = faulted;
  }
  uint64_t bytes() const { return moves_.bytes(); }

 private:
  MigrationLedger moves_;
  uint64_t faults_ = 0;   // as of the last Update
  uint64_t faulted_ = 0;  // between the last two
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_BUDGET_FAULT_LEDGER_H_
