#include "hooklib/policy/predict/iterations.h"

namespace sluice::policy {

bool Iterations::IsOver(uint64_t now, bool confident) const {
  const uint64_t launches = now - begin_;
  // The first period is known as soon as it is repeated.
  const bool is_first = number_ == 1 && longest_period_ && confident && launches >= longest_period_;
  return launches >= length_ || is_first;
}

void Iterations::Begin(uint64_t now) {
  begin_ = now;
  // An iteration is an eighth longer than a period. Periods within periods (a repeated part) do not shorten it at once.
  const uint64_t length = longest_period_ ? longest_period_ + longest_period_ / 8 : length_;
  length_ = std::clamp<uint64_t>(number_ == 1 ? length : std::max(length, length_ / 2), 16, 1 << 14);
  // As before where no launch told its period.
  if (longest_period_) counted_ = length_ - length_ % longest_period_;
  if (!counted_ || counted_ > length_) counted_ = length_;
  longest_period_ = 0;
  ++number_;
}

}  // namespace sluice::policy
