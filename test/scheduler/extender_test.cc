// The extender's calls and the cluster state behind them.
#include "scheduler/extender/extender.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <thread>
#include <utility>

#include "extender_setup.h"

namespace sluice::scheduler {
namespace {

TEST_CASE("filter: a node with enough units in sum but on no card is refused, with reasons that can be counted") {
  ExtenderSetup setup{MakeNode("a", {50, 50}), MakeNode("b", {40, 40}), MakeNode("c", {60, 10}),
                      MakeNode("d", {30, 50})};
  const Json result = setup.Filter(MakePod("p", 60));
  CHECK(result["NodeNames"] == Json{"c"});
  for (const char* node : {"a", "b", "d"}) {
    CHECK(result["FailedNodes"][node] == "no single card has 60 units free, the largest has 50");
  }
  CHECK(setup.Filter(MakePod("q", 200))["FailedNodes"]["a"] ==
        "fewer than 2 whole cards are free, the most on one node is 0");
}

TEST_CASE("filter: nodes without a readable annotation get no pod") {
  Json silent = MakeNode("silent", {100}), garbage = MakeNode("garbage", {100}), away = MakeNode("away", {100});
  silent["metadata"].erase("annotations");
  garbage["metadata"]["annotations"]["sluice.dev/gpus"] = "[{\"uuid\":\"GPU\",\"free\":1e9}]";
  away["status"]["allocatable"].erase("sluice.dev/gpu-percent");
  ExtenderSetup setup{silent, garbage, away};
  setup.names.push_back("unheard-of");
  const Json failed = setup.Filter(MakePod("p", 10))["FailedNodes"];
  CHECK(failed["silent"] == "no annotation sluice.dev/gpus: sluice's agent does not run there");
  CHECK(failed["garbage"] == "annotation sluice.dev/gpus cannot be read: card 0: free is no number of 0..100");
  CHECK(failed["away"] == "offers no sluice.dev/gpu-percent: sluice's device plugin does not run there");
  CHECK(failed["unheard-of"] == "the node is not known yet");
  // The annotation is corrected: used at once.
  setup.cluster.PutNode(ReadNode(MakeNode("garbage", {100})));
  CHECK(setup.Filter(MakePod("p", 10))["NodeNames"] == Json{"garbage"});
}

TEST_CASE("filter: a pod that no card can hold is refused with the accepted sizes") {
  ExtenderSetup setup{MakeNode("a", {100, 100})};
  const Json failed = setup.Filter(MakePod("p", 150))["FailedNodes"];
  CHECK(failed["a"] ==
        "container \"main\" asks for 150 units, accepted are 1 to 100, or a multiple of 100 for whole cards");
  CHECK(setup.Filter(MakePod("q", 0))["NodeNames"] == Json{"a"});
}

TEST_CASE("filter: units that a running pod grew into are not free until it shrinks") {
  const auto node = [](int free) {
    Json out = MakeNode("a", {free});
    Json cards = Json::parse(out["metadata"]["annotations"]["sluice.dev/gpus"].get<std::string>());
    cards[0]["pods"] = {{"uid-grown", {{"main", 50}}}};  // its units: the agent granted it 70
    out["metadata"]["annotations"]["sluice.dev/gpus"] = cards.dump();
    return out;
  };
  ExtenderSetup setup{node(30)};
  Json grown = MakePod("grown", 50);
  grown["spec"]["nodeName"] = "a";
  grown["status"]["startTime"] = "2026-01-01T00:00:00Z";
  setup.cluster.PutPod(ReadPod(grown));
  CHECK(setup.Filter(MakePod("p", 40))["FailedNodes"]["a"] == "no single card has 40 units free, the largest has 30");
  CHECK(setup.Filter(MakePod("q", 30))["NodeNames"] == Json{"a"});
  setup.cluster.PutNode(ReadNode(node(50)));
  CHECK(setup.Filter(MakePod("r", 50))["NodeNames"] == Json{"a"});
}

TEST_CASE("prioritize: only the best node scores 10") {
  ExtenderSetup setup{MakeNode("a", {100}), MakeNode("b", {60}), MakeNode("c", {60}), MakeNode("d", {10})};
  const Json scores = setup.Prioritize(MakePod("p", 50));
  REQUIRE(scores.size() == 4);
  CHECK(scores[1] == Json{{"Host", "b"}, {"Score", 10}});
  CHECK(scores[0]["Score"] < 10);
  CHECK(scores[2]["Score"] < 10);
  CHECK(scores[3]["Score"] == 0);
}

TEST_CASE("bind: the annotation names the card, and its units are taken") {
  ExtenderSetup setup{MakeNode("a", {100, 60})};
  const Json pod = MakePod("p", 50);
  setup.Create(pod);
  CHECK(setup.Bind(pod, "a").empty());
  CHECK(setup.binder.Pod("uid-p")["spec"]["nodeName"] == "a");
  CHECK(setup.binder.Pod("uid-p")["metadata"]["annotations"]["sluice.dev/placement"] == R"({"main":["GPU-a-1"]})");
  CHECK(setup.Filter(MakePod("q", 100))["NodeNames"] == Json{"a"});
  CHECK(setup.Filter(MakePod("r", 200))["FailedNodes"].contains("a"));
  // The watch shows it: still taken, and only once.
  setup.Show("uid-p");
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  CHECK(setup.cluster.Figures().free_cards == 1.1);
  // The pod ends.
  Json ended = setup.binder.Pod("uid-p");
  ended["status"]["phase"] = "Succeeded";
  setup.cluster.PutPod(ReadPod(ended));
  CHECK(setup.cluster.Figures().free_cards == 1.6);
}

TEST_CASE("bind: a failed Binding frees the units, an unknown outcome keeps them") {
  ExtenderSetup setup{MakeNode("a", {50})};
  const Json pod = MakePod("p", 50);
  setup.Create(pod);
  setup.binder.answer = absl::PermissionDeniedError("forbidden");
  CHECK(setup.Bind(pod, "a") == "forbidden");
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  setup.binder.answer = absl::UnavailableError("connection lost");
  setup.binder.bind_anyway = true;
  CHECK(setup.Bind(pod, "a") == "connection lost");
  CHECK(setup.Filter(MakePod("q", 50))["NodeNames"].empty());
  setup.Show("uid-p");
  CHECK(setup.Filter(MakePod("q", 50))["NodeNames"].empty());
  // The connection was lost before the pod was bound: the scheduler asks again for the same pod.
  ExtenderSetup other{MakeNode("a", {50})};
  other.Create(pod);
  other.binder.answer = absl::UnavailableError("connection lost");
  CHECK(other.Bind(pod, "a") == "connection lost");
  CHECK(other.Filter(pod)["NodeNames"] == Json{"a"});
}

TEST_CASE("a pod that is bound or being bound is not placed a second time") {
  ExtenderSetup setup{MakeNode("a", {50}), MakeNode("b", {50})};
  const Json pod = MakePod("p", 50);
  setup.Create(pod);
  // The scheduler gave up waiting for the first bind, which is still under way.
  std::string filtered, again;
  bool first = true;
  setup.binder.before = [&] {
    if (!std::exchange(first, false)) return;
    filtered = setup.Filter(pod).value("Error", "");
    again = setup.Bind(pod, "b");
  };
  CHECK(setup.Bind(pod, "a").empty());
  CHECK(filtered == "pod default/p: a binding of it is under way");
  CHECK(again == "pod default/p: another binding of it is under way");
  // Bound, and the watch is late: still one reservation.
  CHECK(setup.Filter(pod).contains("Error"));
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  // The outcome was lost and the pod is bound: the API server is asked, not the watch.
  const Json other = MakePod("o", 50);
  setup.Create(other);
  setup.binder.answer = absl::UnavailableError("connection lost");
  setup.binder.bind_anyway = true;
  CHECK(setup.Bind(other, "b") == "connection lost");
  CHECK(setup.Filter(other).contains("Error"));
  CHECK(setup.cluster.Figures().reserved_pods == 1);  // p's: the pod o has been seen bound
  CHECK(setup.cluster.Figures().free_cards == 0);
}

TEST_CASE("bind: deleted nodes and deleted or bound pods are refused") {
  ExtenderSetup setup{MakeNode("a", {100}), MakeNode("b", {100})};
  const Json pod = MakePod("p", 50);
  setup.Create(pod);
  setup.cluster.RemoveNode("a");
  CHECK(setup.Bind(pod, "a") == "node a: the node is gone");
  ReplaceNodes(setup.cluster, {MakeNode("a", {100})});
  CHECK(setup.Bind(pod, "b") == "node b: the node is gone");
  CHECK(setup.Bind(MakePod("never", 10), "a") == "pods \"never\" not found");
  CHECK(setup.Bind(pod, "a").empty());
  setup.Show("uid-p");
  CHECK(setup.Bind(pod, "a") == "pod default/p is bound to a already");
  setup.cluster.RemovePod("uid-p");
  CHECK(setup.cluster.Figures().free_cards == 1);
}

TEST_CASE("100 concurrent pods for the last cards: as many as fit are bound, the others get a reason") {
  ExtenderSetup setup{MakeNode("a", {100, 30, 30})};
  for (int i = 0; i < 100; ++i) setup.Create(MakePod("p" + std::to_string(i), 40));
  setup.binder.before = [] { std::this_thread::yield(); };
  std::vector<std::string> errors(100);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < 100; i += 8) {
          const Json pod = MakePod("p" + std::to_string(i), 40);
          setup.Filter(pod);
          errors[i] = setup.Bind(pod, "a");
        }
      });
    }
  }
  CHECK(std::count(errors.begin(), errors.end(), "") == 2);
  CHECK(std::count(errors.begin(), errors.end(), "node a: no single card has 40 units free, the largest has 30") +
            std::count(errors.begin(), errors.end(), "node a: no single card has 40 units free, the largest has 60") ==
        98);
  for (const auto& [card, units] : setup.binder.ReservedUnits()) CHECK(units <= 100);
}

