#include "hooklib/policy/fetch/launch_classifier.h"

#include <algorithm>

#include "hooklib/memory/types.h"

namespace sluice::policy {

namespace {
constexpr uint64_t kMiB = uint64_t{1} << 20;
// A launch's own time: a start, and its resident bytes at half of a GPU's memory rate, in bytes a ns.
constexpr uint64_t kStartNs = 20000;
constexpr uint64_t kGpuRate = 1500;
// A launch that streams, but slower than one pass, reads parts of its set repeatedly, and may touch no others.
constexpr uint8_t kMaxSlowTimes = 3;  // times in a row: one may have found the link busy
// An oversize launch that streams faster than one pass over its set touches a part of it, once or many times over.
// Faults may be far cheaper: 16 rows of 64 KiB that are read 256 times over take 4.8 ms remotely and 0.2 by faults. So
// faults are tried once remote use has taken the probe's cost; each failure multiplies that by eight.
constexpr uint8_t kProbeBackoffShift = 3, kMaxFaultProbes = 6, kMaxSlowProbes = 2;
constexpr uint8_t kMaxFailures = 4;
constexpr uint8_t kSettledTimes = 4;
constexpr uint32_t kDecidingLaunches = 4;  // launches of a new class that are all timed
constexpr uint32_t kBacklogLaunches = 32;  // more than a training step has of most ids
constexpr uint8_t kMaxWaitRounds = 10, kMaxAwaitedLaunches = 4;
// The shares of an id's fault time that the first and the second remote part may cost. Little: nearly all losers lose
// with the first part, and a gain is earned back in a few launches.
constexpr uint64_t kFirstPartShare = 16, kSecondPartShare = 8;
// The parts that are probed, one after the other. The first finds launches that re-read the rows they touch: 16 rows
// read 256 times over take 0.2 ms by faults, 5 in host memory, and 0.3 with a 64th of the table there. The second finds
// whether anything is gained.
constexpr uint32_t kFirstStride = 64, kSecondStride = 4, kWholeStride = 1;
constexpr uint64_t kStepNs = 8'000'000;  // of a step's other costs: launches that are awaited, and slower ones
constexpr uint32_t kSamples = 16, kAwaitedSamples = 8;  // launches timed for a step; awaited if the host has to wait
constexpr uint32_t kMaxSamples = 64;
constexpr uint8_t kMaxFailedSteps = 8;
constexpr uint32_t kMaxStepLaunches = 128;  // launches of a step of which each is timed; then every 64th

// The time that a launch may take with this part in host memory, by the time before. First part: not much longer.
// Second part: so much less that the whole gains a quarter. All: no longer. On an H200 one launch takes half as long
// again as another (3.4 to 8 ms), so results in between are timed on.
constexpr uint64_t MaxGoodNs(uint32_t stride, uint64_t before) {
  return stride == kFirstStride ? before + before / 8 : stride == kSecondStride ? before - before / 16 : before;
}
constexpr uint64_t MinBadNs(uint32_t stride, uint64_t before) {
  return before + before / (stride == kFirstStride ? 2 : 4);
}
}  // namespace

LaunchClassifier::Record* LaunchClassifier::Find(uint64_t id, bool oversize) const {
  const uint64_t key = Key(id, oversize);
  CacheSlot* const slot = SlotOf(key);
  if (slot->key != key) {
    const auto it = records_.find(key);
    *slot = {key, it == records_.end() ? nullptr : const_cast<Record*>(&it->second)};
  }
  return slot->record;
}

LaunchClassifier::Record& LaunchClassifier::FindOrAdd(uint64_t id, bool oversize) {
  const uint64_t key = Key(id, oversize);
  Record& record = records_[key];
  *SlotOf(key) = {key, &record};
  return record;
}

LaunchClassifier::AccessClass LaunchClassifier::ClassOf(uint64_t id, bool oversize, uint64_t now, bool duplicates) {
  const Record* const record = Find(id, oversize);
  // Faults are probed first, since a chunk that was once mapped in host memory no longer faults.
  const bool faults_first = oversize && !duplicates;
  if (!record) return faults_first ? AccessClass::kUnknownFaulting : AccessClass::kUnknown;
  AccessClass access_class = record->access_class;
  if (duplicates && access_class == AccessClass::kUnknownFaulting)
    access_class = record->failures[0] ? AccessClass::kFetch : AccessClass::kUnknown;
  // Its first times are awaited. Faults bring the touched pages, at worst at half of the rate.
  if (access_class == AccessClass::kUnknownFaulting && faults_first && !record->faults_ns && now < record->retry_at)
    return AccessClass::kFaulting;
  if ((access_class == AccessClass::kUnknown || access_class == AccessClass::kUnknownFaulting) &&
      now < record->retry_at)
    return AccessClass::kFetch;
  return access_class;
}

bool LaunchClassifier::LeftToFaults(uint64_t id) const {
  const Record* const record = Find(id, true);
  return record && record->access_class != AccessClass::kStreaming;
}

LaunchClassifier::Traits LaunchClassifier::TraitsOf(uint64_t id, bool oversize, uint64_t now) {
  const Record* const record = Find(id, oversize);
  const Share touched = TouchedShare(id);
  if (!record) return {false, false, touched};
  return {ClassOf(id, oversize, now) == AccessClass::kStreaming, record->failures[0] > 0, touched};
}

bool LaunchClassifier::IsSlowRemote(uint64_t id, bool oversize) const {
  const Record* const record = Find(id, oversize);
  return record && record->failures[0] > 0;
}

Share LaunchClassifier::TouchedShare(uint64_t id) const {
  const Record* const record = Find(id, false);
  if (!record) return {};
  Share smallest, second;
  for (const Share share : record->touched) {
    second = std::min(second, share);
    if (second < smallest) std::swap(smallest, second);
  }
  return second;
}

bool LaunchClassifier::IsDue(uint64_t id, bool oversize, uint32_t stride) {
  Record& record = FindOrAdd(id, oversize);
  const uint32_t n = record.launches++;
  const bool step = record.step != Record::Step::kNone && stride == record.stride && n < kMaxStepLaunches;
  // A bad step is not to go on for a thousand launches. And the time before is to be measured in the same way: faults
  // are served faster where no eviction runs beside them.
  if (n < kDecidingLaunches || (step && (n < kAwaitedSamples || stride != kWholeStride))) ++record.awaited;
  const bool unsure = !oversize && record.touched[3].IsLittle() != TouchedShare(id).IsLittle();
  return n < kDecidingLaunches || n % 64 == 0 || unsure || step;
}

void LaunchClassifier::NoteMissing(uint64_t id, bool oversize, uint64_t bytes, uint64_t capacity) {
  Record* const record = Find(id, oversize);
  if (record) EndWait(record);
  if (!record || !record->awaited) return;
  ++record->queued;
  record->queued_bytes += bytes;
  if (record->has_backlog || (record->queued < kBacklogLaunches && record->queued_bytes < capacity)) return;
  record->has_backlog = true;
  ++backlogged_records_;
}

bool LaunchClassifier::ShouldAwait(uint64_t id) const {
  if (!backlogged_records_ && !waiting_records_) return false;
  for (const bool oversize : {false, true}) {
    const Record* const record = Find(id, oversize);
    if (record && (record->has_backlog || record->wants_wait)) return true;
  }
  return false;
}

void LaunchClassifier::NoteBlocked(uint64_t id) {
  Record& record = FindOrAdd(id, false);
  if (record.wants_wait || ++record.blocked < kBacklogLaunches << record.wait_rounds) return;
  record.blocked = 0;
  record.awaited_launches = 0;
  record.wait_rounds = std::min<uint8_t>(record.wait_rounds + 1, kMaxWaitRounds);
  record.wants_wait = true;
  ++waiting_records_;
}

void LaunchClassifier::NoteAwaited(uint64_t id) {
  Record* const record = waiting_records_ ? Find(id, false) : nullptr;
  if (record && record->wants_wait && ++record->awaited_launches == kMaxAwaitedLaunches) EndWait(record);
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
  backlogged_records_ -= record->has_backlog;
  record->has_backlog = false;
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
    backlogged_records_ = waiting_records_ = 0;
    std::fill(std::begin(cache_), std::end(cache_), CacheSlot{});
  }
  Record& record = FindOrAdd(probe.id, probe.oversize);
  // A launch beside many evictions took far longer than the next ones will.
  if (probe.by_faults) record.spent_ns += std::exchange(record.uncounted, 0) * std::min(ns, record.faults_ns);
  if (probe.by_faults && !probe.stride) {
    record.previous_faults_ns = record.faults_ns;
    record.faults_ns = ns;
  }
  if (!probe.by_faults && probe.host_bytes >= 4 * kMiB) NoteTouched(&record, probe.host_bytes, ns);
  // Once remote use was found faster than faults, it is compared with nothing else.
  const bool is_shared = probe.stride && probe.stride == record.stride;
  if (AddSample(&record, probe.stride, ns)) return false;
  if (is_shared || (probe.by_faults && probe.stride)) return false;
  // Launches that were timed before faults were probed add nothing.
  if (record.access_class == AccessClass::kUnknownFaulting && record.remote_rate && !probe.by_faults) return false;
  const uint64_t own = kStartNs + probe.resident_bytes / kGpuRate;
  const uint64_t spent = ns - std::min(ns, own);
  const uint64_t most = MostNs(probe, spent);
  if (probe.exploratory && !probe.by_faults && spent > most) {
    ++stats_.slow_probes;
    stats_.lost_ns += spent - most;
  }
  // Faulted pages are evicted again, so faults count twice against host memory. With few chunks it is mostly chance
  // which part is touched.
  const bool part = record.access_class == AccessClass::kFaulting && probe.host_bytes < record.remote_rate_bytes / 2;
  if (part && probe.by_faults && record.remote_rate) return false;
  const bool costs_more = probe.by_faults && record.remote_rate && 2 * spent > probe.host_bytes / record.remote_rate;
  if (spent <= most && !costs_more) {
    if (record.access_class == AccessClass::kStreaming && !probe.duplicates && probe.host_bytes >= 32 * kMiB) {
      const uint64_t once = margins::kOnePass.Of(link_->Ns(LinkStep::kRemotePass, probe.host_bytes));
      record.slow = !probe.oversize && spent > once ? record.slow + 1 : 0;
      // A set that fits keeps its chunks in host memory or on the GPU, and a probe would move them.
      const bool is_fault_probe_due = probe.oversize && NoteRemote(&record, probe.host_bytes, spent);
      if ((record.slow >= kMaxSlowTimes && record.failures[1] < kMaxSlowProbes) || is_fault_probe_due) {
        record.slow = 0;
        record.remote_rate = std::max<uint64_t>(probe.host_bytes / spent, 1);
        record.remote_rate_bytes = probe.host_bytes;
        record.access_class = AccessClass::kUnknownFaulting;
        record.retry_at = now;
        return false;
      }
    }
    record.access_class = probe.by_faults ? AccessClass::kFaulting : AccessClass::kStreaming;
    record.failures[probe.by_faults] = 0;
    if (!probe.by_faults || record.confirmed == kSettledTimes) return false;
    return ++record.confirmed == kSettledTimes;
  }
  record.launches = 0;
  record.confirmed = 0;
  record.stride = 0;
  record.step = Record::Step::kNone;
  ++record.failures[probe.by_faults];
  // One slow launch may have run beside other work: it is probed again, ever later, a few times. Before its launches
  // are fetched for good, they are left to faults twice.
  const uint8_t failures = record.failures[0];
  if (probe.by_faults && record.remote_rate) {
    record.access_class = AccessClass::kStreaming;
    record.remote_rate = 0;
    return false;
  }
  record.access_class = failures < kMaxFailures  ? AccessClass::kUnknown
                        : record.failures[1] < 2 ? AccessClass::kUnknownFaulting
                                                 : AccessClass::kFetch;
  record.retry_at = failures == 0 || failures >= kMaxFailures ? now : now + (uint64_t{256} << (2 * failures));
  return false;
}

