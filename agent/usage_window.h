// Time used within a sliding window.
#ifndef SLUICE_AGENT_USAGE_WINDOW_H_
#define SLUICE_AGENT_USAGE_WINDOW_H_

#include <cstdint>
#include <deque>

namespace sluice::agent {

using Nanos = uint64_t;

class UsageWindow {
 public:
  static constexpr Nanos kSlicesPerWindow = 400;

  // Kept for `keep`, in slices of a four-hundredth of `window`.
  void Charge(Nanos used, Nanos now, Nanos window, Nanos keep);
  Nanos Used(Nanos now, Nanos window) const;  // any window up to `keep`

 private:
  struct Slice {
    Nanos begin, used;
  };
  std::deque<Slice> slices_;
};

inline constexpr uint32_t kWhole = 1000000;  // millionths

inline Nanos ShareOf(Nanos time, uint32_t millionths) {
  return time / kWhole * millionths + time % kWhole * millionths / kWhole;
}

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_USAGE_WINDOW_H_
