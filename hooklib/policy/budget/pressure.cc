#include "hooklib/policy/budget/pressure.h"

namespace sluice::policy {

namespace {
constexpr uint32_t kMaxStepPercent = 20;      // percent
constexpr uint32_t kMaxPatienceRounds = 256;  // rounds
constexpr uint64_t kMuchLostShare = 16;       // this share of what lives, lost within a round: less is held
constexpr uint64_t kCleanShare = 128;         // this share: the round was not clean
constexpr uint32_t kMaxLossyRounds = 2;       // such rounds, one after the other
}  // namespace

Pressure::Advice Pressure::NoteLaunches(uint64_t named, const Totals& moved, uint64_t live) {
  if (settling_) {
    settling_ = false;
    settle_bytes_ = live + live / 4;  // until every chunk has had a chance to come back
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
  if (anything) clean_rounds_ = 0;
  if (over) {
    named_bytes_ = 0;
    before_ = moved;
    lossy_rounds_ = anything ? lossy_rounds_ + 1 : 0;
    clean_rounds_ += !anything;
  }
  // A little in each round is what is left where the card's other users are pushed out as well.
  if (lost >= std::max<uint64_t>(live / kMuchLostShare, 1) || lossy_rounds_ >= (raised_ ? 1 : kMaxLossyRounds))
    return Advice::kLower;
  if (clean_rounds_ < patience_rounds_) return Advice::kNone;
  lowerings_ = 0;
  step_down_ = kStepDownPercent;
  clean_rounds_ = 0;
  return is_lowered() ? Advice::kRaise : Advice::kNone;
}

void Pressure::Settle() {
  lossy_rounds_ = 0;
  clean_rounds_ = 0;
  settling_ = true;
}

bool Pressure::Lower(uint32_t start, uint32_t ceiling) {
  const uint32_t from = FactorFrom(start);
  if (raised_) patience_rounds_ = std::min(2 * patience_rounds_, kMaxPatienceRounds);  // it was tried too early
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
  if (ceiling <= percent_) return false;  // the driver itself says that there is no room: not even tried
  if (raised_) {                          // so was the last time, and it went well
    patience_rounds_ = std::max(patience_rounds_ / 2, +kMinPatienceRounds);
    step_up_ = std::min(2 * step_up_, kMaxStepPercent);
  }
  raised_ = true;
  Settle();
  percent_ = std::min(percent_ + step_up_, ceiling);
  if (percent_ >= start) percent_ = kMaxPercent;
  return true;
}

}  // namespace sluice::policy
