// Scores of nodes for pods with ResourceClaims.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <random>
#include <thread>

#include "claim_objects.h"
#include "extender_setup.h"
#include "scheduler/extender/claim_state.h"

namespace sluice::scheduler {
namespace {

using std::chrono::seconds;

Json Allocated(Json claim, const std::string& node, const std::vector<int>& cards, const std::string& memory) {
  Json results = Json::array();
  for (const int card : cards) {
    results.push_back({{"driver", "sluice.dev"},
                       {"pool", node},
                       {"device", absl::StrCat("gpu-", card)},
                       {"consumedCapacity", {{"memory", memory}, {"compute", "1"}}}});
  }
  claim["status"]["allocation"]["devices"]["results"] = std::move(results);
  return claim;
}

Json ClaimingPod(const std::string& name, const std::vector<std::string>& claims) {
  Json pod = MakePod(name, 0);
  pod["spec"]["containers"][0]["resources"] = {{"requests", {{"cpu", "1"}, {"memory", "1Gi"}}}};
  for (const std::string& claim : claims) {
    pod["spec"]["resourceClaims"].push_back({{"name", claim}, {"resourceClaimName", claim}});
  }
  return pod;
}

Json MakeClass(const std::string& name, const std::string& expression, const std::string& resource = "") {
  Json out = {{"metadata", {{"name", name}}},
              {"spec", {{"selectors", Json::array({{{"cel", {{"expression", expression}}}}})}}}};
  if (!resource.empty()) out["spec"]["extendedResourceName"] = resource;
  return out;
}

// Nodes without sluice's annotation, which the driver of claims does not need.
struct Setup {
  explicit Setup(const std::vector<std::string>& node_names, int cards = 1, const std::string& policy = "best-fit")
      : policies(*PolicyRefresher::Make(policy)), hosts(*policies), claims(*policies, hosts, [this] { return now; }) {
    std::vector<Json> nodes;
    for (const std::string& name : node_names) {
      Json node = MakeNode(name, {});
      node["metadata"].erase("annotations");
      nodes.push_back(node);
      names.push_back(name);
      claims.PutSlice(ReadSlice(MakeSlice(name, cards)));
    }
    ReplaceNodes(hosts, nodes);
    ReplacePods(hosts, {});
    claims.PutClass(ReadClass(MakeClass("sluice.dev", "device.driver == 'sluice.dev'", "sluice.dev/gpu")));
    Sync();
  }

  // All watches have listed the objects.
  void Sync() {
    std::unordered_set<std::string> slices;
    for (const std::string& name : names) slices.insert(name + "-sluice.dev");
    claims.KeepSlices(slices);
    claims.KeepClasses({"sluice.dev"});
    claims.KeepClaims({});
  }
  void Put(const Json& claim) { claims.PutClaim(ReadClaim(claim)); }
  void Hold(const std::string& name, const std::string& node, const std::vector<int>& cards,
            const std::string& memory) {
    Put(Allocated(MakeClaim(name, memory), node, cards, memory));
  }
  Json Scores(const Json& pod) {
    return Json::parse(extender.PrioritizeAny(Json{{"Pod", pod}, {"NodeNames", names}}.dump()).body);
  }
  // The node with 10; empty: no scores.
  std::string Best(const Json& pod) {
    for (const Json& score : Scores(pod)) {
      if (score["Score"] == 10) return score["Host"];
    }
    return "";
  }

