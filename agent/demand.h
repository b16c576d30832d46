// Estimates the memory that a process could use, from its counters. Pure; not thread-safe.
//
// Live bytes swing within every training step, so the largest value of the last few seconds counts. A process that
// neither launches nor grows needs only its unmanaged memory, which cannot be evicted. A process that loads its model,
// or whose first allocation waits for its guarantee, has not launched anything yet and still grows.
#ifndef SLUICE_AGENT_DEMAND_H_
#define SLUICE_AGENT_DEMAND_H_

#include <algorithm>
#include <cstdint>

namespace sluice::agent {

class Demand {
 public:
  static constexpr uint64_t kBucketNs = 5'000'000'000;
  static constexpr uint64_t kGrainBytes = 64ull << 20;

  // Bytes, the number of launches so far, and the time of the reading.
  void Observe(uint64_t live, uint64_t unmanaged, uint64_t launches, uint64_t now_ns) {
    if (now_ns - bucket_ns_ >= kBucketNs) {
      previous_ = now_ns - bucket_ns_ < 2 * kBucketNs ? current_ : 0;
      current_ = std::min(current_, live);
      bucket_ns_ = now_ns;
    }
    if (live > current_) grew_ns_ = now_ns;
    current_ = std::max(current_, live);
    unmanaged_ = unmanaged;
    if (launches != launches_) {
      launches_ = launches;
      launched_ns_ = now_ns;
    }
  }
  // Its launches wait for a token: the process is not idle.
  void SetWaiting(uint64_t now_ns) {
    if (launched_ns_ != 0) launched_ns_ = now_ns;
  }
  // The same where also the first launch may wait for a token.
  void SetHeld(uint64_t now_ns) { launched_ns_ = now_ns; }
  // Bytes of everything that is allocated, without room to grow.
  uint64_t Held() const { return std::max(current_, previous_) + unmanaged_; }
  uint64_t Unmanaged() const { return unmanaged_; }
  // When it last launched, waited for a token or grew; 0: never.
  uint64_t LastWork() const { return std::max(launched_ns_, grew_ns_); }
  bool Idle(uint64_t now_ns, uint64_t idle_after_ns) const {
    return launched_ns_ == 0 || now_ns - launched_ns_ >= idle_after_ns;
  }
  // Rounded up, with an eighth to grow into: small swings move no budget.
  uint64_t Wanted(uint64_t now_ns, uint64_t idle_after_ns) const {
    const bool loading = grew_ns_ != 0 && now_ns - grew_ns_ < idle_after_ns;
    const uint64_t peak = Idle(now_ns, idle_after_ns) && !loading ? 0 : std::max(current_, previous_);
    const uint64_t sum = peak + peak / 8 + unmanaged_;
    return (sum + kGrainBytes - 1) / kGrainBytes * kGrainBytes;
  }

 private:
  uint64_t bucket_ns_ = 0, current_ = 0, previous_ = 0, unmanaged_ = 0, launches_ = 0, launched_ns_ = 0, grew_ns_ = 0;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_DEMAND_H_
