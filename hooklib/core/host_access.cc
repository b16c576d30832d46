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
// What does not fit at all comes by faults at 10 to 12 GB/s and leaves again at 15, which is 6 to 7 together. To be
// worth the change it must be faster than that: a graph of an H200 whose products re-read their weights took 151 ms
// with 6 here, and by faults 136.
constexpr uint64_t kFaultRate = 8;
// A duplicate is brought, dropped and advised again in 30 ms a GiB (read_mostly.cc). Less than that, since what else
// moves slows both down.
constexpr uint64_t kDuplicateRate = 18;
// To fetch and make room takes 92 ms a GiB, so a launch is better left to faults if it takes no longer than half of
// that: what came by faults leaves again.
constexpr uint64_t kSparseRate = 20;
// A launch that reads and writes all of it once over the link gets through it at 42 and more. What is slower, and still
// streams, reads parts of it again and again: it may be that it touches no others.
constexpr uint64_t kOnceRate = 40;
constexpr uint8_t kSlow = 3;  // times in a row: one may have found the link busy
constexpr uint64_t kLinkRate = 51;
constexpr uint64_t kFastestFaults = 12;  // 10 to 12 GB/s
constexpr uint8_t kTwice = 2, kSure = 4;
constexpr uint8_t kMaxFailures = 4;
constexpr uint8_t kSettled = 4;
constexpr uint32_t kDeciding = 4;  // launches of a verdict that are all timed
constexpr uint32_t kCrowd = 32;    // more than a training step has of most kinds
}  // namespace

HostAccess::Habit* HostAccess::Find(uint64_t id, bool oversize) const {
  const uint64_t key = Key(id, oversize);
  Asked* const asked = Ask(key);
  if (asked->key != key) {
    const auto it = habits_.find(key);
    *asked = {key, it == habits_.end() ? nullptr : const_cast<Habit*>(&it->second)};
  }
  return asked->habit;
}

HostAccess::Habit& HostAccess::Make(uint64_t id, bool oversize) {
  const uint64_t key = Key(id, oversize);
  Habit& habit = habits_[key];
  *Ask(key) = {key, &habit};
  return habit;
}

HostAccess::Verdict HostAccess::Of(uint64_t id, bool oversize, uint64_t now, bool duplicates) {
  const Habit* const habit = Find(id, oversize);
  // What does not fit comes by faults or is used where it lies: faults first, since what has once been mapped in host
  // memory no longer faults.
  if (!habit) return oversize && !duplicates ? Verdict::kTryFaults : Verdict::kTry;
  Verdict verdict = habit->verdict;
  if (duplicates && verdict == Verdict::kTryFaults) verdict = habit->failures[0] ? Verdict::kFetch : Verdict::kTry;
  if ((verdict == Verdict::kTry || verdict == Verdict::kTryFaults) && now < habit->retry_at) return Verdict::kFetch;
  return verdict;
}

HostAccess::Seen HostAccess::See(uint64_t id, bool oversize, uint64_t now) {
  const Habit* const habit = Find(id, oversize);
  const bool sparse = oversize ? Sparse(id) : habit && habit->sparse;
  if (!habit) return {false, false, sparse};
  return {Of(id, oversize, now) == Verdict::kStreams, habit->failures[0] > 0, sparse};
}

bool HostAccess::Refused(uint64_t id, bool oversize) const {
  const Habit* const habit = Find(id, oversize);
  return habit && habit->failures[0] > 0;
}

bool HostAccess::Sparse(uint64_t id) const {
  const Habit* const habit = Find(id, false);
  return habit && habit->sparse;
}

bool HostAccess::Due(uint64_t id, bool oversize) {
  Habit& habit = Make(id, oversize);
  const uint32_t n = habit.launches++;
  if (n < kDeciding) ++habit.awaited;
  const bool unsure = habit.little && habit.little < kSure;
  return n < kDeciding || n % 64 == 0 || unsure;
}

void HostAccess::Missed(uint64_t id, bool oversize, uint64_t bytes, uint64_t capacity) {
  Habit* const habit = Find(id, oversize);
  if (!habit || !habit->awaited) return;
  ++habit->crowd;
  habit->crowd_bytes += bytes;
  if (habit->crowded || (habit->crowd < kCrowd && habit->crowd_bytes < capacity)) return;
  habit->crowded = true;
  ++crowds_;
}

bool HostAccess::Crowded(uint64_t id) const {
  if (!crowds_) return false;
  for (const bool oversize : {false, true}) {
    const Habit* const habit = Find(id, oversize);
    if (habit && habit->crowded) return true;
  }
  return false;
}

