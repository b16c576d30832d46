// The findings of `sluice doctor` about Dynamic Resource Allocation: a node's offer by ResourceSlices.
#ifndef SLUICE_CLI_DOCTOR_DRA_H_
#define SLUICE_CLI_DOCTOR_DRA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/doctor_placement.h"

namespace sluice::cli {

// One node as the other checks know it.
struct DraNode {
  std::string name;
  std::vector<std::string> gpus;     // uuids that its agent sees
  std::string units;                 // allocatable sluice.dev/gpu-percent; empty or "0": none
  std::optional<bool> driver_ready;  // of the pod's container dra-driver; nullopt: it has none
  std::string log = {};              // command that shows the driver's log
};

// Gathers ResourceSlices and claims, and then judges nodes. Unreadable parts of objects count as absent. One thread at
// a time.
class DraCheck {
 public:
  void ClearSlices();
  void AddSlice(const nlohmann::json& slice);
  void ClearClaims();
  void AddClaim(const nlohmann::json& claim);

  // An empty list: the node has nothing to do with DRA. With a driver the list tells the node's offer.
  std::vector<Finding> Judge(const DraNode& node) const;

 private:
  struct Card {
    std::string uuid, taint;
    bool is_shared = true;
  };
  struct Pool {
    int64_t generation = -1;
    size_t expected = 1, found = 0;
    std::string slice = {};
    std::vector<Card> cards = {};
  };

  std::map<std::string, Pool> pools_;  // by node; the newest generation alone
  std::map<std::string, int> claims_;  // allocated ones by pool
};

// The sockets of device plugin and driver below kubelet's folders. `listens`: whether a program serves the socket. An
// empty list: the driver left no trace on this node.
std::vector<Finding> JudgeDraSockets(const std::string& kubelet_dir, bool (*listens)(const std::string&));

}  // namespace sluice::cli

#endif  // SLUICE_CLI_DOCTOR_DRA_H_
