// Launches of one device that are watched for the pages they fault on, to learn which part of a block a launch uses
// (policy/predict/pointer_ranges.h).
//
// One launch is watched at a time, and it is alone on the GPU. Before it the host waits until its stream is idle; the
// next launches wait until it is done. The device's lock is held in all functions.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_FAULT_WATCH_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_FAULT_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hooklib/engine/device/device_lock.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/observe/fault_records.h"
#include "hooklib/memory/timeline.h"
#include "hooklib/policy/predict/pointer_ranges.h"

namespace sluice {

struct AccessSet;
struct Work;

class FaultWatch {
 public:
  explicit FaultWatch(Device* device) : device_(device) {}

  // Whether the launch has to wait: for the watched launch, or, where it is to be watched, until it is alone.
  bool MustWait(const Work& work) SLUICE_DEVICE_LOCKED {
    return (watched_.id || ranges_.watches_any()) && MustWaitFor(work);
  }
  uint64_t Progress() SLUICE_DEVICE_LOCKED;  // grows while the work that is waited for goes on
  // The watched launch is over, or runs beside others from here on.
  void End() SLUICE_DEVICE_LOCKED {
    if (watched_.id) Close();
  }
  // Before the launch is planned: notes faults beyond the learned part.
  void NoteNarrowed(const Work& work, const AccessSet& set) SLUICE_DEVICE_LOCKED;
  // Behind planning: whether Begin has anything to decide. If so the launch must be the next work on its stream.
  bool MayBegin(const Work& work, const AccessSet& set) const SLUICE_DEVICE_LOCKED;
  void Begin(const Work& work, const AccessSet& set, uint64_t seq) SLUICE_DEVICE_LOCKED;
  bool Watches(const Stream* stream) const SLUICE_DEVICE_LOCKED {
    return watched_.id && watched_.mark.stream == stream->id;
  }

  // --- learned so far ---
  bool has_ranges() const SLUICE_DEVICE_LOCKED { return !ranges_.empty(); }
  bool wants_any() const SLUICE_DEVICE_LOCKED { return ranges_.watches_any(); }  // some launch is to be watched
  // The extent that the word at `place` of the work means. `*around`: the whole block, when no part of it is reported
  // or learned; else empty. Where the block is larger than the answer, the answer was learned.
  std::optional<memory::Extent> ResolveWord(const Work& work, size_t place,
                                            policy::UnboundedPointer* around) SLUICE_DEVICE_LOCKED;
  void LogStats() const SLUICE_DEVICE_LOCKED;  // at DEBUG

 private:
  struct WatchedLaunch {
    uint64_t id = 0;  // execution id; 0: none
    memory::Mark mark;
    std::vector<policy::UnboundedPointer> words;
    std::vector<memory::Va> pages;
    std::string kernel;  // name
  };
  bool MustWaitFor(const Work& work) SLUICE_DEVICE_LOCKED;
  void Close() SLUICE_DEVICE_LOCKED;
  bool IsAlone() SLUICE_DEVICE_LOCKED;  // nothing else is unfinished on the GPU
  bool NamesUnboundedPointers(const Work& work) SLUICE_DEVICE_LOCKED;
  void LogOutcome(uint64_t id, size_t pages, policy::PointerRanges::Outcome outcome) SLUICE_DEVICE_LOCKED;

  Device* const device_;
  policy::PointerRanges ranges_ SLUICE_BY_DEVICE_LOCK;
  FaultRecords records_ SLUICE_BY_DEVICE_LOCK{TheDriverPort()};
  WatchedLaunch watched_ SLUICE_BY_DEVICE_LOCK;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_FAULT_WATCH_H_
