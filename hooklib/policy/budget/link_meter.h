// Paces one process's transfers between a GPU and the host: a token bucket in bytes a second. No CUDA, no clock.
//
// Bytes are counted once they are queued, so the bucket may owe. Work that would move more waits until the debt is
// paid. Bytes that move without a request (demand faults, remote accesses) count, and later work waits for them.
#ifndef SLUICE_HOOKLIB_POLICY_BUDGET_LINK_METER_H_
#define SLUICE_HOOKLIB_POLICY_BUDGET_LINK_METER_H_

#include <atomic>
#include <cstdint>

namespace sluice::policy {

class LinkMeter {
 public:
  // `total`: the bytes moved so far. A debt stays, and is paid at the new rate. 0: no limit, and no debt.
  void SetRate(uint64_t bytes_per_s, uint64_t total, uint64_t now_ns);
  void Count(uint64_t total, uint64_t now_ns);
  // These bytes, a part of the next total, were moved for others' sake: they do not count.
  void Forgive(uint64_t bytes) { counted_ += bytes; }
  // Nanoseconds until the debt is paid; at most kMaxDebtNs. Any thread, without a lock.
  uint64_t WaitNs(uint64_t now_ns) const {
    const uint64_t paid = paid_ns_.load(std::memory_order_relaxed);
    return paid > now_ns ? paid - now_ns : 0;
  }
  // False: there is no debt, at one load and no look at the clock.
  bool MayOwe() const { return paid_ns_.load(std::memory_order_relaxed) != 0; }
  uint64_t rate() const { return rate_; }

  // A launch waits no longer: bytes of one launch beyond the rate of so much time are not metered.
  static constexpr uint64_t kMaxDebtNs = 10'000'000'000;
  // Time without transfers that counts for later ones.
  static constexpr uint64_t kCreditNs = 20'000'000;

 private:
  uint64_t rate_ = 0;     // bytes a second
  uint64_t counted_ = 0;  // of the total
  std::atomic<uint64_t> paid_ns_{0};
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_BUDGET_LINK_METER_H_
