// The calls of Volcano's scheduler, in the order in which its sessions make them.
#include "scheduler/extender/volcano.h"

#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "extender_setup.h"

namespace sluice::scheduler {
namespace {

constexpr int kAllocated = 2, kPipelined = 4, kReleasing = 64;
constexpr const char* kPlacement = "sluice.dev/placement";

// One card is the only room of most nodes here, so that the policy does not matter.
class VolcanoSetup : public ExtenderSetup {
 public:
  using ExtenderSetup::ExtenderSetup;

  // Volcano's view of a pod; `annotations` are those of its snapshot.
  Json Task(const std::string& name, const std::string& node = "", int status = kAllocated) {
    return {{"UID", "uid-" + name},
            {"Namespace", "default"},
            {"Name", name},
            {"NodeName", node},
            {"Status", status},
            {"LastTransaction", {{"NodeName", "elsewhere"}, {"Status", 1}}},
            {"Pod", binder.Pod("uid-" + name)}};
  }
  void Pending(const std::string& name, int units) { Create(MakePod(name, units)); }
  // Empty: it fits.
  std::string Predicate(const std::string& name, const std::string& node, int* code = nullptr) {
    const Json tasks = {{"uid-other", {{"Name", "other"}, {"Pod", MakePod("other", 60)}}}};
    const Json body = {{"task", Task(name)},
                       {"node", {{"Tasks", tasks}, {"Name", node}, {"Node", {{"kind", "Node"}}}}}};
    const Json reply = Json::parse(calls.Predicate(body.dump()).body);
    if (code != nullptr) *code = reply.at("code");
    return reply.at("status");
  }
  std::string Allocate(const Json& task) {
    return Json::parse(calls.Allocate(Json{{"task", task}}.dump()).body).at("errorMessage");
  }
  std::string Allocate(const std::string& name, const std::string& node) { return Allocate(Task(name, node)); }
  std::string Deallocate(const Json& task) {
    return Json::parse(calls.Deallocate(Json{{"task", task}}.dump()).body).at("errorMessage");
  }
  void CloseSession() { CHECK(calls.SessionClose("{}").status == 200); }
  std::string PlacementOf(const std::string& name) {
    return binder.Pod("uid-" + name)["metadata"].value("annotations", Json::object()).value(kPlacement, "");
  }
  // Volcano's own Binding: the annotations of its snapshot are written again.
  void BindAs(const Json& task) {
    const PodFacts pod = ReadPod(task["Pod"]);
    std::map<std::string, std::string> annotations = task["Pod"]["metadata"].value("annotations", Json::object());
    REQUIRE(binder.Bind(pod, task["NodeName"], annotations).ok());
    Show(pod.uid);
  }
  // A pod that kubelet runs on the node's only card.
  void Running(const std::string& name, int units, const std::string& node) {
    Pending(name, units);
    REQUIRE(Predicate(name, node).empty());
    const Json task = Task(name, node);
    REQUIRE(Allocate(task).empty());
    BindAs(task);
  }

