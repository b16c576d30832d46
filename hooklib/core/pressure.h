// Whether the card really holds what this process may hold: the factor that is in force.
//
// What residency believes to be on the card is there only as long as the driver leaves it there. Where more is asked of
// the card than it has (another process, plain memory and contexts that nobody counts, a budget that was set too high),
// the driver takes pages away in its own order, the ones that were brought first; what works in rounds then misses page
// after page, however little is lacking. Nobody tells the process. What tells is how long it takes to fetch once more
// what a launch is about to use and what was fetched for it before: 4.6 us for 2 MiB that are still there (H200, driver
// 580), more than 250 where they are not and something else has to leave for them. So now and then a launch's own
// chunks are fetched again and timed, a "look" (Residency::Recheck, Device::LookAround; with SLUICE_LOOKS=1 only, since
// a card that moves much else takes as long for what is there). Where looks find chunks gone, the factor is lowered
// until they find them; where they have found all there for a while it is raised again, a little at a time, and each
// attempt that fails doubles that while.
//
// On the GPU's clock, as the looks' own events tell it. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_CORE_PRESSURE_H_
#define SLUICE_HOOKLIB_CORE_PRESSURE_H_

#include <algorithm>
#include <cstdint>

namespace sluice::core {

class Pressure {
 public:
  static constexpr uint32_t kFloor = 10;  // percent

  enum class Wish : uint8_t { kNothing, kLower, kRaise };
  struct Look {
    uint64_t generation = 0;  // of the factor: looks from before it changed say nothing about what is
    uint64_t launch = 0;
  };

  // Whether a look is due, with one more launch that names so many bytes. They are some 20 ms of the GPU's time apart,
  // 5 where there is doubt, and wait until every chunk has had a chance to come back after the factor changed.
  bool Due(uint64_t named, uint64_t live);
  // A look that is made now.
  Look Begin() const { return {generation_, launches_}; }
  // It was over at `now` (ns) and found the chunks gone, or there.
  Wish Looked(const Look& look, bool gone, uint64_t now);
  // The wish is granted. `start`: the factor that holds without evidence. `ceiling`: percent of the budget for which
  // the driver itself says that there is room. False: nothing changed.
  bool Lower(uint32_t start, uint32_t ceiling, uint64_t now);
  bool Raise(uint32_t start, uint32_t ceiling, uint64_t now);

  // The factor in force.
  uint32_t Of(uint32_t start) const { return std::min(start, held_); }
  bool lowered() const { return held_ < kAll; }
  // What launches take now is no measure of their kind: they may fault for what was to be there.
  bool doubtful() const { return outcomes_ != 0 || settling_ || settle_ != 0; }
  // Lowered more than once in a row: no chance any more.
  bool certain() const { return lowerings_ >= 2; }

  // Whether a fetch of so many bytes that were there took this long because they were not.
  static bool Gone(uint64_t bytes, uint64_t ns);

 private:
  static constexpr uint32_t kAll = 100, kStepUp = 5, kStepDown = 10;  // percent
  static constexpr uint64_t kPatience = 1'000'000'000;
  void Changed(uint64_t now);

  uint32_t held_ = kAll;                      // percent
  uint32_t lowerings_ = 0;                    // one after the other
  uint32_t down_ = kStepDown, up_ = kStepUp;  // percent, of the next change
  uint32_t outcomes_ = 0;                     // of the last looks, one bit each: gone
  uint32_t clean_ = 0;                        // looks, since the last that found something gone
  uint64_t generation_ = 0;
  uint64_t settle_ = 0;                           // bytes that launches have to name before looks mean anything
  bool settling_ = false;                         // a change was made, and settle_ not set yet
  uint64_t launches_ = 0, due_ = 64, pace_ = 64;  // so far; the next look; launches between two
  uint64_t last_ = 0, last_launch_ = 0;           // ns; of the last look
  uint64_t well_since_ = 0;                       // ns
  uint64_t patience_ = kPatience;                 // ns
  bool raised_ = false;                           // the last change was a raise
};

}  // namespace sluice::core

#endif  // SLUICE_HOOKLIB_CORE_PRESSURE_H_
