#include "hooklib/policy/fetch/launch_classifier.h"

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
constexpr uint64_t Good(uint32_t stride, uint64_t before) {
  return stride == kFirstPart ? before + before / 8 : stride == kSecondPart ? before - before / 16 : before;
}
constexpr uint64_t Bad(uint32_t stride, uint64_t before) { return before + before / (stride == kFirstPart ? 2 : 4); }
}  // namespace

LaunchClassifier::Record* LaunchClassifier::Find(uint64_t id, bool oversize) const {
  const uint64_t key = Key(id, oversize);
  CacheSlot* const asked = SlotOf(key);
  if (asked->key != key) {
    const auto it = records_.find(key);
    *asked = {key, it == records_.end() ? nullptr : const_cast<Record*>(&it->second)};
  }
  return asked->record;
}

LaunchClassifier::Record& LaunchClassifier::FindOrAdd(uint64_t id, bool oversize) {
  const uint64_t key = Key(id, oversize);
  Record& record = records_[key];
  *SlotOf(key) = {key, &record};
  return record;
}

LaunchClassifier::AccessClass LaunchClassifier::ClassOf(uint64_t id, bool oversize, uint64_t now, bool duplicates) {
  const Record* const record = Find(id, oversize);
  // What does not fit comes by faults or is used where it lies: faults first, since what has once been mapped in host
  // memory no longer faults.
  const bool faults_first = oversize && !duplicates;
  if (!record) return faults_first ? AccessClass::kUnknownFaulting : AccessClass::kUnknown;
  AccessClass access_class = record->access_class;
  if (duplicates && access_class == AccessClass::kUnknownFaulting)
    access_class = record->failures[0] ? AccessClass::kRereading : AccessClass::kUnknown;
  // Its first times are awaited: faults bring what is touched, at worst at half of the rate.
  if (access_class == AccessClass::kUnknownFaulting && faults_first && !record->faults_ns && now < record->retry_at)
    return AccessClass::kFaulting;
  if ((access_class == AccessClass::kUnknown || access_class == AccessClass::kUnknownFaulting) &&
      now < record->retry_at)
    return AccessClass::kRereading;
  return access_class;
}

bool LaunchClassifier::LeftToFaults(uint64_t id) const {
  const Record* const record = Find(id, true);
  return record && record->access_class != AccessClass::kStreaming;
}

LaunchClassifier::Traits LaunchClassifier::TraitsOf(uint64_t id, bool oversize, uint64_t now) {
  const Record* const record = Find(id, oversize);
  const bool sparse = oversize ? IsSparse(id) : record && record->sparse;
  if (!record) return {false, false, sparse};
  return {ClassOf(id, oversize, now) == AccessClass::kStreaming, record->failures[0] > 0, sparse};
}

bool LaunchClassifier::IsSlowRemote(uint64_t id, bool oversize) const {
  const Record* const record = Find(id, oversize);
  return record && record->failures[0] > 0;
}

bool LaunchClassifier::IsSparse(uint64_t id) const {
  const Record* const record = Find(id, false);
  return record && record->sparse;
}

bool LaunchClassifier::IsDue(uint64_t id, bool oversize, uint32_t stride) {
  Record& record = FindOrAdd(id, oversize);
  const uint32_t n = record.launches++;
  const bool step = record.step != Record::Step::kNone && stride == record.stride && n < kMostSteps;
  // A step that goes badly is not to go on for a thousand launches, and what it is held against has to be timed in the
  // same way: faults are served faster where nothing leaves beside them.
  if (n < kDeciding || (step && (n < kWaited || stride != kAll))) ++record.awaited;
  const bool unsure = record.sparse_score && record.sparse_score < kSure;
  return n < kDeciding || n % 64 == 0 || unsure || step;
}

void LaunchClassifier::NoteMissing(uint64_t id, bool oversize, uint64_t bytes, uint64_t capacity) {
  Record* const record = Find(id, oversize);
  if (record) EndWait(record);
  if (!record || !record->awaited) return;
  ++record->queued;
  record->queued_bytes += bytes;
  if (record->crowded || (record->queued < kCrowd && record->queued_bytes < capacity)) return;
  record->crowded = true;
  ++crowded_records_;
}

bool LaunchClassifier::ShouldAwait(uint64_t id) const {
  if (!crowded_records_ && !waiting_records_) return false;
  for (const bool oversize : {false, true}) {
    const Record* const record = Find(id, oversize);
    if (record && (record->crowded || record->wants_wait)) return true;
  }
  return false;
}

void LaunchClassifier::NoteBlocked(uint64_t id) {
  Record& record = FindOrAdd(id, false);
  if (record.wants_wait || ++record.blocked < kCrowd << record.wait_rounds) return;
  record.blocked = 0;
  record.awaited_launches = 0;
  record.wait_rounds = std::min<uint8_t>(record.wait_rounds + 1, kMostRests);
  record.wants_wait = true;
  ++waiting_records_;
}