  VolcanoCalls calls{extender};
};

TEST_CASE("volcano: a node whose sum suffices and whose cards do not is refused, and may be preempted on") {
  VolcanoSetup setup{MakeNode("halves", {50, 50}), MakeNode("whole", {100})};
  setup.Pending("p", 60);
  int code = 0;
  CHECK(setup.Predicate("p", "halves", &code) == "no single card has 60 units free, the largest has 50");
  CHECK(code == 2);  // Unschedulable
  CHECK(setup.Predicate("p", "whole", &code).empty());
  CHECK(code == 0);
  CHECK(setup.Predicate("p", "unheard-of", &code) == "the node is not known yet");
  // Where predicate was not asked, allocate decides.
  CHECK(setup.Allocate("p", "halves") == "node halves: no single card has 60 units free, the largest has 50");
  CHECK(setup.PlacementOf("p").empty());
  CHECK(setup.extender.Metrics().find("sluice_extender_refusals_total{call=\"volcano-predicate\"} 2\n") !=
        std::string::npos);
}

TEST_CASE(
    "volcano: a gang's pods take different cards within one session, each with its annotation before it is bound") {
  VolcanoSetup setup{MakeNode("a", {100, 100})};
  for (const char* name : {"p", "q", "r"}) setup.Pending(name, 60);
  for (const char* name : {"p", "q"}) {
    CHECK(setup.Predicate(name, "a").empty());
    CHECK(setup.Allocate(name, "a").empty());
  }
  CHECK(setup.Predicate("r", "a") == "no single card has 60 units free, the largest has 40");
  CHECK(setup.PlacementOf("p") == R"({"main":["GPU-a-0"]})");
  CHECK(setup.PlacementOf("q") == R"({"main":["GPU-a-1"]})");
  for (const char* name : {"p", "q"}) setup.BindAs(setup.Task(name, "a"));
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  CHECK(setup.cluster.Figures().free_cards == 0.8);
  CHECK(setup.Allocate("r", "a") == "node a: no single card has 60 units free, the largest has 40");
}

TEST_CASE("volcano: a gang that does not fit gives its cards back, and waits without writing to the API server") {
  VolcanoSetup setup{MakeNode("a", {100, 100})};
  for (const char* name : {"p", "q", "r"}) setup.Pending(name, 60);
  for (int session = 0; session < 5; ++session) {
    const Json p = setup.Task("p", "a"), q = setup.Task("q", "a");
    REQUIRE(setup.Predicate("p", "a").empty());
    REQUIRE(setup.Allocate(p).empty());
    REQUIRE(setup.Allocate(q).empty());
    REQUIRE_FALSE(setup.Predicate("r", "a").empty());
    for (const Json* task : {&q, &p}) REQUIRE(setup.Deallocate(*task).empty());
    setup.CloseSession();
    REQUIRE(setup.cluster.Figures().free_cards == 2);
    REQUIRE(setup.cluster.Figures().reserved_pods == 0);
  }
  CHECK(setup.binder.annotations_written == 2);
}

TEST_CASE("volcano: the cards of an earlier session never come back with Volcano's Binding") {
  VolcanoSetup setup{MakeNode("a", {100, 100})};
  setup.Pending("p", 60);
  REQUIRE(setup.Allocate("p", "a").empty());
  REQUIRE(setup.PlacementOf("p") == R"({"main":["GPU-a-0"]})");
  setup.Deallocate(setup.Task("p", "a"));
  // Another pod takes the card.
  setup.Running("q", 60, "a");
  REQUIRE(setup.PlacementOf("q") == R"({"main":["GPU-a-0"]})");
  CHECK(setup.Allocate("p", "a") == "pod default/p: its earlier cards are taken");
  CHECK(setup.PlacementOf("p").empty());
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  // The next session.
  const Json task = setup.Task("p", "a");
  CHECK(setup.Allocate(task).empty());
  setup.BindAs(task);
  CHECK(setup.PlacementOf("p") == R"({"main":["GPU-a-1"]})");
  CHECK(setup.cluster.Figures().free_cards == 0.8);
}

TEST_CASE("volcano: nothing is reserved without the annotation") {
  VolcanoSetup setup{MakeNode("a", {100})};
  setup.Pending("p", 60);
  setup.binder.answer = absl::PermissionDeniedError("forbidden");
  CHECK(setup.Allocate("p", "a") == "forbidden");
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  setup.binder.answer = absl::OkStatus();
  CHECK(setup.Allocate("p", "a").empty());
}

TEST_CASE("volcano: a pod is allocated once, until Volcano gives it back or fails to bind it") {
  VolcanoSetup setup{MakeNode("a", {100, 100})};
  setup.Pending("p", 60);
  const Json task = setup.Task("p", "a");
  REQUIRE(setup.Allocate(task).empty());
  // Volcano's Binding failed: it asks again, and the API server shows the pod unbound.
  CHECK(setup.Predicate("p", "a").empty());
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  REQUIRE(setup.Allocate(setup.Task("p", "a")).empty());
  // It is bound, and no watch has shown it.
  REQUIRE(setup.binder.Bind(ReadPod(task["Pod"]), "a", {}).ok());
  int code = 0;
  CHECK(setup.Predicate("p", "a", &code) == "pod default/p: a binding of it is under way");
  CHECK(code == 1);
  CHECK(setup.cluster.Figures().free_cards == 1.4);
}

TEST_CASE("volcano: a reservation ends after a minute without a Binding") {
  const auto policies = *PolicyRefresher::Make("best-fit");
  ClusterState::Clock::time_point now{};
  ClusterState cluster(*policies, [&now] { return now; });
  FakeBinder binder;
  Extender extender(cluster, binder);
  VolcanoCalls calls(extender);
  ReplaceNodes(cluster, {MakeNode("a", {100})});
  binder.Create(MakePod("p", 60));
  ReplacePods(cluster, {MakePod("p", 60)});
  const Json task = {{"UID", "uid-p"}, {"Namespace", "default"}, {"Name", "p"}, {"NodeName", "a"}, {"Status", 2}};
  REQUIRE(calls.Allocate(Json{{"task", task}}.dump()).body == R"({"errorMessage":""})");
  now += std::chrono::seconds(59);
  cluster.PutPod(ReadPod(MakePod("q", 0)));
  CHECK(cluster.Figures().reserved_pods == 1);
  now += std::chrono::seconds(1);
  cluster.PutPod(ReadPod(MakePod("q", 0)));
  CHECK(cluster.Figures().reserved_pods == 0);
}

TEST_CASE("volcano: preemption waits for cards that the evicted pods hold, and for no others") {
  // Two cards: 60 and 30 units are used.
  VolcanoSetup setup{MakeNode("a", {100, 100})};
  setup.Running("large", 60, "a");
  setup.Pending("small", 50);
  REQUIRE(setup.Allocate("small", "a").empty());
  setup.BindAs(setup.Task("small", "a"));
  for (const char* name : {"wants", "also"}) setup.Pending(name, 90);
  const Json wants = setup.Task("wants", "a", kPipelined), also = setup.Task("also", "a", kPipelined);
  const Json large = setup.Task("large", "a", kReleasing), small = setup.Task("small", "a", kReleasing);
  CHECK(setup.Allocate(wants) == "node a: no single card has 90 units free, the largest has 50");
  CHECK(setup.Deallocate(large).empty());
  CHECK(setup.Allocate(wants).empty());
  // Nothing is reserved or written: the units are not there yet.
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  CHECK(setup.PlacementOf("wants").empty());
  // The one card is expected once.
  CHECK(setup.Allocate(also) == "node a: no single card has 90 units free, the largest has 50");
  CHECK(setup.Deallocate(small).empty());
  CHECK(setup.Allocate(also).empty());
  // Volcano thinks better of it: the pod stays, and so does its card.
  CHECK(setup.Deallocate(also).empty());
  CHECK(setup.Allocate(small).empty());
  CHECK_FALSE(setup.Allocate(also).empty());
  setup.CloseSession();
  // The next session: `large` still ends, and the expectations of the last one are gone.
  CHECK(setup.Allocate(also).empty());
  CHECK_FALSE(setup.Allocate(wants).empty());
  setup.CloseSession();
  // It has ended: the pod is allocated as any other.
  setup.cluster.RemovePod("uid-large");
  CHECK(setup.Predicate("wants", "a").empty());
  CHECK(setup.Allocate("wants", "a").empty());
  CHECK(setup.PlacementOf("wants") == R"({"main":["GPU-a-0"]})");
}

TEST_CASE("volcano: a pod's size is the API server's, not the caller's") {
  VolcanoSetup setup{MakeNode("a", {50})};
  setup.Pending("p", 60);
  Json task = setup.Task("p", "a");
  task["Pod"] = MakePod("p", 10);
  CHECK_FALSE(setup.Allocate(task).empty());
  task["UID"] = "uid-of-another";
  CHECK(setup.Allocate(task) == "pod default/p is another one now");
}

TEST_CASE("volcano: pods without a share, and bodies that are none") {
  VolcanoSetup setup{MakeNode("a", {50})};
  setup.Pending("p", 0);
  CHECK(setup.Predicate("p", "unheard-of").empty());
  CHECK(setup.Allocate("p", "unheard-of").empty());
  CHECK(setup.Deallocate(setup.Task("p", "a")).empty());
  CHECK(setup.binder.annotations_written == 0);
  for (const char* body : {"", "{", "[]", "{}", R"({"task":1})", R"({"task":{"UID":"u"}})"}) {
    CHECK(setup.calls.Predicate(body).status == 400);
    CHECK(setup.calls.Allocate(body).status == 400);
    CHECK(setup.calls.Deallocate(body).status == 400);
  }
  CHECK(setup.calls.Predicate(Json{{"task", setup.Task("p")}, {"node", {{"Name", 1}}}}.dump()).status == 400);
}

TEST_CASE("volcano: until the cluster has been read, no node fits") {
  const auto policies = *PolicyRefresher::Make("best-fit");
  ClusterState cluster(*policies);
  FakeBinder binder;
  Extender extender(cluster, binder);
  VolcanoCalls calls(extender);
  const Json task = {{"UID", "uid-p"}, {"Namespace", "default"}, {"Name", "p"}, {"NodeName", "a"}, {"Status", 2}};
  const Json reply = Json::parse(calls.Predicate(Json{{"task", task}, {"node", {{"Name", "a"}}}}.dump()).body);
  CHECK(reply == Json{{"status", "sluice-extender has not read the cluster yet"}, {"code", 1}});
  CHECK(Json::parse(calls.Allocate(Json{{"task", task}}.dump()).body)["errorMessage"] ==
        "sluice-extender has not read the cluster yet");
}

}  // namespace
}  // namespace sluice::scheduler
