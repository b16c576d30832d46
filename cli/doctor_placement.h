// What `sluice doctor` says about placement: which pods wait for a fraction, or were refused, and why.
#ifndef SLUICE_CLI_DOCTOR_PLACEMENT_H_
#define SLUICE_CLI_DOCTOR_PLACEMENT_H_

#include <string>
#include <vector>

namespace sluice::cli {

struct Finding {
  enum Kind { kOk, kWarn, kBad } kind = kOk;
  std::string what;
  std::string mend;  // empty: nothing to mend
};

// `pods` and `nodes` are lists as `kubectl get -o json` prints them. What cannot be read counts as absent. `now`:
// seconds since the epoch; a pod that has waited for less than half a minute is not stuck.
std::vector<Finding> JudgePlacement(const std::string& pods, const std::string& nodes, long now);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_DOCTOR_PLACEMENT_H_