void LaunchClassifier::NoteAwaited(uint64_t id) {
  Record* const record = waiting_records_ ? Find(id, false) : nullptr;
  if (record && record->wants_wait && ++record->awaited_launches == kMostWaits) EndWait(record);
}

void LaunchClassifier::EndWait(Record* record) {
  if (!record->wants_wait) return;
  record->wants_wait = false;
  --waiting_records_;
}

void LaunchClassifier::NoteAnswered(const LaunchProbe& probe) {
  Record* const record = Find(probe.id, probe.oversize);
  if (!record || !record->awaited) return;
  if (--record->awaited > 0) return;
  record->queued = 0;
  record->queued_bytes = 0;
  crowded_records_ -= record->crowded;
  record->crowded = false;
}

void LaunchClassifier::NoteProbe(const LaunchProbe& probe, uint64_t now) {
  Record& record = FindOrAdd(probe.id, probe.oversize);
  record.access_class = probe.by_faults ? AccessClass::kUnknownFaulting : AccessClass::kUnknown;
  record.retry_at = now + 512;
  ++record.awaited;
  if (!probe.by_faults) ++stats_.probes;
}

bool LaunchClassifier::NoteMeasured(const LaunchProbe& probe, uint64_t ns, uint64_t now) {
  if (records_.size() > (1 << 16)) {  // ids of phases that are long over
    records_.clear();
    crowded_records_ = waiting_records_ = 0;
    std::fill(std::begin(cache_), std::end(cache_), CacheSlot{});
  }
  Record& record = FindOrAdd(probe.id, probe.oversize);
  // One that ran while much left the card took far longer than the next ones will.
  if (probe.by_faults) record.spent_ns += std::exchange(record.uncounted, 0) * std::min(ns, record.faults_ns);
  if (probe.by_faults && !probe.stride) {
    record.previous_faults_ns = record.faults_ns;
    record.faults_ns = ns;
  }
  if (!probe.by_faults && probe.host_bytes >= 4 * kMiB) {
    const bool sparse_score = ns < kStartNs + probe.host_bytes / kLinkRate / 4;
    if (sparse_score && record.sparse_score < kSure) ++record.sparse_score;
    if (!sparse_score && record.sparse_score) --record.sparse_score;
    record.sparse = record.sparse_score >= kTwice || (record.sparse && record.sparse_score);
  }
  // What has been found to be faster in host memory than by faults is held against nothing else.
  const bool shared = probe.stride && probe.stride == record.stride;
  if (AddSample(&record, probe.stride, ns)) return false;
  if (shared || (probe.by_faults && probe.stride)) return false;
  // Launches that were timed before faults were tried: what they say is known.
  if (record.access_class == AccessClass::kUnknownFaulting && record.remote_rate && !probe.by_faults) return false;
  const uint64_t rate = probe.by_faults    ? kSparseRate
                        : probe.duplicates ? kDuplicateRate
                        : probe.oversize   ? kFaultRate
                                           : kHostRate;
  const uint64_t own = kStartNs + probe.resident_bytes / kCardRate;
  const uint64_t spent = ns - std::min(ns, own);
  if (probe.exploratory && !probe.by_faults && spent > probe.host_bytes / rate) {
    ++stats_.slow_probes;
    stats_.lost_ns += spent - probe.host_bytes / rate;
  }
  // What came by faults leaves again, so it takes its time twice; against host memory that counts.
  // Of a few chunks most is chance, which part is touched.
  const bool part = record.access_class == AccessClass::kFaulting && probe.host_bytes < record.remote_rate_bytes / 2;
  if (part && probe.by_faults && record.remote_rate) return false;
  const bool dear = probe.by_faults && record.remote_rate && 2 * spent > probe.host_bytes / record.remote_rate;
  if (spent <= probe.host_bytes / rate && !dear) {
    if (record.access_class == AccessClass::kStreaming && !probe.oversize && !probe.duplicates &&
        probe.host_bytes >= 32 * kMiB && record.failures[1] < 2) {
      record.slow = spent > probe.host_bytes / kOnceRate ? record.slow + 1 : 0;
      if (record.slow == kSlow) {
        record.slow = 0;
        record.remote_rate = probe.host_bytes / spent;
        record.remote_rate_bytes = probe.host_bytes;
        record.access_class = AccessClass::kUnknownFaulting;
        record.retry_at = now;
        return false;
      }
    }
    record.access_class = probe.by_faults ? AccessClass::kFaulting : AccessClass::kStreaming;
    record.failures[probe.by_faults] = 0;
    if (!probe.by_faults || record.confirmed == kSettled) return false;
    return ++record.confirmed == kSettled;
  }
  record.launches = 0;
  record.confirmed = 0;
  record.stride = 0;
  record.step = Record::Step::kNone;
  ++record.failures[probe.by_faults];
  // One slow launch may have run beside others' work: tried again, ever later, a few times. What then is to be fetched
  // for ever is first left to faults, twice.
  const uint8_t failures = record.failures[0];
  if (probe.by_faults && record.remote_rate) {
    record.access_class = AccessClass::kStreaming;
    record.remote_rate = 0;
    return false;
  }
  record.access_class = failures < kMaxFailures  ? AccessClass::kUnknown
                        : record.failures[1] < 2 ? AccessClass::kUnknownFaulting
                                                 : AccessClass::kRereading;
  record.retry_at = failures == 0 || failures >= kMaxFailures ? now : now + (uint64_t{256} << (2 * failures));
  return false;
}