  ClaimState::Clock::time_point now{};
  std::vector<std::string> names;
  std::unique_ptr<PolicyRefresher> policies;
  ClusterState hosts;
  ClaimState claims;
  FakeBinder binder;
  Extender extender{hosts, binder, &claims};
};

TEST_CASE("claims: the node whose cards fit best scores 10, and the others less") {
  Setup setup({"a", "b", "c", "d"});
  setup.Hold("x", "b", {0}, "40Gi");
  setup.Hold("y", "c", {0}, "40Gi");
  setup.Hold("z", "d", {0}, "60Gi");
  setup.Put(MakeClaim("p", "50Gi"));
  const Json scores = setup.Scores(ClaimingPod("p", {"p"}));
  REQUIRE(scores.size() == 4);
  CHECK(scores[1] == Json{{"Host", "b"}, {"Score", 10}});
  CHECK(scores[0]["Score"] < 10);
  CHECK(scores[2]["Score"] < 10);
  CHECK(scores[3]["Score"] == 0);
  CHECK(setup.claims.Figures().allocated_claims == 3);
}

TEST_CASE("claims: a claim that ends gives its card back, and one that moves leaves the old card") {
  Setup setup({"a", "b"});
  setup.Hold("x", "b", {0}, "40Gi");
  setup.Put(MakeClaim("p", "50Gi"));
  CHECK(setup.Best(ClaimingPod("p", {"p"})) == "b");
  setup.Hold("x", "a", {0}, "40Gi");
  CHECK(setup.Best(ClaimingPod("p", {"p"})) == "a");
  setup.claims.RemoveClaim("default/x");
  setup.Hold("y", "b", {0}, "10Gi");
  CHECK(setup.Best(ClaimingPod("p", {"p"})) == "b");
  // The list after a gap has neither claim y nor node b's slice.
  setup.claims.KeepClaims({"default/p"});
  CHECK(setup.claims.Figures().free_cards == 2 - 0.5);  // pod p is expected on one of them
  setup.claims.KeepSlices({"a-sluice.dev"});
  CHECK(setup.Best(ClaimingPod("p", {"p"})) == "a");
  CHECK(setup.claims.Figures().cards == 1);
}

TEST_CASE("claims: nodes rank as they do for the same pod by units, whatever the policy") {
  std::mt19937 random(7);  // NOLINT: the same in every run
  for (const std::string& policy : PolicyNames()) {
    std::vector<std::string> names;
    std::vector<Json> by_units;
    for (int i = 0; i < 30; ++i) names.push_back(absl::StrCat("n", i));
    Setup setup(names, 1, policy);
    for (int i = 0; i < 30; ++i) {
      const int free = static_cast<int>(random() % 101);
      by_units.push_back(MakeNode(names[i], {free}));
      if (free < 100) setup.Hold(absl::StrCat("x", i), names[i], {0}, absl::StrCat(100 - free, "Gi"));
    }
    ClusterState units(*setup.policies);
    ReplaceNodes(units, by_units);
    const std::vector<std::string_view> asked(names.begin(), names.end());
    for (const int size : {5, 20, 50, 90, 100}) {
      const std::string name = absl::StrCat("p", size);
      setup.Put(MakeClaim(name, size == 100 ? "" : absl::StrCat(size, "Gi")));
      std::shared_ptr<const PlacementPolicy> before;
      std::vector<int> wanted, got;
      do {  // the learned policy may change in between
        before = setup.policies->policy();
        const Json pod = ClaimingPod(name, {name});
        got = setup.claims.Prioritize(ReadPod(pod), ReadPodClaims(pod), asked);
        wanted = units.Prioritize(ReadPod(MakePod(name, size)), asked);
      } while (before != setup.policies->policy());
      if (got.empty()) got.assign(names.size(), 0);  // it fits nowhere
      CHECK(got == wanted);
      setup.claims.RemoveClaim("default/" + name);
      setup.now += seconds(20);  // the pod is no longer expected
    }
  }
}

TEST_CASE("claims: pods that come faster than allocations are seen are not all sent to one node") {
  Setup setup({"a", "b"});
  setup.Hold("x", "b", {0}, "40Gi");
  for (const char* name : {"p", "q", "r"}) setup.Put(MakeClaim(name, "50Gi"));
  CHECK(setup.Best(ClaimingPod("p", {"p"})) == "b");
  CHECK(setup.Best(ClaimingPod("q", {"q"})) == "a");
  SECTION("it is asked about again: the expected card is free for the pod itself") {
    CHECK(setup.Best(ClaimingPod("q", {"q"})) == "a");
    CHECK(setup.claims.Figures().free_cards == 0.1 + 0.5);
  }
  SECTION("its allocation is seen: counted once") {
    setup.Hold("p", "b", {0}, "50Gi");
    CHECK(setup.claims.Figures().free_cards == 0.1 + 0.5);
    setup.Hold("q", "a", {0}, "50Gi");
    CHECK(setup.claims.Figures().free_cards == 0.1 + 0.5);
    CHECK(setup.Best(ClaimingPod("r", {"r"})) == "a");
  }
  SECTION("nothing came of it") {
    setup.now += seconds(15);
    CHECK(setup.Best(ClaimingPod("r", {"r"})) == "b");
  }
}

TEST_CASE("claims: no opinion where the scheduler's own decision counts, or nothing is known") {
  Setup setup({"a", "b"});
  const Json none = Json::array();
  SECTION("a pod without claims, and one by units") {
    CHECK(setup.Scores(ClaimingPod("p", {})) == none);
    CHECK(setup.Scores(MakePod("q", 50)) == none);
  }
  SECTION("a claim of another driver's class") {
    Json other = MakeClaim("p", "");
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "network.example";
    setup.claims.PutClass(ReadClass(MakeClass("network.example", "device.driver == 'network.example'")));
    setup.Put(other);
    CHECK(setup.Scores(ClaimingPod("p", {"p"})) == none);
  }
  SECTION("a claim that is allocated") {
    setup.Hold("p", "a", {0}, "50Gi");
    CHECK(setup.Scores(ClaimingPod("p", {"p"})) == none);
  }
  SECTION("another driver's alternative goes before sluice's") {
    Json claim = MakeAlternatives("p", {{"10Gi", ""}, {"50Gi", ""}});
    claim["spec"]["devices"]["requests"][0]["firstAvailable"][0]["deviceClassName"] = "network.example";
    setup.claims.PutClass(ReadClass(MakeClass("network.example", "device.driver == 'network.example'")));
    setup.Put(claim);
    CHECK(setup.Scores(ClaimingPod("p", {"p"})) == none);
  }
  SECTION("administrative access takes no card") {
    Json claim = MakeClaim("p", "");
    claim["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = true;
    setup.Put(claim);
    CHECK(setup.Scores(ClaimingPod("p", {"p"})) == none);
  }
  SECTION("a claim that does not exist") { CHECK(setup.Scores(ClaimingPod("p", {"p"})) == none); }
  SECTION("the watches have not shown all yet") {
    ClaimState fresh(*setup.policies, setup.hosts);
    Extender extender(setup.hosts, setup.binder, &fresh);
    fresh.PutClaim(ReadClaim(MakeClaim("p", "50Gi")));
    const std::string args = Json{{"Pod", ClaimingPod("p", {"p"})}, {"NodeNames", {"a"}}}.dump();
    CHECK(extender.PrioritizeAny(args).body == "[]");
  }
  SECTION("claims are switched off") {
    Extender extender(setup.hosts, setup.binder);
    setup.Put(MakeClaim("p", "50Gi"));
    const std::string args = Json{{"Pod", ClaimingPod("p", {"p"})}, {"NodeNames", {"a"}}}.dump();
    CHECK(extender.PrioritizeAny(args).body == "[]");
  }
}

TEST_CASE("claims: of alternatives, each node is rated by the first that fits there") {
  Setup setup({"a", "b", "c"});
  setup.Hold("x", "b", {0}, "40Gi");  // 60Gi are left
  setup.Hold("y", "c", {0}, "70Gi");  // 30Gi
  setup.Put(MakeAlternatives("p", {{"90Gi", ""}, {"55Gi", ""}, {"28Gi", ""}}));
  // Left by the first that fits: 10 of a, 5 of b, 2 of c.
  const Json scores = setup.Scores(ClaimingPod("p", {"p"}));
  REQUIRE(scores.size() == 3);
  CHECK(scores[2] == Json{{"Host", "c"}, {"Score", 10}});
  CHECK(scores[0]["Score"] == 0);
  CHECK(scores[1]["Score"] > 0);
  CHECK(scores[1]["Score"] < 10);
  // It is expected there with that alternative's size.
  CHECK(std::abs(setup.claims.Figures().free_cards - 1.62) < 1e-9);
  SECTION("another driver's alternatives behind sluice's count no more than those that do not fit") {
    Json claim = MakeAlternatives("q", {{"90Gi", ""}, {"55Gi", ""}});
    claim["spec"]["devices"]["requests"][0]["firstAvailable"][1]["deviceClassName"] = "network.example";
    setup.Put(claim);
    CHECK(setup.Best(ClaimingPod("q", {"q"})) == "a");
  }
}

TEST_CASE("claims: an alternative is for the cards that its selector means") {
  Setup setup({"a", "b"});
  Json slice = MakeSlice("b", 1);
  slice["spec"]["devices"][0]["attributes"]["memoryMiB"] = {{"int", 143156}};
  setup.claims.PutSlice(ReadSlice(slice));
  slice = MakeSlice("a", 1);
  slice["spec"]["devices"][0]["attributes"]["memoryMiB"] = {{"int", 80995}};
  setup.claims.PutSlice(ReadSlice(slice));
  setup.Hold("x", "a", {0}, "40Gi");
  setup.Hold("y", "b", {0}, "20Gi");
  const std::string has = "'memoryMiB' in device.attributes['sluice.dev'] && ";
  const std::string size = "device.attributes['sluice.dev'].memoryMiB in ";
  // On node b the first would fit, but is not for its card: 78 of 80Gi are taken there, and 50 of 60Gi on node a.
  setup.Put(MakeAlternatives("p", {{"50Gi", has + size + "[80995]"}, {"78Gi", "!(" + has + size + "[80995, 7])"}}));
  CHECK(setup.Best(ClaimingPod("p", {"p"})) == "b");
  setup.now += seconds(20);  // pod p is no longer expected
  setup.Put(MakeAlternatives("q", {{"50Gi", has + size + "[80995, 143156]"}, {"78Gi", ""}}));
  CHECK(setup.Best(ClaimingPod("q", {"q"})) == "a");
}

TEST_CASE("claims: pods without GPUs leave CPU to free GPUs, where they are to be scored") {
  for (const bool by_claims : {true, false}) {
    Setup setup({"a", "b", "c"}, 8, "look-ahead");
    if (by_claims) {
      // Nothing is left on node b.
      for (int i = 0; i < 8; ++i) setup.Hold(absl::StrCat("x", i), "b", {i}, "100Gi");
      setup.claims.RemoveSlice("c-sluice.dev");
    } else {
      setup.hosts.PutNode(ReadNode(MakeNode("a", {100, 100, 100, 100, 100, 100, 100, 100})));
      setup.hosts.PutNode(ReadNode(MakeNode("b", {0, 0})));
      for (const std::string& name : setup.names) setup.claims.RemoveSlice(name + "-sluice.dev");
    }
    // The requests to come need CPU.
    const auto before = setup.policies->policy();
    for (int i = 0; i < 20; ++i) setup.policies->RecordRequest({.cards = 1, .units = 100, .cpu_milli = 10000});
    while (setup.policies->policy() == before) std::this_thread::yield();
    Json pod = MakePod("p", 0);
    pod["spec"]["containers"][0]["resources"] = {{"requests", {{"cpu", "94"}}}};
    const std::string args = Json{{"Pod", pod}, {"NodeNames", setup.names}}.dump();
    CHECK(setup.extender.PrioritizeAny(args).body == "[]");
    Extender extender(setup.hosts, setup.binder, by_claims ? &setup.claims : nullptr, /*other_pods=*/true);
    const Json scores = Json::parse(extender.PrioritizeAny(args).body);
    REQUIRE(scores.size() == 3);
    CHECK(scores[0]["Score"] == 0);
    CHECK(scores[1]["Score"] == 10);  // a full node, and one without GPUs
    CHECK(scores[2]["Score"] == 10);
    // The extender's other calls answer for pods by units, and claims that are not known get no opinion.
    CHECK(extender.PrioritizeAny(Json{{"Pod", MakePod("u", 50)}, {"NodeNames", setup.names}}.dump()).body == "[]");
    CHECK(extender.PrioritizeAny(Json{{"Pod", ClaimingPod("c", {"c"})}, {"NodeNames", setup.names}}.dump()).body ==
          "[]");
  }
}

TEST_CASE("claims: one that the watch has not shown yet is read") {
  Setup setup({"a", "b"});
  setup.Hold("x", "b", {0}, "40Gi");
  setup.binder.claims["default/late"] = MakeClaim("late", "50Gi");
  CHECK(setup.Best(ClaimingPod("p", {"late"})) == "b");
}

TEST_CASE("claims: a template's claim is found by the pod's status") {
  Setup setup({"a", "b"});
  setup.Hold("x", "b", {0}, "40Gi");
  setup.Put(MakeClaim("p-gpu-abcde", "50Gi"));
  Json pod = ClaimingPod("p", {});
  pod["spec"]["resourceClaims"] = Json::array({{{"name", "gpu"}, {"resourceClaimTemplateName", "half"}}});
  pod["status"]["resourceClaimStatuses"] = Json::array({{{"name", "gpu"}, {"resourceClaimName", "p-gpu-abcde"}}});
  CHECK(setup.Best(pod) == "b");
}

TEST_CASE("claims: extended resources count as whole cards, by the class' resource or by its name") {
  for (const char* resource : {"sluice.dev/gpu", "deviceclass.resource.kubernetes.io/sluice.dev"}) {
    Setup setup({"a", "b"}, 2);
    setup.Hold("x", "b", {0}, "40Gi");
    Json pod = ClaimingPod("p", {});
    pod["spec"]["containers"][0]["resources"]["limits"][resource] = "1";
    CHECK(setup.Best(pod) == "b");
    CHECK(setup.claims.Figures().free_cards == 0.6 + 2);
    // kube-scheduler makes the claim when it has chosen.
    Json made = Allocated(MakeClaim("p-extended-resources-1", ""), "b", {1}, "100Gi");
    made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] = "true";
    made["metadata"]["ownerReferences"] = Json::array({{{"kind", "Pod"}, {"name", "p"}, {"uid", "uid-p"}}});
    setup.Put(made);
    CHECK(setup.claims.Figures().free_cards == 0.6 + 2);
    pod["spec"]["containers"][0]["resources"]["limits"] = {{"example.com/disk", "1"}};
    CHECK(setup.Scores(pod) == Json::array());
  }
}

TEST_CASE("claims: a pool of several slices has the cards of the newest generation") {
  Setup setup({"a"}, 2);
  Json second = MakeSlice("a", 3, 2);
  second["metadata"]["name"] = "other";
  setup.claims.PutSlice(ReadSlice(second));
  CHECK(setup.claims.Figures().cards == 3);
  setup.claims.PutSlice(ReadSlice(MakeSlice("a", 2, 2)));
  CHECK(setup.claims.Figures().cards == 5);
  setup.claims.RemoveSlice("other");
  CHECK(setup.claims.Figures().cards == 2);
}

TEST_CASE("claims: objects of any shape are read") {
  for (
      const char* text :
      {"null", "[]", "{}", R"({"metadata":[],"spec":{"driver":"sluice.dev","nodeName":7,"devices":{}}})",
       R"({"metadata":{"name":"x"},"spec":{"driver":"sluice.dev","nodeName":"a","devices":[7,{}]}})",
       R"({"spec":{"devices":{"requests":[{"exactly":{"count":-5}},3],"constraints":[{}]}}})",
       R"({"spec":{"devices":{"requests":[{"firstAvailable":[7,{"selectors":[{"cel":7},{}]}]},{"firstAvailable":{}}]}}})",
       R"({"status":{"allocation":{"devices":{"results":[{"driver":"sluice.dev"},null]}}}})",
       R"({"spec":{"resourceClaims":[{"name":"x"}],"containers":[{"resources":{"limits":[]}}]}})"}) {
    const Json object = Json::parse(text);
    ReadSlice(object);
    ReadClass(object);
    CHECK(ReadPodClaims(object).keys.empty());
    Setup setup({"a"});
    setup.claims.PutSlice(ReadSlice(object));
    setup.claims.PutClaim(ReadClaim(object));
    setup.Put(MakeClaim("p", "1Gi"));
    CHECK(setup.Scores(ClaimingPod("p", {"p"})).size() == 1);
  }
}

TEST_CASE("claims: a restarted extender learns the mix of requests from claims that are allocated") {
  Setup setup({"a", "b"}, 8, "look-ahead");
  for (int i = 0; i < 8; ++i) setup.Hold(absl::StrCat("x", i), "a", {i}, "30Gi");
  setup.Put(MakeClaim("p", "30Gi"));
  setup.Scores(ClaimingPod("p", {"p"}));
  setup.Hold("p", "b", {0}, "30Gi");
  double weight = 0;
  for (const auto& entry : setup.policies->mix()) weight += entry.request.units == 30 ? entry.weight : 0;
  CHECK(weight > 0.7);  // nine of twelve: three usual ones are there at the start
  CHECK(weight < 0.8);
}

}  // namespace
}  // namespace sluice::scheduler
