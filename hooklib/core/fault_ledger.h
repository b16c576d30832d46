// Tells what came by faults from what was asked for. The driver counts bytes that it moved to the card, whoever wanted
// them, and the faults of its kernels and copies. What was asked for and has not arrived yet is owed; what moves while
// there are faults, beyond what is owed, they brought.
#ifndef SLUICE_HOOKLIB_CORE_FAULT_LEDGER_H_
#define SLUICE_HOOKLIB_CORE_FAULT_LEDGER_H_

#include <algorithm>
#include <cstdint>

#include "hooklib/core/types.h"

namespace sluice::core {

class FaultLedger {
 public:
  // The driver begins to count now, and so much was asked for before.
  void Begin(uint64_t asked) {
    asked_ = asked;
    counting_ = true;
  }
  bool counting() const { return counting_; }
  // Read would change nothing: the way of a launch whose set is there.
  bool Still(uint64_t moved, uint64_t faults, uint64_t asked) const {
    return moved == moved_ && faults == faults_ && asked == asked_ && owed_ == 0;
  }
  // Totals: bytes moved, faults, bytes asked for; and those of the latter that may be on their way still. Read often:
  // it cannot tell asked from unasked within one interval better than by their sum.
  void Read(uint64_t moved, uint64_t faults, uint64_t asked, uint64_t on_way) {
    const uint64_t came = moved - std::min(moved, moved_), faulted = faults - std::min(faults, faults_);
    owed_ += asked - std::min(asked, asked_);
    owed_ -= std::min(owed_, asked_ - std::min(asked, asked_));  // the driver refused some
    // A fault is counted before its bytes are: they may be of the last interval's faults. One brings a chunk at most.
    const uint64_t unasked = std::min(came - std::min(came, owed_), (faulted + faulted_) * kChunkBytes);
    bytes_ += unasked;
    // What is not on its way any more has moved, or was there already.
    owed_ = std::min(owed_ - std::min(owed_, came - unasked), on_way);
    moved_ = moved;
    faults_ = faults;
    asked_ = asked;
    faulted_ = faulted;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  bool counting_ = false;
  uint64_t moved_ = 0, faults_ = 0, asked_ = 0;  // as of the last Read
  uint64_t faulted_ = 0;                         // faults between the last two
  uint64_t owed_ = 0, bytes_ = 0;
};

}  // namespace sluice::core

#endif  // SLUICE_HOOKLIB_CORE_FAULT_LEDGER_H_
