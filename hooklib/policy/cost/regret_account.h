// The regret account: it bounds what moves for launches may cost beyond demand faults, from the first launch on.
//
// A launch names its set, and may touch little of it. While no time has told that of its kind (launch_classifier.h), a
// fetch of its missing chunks is paid from credit. Where the credit does not suffice, the launch is left to demand
// faults and timed: the worst case is demand paging, and the time decides for its kind. Programs are mostly of one
// sort. So a kind that touched most of its set earns credit for others, and one that touched little takes some of it.
// In ns by the link model. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_COST_REGRET_ACCOUNT_H_
#define SLUICE_HOOKLIB_POLICY_COST_REGRET_ACCOUNT_H_

#include <algorithm>
#include <cstdint>

namespace sluice::policy {

class RegretAccount {
 public:
  // At the start: what a process may lose before anything is known.
  static constexpr uint64_t kFirstCreditNs = 4'000'000;
  // A kind that touched most of its set pays for so many others of its size.
  static constexpr uint64_t kEarned = 16;
  static constexpr uint64_t kMaxCreditNs = 1'000'000'000;

  // Whether moves at this price may be made for a launch of which nothing is known. If so they are paid.
  bool Pay(uint64_t ns) {
    if (ns > credit_ns_) return false;
    credit_ns_ -= ns;
    return true;
  }
  // A timed launch touched most of its set, whose moves cost so much; or little of its set.
  void NoteDense(uint64_t ns) { credit_ns_ = std::min(kMaxCreditNs, credit_ns_ + kEarned * ns); }
  void NoteSparse() { credit_ns_ /= 2; }
  uint64_t credit_ns() const { return credit_ns_; }

 private:
  uint64_t credit_ns_ = kFirstCreditNs;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_COST_REGRET_ACCOUNT_H_
