// The findings of `sluice doctor` about placement: pods that wait for a fraction or were refused, with the reason.
#ifndef SLUICE_CLI_DOCTOR_PLACEMENT_H_
#define SLUICE_CLI_DOCTOR_PLACEMENT_H_

#include <string>
#include <vector>

namespace sluice::cli {

struct Finding {
  enum Kind { kOk, kWarn, kBad } kind = kOk;
  std::string what;
  std::string fix;  // empty: nothing to fix
};

// `pods` and `nodes` are lists as `kubectl get -o json` prints them; unreadable parts count as absent. `now`: seconds
// since the epoch. A pod that has waited for less than half a minute is not reported.
std::vector<Finding> JudgePlacement(const std::string& pods, const std::string& nodes, long now);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_DOCTOR_PLACEMENT_H_
