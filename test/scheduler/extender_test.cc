#include "scheduler/extender/extender.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <thread>
#include <utility>

#include "fake_cluster.h"
#include "scheduler/extender/extender_args.h"
#include "scheduler/extender/extender_config.h"
#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

class Setup {
 public:
  // JSON converts to everything: without this one, a list of one node would be ambiguous.
  Setup(std::initializer_list<Json> nodes) : Setup(std::vector<Json>(nodes), "best-fit") {}
  Setup(const std::vector<Json>& nodes, const std::string& policy)
      : policies(*PolicyMaker::Make(policy)), cluster(*policies), extender(cluster, binder) {
    for (const Json& node : nodes) names.push_back(node["metadata"]["name"]);
    cluster.ReplaceNodes(nodes);
    cluster.ReplacePods({});
  }

  void Create(const Json& pod) {
    binder.Create(pod);
    cluster.PutPod(pod);
  }
  Json Filter(const Json& pod) { return Json::parse(extender.Filter(Args(pod)).body); }
  Json Prioritize(const Json& pod) { return Json::parse(extender.Prioritize(Args(pod)).body); }
  std::string Bind(const Json& pod, const std::string& node) {
    const Json args = {{"PodName", pod["metadata"]["name"]},
                       {"PodNamespace", "default"},
                       {"PodUID", pod["metadata"]["uid"]},
                       {"Node", node}};
    return Json::parse(extender.Bind(args.dump()).body)["Error"];
  }
  std::string Args(const Json& pod) const { return Json{{"Pod", pod}, {"NodeNames", names}}.dump(); }
  // The watch shows what the API server holds.
  void Show(const std::string& uid) { cluster.PutPod(binder.Pod(uid)); }

  std::vector<std::string> names;
  std::unique_ptr<PolicyMaker> policies;
  ClusterState cluster;
  FakeBinder binder;
  Extender extender;
};

TEST_CASE(
    "filter: a node whose sum suffices and whose cards do not is refused, in words that the scheduler can count") {
  Setup setup{MakeNode("a", {50, 50}), MakeNode("b", {40, 40}), MakeNode("c", {60, 10}), MakeNode("d", {30, 50})};
  const Json result = setup.Filter(MakePod("p", 60));
  CHECK(result["NodeNames"] == Json{"c"});
  for (const char* node : {"a", "b", "d"}) {
    CHECK(result["FailedNodes"][node] == "no single card has 60 units free, the largest has 50");
  }
  CHECK(setup.Filter(MakePod("q", 200))["FailedNodes"]["a"] ==
        "fewer than 2 whole cards are free, the most on one node is 0");
}

TEST_CASE("filter: nodes that say nothing, or nonsense, get no pod") {
  Json silent = MakeNode("silent", {100}), garbage = MakeNode("garbage", {100}), away = MakeNode("away", {100});
  silent["metadata"].erase("annotations");
  garbage["metadata"]["annotations"]["sluice.dev/gpus"] = "[{\"uuid\":\"GPU\",\"free\":1e9}]";
  away["status"]["allocatable"].erase("sluice.dev/gpu-percent");
  Setup setup{silent, garbage, away};
  setup.names.push_back("unheard-of");
  const Json failed = setup.Filter(MakePod("p", 10))["FailedNodes"];
  CHECK(failed["silent"] == "no annotation sluice.dev/gpus: sluice's agent does not run there");
  CHECK(failed["garbage"] == "annotation sluice.dev/gpus cannot be read: card 0: free is no number of 0..100");
  CHECK(failed["away"] == "offers no sluice.dev/gpu-percent: sluice's device plugin does not run there");
  CHECK(failed["unheard-of"] == "the node is not known yet");
  // The annotation is mended: taken at once.
  setup.cluster.PutNode(MakeNode("garbage", {100}));
  CHECK(setup.Filter(MakePod("p", 10))["NodeNames"] == Json{"garbage"});
}

TEST_CASE("filter: a pod that no card can hold says so") {
  Setup setup{MakeNode("a", {100, 100})};
  const Json failed = setup.Filter(MakePod("p", 150))["FailedNodes"];
  CHECK(failed["a"] ==
        "container \"main\" asks for 150 units, accepted are 1 to 100, or a multiple of 100 for whole cards");
  CHECK(setup.Filter(MakePod("q", 0))["NodeNames"] == Json{"a"});
}

