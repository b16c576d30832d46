#include "hooklib/core/pressure.h"

#include <bit>

namespace sluice::core {

namespace {
constexpr uint32_t kWindow = (1u << 16) - 1;  // looks, a bit each
constexpr uint32_t kEvidence = 3;             // of them; one or two may have been held up by something else
constexpr uint32_t kClean = 16;               // looks, at least, before more is held
constexpr uint32_t kMostStep = 20;            // percent
constexpr uint64_t kApart = 20'000'000, kApartInDoubt = 5'000'000;  // ns
constexpr uint64_t kMostLaunches = 1024;                            // between two looks
constexpr uint64_t kMostPatience = 30'000'000'000;
// The driver's thread has to wake up; what is there takes 1 to 2 us a chunk, what is not crosses the link at 20 to 50
// GB/s while something else leaves at 15.
constexpr uint64_t kWakeNs = 100'000, kRate = 30;
}  // namespace

bool Pressure::Gone(uint64_t bytes, uint64_t ns) { return ns > kWakeNs + bytes / kRate; }

bool Pressure::Due(uint64_t named, uint64_t live) {
  if (settling_) {
    settling_ = false;
    settle_ = live + live / 4;
  }
  settle_ -= std::min(settle_, named);
  if (++launches_ < due_ || settle_ > 0) return false;
  due_ = launches_ + pace_;
  return true;
}

Pressure::Wish Pressure::Looked(const Look& look, bool gone, uint64_t now) {
  // Launches that find everything there go by at once, those that fault take long: it is the time that counts.
  if (!gone && now - last_ < kApartInDoubt / 2) return Wish::kNothing;
  const uint64_t passed = std::max<uint64_t>(now - last_, 1);
  const uint64_t launches = look.launch - std::min(look.launch, last_launch_);
  last_ = now;
  last_launch_ = look.launch;
  const uint64_t wanted = (outcomes_ || gone ? kApartInDoubt : kApart) * launches / passed;
  // The host is ahead of the GPU by as many launches as it likes: one short pause must not end the looks.
  pace_ = std::clamp<uint64_t>(wanted, 1, std::min(2 * pace_, kMostLaunches));
  if (look.generation != generation_) return Wish::kNothing;
  if (well_since_ == 0) well_since_ = now;
  outcomes_ = ((outcomes_ << 1) | (gone ? 1 : 0)) & kWindow;
  if (gone) {
    clean_ = 0;
    well_since_ = now;
    return static_cast<uint32_t>(std::popcount(outcomes_)) >= kEvidence ? Wish::kLower : Wish::kNothing;
  }
  ++clean_;
  if (clean_ < kClean || now - well_since_ < patience_) return Wish::kNothing;
  lowerings_ = 0;
  down_ = kStepDown;
  return lowered() ? Wish::kRaise : Wish::kNothing;
}

void Pressure::Changed(uint64_t now) {
  ++generation_;
  outcomes_ = clean_ = 0;
  settling_ = true;
  well_since_ = now;
}

bool Pressure::Lower(uint32_t start, uint32_t ceiling, uint64_t now) {
  const uint32_t from = Of(start);
  if (raised_) patience_ = std::min(2 * patience_, kMostPatience);  // it was tried too early
  raised_ = false;
  up_ = kStepUp;
  Changed(now);
  const uint32_t to = std::max(kFloor, std::min(from - std::min(from, down_), ceiling));
  if (to >= from) return false;
  held_ = to;
  down_ = std::min(2 * down_, kMostStep);
  ++lowerings_;
  return true;
}

bool Pressure::Raise(uint32_t start, uint32_t ceiling, uint64_t now) {
  clean_ = 0;
  well_since_ = now;
  if (ceiling <= held_) return false;  // the driver itself says that there is no room: not even tried
  if (raised_) {                       // so was the last time, and it went well
    patience_ = std::max(patience_ / 2, kPatience);
    up_ = std::min(2 * up_, kMostStep);
  }
  raised_ = true;
  Changed(now);
  held_ = std::min(held_ + up_, ceiling);
  if (held_ >= start) held_ = kAll;
  return true;
}

}  // namespace sluice::core
