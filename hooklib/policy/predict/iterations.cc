#include "hooklib/policy/predict/iterations.h"

namespace sluice::policy {

bool Iterations::IsOver(uint64_t now, bool confident) const {
  const uint64_t launches = now - begin_;
  // The first round is known as soon as it is being repeated.
  const bool first = number_ == 1 && longest_period_ && confident && launches >= longest_period_;
  return launches >= length_ || first;
}

void Iterations::Begin(uint64_t now) {
  begin_ = now;
  // Rounds within rounds (a part that is repeated) do not make the window small at once.
  const uint64_t round = longest_period_ ? longest_period_ + longest_period_ / 8 : length_;
  length_ = std::clamp<uint64_t>(number_ == 1 ? round : std::max(round, length_ / 2), 16, 1 << 14);
  longest_period_ = 0;
  ++number_;
}

}  // namespace sluice::policy
