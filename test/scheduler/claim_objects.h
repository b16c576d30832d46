// Objects of Dynamic Resource Allocation, for tests.
#ifndef SLUICE_TEST_SCHEDULER_CLAIM_OBJECTS_H_
#define SLUICE_TEST_SCHEDULER_CLAIM_OBJECTS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

struct AlternativeShare {
  std::string memory, selector;  // an empty selector: none
};

inline Json MakeAlternatives(const std::string& name, const std::vector<AlternativeShare>& shares) {
  Json claim = MakeClaim(name, "");
  Json& request = claim["spec"]["devices"]["requests"][0];
  request.erase("exactly");
  for (const AlternativeShare& share : shares) {
    Json one = {{"name", absl::StrCat("size-", request["firstAvailable"].size())},
                {"deviceClassName", "sluice.dev"},
                {"capacity", {{"requests", {{"memory", share.memory}}}}}};
    if (!share.selector.empty()) one["selectors"] = Json::array({{{"cel", {{"expression", share.selector}}}}});
    request["firstAvailable"].push_back(std::move(one));
  }
  return claim;
}

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_CLAIM_OBJECTS_H_