void HostAccess::Answered(const HostProbe& probe) {
  Habit* const habit = Find(probe.id, probe.oversize);
  if (!habit || !habit->awaited) return;
  if (--habit->awaited > 0) return;
  habit->crowd = 0;
  habit->crowd_bytes = 0;
  crowds_ -= habit->crowded;
  habit->crowded = false;
}

void HostAccess::Trying(const HostProbe& probe, uint64_t now) {
  Habit& habit = Make(probe.id, probe.oversize);
  habit.verdict = probe.faults ? Verdict::kTryFaults : Verdict::kTry;
  habit.retry_at = now + 512;
  ++habit.awaited;
  if (!probe.faults) ++tries_.tries;
}

bool HostAccess::Measured(const HostProbe& probe, uint64_t ns, uint64_t now) {
  if (habits_.size() > (1 << 16)) {  // ids of phases that are long over
    habits_.clear();
    crowds_ = 0;
    std::fill(std::begin(asked_), std::end(asked_), Asked{});
  }
  Habit& habit = Make(probe.id, probe.oversize);
  if (probe.faults) {
    habit.faults_before_ns = habit.faults_ns;
    habit.faults_ns = ns;
  }
  if (!probe.faults && probe.host >= 4 * kMiB) {
    const bool little = ns < kStartNs + probe.host / kLinkRate / 4;
    if (little && habit.little < kSure) ++habit.little;
    if (!little && habit.little) --habit.little;
    habit.sparse = habit.little >= kTwice || (habit.sparse && habit.little);
  }
  // Launches that were timed before faults were tried: what they say is known.
  if (habit.verdict == Verdict::kTryFaults && habit.host_rate && !probe.faults) return false;
  const uint64_t rate = probe.faults       ? kSparseRate
                        : probe.duplicates ? kDuplicateRate
                        : probe.oversize   ? kFaultRate
                                           : kHostRate;
  const uint64_t own = kStartNs + probe.resident / kCardRate;
  const uint64_t spent = ns - std::min(ns, own);
  if (probe.trial && !probe.faults && spent > probe.host / rate) {
    ++tries_.slow;
    tries_.lost_ns += spent - probe.host / rate;
  }
  // What came by faults leaves again, so it takes its time twice; against host memory that counts.
  // Of a few chunks most is chance, which part is touched.
  const bool part = habit.verdict == Verdict::kFaults && probe.host < habit.host_bytes / 2;
  if (part && probe.faults && habit.host_rate) return false;
  const bool dear = probe.faults && habit.host_rate && 2 * spent > probe.host / habit.host_rate;
  if (spent <= probe.host / rate && !dear) {
    if (habit.verdict == Verdict::kStreams && !probe.oversize && !probe.duplicates && probe.host >= 32 * kMiB &&
        habit.failures[1] < 2) {
      habit.slow = spent > probe.host / kOnceRate ? habit.slow + 1 : 0;
      if (habit.slow == kSlow) {
        habit.slow = 0;
        habit.host_rate = probe.host / spent;
        habit.host_bytes = probe.host;
        habit.verdict = Verdict::kTryFaults;
        habit.retry_at = now;
        return false;
      }
    }
    habit.verdict = probe.faults ? Verdict::kFaults : Verdict::kStreams;
    habit.failures[probe.faults] = 0;
    if (!probe.faults || habit.confirmed == kSettled) return false;
    return ++habit.confirmed == kSettled;
  }
  habit.launches = 0;
  habit.confirmed = 0;
  ++habit.failures[probe.faults];
  // One slow launch may have run beside others' work: tried again, ever later, a few times. What then is to be fetched
  // for ever is first left to faults, twice.
  const uint8_t failures = habit.failures[0];
  if (probe.faults && habit.host_rate) {
    habit.verdict = Verdict::kStreams;
    habit.host_rate = 0;
    return false;
  }
  habit.verdict = failures < kMaxFailures ? Verdict::kTry
                  : habit.failures[1] < 2 ? Verdict::kTryFaults
                                          : Verdict::kFetch;
  habit.retry_at = failures == 0 || failures >= kMaxFailures ? now : now + (uint64_t{256} << (2 * failures));
  return false;
}

uint64_t HostAccess::BytesByFaults(uint64_t id) const {
  const Habit* const habit = Find(id, true);
  if (!habit || !habit->faults_ns) return UINT64_MAX;
  // One may have found what others' faults had brought.
  return std::max(habit->faults_ns, habit->faults_before_ns) * kFastestFaults;
}

uint64_t HostAccess::TryBytes(Verdict verdict, uint64_t resident) {
  // Of what is touched here and there a part too small may show nothing, and another too much.
  if (verdict == Verdict::kTryFaults) return 32 * kMiB;
  return std::clamp<uint64_t>(resident / 16, 8 * kMiB, 64 * kMiB);
}

}  // namespace sluice::core