// The time beyond its own that a timed launch may take in its host-resident bytes, so that it is right to leave them
// there: the price of the alternative.
uint64_t LaunchClassifier::MostNs(const LaunchProbe& probe, uint64_t spent) const {
  const uint64_t bytes = probe.host_bytes;
  const auto cost = [&](Residence residence) { return link_->Cost(residence, bytes, bytes); };
  // The pages that faults brought in this time are written back again.
  if (probe.by_faults) {
    const uint64_t swapped = cost(Residence::kSwapped);
    return swapped - std::min(swapped, link_->Ns(LinkStep::kWriteBack, link_->Bytes(LinkStep::kFault, spent)));
  }
  if (probe.duplicates) return link_->OnBusyLink(cost(Residence::kDuplicated));
  if (probe.oversize) return cost(Residence::kFaulted);
  return link_->OnBusyLink(cost(Residence::kSwapped));
}

void LaunchClassifier::NoteTouched(Record* record, uint64_t bytes, uint64_t ns) const {
  std::rotate(std::begin(record->touched), std::begin(record->touched) + 1, std::end(record->touched));
  const uint64_t pass_ns = link_->Ns(LinkStep::kRemoteRead, bytes);
  const Share least = Share::Of(ns - std::min(ns, kStartNs), pass_ns), most = Share::Of(ns, pass_ns);
  record->touched[3] = least.IsLittle() ? least : most.IsMost() ? Share{} : most;
}