TEST_CASE("prioritize: the best node alone has 10") {
  Setup setup{MakeNode("a", {100}), MakeNode("b", {60}), MakeNode("c", {60}), MakeNode("d", {10})};
  const Json scores = setup.Prioritize(MakePod("p", 50));
  REQUIRE(scores.size() == 4);
  CHECK(scores[1] == Json{{"Host", "b"}, {"Score", 10}});
  CHECK(scores[0]["Score"] < 10);
  CHECK(scores[2]["Score"] < 10);
  CHECK(scores[3]["Score"] == 0);
}

TEST_CASE("bind: the pod's annotation names the card, and the card is taken") {
  Setup setup{MakeNode("a", {100, 60})};
  const Json pod = MakePod("p", 50);
  setup.Create(pod);
  CHECK(setup.Bind(pod, "a").empty());
  CHECK(setup.binder.Pod("uid-p")["spec"]["nodeName"] == "a");
  CHECK(setup.binder.Pod("uid-p")["metadata"]["annotations"]["sluice.dev/placement"] == R"({"main":["GPU-a-1"]})");
  CHECK(setup.Filter(MakePod("q", 100))["NodeNames"] == Json{"a"});
  CHECK(setup.Filter(MakePod("r", 200))["FailedNodes"].contains("a"));
  // The watch shows it: still taken, once.
  setup.Show("uid-p");
  CHECK(setup.cluster.Figures().reserved_pods == 0);
  CHECK(setup.cluster.Figures().free_cards == 1.1);
  // It ends.
  Json ended = setup.binder.Pod("uid-p");
  ended["status"]["phase"] = "Succeeded";
  setup.cluster.PutPod(ended);
  CHECK(setup.cluster.Figures().free_cards == 1.6);
}

TEST_CASE("bind: a failed Binding gives the card back, an unknown outcome keeps it") {
  Setup setup{MakeNode("a", {50})};
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
  // Lost before it was bound: the scheduler asks again for the same pod.
  Setup other{MakeNode("a", {50})};
  other.Create(pod);
  other.binder.answer = absl::UnavailableError("connection lost");
  CHECK(other.Bind(pod, "a") == "connection lost");
  CHECK(other.Filter(pod)["NodeNames"] == Json{"a"});
}

TEST_CASE("a pod that is being bound, or was, is not placed a second time") {
  Setup setup{MakeNode("a", {50}), MakeNode("b", {50})};
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
  // Done, and the watch is late: still one reservation.
  CHECK(setup.Filter(pod).contains("Error"));
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  // The outcome was lost, and it was bound: the API server is asked, not the watch.
  const Json other = MakePod("o", 50);
  setup.Create(other);
  setup.binder.answer = absl::UnavailableError("connection lost");
  setup.binder.bind_anyway = true;
  CHECK(setup.Bind(other, "b") == "connection lost");
  CHECK(setup.Filter(other).contains("Error"));
  CHECK(setup.cluster.Figures().reserved_pods == 1);  // p's: o has been seen bound
  CHECK(setup.cluster.Figures().free_cards == 0);
}

TEST_CASE("bind: nodes that vanish, pods that vanish or are bound already") {
  Setup setup{MakeNode("a", {100}), MakeNode("b", {100})};
  const Json pod = MakePod("p", 50);
  setup.Create(pod);
  setup.cluster.RemoveNode("a");
  CHECK(setup.Bind(pod, "a") == "node a: the node is gone");
  setup.cluster.ReplaceNodes({MakeNode("a", {100})});
  CHECK(setup.Bind(pod, "b") == "node b: the node is gone");
  CHECK(setup.Bind(MakePod("never", 10), "a") == "pods \"never\" not found");
  CHECK(setup.Bind(pod, "a").empty());
  setup.Show("uid-p");
  CHECK(setup.Bind(pod, "a") == "pod default/p is bound to a already");
  setup.cluster.RemovePod("uid-p");
  CHECK(setup.cluster.Figures().free_cards == 1);
}

