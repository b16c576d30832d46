// The extender's input: call arguments, pod objects, its configuration, the mix of requests.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <thread>

#include "common/http/listen_address.h"
#include "extender_setup.h"
#include "scheduler/extender/extender_args.h"
#include "scheduler/extender/extender_config.h"
#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

TEST_CASE("malformed calls get an HTTP error that names the missing part") {
  ExtenderSetup setup{MakeNode("a", {100})};
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

// Compares with the full parser on the same body. The scanner may accept more, since it skips parts that it does not
// need, but must never read another value.
TEST_CASE("arguments: the scanner agrees with the full parser on any bytes") {
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

TEST_CASE("names that need escaping are returned as they were sent") {
  ExtenderSetup setup{MakeNode("a", {100})};
  setup.names = {"a", "\u00e4\"\\", "c"};
  const Json result = setup.Filter(MakePod("p", 10));
  CHECK(result["NodeNames"] == Json{"a"});
  CHECK(result["FailedNodes"]["\u00e4\"\\"] == "the node is not known yet");
  CHECK(setup.Prioritize(MakePod("p", 10))[1]["Host"] == "\u00e4\"\\");
}

TEST_CASE("pods: requests are summed by Kubernetes' rules") {
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
  CHECK(ParseExtenderConfig("listen: 127.0.0.1:1\npolicy: spread\n", "c")->listen == "127.0.0.1:1");
  CHECK(ParseExtenderConfig("listen: \"[::1]:1\"\nmetricsListen: \":9404\"\n", "c").ok());
  const std::string forms = kListenAddressForms;
  CHECK(error("metricsListen: 9404\n") ==
        "c:1: metricsListen: '9404' is not accepted; accepted: " + forms + ", or an empty text for none");
  CHECK(error("polcy: fgd\n") ==
        "c:1: polcy: this key is unknown; accepted: claims, kubeconfig, listen, log, metricsListen, otherPods, policy, "
        "volcanoListen");
  CHECK(ParseExtenderConfig("claims: true\n", "c")->claims);
  CHECK(ParseExtenderConfig("otherPods: true\n", "c")->other_pods);
  CHECK_FALSE((ParseExtenderConfig("", "c")->claims || ParseExtenderConfig("", "c")->other_pods));
  CHECK(error("claims: maybe\n") == "c:1: claims: 'maybe' is not accepted; accepted: true, false");
  CHECK(error("claims: [true]\n") == "c:1: claims: a list is not accepted; accepted: true, false");
  const auto log = ParseExtenderConfig("log: {format: json, level: debug}\n", "c");
  REQUIRE(log.ok());
  CHECK((log->log_format == LogFormat::kJson && log->log_level == LogLevel::kDebug));
  CHECK(error("log: json\n") == "c:1: log: 'json' is not accepted; accepted: a map of keys and values");
  CHECK(error("log: {format: xml}\n") == "c:1: log.format: 'xml' is not accepted; accepted: text, json");
  CHECK(error("log: {level: loud}\n") == "c:1: log.level: 'loud' is not accepted; accepted: error, warn, info, debug");
  CHECK(error("log: {colour: red}\n") == "c:1: log.colour: this key is unknown; accepted: format, level");
  CHECK(error("claims: true\npolicy: tight\n") ==
        "c:2: policy: 'tight' is not accepted; accepted: look-ahead, fgd, best-fit, spread");
  for (const std::string listen : {"here", "h:70000", "127.0.0.1:70000", "::1:80", "localhost:80"}) {
    CHECK(error(("listen: \"" + listen + "\"\n").c_str()) ==
          "c:1: listen: '" + listen + "' is not accepted; accepted: " + forms);
  }
  CHECK(error("- a\n") == "c:1: the file: a list is not accepted; accepted: a map of keys and values");
  CHECK(error("policy: [a]\n") == "c:1: policy: a list is not accepted; accepted: look-ahead, fgd, best-fit, spread");
}

TEST_CASE("old requests fade, and the policy follows the mix and its name") {
  RequestLog log;
  for (int i = 0; i < 20000; ++i) log.Add({.cards = 1, .units = 30});
  const RequestMix mix = log.Mix();
  CHECK(mix[0].request.units == 30);
  CHECK(mix[0].weight > 0.99);
  const auto maker = *PolicyRefresher::Make("best-fit");
  CHECK_FALSE(maker->SetName("none").ok());
  const auto before = maker->policy();
  REQUIRE(maker->SetName("spread").ok());
  while (maker->policy() == before) std::this_thread::yield();
  CHECK_FALSE(PolicyRefresher::Make("none").ok());
}

}  // namespace
}  // namespace sluice::scheduler