// Adds the remote time of the launches since the last timed one. True where it justifies a probe of faults: the probe
// unmaps the set, and at worst faults bring all that the launch can have read in its time, and maps the set again.
bool LaunchClassifier::NoteRemote(Record* record, uint64_t bytes, uint64_t ns) const {
  // One launch may have waited for others, or for mapping: two in a row must have taken so long.
  const uint64_t spent = std::min(ns, std::exchange(record->newest_remote_ns, ns));
  if (record->launches < record->counted) record->counted = 0;
  record->remote_ns += (record->launches - record->counted) * spent;
  record->counted = record->launches;
  if (!spent || spent > link_->Ns(LinkStep::kRemoteRead, bytes) || record->failures[1] >= kMaxFaultProbes) return false;
  const uint64_t fault_ns = 2 * link_->Ns(LinkStep::kFault, link_->Bytes(LinkStep::kRemoteRead, spent));
  const uint64_t cost = 2 * link_->MapNs(bytes) + kDecidingLaunches * fault_ns;
  if (record->remote_ns < cost << (kProbeBackoffShift * record->failures[1])) return false;
  record->remote_ns = 0;
  return true;
}

RemoteShare LaunchClassifier::ShareOf(uint64_t id, uint64_t bytes) {
  Record& record = FindOrAdd(id, true);
  ++record.uncounted;
  // The first part is likely to be unmapped again. Each failure widens the distance to the next step.
  const uint64_t map_all_ns = link_->MapNs(bytes), shift = uint64_t{3} * record.failed_steps;
  const uint64_t first = kFirstPartShare * (kStepNs + 2 * map_all_ns / kFirstStride);
  const uint64_t second = kSecondPartShare * (kStepNs + map_all_ns / kSecondStride - map_all_ns / kFirstStride);
  if (record.step == Record::Step::kNone && record.confirmed &&
      record.spent_ns >= (record.stride ? second : first) << shift) {
    BeginStep(&record, record.stride ? kSecondStride : 0, record.before_ns);
    if (!record.stride) record.step = Record::Step::kBefore;
  }
  const uint64_t may = record.spent_ns / (record.stride == kSecondStride ? kSecondPartShare : kFirstPartShare);
  return {record.stride, may > record.map_ns ? (may - record.map_ns) / link_->map_chunk_ns() * kChunkBytes : 0};
}