RemoteShare LaunchClassifier::ShareOf(uint64_t id, uint64_t bytes) {
  Record& record = FindOrAdd(id, true);
  ++record.uncounted;
  // The first part is likely to be unmapped again; further apart after each failure.
  const uint64_t all = bytes / kChunkBytes * kMapNs, failed_steps = 3 * record.failed_steps;
  const uint64_t first = kFirstShare * (kStepNs + 2 * all / kFirstPart);
  const uint64_t second = kSecondShare * (kStepNs + all / kSecondPart - all / kFirstPart);
  if (record.step == Record::Step::kNone && record.confirmed &&
      record.spent_ns >= (record.stride ? second : first) << failed_steps) {
    BeginStep(&record, record.stride ? kSecondPart : 0, record.before_ns);
    if (!record.stride) record.step = Record::Step::kBefore;
  }
  const uint64_t may = record.spent_ns / (record.stride == kSecondPart ? kSecondShare : kFirstShare);
  return {record.stride, may > record.map_ns ? (may - record.map_ns) / kMapNs * kChunkBytes : 0};
}

void LaunchClassifier::NoteMapped(uint64_t id, uint64_t bytes) {
  FindOrAdd(id, true).map_ns += bytes / kChunkBytes * kMapNs;
}

// The mean of a few launches with each part is held against that with the part before. True where this decides how the
// next ones go.
bool LaunchClassifier::AddSample(Record* record, uint32_t stride, uint64_t ns) {
  using Step = Record::Step;
  if (record->stride != stride) return false;
  if (record->step == Step::kNone) {
    if (!stride) return false;
    // It takes far longer now than what this was held against: looked at at once.
    if (ns > 2 * record->before_ns) {
      record->step = Step::kAfter;
      record->launches = 0;
    }
  }
  record->sum_ns += ns;
  const uint32_t samples = ++record->samples;
  const uint64_t mean = record->sum_ns / samples, before = record->before_ns;
  if (record->step == Step::kBefore) {
    if (samples < kSamples) return false;
    BeginStep(record, kFirstPart, mean);
    return false;
  }
  const bool told = samples % kSamples == 0;
  const bool worse = record->sum_ns > std::max(samples, kSamples) * Bad(stride, before) ||
                     (samples == kMostSamples && mean > Good(stride, before));
  if (!worse && (!told || mean > Good(stride, before))) return false;
  record->samples = 0;
  record->sum_ns = 0;
  record->launches = 0;
  if (!worse && stride != kSecondPart) {
    record->step = Step::kNone;
    if (stride == kFirstPart) record->before_ns = (before + mean) / 2;  // nearly nothing is there yet
    return false;
  }
  record->stride = worse ? 0 : kAll;
  record->access_class = worse ? AccessClass::kFaulting : AccessClass::kStreaming;
  if (!worse) return true;
  record->step = Step::kNone;
  record->spent_ns = record->map_ns = 0;
  record->failed_steps = std::min<uint8_t>(record->failed_steps + 1, kMostPauses);
  return left_remote_ = true;
}

// A part is tried.
void LaunchClassifier::BeginStep(Record* record, uint32_t stride, uint64_t before_ns) {
  record->step = Record::Step::kAfter;
  record->stride = stride;
  record->before_ns = before_ns;
  record->launches = 0;
  record->samples = 0;
  record->sum_ns = 0;
}

uint64_t LaunchClassifier::MaxFaultBytes(uint64_t id) const {
  const Record* const record = Find(id, true);
  if (!record || !record->faults_ns) return UINT64_MAX;
  // One may have found what others' faults had brought.
  return std::max(record->faults_ns, record->previous_faults_ns) * kFastestFaults;
}

uint64_t LaunchClassifier::ProbeBytes(AccessClass access_class, uint64_t resident) {
  // Of what is touched here and there a part too small may show nothing, and another too much.
  if (access_class == AccessClass::kUnknownFaulting) return 32 * kMiB;
  return std::clamp<uint64_t>(resident / 16, 8 * kMiB, 64 * kMiB);
}

}  // namespace sluice::policy
