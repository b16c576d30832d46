// Tells what the driver moved by itself from what was asked for. It counts bytes that it moved each way, whoever wanted
// them. What was asked for and has not moved yet is owed; what moves beyond what is owed, nobody asked for.
#ifndef SLUICE_HOOKLIB_POLICY_BUDGET_FAULT_LEDGER_H_
#define SLUICE_HOOKLIB_POLICY_BUDGET_FAULT_LEDGER_H_

#include <algorithm>
#include <cstdint>

#include "hooklib/memory/types.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// One way.
class MigrationLedger {
 public:
  // The driver begins to count now, and so much was asked for before.
  void Begin(uint64_t requested) {
    requested_ = requested;
    counting_ = true;
  }
  bool counting() const { return counting_; }
  // Read would change nothing: the way of a launch whose set is there.
  bool IsUnchanged(uint64_t moved, uint64_t requested) const {
    return moved == moved_ && requested == requested_ && owed_ == 0;
  }
  // Totals: bytes moved, bytes asked for; and those of the latter that may be on their way still. `most`: so much at
  // most may be unasked. Read often: it cannot tell asked from unasked within one interval better than by their sum.
  void Update(uint64_t moved, uint64_t requested, uint64_t in_flight, uint64_t max_unrequested = kNever) {
    const uint64_t arrived = moved - std::min(moved, moved_);
    owed_ += requested - std::min(requested, requested_);
    owed_ -= std::min(owed_, requested_ - std::min(requested, requested_));  // the driver refused some
    const uint64_t unrequested = std::min(arrived - std::min(arrived, owed_), max_unrequested);
    unrequested_ += unrequested;
    // What is not on its way any more has moved, or was there already.
    owed_ = std::min(owed_ - std::min(owed_, arrived - unrequested), in_flight);
    moved_ = moved;
    requested_ = requested;
  }
  uint64_t bytes() const { return unrequested_; }  // that nobody asked for

 private:
  bool counting_ = false;
  uint64_t moved_ = 0, requested_ = 0;  // as of the last Read
  uint64_t owed_ = 0, unrequested_ = 0;
};

// To the card: what moves unasked while there are faults, they brought.
class FaultLedger {
 public:
  void Begin(uint64_t requested) { moves_.Begin(requested); }
  bool counting() const { return moves_.counting(); }
  bool IsUnchanged(uint64_t moved, uint64_t faults, uint64_t requested) const {
    return faults == faults_ && moves_.IsUnchanged(moved, requested);
  }
  void Update(uint64_t moved, uint64_t faults, uint64_t requested, uint64_t in_flight) {
    const uint64_t faulted = faults - std::min(faults, faults_);
    // A fault is counted before its bytes are: they may be of the last interval's faults. One brings a chunk at most.
    moves_.Update(moved, requested, in_flight, (faulted + faulted_) * kChunkBytes);
    faults_ = faults;
    faulted_ = faulted;
  }
  uint64_t bytes() const { return moves_.bytes(); }

 private:
  MigrationLedger moves_;
  uint64_t faults_ = 0;   // as of the last Read
  uint64_t faulted_ = 0;  // between the last two
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_BUDGET_FAULT_LEDGER_H_
