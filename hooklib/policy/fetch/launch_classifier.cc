#include "hooklib/policy/fetch/launch_classifier.h"

#include <algorithm>

#include "hooklib/memory/types.h"
#include "hooklib/policy/fetch/remote_steps.h"

namespace sluice::policy {

namespace {
using remote_steps::kAwaitedSamples;
using remote_steps::kMaxStepLaunches;
using remote_steps::kWholeStride;

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
constexpr uint8_t kMinSparseTimes = 2, kMaxSparseScore = 4;
constexpr uint8_t kMaxFailures = 4;
constexpr uint8_t kSettledTimes = 4;
constexpr uint32_t kDecidingLaunches = 4;  // launches of a new class that are all timed
constexpr uint32_t kBacklogLaunches = 32;  // more than a training step has of most ids
constexpr uint8_t kMaxWaitRounds = 10, kMaxAwaitedLaunches = 4;
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
  const bool awaits_faults = record->access_class == AccessClass::kUnknownFaulting && !record->faults_ns;
  if (awaits_faults && (faults_first || record->tries_faults) && now < record->retry_at) return AccessClass::kFaulting;
  if ((access_class == AccessClass::kUnknown || access_class == AccessClass::kUnknownFaulting) &&
      now < record->retry_at)
    return record->is_sparse_by_faults && !oversize ? AccessClass::kFaulting : AccessClass::kFetch;
  return access_class;
}

bool LaunchClassifier::IsUndecided(uint64_t id) const {
  const Record* const record = Find(id, false);
  return !record || (!record->is_dense && !record->faults_ns &&
                     (record->access_class == AccessClass::kUnknown || record->access_class == AccessClass::kFetch));
}

bool LaunchClassifier::MayTryRemote(uint64_t id) const {
  const Record* const record = Find(id, false);
  return record && record->is_sparse_by_faults && record->access_class == AccessClass::kFaulting &&
         !record->failures[0];
}

uint64_t LaunchClassifier::FaultNs(uint64_t id) const {
  const Record* const record = Find(id, false);
  return record ? record->spent_ns + record->uncounted * record->faults_ns : 0;
}

bool LaunchClassifier::LeftToFaults(uint64_t id) const {
  if (const Record* const record = Find(id, true)) return record->access_class != AccessClass::kStreaming;
  const Record* const record = Find(id, false);
  return record && record->access_class == AccessClass::kFaulting;
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
  const bool step = record.step != Record::Step::kNone && stride == record.stride && n < kMaxStepLaunches;
  // A bad step is not to go on for a thousand launches. And the time before is to be measured in the same way: faults
  // are served faster where no eviction runs beside them.
  if (n < kDecidingLaunches || (step && (n < kAwaitedSamples || stride != kWholeStride))) ++record.awaited;
  const bool unsure = record.sparse_score && record.sparse_score < kMaxSparseScore;
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

void LaunchClassifier::NoteBlocked(uint64_t id, bool at_once) {
  Record& record = FindOrAdd(id, false);
  if (record.wants_wait || (++record.blocked < kBacklogLaunches << record.wait_rounds && !at_once)) return;
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
  // Its time was never known: the next ones are fetched for.
  const bool is_unanswered =
      probe.by_faults && record.tries_faults && record.access_class == AccessClass::kUnknownFaulting;
  if (is_unanswered) record.tries_faults = false;
  record.access_class = probe.by_faults ? AccessClass::kUnknownFaulting : AccessClass::kUnknown;
  record.retry_at = now + 512;
  ++record.awaited;
  if (!probe.by_faults) ++stats_.probes;
  // Launches that touch their whole set are slow until this one has told so: the host waits at once.
  if (probe.by_faults && record.tries_faults && !record.has_backlog) {
    record.has_backlog = true;
    ++backlogged_records_;
  }
}

bool LaunchClassifier::NoteMeasured(const LaunchProbe& probe, uint64_t ns, uint64_t now) {
  if (records_.size() > (1 << 16)) {  // ids of phases that are long over
    records_.clear();
    backlogged_records_ = waiting_records_ = 0;
    std::fill(std::begin(cache_), std::end(cache_), CacheSlot{});
  }
  Record& record = FindOrAdd(probe.id, probe.oversize);
  bool tried_faults = false;
  // A launch beside many evictions took far longer than the next ones will.
  if (probe.by_faults) record.spent_ns += std::exchange(record.uncounted, 0) * std::min(ns, record.faults_ns);
  if (probe.by_faults && !probe.stride) {
    tried_faults = std::exchange(record.tries_faults, false);
    record.previous_faults_ns = record.faults_ns;
    record.faults_ns = ns;
  }
  if (!probe.by_faults && probe.host_bytes >= 4 * kMiB) {
    const bool sparse = ns < kStartNs + margins::kSparse.Of(link_->Ns(LinkStep::kRemoteRead, probe.host_bytes));
    if (sparse && record.sparse_score < kMaxSparseScore) ++record.sparse_score;
    if (!sparse && record.sparse_score) --record.sparse_score;
    record.sparse = record.sparse_score >= kMinSparseTimes || (record.sparse && record.sparse_score);
  }
  // Once remote use was found faster than faults, it is compared with nothing else.
  const bool is_shared = probe.stride && probe.stride == record.stride;
  if (AddSample(&record, probe.stride, ns)) return false;
  if (is_shared || (probe.by_faults && probe.stride)) return false;
  // Launches that were timed before faults were probed add nothing.
  if (record.access_class == AccessClass::kUnknownFaulting && record.remote_rate && !probe.by_faults) return false;
  const uint64_t own = kStartNs + probe.resident_bytes / kGpuRate;
  const uint64_t spent = ns - std::min(ns, own);
  const bool is_sparse = record.is_sparse_by_faults && !probe.oversize;
  const uint64_t most =
      is_sparse && !probe.by_faults ? std::min(MostNs(probe, spent), record.faults_ns) : MostNs(probe, spent);
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
    // A launch that was faster than the link touched little of its set, and tells nothing of the next one's passes.
    // Faults cost little then, and remote use is compared with them (ShareOf).
    const bool touches_little = !probe.by_faults && probe.oversize && probe.exploratory && !probe.duplicates &&
                                spent < margins::kSparse.Of(link_->Ns(LinkStep::kRemoteRead, probe.host_bytes));
    left_remote_ |= touches_little;
    record.access_class = probe.by_faults || touches_little ? AccessClass::kFaulting : AccessClass::kStreaming;
    record.failures[probe.by_faults] = 0;
    findings_.found_sparse |= probe.by_faults && probe.exploratory;
    if (probe.by_faults) record.is_sparse_by_faults = true;
    const bool passed_once = !probe.by_faults && !probe.oversize && probe.exploratory && !probe.duplicates &&
                             spent >= margins::kDense.Of(link_->Ns(LinkStep::kRemoteRead, probe.host_bytes));
    // A sparse one that is faster remotely than by faults pays for other probes.
    const bool gained = is_sparse && !probe.by_faults;
    if (passed_once || gained) findings_.earned_bytes = std::max(findings_.earned_bytes, probe.host_bytes);
    if (!probe.by_faults || record.confirmed == kSettledTimes) return false;
    return ++record.confirmed == kSettledTimes;
  }
  // Something else than the set may have been missing, as an operand that others use: asked once more.
  if (probe.by_faults && tried_faults && record.failures[1] == 0 &&
      spent < margins::kDense.Of(link_->Ns(LinkStep::kFault, probe.host_bytes))) {
    record.failures[1] = 1;
    record.faults_ns = 0;
    record.access_class = AccessClass::kUnknown;
    record.retry_at = now;
    return false;
  }
  // A launch that took several passes over its part: most read all of it again, few the same rows.
  if (!probe.by_faults && !probe.oversize && probe.exploratory && !is_sparse)
    findings_.earned_bytes = std::max(findings_.earned_bytes, probe.host_bytes);
  record.launches = 0;
  record.confirmed = 0;
  record.stride = 0;
  record.step = Record::Step::kNone;
  ++record.failures[probe.by_faults];
  if (probe.by_faults && !probe.oversize) {
    record.is_dense = true;
    record.is_sparse_by_faults = false;
    findings_.earned_bytes = std::max(findings_.earned_bytes, probe.host_bytes);
  }
  // One slow launch may have run beside other work: it is probed again, ever later, a few times. Before its launches
  // are fetched for good, they are left to faults twice.
  const uint8_t failures = record.failures[0];
  if (probe.by_faults && record.remote_rate) {
    record.access_class = AccessClass::kStreaming;
    record.remote_rate = 0;
    return false;
  }
  record.access_class = is_sparse && !probe.by_faults ? AccessClass::kFaulting
                        : failures < kMaxFailures     ? AccessClass::kUnknown
                        : record.failures[1] < 2      ? AccessClass::kUnknownFaulting
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