TEST_CASE("100 pods in one instant for the last card, two schedulers: as many as fit, the others told why") {
  Setup setup{MakeNode("a", {100, 30, 30})};
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

TEST_CASE("many threads, many nodes: no card is reserved twice") {
  std::vector<Json> nodes;
  for (int i = 0; i < 10; ++i) nodes.push_back(MakeNode("n" + std::to_string(i), {100, 100, 70, 20}));
  Setup setup(nodes, "look-ahead");
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
          if (i % 10 == 0) setup.cluster.PutNode(nodes[i % 10]);
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

TEST_CASE("a pod whose first request looks like another's waits for it") {
  Setup setup{MakeNode("a", {100, 100})};
  Json grows = MakePod("grows", 60);
  grows["spec"]["initContainers"] =
      Json::array({{{"name", "init"}, {"resources", {{"limits", {{"sluice.dev/gpu-percent", "30"}}}}}}});
  setup.Create(grows);
  CHECK(setup.Bind(grows, "a").empty());
  const std::string why = setup.Filter(MakePod("p", 30))["FailedNodes"]["a"];
  CHECK(why.find("waits until kubelet has admitted pod default/grows") == 0);
  Json running = setup.binder.Pod("uid-grows");
  running["status"] = {{"phase", "Running"}, {"startTime", "2026-01-01T00:00:00Z"}};
  setup.cluster.PutPod(running);
  CHECK(setup.Filter(MakePod("p", 30))["NodeNames"] == Json{"a"});
}

TEST_CASE("garbage in pods: a placement written by hand counts as none") {
  Setup setup{MakeNode("a", {100, 100})};
  for (const char* placement : {"{", "[]", R"({"main":["GPU-a-0","GPU-a-1"]})", R"({"other":["GPU-a-0"]})"}) {
    INFO(placement);
    Json pod = MakePod("p", 50);
    pod["spec"]["nodeName"] = "a";
    pod["metadata"]["annotations"]["sluice.dev/placement"] = placement;
    setup.cluster.PutPod(pod);
    // It may come to lie on either card.
    CHECK(setup.Filter(MakePod("q", 60))["NodeNames"].empty());
    CHECK(setup.Filter(MakePod("q", 50))["NodeNames"] == Json{"a"});
    setup.cluster.RemovePod("uid-p");
  }
  setup.cluster.PutPod(Json::parse(R"({"metadata":7,"spec":{"containers":[1,{"resources":[]}],"nodeName":{}}})"));
  setup.cluster.PutPod(Json());
  CHECK(setup.Filter(MakePod("q", 60))["NodeNames"] == Json{"a"});
}

TEST_CASE("malformed calls get an HTTP error that says what is missing") {
  Setup setup{MakeNode("a", {100})};
  for (const std::string& body : {std::string(), std::string("[]"), std::string("\xff"), std::string(100000, '[')}) {
    CHECK(setup.extender.Filter(body).status == 400);
    CHECK(setup.extender.Prioritize(body).status == 400);
    CHECK(setup.extender.Bind(body).status == 400);
  }
  CHECK(Json::parse(setup.extender.Filter(R"({"Pod":{}})").body)["Error"] ==
        "NodeNames is missing: the extender's configuration needs nodeCacheCapable: true");
  CHECK(setup.extender.Filter(R"({"Pod":{},"NodeNames":[1]})").status == 400);
  CHECK(setup.extender.Bind(R"({"PodName":"p"})").status == 400);
}

// What the real parser makes of the same body: the scanner may refuse less (it does not look at what it does not need),
// but must never read something else.
TEST_CASE("arguments: the scanner reads what the real parser reads, whatever the bytes") {
  Random random(3);
  const std::string good =
      Json{{"Pod", MakePod("p", 50)}, {"Nodes", nullptr}, {"NodeNames", {"a", "b-1", "c.d"}}}.dump(1);
  REQUIRE(ReadExtenderArgs(good)->nodes == std::vector<std::string_view>{"a", "b-1", "c.d"});
  CHECK(ReadExtenderArgs(good)->pod.name == "p");
  int read = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string body = good;
    for (std::uint64_t n = 1 + random.Below(3); n > 0; --n) {
      static constexpr std::string_view kBytes = "{}[]\",:\\ua1-\n\xc3";
      const std::size_t at = random.Below(body.size());
      switch (random.Below(3)) {
        case 0:
          body[at] = kBytes[random.Below(kBytes.size())];
          break;
        case 1:
          body.erase(at, 1 + random.Below(20));
          break;
        default:
          body.insert(at, 1, kBytes[random.Below(kBytes.size())]);
      }
    }
    const auto args = ReadExtenderArgs(body);
    const Json json = Json::parse(body, nullptr, false);
    if (!args.ok()) {
      ++refused;
      const bool could = json.is_object() && json.contains("Pod") && json["Pod"].is_object() &&
                         json.contains("NodeNames") && json["NodeNames"].is_array() &&
                         std::all_of(json["NodeNames"].begin(), json["NodeNames"].end(),
                                     [](const Json& name) { return name.is_string(); });
      INFO(body);
      CHECK_FALSE(could);
      continue;
    }
    ++read;
    if (json.is_discarded()) continue;
    INFO(body);
    CHECK(Json(std::vector<std::string>(args->nodes.begin(), args->nodes.end())) == json["NodeNames"]);
    CHECK(args->pod.uid == ReadPod(json["Pod"]).uid);
  }
  CHECK(read > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("names that need escaping come back as they were sent") {
  Setup setup{MakeNode("a", {100})};
  setup.names = {"a", "\u00e4\"\\", "c"};
  const Json result = setup.Filter(MakePod("p", 10));
  CHECK(result["NodeNames"] == Json{"a"});
  CHECK(result["FailedNodes"]["\u00e4\"\\"] == "the node is not known yet");
  CHECK(setup.Prioritize(MakePod("p", 10))[1]["Host"] == "\u00e4\"\\");
}

TEST_CASE("a node that is gone and holds nothing is forgotten, one that holds pods keeps its account") {
  Setup setup{MakeNode("a", {100}), MakeNode("b", {100})};
  Json pod = MakePod("p", 50);
  pod["spec"]["nodeName"] = "a";
  pod["metadata"]["annotations"]["sluice.dev/placement"] = R"({"main":["GPU-a-0"]})";
  setup.cluster.PutPod(pod);
  setup.cluster.RemoveNode("a");
  setup.cluster.RemoveNode("b");
  CHECK(setup.Filter(MakePod("q", 10))["FailedNodes"] ==
        Json{{"a", "the node is gone"}, {"b", "the node is not known yet"}});
  CHECK(setup.cluster.Figures().nodes == 0);
  // It comes back, and its pod still lies there.
  setup.cluster.PutNode(MakeNode("a", {100}));
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  setup.cluster.RemovePod("uid-p");
  CHECK(setup.cluster.Figures().free_cards == 1);
  // A list after a gap, in which it is missing.
  setup.cluster.ReplaceNodes({MakeNode("b", {100})});
  CHECK(setup.Filter(MakePod("q", 10))["NodeNames"] == Json{"b"});
}

TEST_CASE("a reservation for a pod that no watch ever shows ends") {
  const auto policies = *PolicyMaker::Make("best-fit");
  ClusterState::Clock::time_point now{};
  ClusterState cluster(*policies, [&now] { return now; });
  FakeBinder binder;
  Extender extender(cluster, binder);
  cluster.ReplaceNodes({MakeNode("a", {100})});
  cluster.ReplacePods({});
  binder.Create(MakePod("p", 50));
  binder.answer = absl::UnavailableError("connection lost");
  const Json args = {{"PodName", "p"}, {"PodNamespace", "default"}, {"PodUID", "uid-p"}, {"Node", "a"}};
  extender.Bind(args.dump());
  // A list that began before the pod was made says nothing yet.
  now += std::chrono::seconds(50);
  cluster.ReplacePods({});
  CHECK(cluster.Figures().free_cards == 0.5);
  now += std::chrono::seconds(10);
  cluster.ReplacePods({});
  CHECK(cluster.Figures().free_cards == 1);
  CHECK(cluster.Figures().reserved_pods == 0);
}

TEST_CASE("before the cluster is read the answer is an error, not a refusal") {
  const auto policies = *PolicyMaker::Make("best-fit");
  ClusterState cluster(*policies);
  FakeBinder binder;
  Extender extender(cluster, binder);
  const Json reply = Json::parse(extender.Filter(Json{{"Pod", MakePod("p", 1)}, {"NodeNames", {"a"}}}.dump()).body);
  CHECK(reply["Error"] == "sluice-extender has not read the cluster yet");
  cluster.ReplaceNodes({});
  CHECK_FALSE(cluster.Synced());
  cluster.ReplacePods({});
  CHECK(cluster.Synced());
}

TEST_CASE("a list after a gap forgets what is gone") {
  Setup setup{MakeNode("a", {100})};
  Json pod = MakePod("p", 50);
  pod["spec"]["nodeName"] = "a";
  pod["metadata"]["annotations"]["sluice.dev/placement"] = R"({"main":["GPU-a-0"]})";
  setup.cluster.PutPod(pod);
  CHECK(setup.cluster.Figures().free_cards == 0.5);
  setup.cluster.ReplacePods({});
  CHECK(setup.cluster.Figures().free_cards == 1);
}

TEST_CASE("metrics tell fragmentation") {
  Setup setup{MakeNode("a", {30, 30, 100})};
  setup.extender.Filter(setup.Args(MakePod("p", 10)));
  const std::string text = setup.extender.Metrics();
  CHECK(text.find("sluice_extender_free_gpus 1.6\n") != std::string::npos);
  // 25 fits anywhere; 50 and 100 cannot use the two cards with 30.
  CHECK(text.find("sluice_extender_fragmented_gpus 0.4\n") != std::string::npos);
  CHECK(text.find("sluice_extender_calls_total{call=\"filter\"} 1\n") != std::string::npos);
}

TEST_CASE("pods: Kubernetes' sums and quantities") {
  const PodFacts facts = ReadPod(Json::parse(R"({"metadata":{"name":"n","namespace":"s","uid":"u"},"spec":{
    "initContainers":[{"name":"i","resources":{"requests":{"cpu":"3","memory":"1Gi"},"limits":{"sluice.dev/gpu-percent":"40"}}},
      {"name":"s","restartPolicy":"Always","resources":{"requests":{"cpu":"500m"}}}],
    "containers":[{"name":"a","resources":{"requests":{"cpu":1.5,"memory":"512Mi","sluice.dev/gpu-percent":20}}}],
    "overhead":{"cpu":"100m"}}})"));
  CHECK(facts.cpu_milli == 3100);
  CHECK(facts.memory_mib == 1024);
  REQUIRE(facts.containers.size() == 3);
  CHECK(facts.containers[0].units == 40);
  CHECK(facts.containers[1].kind == ContainerKind::kSidecar);
  CHECK(facts.containers[2].units == 20);
  CHECK(ReadMilli("1e3") == 1000000);
  CHECK(ReadMilli("nonsense") == 0);
  CHECK(ReadMilli("-1") == 0);
  CHECK(ReadMilli("7x") == 0);
}

TEST_CASE("configuration: unknown keys and wrong values are errors") {
  const auto error = [](const char* yaml) { return std::string(ParseExtenderConfig(yaml, "c").status().message()); };
  CHECK(ParseExtenderConfig("", "c").ok());
  CHECK(ParseEndpoint(ParseExtenderConfig("listen: 127.0.0.1:1\npolicy: spread\n", "c")->listen)->port == 1);
  CHECK(error("metricsListen: 9404\n") == "c: metricsListen is \"9404\", accepted is ADDRESS:PORT, e.g. 0.0.0.0:9404");
  CHECK(error("polcy: fgd\n") == "c:1: unknown key \"polcy\"; known are kubeconfig, listen, metricsListen, policy");
  CHECK(error("policy: tight\n") == "c: policy \"tight\" is unknown; known are look-ahead, fgd, best-fit, spread");
  CHECK(error("listen: here\n") == "c: listen is \"here\", accepted is ADDRESS:PORT, e.g. 127.0.0.1:8889");
  CHECK(error("listen: h:70000\n") == "c: listen is \"h:70000\", accepted is ADDRESS:PORT, e.g. 127.0.0.1:8889");
  CHECK(error("- a\n") == "c: the file is no YAML mapping");
  CHECK(error("policy: [a]\n") == "c: policy is no text");
  CHECK(error("a: b: c\n").find("c:1: ") == 0);
}

TEST_CASE("the log of requests fades, and the policy follows the mix and its name") {
  RequestLog log;
  for (int i = 0; i < 20000; ++i) log.Add({.cards = 1, .units = 30});
  const RequestMix mix = log.Mix();
  CHECK(mix[0].request.units == 30);
  CHECK(mix[0].weight > 0.99);
  const auto maker = *PolicyMaker::Make("best-fit");
  CHECK_FALSE(maker->SetName("none").ok());
  const auto before = maker->policy();
  REQUIRE(maker->SetName("spread").ok());
  while (maker->policy() == before) std::this_thread::yield();
  CHECK_FALSE(PolicyMaker::Make("none").ok());
}

}  // namespace
}  // namespace sluice::scheduler