TEST_CASE("concurrent binds on many nodes never reserve a card twice") {
  std::vector<Json> nodes;
  for (int i = 0; i < 10; ++i) nodes.push_back(MakeNode("n" + std::to_string(i), {100, 100, 70, 20}));
  ExtenderSetup setup(nodes, "look-ahead");
  for (int i = 0; i < 200; ++i) setup.Create(MakePod("p" + std::to_string(i), 10 + i % 7 * 15));
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < 200; i += 6) {
          const Json pod = MakePod("p" + std::to_string(i), 10 + i % 7 * 15);
          const Json fitting = setup.Filter(pod)["NodeNames"];
          if (!fitting.empty()) setup.Bind(pod, fitting[i % fitting.size()]);
          if (i % 3 == 0) setup.Show("uid-p" + std::to_string(i));
          if (i % 10 == 0) setup.cluster.PutNode(ReadNode(nodes[i % 10]));
        }
      });
    }
  }
  int reserved = 0;
  for (const auto& [card, units] : setup.binder.ReservedUnits()) {
    const int free = card.ends_with("-2") ? 70 : card.ends_with("-3") ? 20 : 100;
    CHECK(units <= free);
    reserved += units;
  }
  CHECK(reserved > 2000);
}

TEST_CASE("a pod waits for another one with the same first request and another total") {
  ExtenderSetup setup{MakeNode("a", {100, 100})};
  Json grows = MakePod("grows", 60);
  grows["spec"]["initContainers"] =
      Json::array({{{"name", "init"}, {"resources", {{"limits", {{"sluice.dev/gpu-percent", "30"}}}}}}});
  setup.Create(grows);
  CHECK(setup.Bind(grows, "a").empty());
  const std::string why = setup.Filter(MakePod("p", 30))["FailedNodes"]["a"];
  CHECK(why.find("waits until kubelet has admitted pod default/grows") == 0);
  Json running = setup.binder.Pod("uid-grows");
  running["status"] = {{"phase", "Running"}, {"startTime", "2026-01-01T00:00:00Z"}};
  setup.cluster.PutPod(ReadPod(running));
  CHECK(setup.Filter(MakePod("p", 30))["NodeNames"] == Json{"a"});
}

