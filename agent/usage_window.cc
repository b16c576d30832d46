#include "agent/usage_window.h"

#include <algorithm>

namespace sluice::agent {

void UsageWindow::Charge(Nanos used, Nanos now, Nanos window, Nanos keep) {
  if (used == 0) return;
  // The time was spent before now, not at once: it is spread over the slices that it covers.
  const Nanos slice = std::max<Nanos>(window / kSlicesPerWindow, 1);
  Nanos begin = now > used ? now - used : 0;
  while (used > 0) {
    const Nanos start = begin / slice * slice;
    const Nanos part = std::min(used, start + slice - begin);
    auto it = std::ranges::find_if(slices_, [&](const Slice& s) { return s.begin >= start; });
    if (it == slices_.end() || it->begin != start) it = slices_.insert(it, Slice{start, 0});
    it->used += part;
    used -= part;
    begin += part;
  }
  while (!slices_.empty() && slices_.front().begin + slice + keep < now) slices_.pop_front();
}

Nanos UsageWindow::Used(Nanos now, Nanos window) const {
  const Nanos from = now > window ? now - window : 0;
  Nanos sum = 0;
  for (const Slice& s : slices_) {
    if (s.begin >= from) sum += s.used;
  }
  return sum;
}

}  // namespace sluice::agent
