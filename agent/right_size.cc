#include "agent/right_size.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/settings/settings.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000, kHourNs = 3600 * kSecondNs;

// The estimate may be a tenth too low (docs/design/working-set.md), and chunks of 2 MiB hold more than is used of them.
constexpr double kMargin = 1.1;
constexpr double kTooLarge = 0.5, kTooSmall = 1.25;

// "1.9 of 5.6 GiB": both in the unit of the larger one.
std::string PartOf(Bytes part, Bytes whole) {
  const bool gib = std::max(part, whole) >= Bytes{1} << 30;
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f of %.1f %s", std::ldexp(static_cast<double>(part), gib ? -30 : -20),
                std::ldexp(static_cast<double>(whole), gib ? -30 : -20), gib ? "GiB" : "MiB");
  return text;
}

}  // namespace

void DayPeak::Observe(const Sample& sample, uint64_t startup_ns, uint64_t now_ns) {
  const uint64_t since = observed_ns_ == 0 || now_ns <= observed_ns_ ? 0 : std::min(now_ns - observed_ns_, kSecondNs);
  observed_ns_ = now_ns;
  if (!sample.lives) {
    worked_ns_ = 0;
    return;
  }
  if (sample.works) worked_ns_ += since;
  if (worked_ns_ < startup_ns) return;
  is_known_ = true;
  const uint64_t number = now_ns / kHourNs + 1;
  Hour& hour = hours_[number % hours_.size()];
  if (hour.number != number) hour = {number, 0};
  hour.peak = std::max(hour.peak, sample.touched);
}

Bytes DayPeak::Peak(uint64_t now_ns) const {
  const uint64_t number = now_ns / kHourNs + 1;
  Bytes peak = 0;
  for (const Hour& hour : hours_) {
    if (hour.number != 0 && hour.number + hours_.size() > number) peak = std::max(peak, hour.peak);
  }
  return peak;
}

RightSize FindRightSize(const Footprint& f) {
  RightSize out;
  if (f.size == 0 || f.gpu == 0) return out;
  const auto part = [&](double bytes) { return bytes / static_cast<double>(f.gpu); };
  const double bytes = std::max(static_cast<double>(f.peak) * kMargin, static_cast<double>(f.unmanaged));
  // Fractions have steps of a hundredth. Less than a hair above one is rounding.
  const double percent = std::max(1.0, std::ceil(part(bytes) * 100 - 1e-9));
  const double given = part(static_cast<double>(f.size));
  out.needed = percent / 100;
  out.is_far_off = out.needed <= kTooLarge * given || out.needed >= kTooSmall * given;
  const std::string touched = "touched " + PartOf(f.peak, std::max(f.peak, f.live));
  const auto in_steps = [&] {
    constexpr Bytes kStep = Bytes{128} << 20;
    const auto steps = static_cast<Bytes>(std::ceil(bytes / static_cast<double>(kStep)));
    return f.by_memory ? SLUICE_KEY_GPU_MEMORY " " + settings::FormatQuantity(std::max<Bytes>(steps, 1) * kStep)
                       : SLUICE_KEY_GPU_FRACTION " " + settings::FormatFraction(static_cast<uint32_t>(percent));
  };
  if (f.peak <= f.size) {
    // Between the working set and the margin above it there is nothing to say.
    out.text = touched + (out.needed < given ? ": " + in_steps() + " is enough" : ": it fits");
    return out;
  }
  char times[32];
  std::snprintf(times, sizeof(times), "%.1f", static_cast<double>(f.peak) / static_cast<double>(f.size));
  out.text = "the working set is " + std::string(times) + " times the budget: ";
  out.text += out.needed > 1 ? "no fraction of this GPU holds it" : "give " + in_steps();
  return out;
}

}  // namespace sluice::agent