TEST_CASE("a placement that does not match its pod counts as none") {
  ExtenderSetup setup{MakeNode("a", {100, 100})};
  for (const char* placement : {"{", "[]", R"({"main":["GPU-a-0","GPU-a-1"]})", R"({"other":["GPU-a-0"]})"}) {
    INFO(placement);
    Json pod = MakePod("p", 50);
    pod["spec"]["nodeName"] = "a";
    pod["metadata"]["annotations"]["sluice.dev/placement"] = placement;
    setup.cluster.PutPod(ReadPod(pod));
    // Kubelet may put it on either card.
    CHECK(setup.Filter(MakePod("q", 60))["NodeNames"].empty());
    CHECK(setup.Filter(MakePod("q", 50))["NodeNames"] == Json{"a"});
    setup.cluster.RemovePod("uid-p");
  }
  setup.cluster.PutPod(
      ReadPod(Json::parse(R"({"metadata":7,"spec":{"containers":[1,{"resources":[]}],"nodeName":{}}})")));
  setup.cluster.PutPod(ReadPod(Json()));
  CHECK(setup.Filter(MakePod("q", 60))["NodeNames"] == Json{"a"});
}

TEST_CASE("a deleted node is forgotten, or kept while it has pods") {
  ExtenderSetup setup{MakeNode("a", {100}), MakeNode("b", {100})};
  Json pod = MakePod("p", 50);
  pod["spec"]["nodeName"] = "a";
  pod["metadata"]["annotations"]["sluice.dev/placement"] = R"({"main":["GPU-a-0"]})";
  setup.cluster.PutPod(ReadPod(pod));
  setup.cluster.RemoveNode("a");
  setup.cluster.RemoveNode("b");
  CHECK(setup.Filter(MakePod("q", 10))["FailedNodes"] ==
        Json{{"a", "the node is gone"}, {"b", "the node is not known yet"}});
  CHECK(setup.cluster.Figures().nodes == 0);
  // The node is back, and its pod still runs there.
  setup.cluster.PutNode(ReadNode(MakeNode("a", {100})));
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  setup.cluster.RemovePod("uid-p");
  CHECK(setup.cluster.Figures().free_cards == 1);
  // A list after a gap, without the node.
  ReplaceNodes(setup.cluster, {MakeNode("b", {100})});
  CHECK(setup.Filter(MakePod("q", 10))["NodeNames"] == Json{"b"});
}

