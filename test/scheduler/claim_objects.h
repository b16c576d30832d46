// Objects of Dynamic Resource Allocation, for tests.
#ifndef SLUICE_TEST_SCHEDULER_CLAIM_OBJECTS_H_
#define SLUICE_TEST_SCHEDULER_CLAIM_OBJECTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::scheduler {

using Json = nlohmann::json;

// A node's slice with cards of 100 GiB each.
inline Json MakeSlice(const std::string& node, int cards, int generation = 1) {
  Json devices = Json::array();
  for (int i = 0; i < cards; ++i) {
    const std::string name = absl::StrCat("gpu-", i);
    devices.push_back(
        {{"name", name},
         {"allowMultipleAllocations", true},
         {"attributes", {{"uuid", {{"string", absl::StrCat(node, name)}}}, {"numaNode", {{"int", i / 2}}}}},
         {"capacity",
          {{"memory", {{"value", "100Gi"}, {"requestPolicy", {{"default", "100Gi"}}}}},
           {"compute", {{"value", "100"}, {"requestPolicy", {{"default", "1"}}}}}}}});
  }
  return {{"metadata", {{"name", node + "-sluice.dev"}}},
          {"spec",
           {{"driver", "sluice.dev"},
            {"nodeName", node},
            {"pool", {{"name", node}, {"generation", generation}, {"resourceSliceCount", 1}}},
            {"devices", std::move(devices)}}}};
}

inline Json MakeClaim(const std::string& name, const std::string& memory, int count = 1) {
  Json exactly = {{"deviceClassName", "sluice.dev"}, {"count", count}};
  if (!memory.empty()) exactly["capacity"] = {{"requests", {{"memory", memory}}}};
  return {{"metadata", {{"name", name}, {"namespace", "default"}}},
          {"spec", {{"devices", {{"requests", Json::array({{{"name", "gpu"}, {"exactly", exactly}}})}}}}}};
}

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_CLAIM_OBJECTS_H_
