#include "hooklib/policy/fetch/remote_access_trials.h"

#include <algorithm>

#include "hooklib/memory/types.h"

namespace sluice::policy {

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
// A duplicate is brought, dropped and mapped_remote again in 30 ms a GiB (read_mostly.cc). Less than that, since what
// else moves slows both down.
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
constexpr uint8_t kMostRests = 10, kMostWaits = 4;
// What mapping a chunk takes, and the shares of a kind's time by faults that may have been spent on the first part that
// is tried in host memory, and on the second: little, since nearly all that lose by it lose by the first, and what wins
// has it back in a few launches.
constexpr uint64_t kMapNs = 100'000;
constexpr uint64_t kFirstShare = 16, kSecondShare = 8;
// The parts that are tried, one after the other. The first shows those that read again and again what they touch: 16
// rows read 256 times over take 0.2 ms by faults, 5 in host memory and 0.3 with a 64th of the table there. The second
// shows whether anything is gained.
constexpr uint32_t kFirstPart = 64, kSecondPart = 4, kAll = 1;
constexpr uint64_t kStepNs = 8'000'000;  // and what else a step takes: launches that are waited for, and longer ones
constexpr uint32_t kSamples = 16, kWaited = 8;  // launches timed for a step, and waited for if the host is far ahead
constexpr uint32_t kMostSamples = 64;
constexpr uint8_t kMostPauses = 8;
constexpr uint32_t kMostSteps = 128;  // launches of a step of which each is timed; then every 64th

// How long launches may take with this part in host memory, by how long they took before: not much longer; so much less
// that all of it gains a quarter; no longer. One launch takes half as long again as another on an H200 (3.4 to 8 ms),
// so what is neither good nor bad is timed on.
constexpr uint64_t Good(uint32_t every, uint64_t before) {
  return every == kFirstPart ? before + before / 8 : every == kSecondPart ? before - before / 16 : before;
}
constexpr uint64_t Bad(uint32_t every, uint64_t before) { return before + before / (every == kFirstPart ? 2 : 4); }
}  // namespace

LaunchClassifier::Habit* LaunchClassifier::Find(uint64_t id, bool oversize) const {
  const uint64_t key = Key(id, oversize);
  Asked* const asked = Ask(key);
  if (asked->key != key) {
    const auto it = habits_.find(key);
    *asked = {key, it == habits_.end() ? nullptr : const_cast<Habit*>(&it->second)};
  }
  return asked->habit;
}

LaunchClassifier::Habit& LaunchClassifier::Make(uint64_t id, bool oversize) {
  const uint64_t key = Key(id, oversize);
  Habit& habit = habits_[key];
  *Ask(key) = {key, &habit};
  return habit;
}

LaunchClassifier::Verdict LaunchClassifier::Of(uint64_t id, bool oversize, uint64_t now, bool duplicates) {
  const Habit* const habit = Find(id, oversize);
  // What does not fit comes by faults or is used where it lies: faults first, since what has once been mapped in host
  // memory no longer faults.
  const bool faults_first = oversize && !duplicates;
  if (!habit) return faults_first ? Verdict::kTryFaults : Verdict::kTry;
  Verdict verdict = habit->verdict;
  if (duplicates && verdict == Verdict::kTryFaults) verdict = habit->failures[0] ? Verdict::kFetch : Verdict::kTry;
  // Its first times are awaited: faults bring what is touched, at worst at half of the rate.
  if (verdict == Verdict::kTryFaults && faults_first && !habit->faults_ns && now < habit->retry_at)
    return Verdict::kFaults;
  if ((verdict == Verdict::kTry || verdict == Verdict::kTryFaults) && now < habit->retry_at) return Verdict::kFetch;
  return verdict;
}

bool LaunchClassifier::LeftToFaults(uint64_t id) const {
  const Habit* const habit = Find(id, true);
  return habit && habit->verdict != Verdict::kStreams;
}

LaunchClassifier::Seen LaunchClassifier::See(uint64_t id, bool oversize, uint64_t now) {
  const Habit* const habit = Find(id, oversize);
  const bool sparse = oversize ? Sparse(id) : habit && habit->sparse;
  if (!habit) return {false, false, sparse};
  return {Of(id, oversize, now) == Verdict::kStreams, habit->failures[0] > 0, sparse};
}

