// LaunchClassifier: the steps in which remote use of launches that are left to demand faults is tried.
#include "hooklib/policy/fetch/remote_steps.h"

#include <algorithm>

#include "hooklib/policy/fetch/launch_classifier.h"

namespace sluice::policy {

namespace {
using remote_steps::kFirstStride;
using remote_steps::kSamples;
using remote_steps::kSecondStride;
using remote_steps::kWholeStride;

// The shares of an id's fault time that the first and the second remote part may cost. Little: nearly all losers lose
// with the first part, and a gain is earned back in a few launches.
constexpr uint64_t kFirstPartShare = 16, kSecondPartShare = 8;
constexpr uint64_t kStepNs = 8'000'000;  // of a step's other costs: launches that are awaited, and slower ones
constexpr uint32_t kMaxSamples = 64;
constexpr uint8_t kMaxFailedSteps = 8;

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

RemoteShare LaunchClassifier::ShareOf(uint64_t id, bool oversize, uint64_t bytes) {
  Record& record = FindOrAdd(id, oversize);
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

void LaunchClassifier::NoteMapped(uint64_t id, bool oversize, uint64_t bytes) {
  FindOrAdd(id, oversize).map_ns += link_->MapNs(bytes);
}

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

}  // namespace sluice::policy
