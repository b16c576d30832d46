// The findings of `sluice doctor` about placement: pods that wait for a fraction or were refused, with the reason.
#ifndef SLUICE_CLI_DOCTOR_PLACEMENT_H_
#define SLUICE_CLI_DOCTOR_PLACEMENT_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::cli {

struct Finding {
  enum Kind { kOk, kWarn, kBad } kind = kOk;
  std::string what;
  std::string fix;  // empty: nothing to fix
};

// Gathers the parts of nodes and pods that it uses, and then judges. One thread may add nodes while another adds pods.
class PlacementCheck {
 public:
  // `now`: seconds since the epoch. A pod that has waited for less than half a minute is not reported.
  explicit PlacementCheck(long now);
  ~PlacementCheck();

  // Objects of the API. Unreadable parts count as absent.
  void AddNode(const nlohmann::json& node);
  void AddPod(const nlohmann::json& pod);
  // For a list that is read anew.
  void ClearNodes();
  void ClearPods();
  std::vector<Finding> Findings() const;

 private:
  struct Pods;
  struct Nodes;
  const long now_;
  std::unique_ptr<Pods> pods_;
  std::unique_ptr<Nodes> nodes_;
};

// The same for whole lists, as `kubectl get -o json` prints them; unreadable ones count as empty.
std::vector<Finding> JudgePlacement(const std::string& pods, const std::string& nodes, long now);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_DOCTOR_PLACEMENT_H_