void LaunchClassifier::NoteMapped(uint64_t id, uint64_t bytes) { FindOrAdd(id, true).map_ns += link_->MapNs(bytes); }

// Compares the mean time of a few launches with each part with that of the part before. True where this decides about
// the next launches.
bool LaunchClassifier::AddSample(Record* record, uint32_t stride, uint64_t ns) {
  using Step = Record::Step;
  if (record->stride != stride) return false;
  if (record->step == Step::kNone) {
    if (!stride) return false;
    // Far slower than the time before: compared again at once.
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
    BeginStep(record, kFirstStride, mean);
    return false;
  }
  const bool is_complete = samples % kSamples == 0;
  const bool worse = record->sum_ns > std::max(samples, kSamples) * MinBadNs(stride, before) ||
                     (samples == kMaxSamples && mean > MaxGoodNs(stride, before));
  if (!worse && (!is_complete || mean > MaxGoodNs(stride, before))) return false;
  record->samples = 0;
  record->sum_ns = 0;
  record->launches = 0;
  if (!worse && stride != kSecondStride) {
    record->step = Step::kNone;
    if (stride == kFirstStride) record->before_ns = (before + mean) / 2;  // nearly nothing is mapped yet
    return false;
  }
  record->stride = worse ? 0 : kWholeStride;
  record->access_class = worse ? AccessClass::kFaulting : AccessClass::kStreaming;
  if (!worse) return true;
  record->step = Step::kNone;
  record->spent_ns = record->map_ns = 0;
  record->failed_steps = std::min<uint8_t>(record->failed_steps + 1, kMaxFailedSteps);
  return left_remote_ = true;
}

// Probes a part.
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
  // The newest may have found pages that other faults had brought.
  const uint64_t ns = std::max(record->faults_ns, record->previous_faults_ns);
  return link_->Bytes(LinkStep::kFault, margins::kFaultSpread.Of(ns));
}

uint64_t LaunchClassifier::ProbeBytes(AccessClass access_class, uint64_t resident) {
  // Of rows touched here and there a small part may show nothing, and another part too much.
  if (access_class == AccessClass::kUnknownFaulting) return 32 * kMiB;
  return std::clamp<uint64_t>(resident / 16, 8 * kMiB, 64 * kMiB);
}

}  // namespace sluice::policy
