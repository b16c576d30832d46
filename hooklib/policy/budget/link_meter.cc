#include "hooklib/policy/budget/link_meter.h"

#include <algorithm>

namespace sluice::policy {
namespace {

uint64_t Scale(uint64_t value, uint64_t by, uint64_t from) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(value) * by / from);
}

}  // namespace

void LinkMeter::SetRate(uint64_t bytes_per_s, uint64_t total, uint64_t now_ns) {
  const uint64_t debt_ns = WaitNs(now_ns);
  if (bytes_per_s == 0) {
    paid_ns_ = 0;
  } else if (rate_ == 0) {
    counted_ = total;
    paid_ns_ = now_ns;
  } else if (debt_ns > 0) {
    paid_ns_ = now_ns + std::min(Scale(debt_ns, rate_, bytes_per_s), kMaxDebtNs);
  }
  rate_ = bytes_per_s;
}

void LinkMeter::Count(uint64_t total, uint64_t now_ns) {
  if (rate_ == 0) return;
  const uint64_t bytes = total > counted_ ? total - counted_ : 0;
  counted_ = std::max(counted_, total);
  if (bytes == 0) return;
  const uint64_t credit_from = now_ns > kCreditNs ? now_ns - kCreditNs : 0;
  const uint64_t paid = std::max(paid_ns_.load(std::memory_order_relaxed), credit_from);
  // A rate of a byte a second would overflow otherwise.
  const uint64_t costs = Scale(std::min(bytes, uint64_t{1} << 50), 1'000'000'000, rate_);
  paid_ns_ = std::min(paid + std::min(costs, 2 * kMaxDebtNs), now_ns + kMaxDebtNs);
}

}  // namespace sluice::policy