TEST_CASE("a reservation expires if no watch ever shows the pod") {
  const auto policies = *PolicyRefresher::Make("best-fit");
  ClusterState::Clock::time_point now{};
  ClusterState cluster(*policies, [&now] { return now; });
  FakeBinder binder;
  Extender extender(cluster, binder);
  ReplaceNodes(cluster, {MakeNode("a", {100})});
  ReplacePods(cluster, {});
  binder.Create(MakePod("p", 50));
  binder.answer = absl::UnavailableError("connection lost");
  const Json args = {{"PodName", "p"}, {"PodNamespace", "default"}, {"PodUID", "uid-p"}, {"Node", "a"}};
  extender.Bind(args.dump());
  // A list that began before the pod was created says nothing about it.
  now += std::chrono::seconds(50);
  ReplacePods(cluster, {});
  CHECK(cluster.Figures().free_cards == 0.5);
  now += std::chrono::seconds(10);
  ReplacePods(cluster, {});
  CHECK(cluster.Figures().free_cards == 1);
  CHECK(cluster.Figures().reserved_pods == 0);
}

TEST_CASE("until the cluster has been read, filter returns an error") {
  const auto policies = *PolicyRefresher::Make("best-fit");
  ClusterState cluster(*policies);
  FakeBinder binder;
  Extender extender(cluster, binder);
  const Json reply = Json::parse(extender.Filter(Json{{"Pod", MakePod("p", 1)}, {"NodeNames", {"a"}}}.dump()).body);
  CHECK(reply["Error"] == "sluice-extender has not read the cluster yet");
  ReplaceNodes(cluster, {});
  CHECK_FALSE(cluster.Synced());
  ReplacePods(cluster, {});
  CHECK(cluster.Synced());
}

TEST_CASE("a new list removes pods that are gone") {
  ExtenderSetup setup{MakeNode("a", {100})};
  Json pod = MakePod("p", 50);
  pod["spec"]["nodeName"] = "a";
  pod["metadata"]["annotations"]["sluice.dev/placement"] = R"({"main":["GPU-a-0"]})";
  setup.cluster.PutPod(ReadPod(pod));
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  ReplacePods(setup.cluster, {});
  CHECK(setup.cluster.Figures().free_cards == 1);
}

TEST_CASE("metrics include fragmentation") {
  ExtenderSetup setup{MakeNode("a", {30, 30, 100})};
  setup.extender.Filter(setup.Args(MakePod("p", 10)));
  const std::string text = setup.extender.Metrics();
  CHECK(text.find("sluice_extender_free_gpus 1.6\n") != std::string::npos);
  // 25 units fit anywhere; 50 and 100 cannot use the two cards with 30 free.
  CHECK(text.find("sluice_extender_fragmented_gpus 0.4\n") != std::string::npos);
  CHECK(text.find("sluice_extender_calls_total{call=\"filter\"} 1\n") != std::string::npos);
}

}  // namespace
}  // namespace sluice::scheduler
