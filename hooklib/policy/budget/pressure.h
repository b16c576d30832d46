// Memory pressure: the factor in force, percent of the budget that this process may fill.
//
// Residency takes a chunk for resident, but the driver decides. Other processes, unmanaged memory, contexts and a
// budget set too high can ask more of the GPU than it has. Then the driver evicts in its own order, pages that were
// fetched first, and a program that works in iterations misses page after page, however little is lacking. The process
// gets no notice, but the driver counts two things: bytes evicted without a request, and bytes that faults brought.
// Where launches lose much in this way, the factor is lowered until they lose nothing. After some intervals without a
// loss it is raised again a little, and each attempt that fails doubles their number.
//
// An interval is over when finished launches have named as many bytes as are live; it is no time. Not thread-safe: the
// device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_BUDGET_PRESSURE_H_
#define SLUICE_HOOKLIB_POLICY_BUDGET_PRESSURE_H_

#include <algorithm>
#include <cstdint>

namespace sluice::policy {

class Pressure {
 public:
  static constexpr uint32_t kMinPercent = 10;

  enum class Advice : uint8_t { kNone, kLower, kRaise };
  // Bytes so far. A loss is both: evicted by the driver, and brought back by faults.
  struct Totals {
    uint64_t taken = 0;   // evicted without a request
    uint64_t faults = 0;  // brought by faults
  };

  static uint64_t Lost(const Totals& before, const Totals& now) {
    return std::min(now.taken - before.taken, now.faults - before.faults);
  }

  // Launches that named so many bytes are over, while `live` bytes are live.
  Advice NoteLaunches(uint64_t named, const Totals& moved, uint64_t live);
  // Moves before now do not count.
  void Skip(const Totals& moved) {
    before_ = moved;
    named_bytes_ = 0;
  }
  // The budget changes: losses do not count until all live bytes have been named once.
  void Restart() { Settle(); }
  // The advice is followed. `start`: the factor without evidence. `ceiling`: percent of the budget that the driver
  // itself says it has room for. False: nothing changed.
  bool Lower(uint32_t start, uint32_t ceiling);
  bool Raise(uint32_t start, uint32_t ceiling);

  // The factor in force, percent.
  uint32_t FactorFrom(uint32_t start) const { return std::min(start, percent_); }
  bool is_lowered() const { return percent_ < kMaxPercent; }
  // Launches may fault on chunks that were to be resident: their times say nothing of their access class.
  bool distorts_timing() const { return lossy_intervals_ != 0 || settling_ || settle_bytes_ != 0; }
  // Lowered more than once in a row: no accident.
  bool is_persistent() const { return lowerings_ >= 2; }

 private:
  static constexpr uint32_t kMaxPercent = 100, kStepUpPercent = 5, kStepDownPercent = 10;
  static constexpr uint32_t kMinPatienceIntervals = 4;
  void Settle();

  uint32_t percent_ = kMaxPercent;
  uint32_t lowerings_ = 0;                                            // in a row
  uint32_t step_down_ = kStepDownPercent, step_up_ = kStepUpPercent;  // percent, of the next change
  uint32_t clean_intervals_ = 0;                                      // since the last loss
  uint32_t patience_intervals_ = kMinPatienceIntervals;
  uint64_t named_bytes_ = 0;      // in this interval
  Totals before_;                 // as of the interval's begin
  uint32_t lossy_intervals_ = 0;  // with a loss, in a row
  uint64_t settle_bytes_ = 0;     // that launches have to name before losses count
  bool settling_ = false;         // a change was made, and settle_bytes_ not set yet
  bool raised_ = false;           // the last change was a raise
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_BUDGET_PRESSURE_H_
