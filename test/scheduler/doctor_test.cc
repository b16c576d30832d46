#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "cli/doctor_placement.h"
#include "fake_cluster.h"

namespace sluice::cli {
namespace {

using scheduler::Json;
using scheduler::MakeNode;
using scheduler::MakePod;

constexpr long kNow = 1'800'000'000;  // 2027-01-15T08:00:00Z

Json Waiting(const std::string& name, const char* why, const char* since = "2027-01-15T07:00:00Z") {
  Json pod = MakePod(name, 60);
  pod["metadata"]["creationTimestamp"] = since;
  pod["spec"]["schedulerName"] = "sluice-scheduler";
  if (why != nullptr) {
    pod["status"]["conditions"] = Json::array({{{"type", "PodScheduled"}, {"status", "False"}, {"message", why}}});
  }
  return pod;
}

std::string Judge(const std::vector<Json>& pods, const std::vector<Json>& nodes) {
  std::string text;
  for (const Finding& f : JudgePlacement(Json{{"items", pods}}.dump(), Json{{"items", nodes}}.dump(), kNow)) {
    text += (f.kind == Finding::kOk ? "ok " : f.kind == Finding::kWarn ? "warn " : "BAD ") + f.what + "\n";
  }
  return text;
}

TEST_CASE("doctor: waiting, unscheduled and refused pods are listed with their reasons") {
  const char* const why = "0/3 nodes are available: 3 no single card has 60 units free, the largest has 50.";
  Json refused = MakePod("r", 60);
  refused["spec"]["nodeName"] = "a";
  refused["status"] = {{"phase", "Failed"},
                       {"message", "Pod was rejected: Allocate failed due to rpc error: sluice refuses: no room"}};
  Json other = MakePod("other", 60);
  other["spec"]["nodeName"] = "a";
  other["status"] = {{"phase", "Failed"}, {"message", "Pod was rejected: node is out of disk"}};
  Json plain = Waiting("plain", nullptr);
  plain["spec"]["containers"][0]["resources"] = Json::object();
  CHECK(Judge({Waiting("w", why), Waiting("v", why), Waiting("new", why, "2027-01-15T07:59:45Z"), Waiting("u", nullptr),
               refused, other, plain},
              {MakeNode("a", {50})}) ==
        "warn placement: 2 pods waiting (default/w, default/v): " + std::string(why) +
            "\n"
            "BAD placement: no scheduler has looked at 1 pod (default/u) whose schedulerName is \"sluice-scheduler\"\n"
            "BAD placement: 1 pod refused by its node (default/r): sluice refuses: no room\n");
}

// The findings about split room alone.
std::string Split(const std::vector<Json>& pods, const std::vector<Json>& nodes) {
  std::string text;
  for (const Finding& f : JudgePlacement(Json{{"items", pods}}.dump(), Json{{"items", nodes}}.dump(), kNow)) {
    const std::string start = "placement: the sum fits, no card fits: ";
    if (f.what.starts_with(start)) text += f.what.substr(start.size()) + "\n";
  }
  return text;
}

TEST_CASE("doctor: the sum of a node fits, and no card does") {
  const char* const why = "0/1 nodes are available: 1 no single card has 60 units free, the largest has 50.";
  CHECK(Split({Waiting("w", why), Waiting("v", why)}, {MakeNode("a", {20, 20}), MakeNode("b", {50, 50})}) ==
        "2 pods (default/w, default/v) of 60 units; node b has 100 units free in all, but no single card has 60 units "
        "free, the largest has 50\n");
  // A card can hold it, on a node of the pod's choice: it waits for something else.
  CHECK(Split({Waiting("w", why)}, {MakeNode("b", {50, 50}), MakeNode("c", {60})}).empty());
  // Too little in all: an autoscaler sees that.
  CHECK(Split({Waiting("w", why)}, {MakeNode("a", {30, 29})}).empty());
  CHECK(Split({Waiting("w", why)}, {}).empty());
  // Not yet looked at, or only just made.
  CHECK(Split({Waiting("w", nullptr), Waiting("v", why, "2027-01-15T07:59:45Z")}, {MakeNode("b", {50, 50})}).empty());
  // Whole cards.
  Json two = Waiting("two", why);
  two["spec"]["containers"][0]["resources"]["limits"]["sluice.dev/gpu-percent"] = "200";
  CHECK(Split({two}, {MakeNode("b", {90, 90, 90})}) ==
        "1 pod (default/two) of 200 units; node b has 270 units free in all, but fewer than 2 whole cards are free, "
        "the most on one node is 0\n");
  CHECK(Split({two}, {MakeNode("b", {100, 90, 100})}).empty());
  // The sum let a pod on the node, which refused it.
  Json refused = MakePod("r", 60);
  refused["spec"]["nodeName"] = "b";
  refused["status"] = {{"phase", "Failed"}, {"message", "sluice refuses: no room"}};
  CHECK(Split({refused}, {MakeNode("b", {50, 50})}).starts_with("1 pod (default/r) of 60 units; node b has 100"));
}

TEST_CASE("doctor: split room counts the nodes that the pod may use, and reservations") {
  Json pod = Waiting("w", "no room");
  Json large = MakeNode("large", {100}), small = MakeNode("small", {50, 50});
  large["metadata"]["labels"] = {{"pool", "x"}};
  small["metadata"]["labels"] = {{"pool", "y"}};
  CHECK(Split({pod}, {large, small}).empty());
  pod["spec"]["nodeSelector"] = {{"pool", "y"}};
  CHECK(Split({pod}, {large, small}).starts_with("1 pod (default/w) of 60 units; node small has 100 units"));
  pod["spec"].erase("nodeSelector");
  pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] =
      Json::array({{{"matchExpressions", Json::array({{{"key", "pool"}, {"operator", "NotIn"}, {"values", {"x"}}}})}}});
  CHECK(!Split({pod}, {large, small}).empty());
  pod["spec"].erase("affinity");
  large["spec"]["unschedulable"] = true;
  CHECK(!Split({pod}, {large, small}).empty());
  large["spec"].erase("unschedulable");
  // The annotation does not count a pod yet that is bound: half of the card is reserved.
  Json bound = MakePod("bound", 50);
  bound["spec"]["nodeName"] = "large";
  bound["metadata"]["annotations"]["sluice.dev/placement"] = R"({"main":["GPU-large-0"]})";
  CHECK(!Split({pod, bound}, {large, small}).empty());
}

TEST_CASE("doctor: a taint needs a toleration, not free units") {
  const Json pod = Waiting(
      "w", "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {nvidia.com/gpu: present}.");
  const auto found = JudgePlacement(Json{{"items", {pod}}}.dump(), Json{{"items", Json::array()}}.dump(), kNow);
  REQUIRE(found.size() == 1);
  CHECK(found[0].fix.find("toleration") != std::string::npos);
}

TEST_CASE("doctor: nodes whose cards the extender cannot read") {
  Json silent = MakeNode("silent", {100}), garbage = MakeNode("garbage", {100}), none = MakeNode("none", {});
  silent["metadata"].erase("annotations");
  garbage["metadata"]["annotations"]["sluice.dev/gpus"] = "{";
  none["metadata"].erase("annotations");
  Json placed = MakePod("p", 10);
  placed["spec"]["nodeName"] = "good";
  CHECK(Judge({placed}, {silent, garbage, none, MakeNode("good", {100})}) ==
        "warn placement: 1 node offering units without the annotation sluice.dev/gpus (silent): the extender places "
        "nothing there\n"
        "BAD placement: the annotation sluice.dev/gpus of 1 node (garbage) is no list of cards\n"
        "ok placement: 1 pod with a fraction placed, none waits, none was refused\n");
}

TEST_CASE("doctor: many pods are counted, malformed input is ignored") {
  std::vector<Json> pods;
  for (int i = 0; i < 8; ++i) pods.push_back(Waiting("w" + std::to_string(i), "full"));
  CHECK(
      Judge(pods, {}) ==
      "warn placement: 8 pods waiting (default/w0, default/w1, default/w2, default/w3, default/w4 and 3 more): full\n");
  for (const char* garbage : {"", "{", "[]", "7", R"({"items":7})", R"({"items":[7,null,{"spec":[]}]})"}) {
    CHECK(JudgePlacement(garbage, garbage, kNow).size() == 1);
  }
}

}  // namespace
}  // namespace sluice::cli
