#include "hooklib/policy/cost/link_model.h"

#include <algorithm>

namespace sluice::policy {

namespace {

constexpr uint64_t kMs = 1'000'000;

struct Price {
  uint64_t ns_per_gib;
  bool is_of_link;  // it follows the link's rate; others are the driver's work
};

// Milliseconds a GiB of an H200 with driver 580. Sources: docs/design/driver.md ("Eviction", "Discard and prefetch",
// "Duplicates"), driver-remote-access.md ("Advice and kernels").
constexpr std::array<Price, kLinkStepCount> kInitial{{
    {22 * kMs, true},   // kFetch
    {30 * kMs, false},  // kWriteBack: four threads, 34 to 40 GB/s; the driver's page tables are the limit
    {2 * kMs, false},   // kDrop: 1.2 to 2.2
    {5 * kMs, false},   // kDuplicate
    {4 * kMs, false},   // kDiscard
    {2 * kMs, false},   // kPopulate: 1.5 where it was discarded
    {21 * kMs, true},   // kRemoteRead
    {24 * kMs, true},   // kRemotePass: 20.4 written, 25.5 read and written
    {98 * kMs, false},  // kFault: 10 to 12 GB/s
}};
constexpr uint64_t kSlowWriteBack = 70 * kMs;  // by the driver's call

}  // namespace

void LinkModel::SetPrices() {
  for (size_t i = 0; i < kLinkStepCount; ++i)
    prices_[i] = kInitial[i].is_of_link ? kInitial[i].ns_per_gib * link_scale_ / kWhole : kInitial[i].ns_per_gib;
  if (slow_write_back_) prices_[static_cast<size_t>(LinkStep::kWriteBack)] = kSlowWriteBack;
}

uint64_t LinkModel::Cost(Residence residence, uint64_t bytes, uint64_t used) const {
  switch (residence) {
    case Residence::kSwapped:
      return Ns(LinkStep::kWriteBack, bytes) + Ns(LinkStep::kFetch, bytes);
    case Residence::kDuplicated:
      return Ns(LinkStep::kDrop, bytes) + Ns(LinkStep::kDuplicate, bytes) + Ns(LinkStep::kFetch, bytes);
    case Residence::kDiscarded:
      return Ns(LinkStep::kDiscard, bytes) + Ns(LinkStep::kPopulate, bytes);
    case Residence::kRemote:
      return Ns(LinkStep::kRemotePass, used);
    case Residence::kFaulted: {
      const uint64_t touched = std::min(bytes, used);
      return Ns(LinkStep::kWriteBack, touched) + Ns(LinkStep::kFault, touched);
    }
    default:
      return 0;
  }
}

void LinkModel::NoteFetch(uint64_t bytes, uint64_t ns) {
  if (bytes < kMinFetchBytes || ns == 0) return;
  const uint64_t initial = Scale(kInitial[static_cast<size_t>(LinkStep::kFetch)].ns_per_gib, bytes);
  const uint64_t measured = std::clamp(ns * kWhole / std::max<uint64_t>(initial, 1), kWhole / kBound, kWhole * kBound);
  const bool above = measured > kNoise.Of(link_scale_), below = kNoise.Of(measured) < link_scale_;
  if (!above && !below) {
    beyond_ = 0;
    return;
  }
  if (beyond_ == 0 || above != above_) {
    beyond_ = 0;
    above_ = above;
    mildest_ = measured;
  }
  mildest_ = above ? std::min(mildest_, measured) : std::max(mildest_, measured);
  if (++beyond_ < kMeasurements) return;
  link_scale_ = mildest_;
  beyond_ = 0;
  SetPrices();
}

}  // namespace sluice::policy
