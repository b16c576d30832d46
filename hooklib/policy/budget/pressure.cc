#include "hooklib/policy/budget/pressure.h"

namespace sluice::policy {

namespace {
constexpr uint32_t kMostStep = 20;       // percent
constexpr uint32_t kMostPatience = 256;  // rounds
constexpr uint64_t kMuch = 16;           // this share of what lives, lost within a round: less is held
constexpr uint64_t kAnything = 128;      // this share: the round was not clean
constexpr uint32_t kOften = 2;           // such rounds, one after the other
}  // namespace

Pressure::Wish Pressure::Note(uint64_t named, const Moved& moved, uint64_t live) {
  if (settling_) {
    settling_ = false;
    settle_ = live + live / 4;  // until every chunk has had a chance to come back
  }
  if (settle_ > 0) {
    settle_ -= std::min(settle_, named);
    named_ = 0;
    before_ = moved;
    return Wish::kNothing;
  }
  named_ += named;
  const uint64_t lost = Lost(before_, moved);
  const bool anything = lost >= std::max<uint64_t>(live / kAnything, 1), over = named_ >= live;
  if (anything) clean_ = 0;
  if (over) {
    named_ = 0;
    before_ = moved;
    lossy_ = anything ? lossy_ + 1 : 0;
    clean_ += !anything;
  }
  // A little in each round is what is left where the card's other users are pushed out as well.
  if (lost >= std::max<uint64_t>(live / kMuch, 1) || lossy_ >= (raised_ ? 1 : kOften)) return Wish::kLower;
  if (clean_ < patience_) return Wish::kNothing;
  lowerings_ = 0;
  down_ = kStepDown;
  clean_ = 0;
  return lowered() ? Wish::kRaise : Wish::kNothing;
}

void Pressure::Changed() {
  lossy_ = 0;
  clean_ = 0;
  settling_ = true;
}

bool Pressure::Lower(uint32_t start, uint32_t ceiling) {
  const uint32_t from = Of(start);
  if (raised_) patience_ = std::min(2 * patience_, kMostPatience);  // it was tried too early
  raised_ = false;
  up_ = kStepUp;
  Changed();
  const uint32_t to = std::max(kFloor, std::min(from - std::min(from, down_), ceiling));
  if (to >= from) return false;
  held_ = to;
  down_ = std::min(2 * down_, kMostStep);
  ++lowerings_;
  return true;
}

bool Pressure::Raise(uint32_t start, uint32_t ceiling) {
  if (ceiling <= held_) return false;  // the driver itself says that there is no room: not even tried
  if (raised_) {                       // so was the last time, and it went well
    patience_ = std::max(patience_ / 2, +kPatience);
    up_ = std::min(2 * up_, kMostStep);
  }
  raised_ = true;
  Changed();
  held_ = std::min(held_ + up_, ceiling);
  if (held_ >= start) held_ = kAll;
  return true;
}

}  // namespace sluice::policy
