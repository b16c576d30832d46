#include "hooklib/policy/budget/pressure.h"

namespace sluice::policy {

namespace {
constexpr uint32_t kMaxStepPercent = 20;
constexpr uint32_t kMaxPatienceIntervals = 256;
constexpr uint64_t kLargeLossShare = 16;    // a loss of this share of the live bytes in one interval lowers the factor
constexpr uint64_t kCleanShare = 128;       // a loss of this share, and the interval is not clean
constexpr uint32_t kMaxLossyIntervals = 2;  // so many lossy intervals in a row lower the factor
}  // namespace

Pressure::Advice Pressure::NoteLaunches(uint64_t named, const Totals& moved, uint64_t live) {
  if (settling_) {
    settling_ = false;
    settle_bytes_ = live + live / 4;  // until each chunk could be fetched again
  }
  if (settle_bytes_ > 0) {
    settle_bytes_ -= std::min(settle_bytes_, named);
    named_bytes_ = 0;
    before_ = moved;
    return Advice::kNone;
  }
  named_bytes_ += named;
  const uint64_t lost = Lost(before_, moved);
  const bool anything = lost >= std::max<uint64_t>(live / kCleanShare, 1), over = named_bytes_ >= live;
  if (anything) clean_intervals_ = 0;
  if (over) {
    named_bytes_ = 0;
    before_ = moved;
    lossy_intervals_ = anything ? lossy_intervals_ + 1 : 0;
    clean_intervals_ += !anything;
  }
  // A little loss in each interval remains where other users of the GPU are evicted as well.
  if (lost >= std::max<uint64_t>(live / kLargeLossShare, 1) || lossy_intervals_ >= (raised_ ? 1 : kMaxLossyIntervals))
    return Advice::kLower;
  if (clean_intervals_ < patience_intervals_) return Advice::kNone;
  lowerings_ = 0;
  step_down_ = kStepDownPercent;
  clean_intervals_ = 0;
  return is_lowered() ? Advice::kRaise : Advice::kNone;
}

void Pressure::Settle() {
  lossy_intervals_ = 0;
  clean_intervals_ = 0;
  settling_ = true;
}

bool Pressure::Lower(uint32_t start, uint32_t ceiling) {
  const uint32_t from = FactorFrom(start);
  if (raised_) patience_intervals_ = std::min(2 * patience_intervals_, kMaxPatienceIntervals);  // raised too early
  raised_ = false;
  step_up_ = kStepUpPercent;
  Settle();
  const uint32_t to = std::max(kMinPercent, std::min(from - std::min(from, step_down_), ceiling));
  if (to >= from) return false;
  percent_ = to;
  step_down_ = std::min(2 * step_down_, kMaxStepPercent);
  ++lowerings_;
  return true;
}

bool Pressure::Raise(uint32_t start, uint32_t ceiling) {
  if (ceiling <= percent_) return false;  // the driver itself says that there is no room
  if (raised_) {                          // so was the last change, and it succeeded
    patience_intervals_ = std::max(patience_intervals_ / 2, +kMinPatienceIntervals);
    step_up_ = std::min(2 * step_up_, kMaxStepPercent);
  }
  raised_ = true;
  Settle();
  percent_ = std::min(percent_ + step_up_, ceiling);
  if (percent_ >= start) percent_ = kMaxPercent;
  return true;
}

}  // namespace sluice::policy