bool LaunchClassifier::Refused(uint64_t id, bool oversize) const {
  const Habit* const habit = Find(id, oversize);
  return habit && habit->failures[0] > 0;
}

bool LaunchClassifier::Sparse(uint64_t id) const {
  const Habit* const habit = Find(id, false);
  return habit && habit->sparse;
}

bool LaunchClassifier::Due(uint64_t id, bool oversize, uint32_t every) {
  Habit& habit = Make(id, oversize);
  const uint32_t n = habit.launches++;
  const bool step = habit.step != Habit::Step::kNone && every == habit.every && n < kMostSteps;
  // A step that goes badly is not to go on for a thousand launches, and what it is held against has to be timed in the
  // same way: faults are served faster where nothing leaves beside them.
  if (n < kDeciding || (step && (n < kWaited || every != kAll))) ++habit.awaited;
  const bool unsure = habit.little && habit.little < kSure;
  return n < kDeciding || n % 64 == 0 || unsure || step;
}

void LaunchClassifier::Missed(uint64_t id, bool oversize, uint64_t bytes, uint64_t capacity) {
  Habit* const habit = Find(id, oversize);
  if (habit) EndRest(habit);
  if (!habit || !habit->awaited) return;
  ++habit->crowd;
  habit->crowd_bytes += bytes;
  if (habit->crowded || (habit->crowd < kCrowd && habit->crowd_bytes < capacity)) return;
  habit->crowded = true;
  ++crowds_;
}

bool LaunchClassifier::Crowded(uint64_t id) const {
  if (!crowds_ && !rests_) return false;
  for (const bool oversize : {false, true}) {
    const Habit* const habit = Find(id, oversize);
    if (habit && (habit->crowded || habit->wants_rest)) return true;
  }
  return false;
}

void LaunchClassifier::Blocked(uint64_t id) {
  Habit& habit = Make(id, false);
  if (habit.wants_rest || ++habit.blocked < kCrowd << habit.rests) return;
  habit.blocked = 0;
  habit.waits = 0;
  habit.rests = std::min<uint8_t>(habit.rests + 1, kMostRests);
  habit.wants_rest = true;
  ++rests_;
}

void LaunchClassifier::Rested(uint64_t id) {
  Habit* const habit = rests_ ? Find(id, false) : nullptr;
  if (habit && habit->wants_rest && ++habit->waits == kMostWaits) EndRest(habit);
}

void LaunchClassifier::EndRest(Habit* habit) {
  if (!habit->wants_rest) return;
  habit->wants_rest = false;
  --rests_;
}

void LaunchClassifier::Answered(const LaunchProbe& probe) {
  Habit* const habit = Find(probe.id, probe.oversize);
  if (!habit || !habit->awaited) return;
  if (--habit->awaited > 0) return;
  habit->crowd = 0;
  habit->crowd_bytes = 0;
  crowds_ -= habit->crowded;
  habit->crowded = false;
}

void LaunchClassifier::Trying(const LaunchProbe& probe, uint64_t now) {
  Habit& habit = Make(probe.id, probe.oversize);
  habit.verdict = probe.faults ? Verdict::kTryFaults : Verdict::kTry;
  habit.retry_at = now + 512;
  ++habit.awaited;
  if (!probe.faults) ++tries_.tries;
}

