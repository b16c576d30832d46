#include "agent/driver_limits.h"

#include <utility>

namespace sluice::agent {

std::vector<DriverLimit> DriverLimits::Plan(const std::vector<DriverLimit>& wanted) {
  std::vector<DriverLimit> out;
  std::map<std::pair<std::string, std::string>, Bytes> now;
  for (const DriverLimit& limit : wanted) {
    now[{limit.gpu, limit.cgroup}] = limit.bytes;
    const auto old = set_.find({limit.gpu, limit.cgroup});
    if (old == set_.end() || old->second != limit.bytes) out.push_back(limit);
  }
  set_ = std::move(now);
  return out;
}

}  // namespace sluice::agent
