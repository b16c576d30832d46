// The driver's own limits of unmanaged memory for each container (NVML of driver 615 and later): which to set. Pure;
// not thread-safe. They hold whatever a process does, and also for processes without the hook. Managed memory is
// outside.
#ifndef SLUICE_AGENT_DRIVER_LIMITS_H_
#define SLUICE_AGENT_DRIVER_LIMITS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/ledger.h"

namespace sluice::agent {

struct DriverLimit {
  std::string gpu;
  std::string cgroup;  // path below the root of the cgroup file system, of the container
  Bytes bytes = 0;
  bool operator==(const DriverLimit&) const = default;
};

class DriverLimits {
 public:
  // `wanted`: all containers that can be told from their processes. Returns those whose limit has to be set now. A
  // limit that is not wanted any more goes with its cgroup.
  std::vector<DriverLimit> Plan(const std::vector<DriverLimit>& wanted);
  // The driver refused: it is tried again with the next plan.
  void Failed(const DriverLimit& limit) { set_.erase({limit.gpu, limit.cgroup}); }

 private:
  std::map<std::pair<std::string, std::string>, Bytes> set_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_DRIVER_LIMITS_H_