bool LaunchClassifier::Measured(const LaunchProbe& probe, uint64_t ns, uint64_t now) {
  if (habits_.size() > (1 << 16)) {  // ids of phases that are long over
    habits_.clear();
    crowds_ = rests_ = 0;
    std::fill(std::begin(asked_), std::end(asked_), Asked{});
  }
  Habit& habit = Make(probe.id, probe.oversize);
  // One that ran while much left the card took far longer than the next ones will.
  if (probe.faults) habit.spent_ns += std::exchange(habit.unspent, 0) * std::min(ns, habit.faults_ns);
  if (probe.faults && !probe.every) {
    habit.faults_before_ns = habit.faults_ns;
    habit.faults_ns = ns;
  }
  if (!probe.faults && probe.host >= 4 * kMiB) {
    const bool little = ns < kStartNs + probe.host / kLinkRate / 4;
    if (little && habit.little < kSure) ++habit.little;
    if (!little && habit.little) --habit.little;
    habit.sparse = habit.little >= kTwice || (habit.sparse && habit.little);
  }
  // What has been found to be faster in host memory than by faults is held against nothing else.
  const bool shared = probe.every && probe.every == habit.every;
  if (Sample(&habit, probe.every, ns)) return false;
  if (shared || (probe.faults && probe.every)) return false;
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
  habit.every = 0;
  habit.step = Habit::Step::kNone;
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

RemoteShare LaunchClassifier::Share(uint64_t id, uint64_t bytes) {
  Habit& habit = Make(id, true);
  ++habit.unspent;
  // The first part is likely to be unmapped again; further apart after each failure.
  const uint64_t all = bytes / kChunkBytes * kMapNs, pause = 3 * habit.pause;
  const uint64_t first = kFirstShare * (kStepNs + 2 * all / kFirstPart);
  const uint64_t second = kSecondShare * (kStepNs + all / kSecondPart - all / kFirstPart);
  if (habit.step == Habit::Step::kNone && habit.confirmed &&
      habit.spent_ns >= (habit.every ? second : first) << pause) {
    Begin(&habit, habit.every ? kSecondPart : 0, habit.before_ns);
    if (!habit.every) habit.step = Habit::Step::kBefore;
  }
  const uint64_t may = habit.spent_ns / (habit.every == kSecondPart ? kSecondShare : kFirstShare);
  return {habit.every, may > habit.map_ns ? (may - habit.map_ns) / kMapNs * kChunkBytes : 0};
}

void LaunchClassifier::Mapped(uint64_t id, uint64_t bytes) { Make(id, true).map_ns += bytes / kChunkBytes * kMapNs; }

// The mean of a few launches with each part is held against that with the part before. True where this decides how the
// next ones go.
bool LaunchClassifier::Sample(Habit* habit, uint32_t every, uint64_t ns) {
  using Step = Habit::Step;
  if (habit->every != every) return false;
  if (habit->step == Step::kNone) {
    if (!every) return false;
    // It takes far longer now than what this was held against: looked at at once.
    if (ns > 2 * habit->before_ns) {
      habit->step = Step::kAfter;
      habit->launches = 0;
    }
  }
  habit->sum_ns += ns;
  const uint32_t samples = ++habit->samples;
  const uint64_t mean = habit->sum_ns / samples, before = habit->before_ns;
  if (habit->step == Step::kBefore) {
    if (samples < kSamples) return false;
    Begin(habit, kFirstPart, mean);
    return false;
  }
  const bool told = samples % kSamples == 0;
  const bool worse = habit->sum_ns > std::max(samples, kSamples) * Bad(every, before) ||
                     (samples == kMostSamples && mean > Good(every, before));
  if (!worse && (!told || mean > Good(every, before))) return false;
  habit->samples = 0;
  habit->sum_ns = 0;
  habit->launches = 0;
  if (!worse && every != kSecondPart) {
    habit->step = Step::kNone;
    if (every == kFirstPart) habit->before_ns = (before + mean) / 2;  // nearly nothing is there yet
    return false;
  }
  habit->every = worse ? 0 : kAll;
  habit->verdict = worse ? Verdict::kFaults : Verdict::kStreams;
  if (!worse) return true;
  habit->step = Step::kNone;
  habit->spent_ns = habit->map_ns = 0;
  habit->pause = std::min<uint8_t>(habit->pause + 1, kMostPauses);
  return leaves_host_ = true;
}

// A part is tried.
void LaunchClassifier::Begin(Habit* habit, uint32_t every, uint64_t before_ns) {
  habit->step = Habit::Step::kAfter;
  habit->every = every;
  habit->before_ns = before_ns;
  habit->launches = 0;
  habit->samples = 0;
  habit->sum_ns = 0;
}

uint64_t LaunchClassifier::BytesByFaults(uint64_t id) const {
  const Habit* const habit = Find(id, true);
  if (!habit || !habit->faults_ns) return UINT64_MAX;
  // One may have found what others' faults had brought.
  return std::max(habit->faults_ns, habit->faults_before_ns) * kFastestFaults;
}

uint64_t LaunchClassifier::TryBytes(Verdict verdict, uint64_t resident) {
  // Of what is touched here and there a part too small may show nothing, and another too much.
  if (verdict == Verdict::kTryFaults) return 32 * kMiB;
  return std::clamp<uint64_t>(resident / 16, 8 * kMiB, 64 * kMiB);
}

}  // namespace sluice::policy
