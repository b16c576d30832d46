// Whether the card really holds what this process may hold there: the factor that is in force.
//
// What residency believes to be on the card is there only as long as the driver leaves it there. Where more is asked of
// the card than it has (another process, plain memory and contexts that nobody counts, a budget that was set too high),
// the driver takes pages away in its own order, the ones that were brought first; what works in rounds then misses page
// after page, however little is lacking. The process is not told, but the driver counts what it moves: bytes that left
// although nobody sent them away, and bytes that faults brought. Where launches lose much in this way, the factor is
// lowered until they lose nothing; where they have lost nothing for some rounds it is raised again, a little at a time,
// and each attempt that fails doubles these rounds.
//
// Counted in what launches name that are over, not in time: a round is as much as lives. Not thread-safe: the device's
// lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_BUDGET_PRESSURE_H_
#define SLUICE_HOOKLIB_POLICY_BUDGET_PRESSURE_H_

#include <algorithm>
#include <cstdint>

namespace sluice::policy {

class Pressure {
 public:
  static constexpr uint32_t kMinPercent = 10;  // percent

  enum class Advice : uint8_t { kNone, kLower, kRaise };
  // Bytes, so far. What is lost is both: taken away, and brought back by faults.
  struct Totals {
    uint64_t taken = 0;   // left the card, and nobody had sent it away
    uint64_t faults = 0;  // came by faults
  };

  static uint64_t Lost(const Totals& before, const Totals& now) {
    return std::min(now.taken - before.taken, now.faults - before.faults);
  }

  // Launches that named so many bytes are over, where so many live.
  Advice NoteLaunches(uint64_t named, const Totals& moved, uint64_t live);
  // What has moved until now says nothing.
  void Skip(const Totals& moved) {
    before_ = moved;
    named_bytes_ = 0;
  }
  // The budget moves: what is lost until all that lives has been named once is the way there.
  void Restart() { Settle(); }
  // The wish is granted. `start`: the factor that holds without evidence. `ceiling`: percent of the budget for which
  // the driver itself says that there is room. False: nothing changed.
  bool Lower(uint32_t start, uint32_t ceiling);
  bool Raise(uint32_t start, uint32_t ceiling);

  // The factor in force.
  uint32_t FactorFrom(uint32_t start) const { return std::min(start, percent_); }
  bool is_lowered() const { return percent_ < kMaxPercent; }
  // What launches take now is no measure of their kind: they may fault for what was to be there.
  bool distorts_timing() const { return lossy_rounds_ != 0 || settling_ || settle_bytes_ != 0; }
  // Lowered more than once in a row: no chance any more.
  bool is_persistent() const { return lowerings_ >= 2; }

 private:
  static constexpr uint32_t kMaxPercent = 100, kStepUpPercent = 5, kStepDownPercent = 10;  // percent
  static constexpr uint32_t kMinPatienceRounds = 4;                                        // rounds
  void Settle();

  uint32_t percent_ = kMaxPercent;                                    // percent
  uint32_t lowerings_ = 0;                                            // one after the other
  uint32_t step_down_ = kStepDownPercent, step_up_ = kStepUpPercent;  // percent, of the next change
  uint32_t clean_rounds_ = 0;                      // rounds, since the last one in which launches lost anything
  uint32_t patience_rounds_ = kMinPatienceRounds;  // rounds
  uint64_t named_bytes_ = 0;                       // bytes, in this round
  Totals before_;                                  // it
  uint32_t lossy_rounds_ = 0;                      // rounds in which launches lost something, one after the other
  uint64_t settle_bytes_ = 0;  // bytes that launches have to name before what is lost means anything
  bool settling_ = false;      // a change was made, and settle_bytes_ not set yet
  bool raised_ = false;        // the last change was a raise
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_BUDGET_PRESSURE_H_
