// Bounds how often something happens: once a period on average, and `burst` times at once. Pure; the caller brings the
// time.
#ifndef SLUICE_AGENT_TOKEN_BUCKET_H_
#define SLUICE_AGENT_TOKEN_BUCKET_H_

#include <algorithm>
#include <cstdint>

namespace sluice::agent {

class TokenBucket {
 public:
  // Both at least 1. Full at first.
  constexpr TokenBucket(uint64_t period_ns, uint64_t burst)
      : period_ns_(period_ns), full_ns_(burst * period_ns), left_ns_(full_ns_) {}

  // False: not now. Times that run backwards add nothing.
  bool Take(uint64_t now_ns) {
    Fill(now_ns);
    if (left_ns_ < period_ns_) return false;
    left_ns_ -= period_ns_;
    return true;
  }
  // Until Take() succeeds; 0: it does now.
  uint64_t WaitNs(uint64_t now_ns) {
    Fill(now_ns);
    return left_ns_ >= period_ns_ ? 0 : period_ns_ - left_ns_;
  }

 private:
  void Fill(uint64_t now_ns) {
    if (now_ns > last_ns_) left_ns_ = std::min(full_ns_, left_ns_ + std::min(full_ns_, now_ns - last_ns_));
    last_ns_ = std::max(last_ns_, now_ns);
  }

  uint64_t period_ns_, full_ns_, left_ns_;  // the content as time: one period for each token
  uint64_t last_ns_ = 0;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_TOKEN_BUCKET_H_
