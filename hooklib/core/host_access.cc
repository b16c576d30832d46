#include "hooklib/core/host_access.h"

#include <algorithm>

namespace sluice::core {

namespace {
constexpr uint64_t kMiB = uint64_t{1} << 20;
// A launch streams if it took no longer than this: a start, its resident bytes at half of a card's memory rate, its
// host-resident bytes in the time that it takes to bring them and to send others away for them (22 and 70 ms a GiB).
// The whole link would be 51, but what else moves takes its share while the launch runs. In bytes per ns, which is
// GB/s.
constexpr uint64_t kStartNs = 20000;
constexpr uint64_t kCardRate = 1500;
constexpr uint64_t kHostRate = 12;
// What does not fit at all comes by faults at 10 to 12 GB/s and leaves again at 15.
constexpr uint64_t kFaultRate = 6;
constexpr uint8_t kMaxFailures = 4;
}  // namespace

HostAccess::Verdict HostAccess::Of(uint64_t id, bool oversize, uint64_t now) {
  const auto it = habits_.find(Key(id, oversize));
  if (it == habits_.end()) return Verdict::kTry;
  if (it->second.verdict == Verdict::kTry && now < it->second.retry_at) return Verdict::kFetch;
  return it->second.verdict;
}

bool HostAccess::Due(uint64_t id, bool oversize) {
  Habit& habit = habits_[Key(id, oversize)];
  const uint32_t n = habit.launches++;
  return n < 4 || n % 64 == 0;
}

void HostAccess::Trying(const HostProbe& probe, uint64_t now) {
  habits_[Key(probe.id, probe.oversize)].retry_at = now + 512;
}

void HostAccess::Measured(const HostProbe& probe, uint64_t ns, uint64_t now) {
  if (habits_.size() > (1 << 16)) habits_.clear();  // ids of phases that are long over
  Habit& habit = habits_[Key(probe.id, probe.oversize)];
  const uint64_t allowed =
      kStartNs + probe.resident / kCardRate + probe.host / (probe.oversize ? kFaultRate : kHostRate);
  if (ns <= allowed) {
    habit.verdict = Verdict::kStreams;
    habit.failures = 0;
    return;
  }
  // One slow launch may have run beside others' work: tried again, ever later, a few times.
  habit.verdict = ++habit.failures >= kMaxFailures ? Verdict::kFetch : Verdict::kTry;
  habit.launches = 0;
  habit.retry_at = now + (uint64_t{256} << (2 * habit.failures));
}

uint64_t HostAccess::TryBytes(uint64_t resident) { return std::clamp<uint64_t>(resident / 16, 8 * kMiB, 64 * kMiB); }

}  // namespace sluice::core
