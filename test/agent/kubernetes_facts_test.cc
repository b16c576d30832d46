#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "agent/kubernetes/facts.h"
#include "agent/kubernetes/resize.h"

namespace sluice::agent {
namespace {

using Json = nlohmann::json;

Json Pod(const std::string& uid, const Json& annotations, const std::string& phase = "Running") {
  const Json asks = {{"limits", {{"sluice.dev/gpu-percent", "50"}}}};
  return {
      {"metadata", {{"uid", uid}, {"name", "p"}, {"namespace", "team"}, {"annotations", annotations}}},
      {"spec",
       {{"nodeName", "n1"},
        {"initContainers", {{{"name", "load"}, {"image", "i"}, {"resources", asks}}}},
        {"containers", {{{"name", "main"}, {"image", "i"}, {"resources", asks}}, {{"name", "log"}, {"image", "i"}}}}}},
      {"status", {{"phase", phase}}}};
}

CardStatus Card(const std::string& uuid) {
  CardStatus card;
  card.uuid = uuid;
  card.model = "NVIDIA H200";
  card.memory = 1000;
  card.numa = 1;
  return card;
}

deviceplugin::CheckpointEntry Given(const std::string& pod, const std::string& container, const std::string& card,
                                    int first, int last) {
  deviceplugin::CheckpointEntry given{pod, container, {}, "/var/lib/sluice/alloc/pod-" + container, "", {}};
  for (int i = first; i <= last; ++i) given.device_ids.push_back(card + "::" + std::to_string(i));
  return given;
}

}  // namespace

TEST_CASE("an annotation applies to the containers that it names") {
  const PodRecord pod = ReadPodRecord(Pod("u", {{"sluice.dev/memory-limit", "8Gi"},
                                                {"memory-limit.sluice.dev/load", "4Gi"},
                                                {"sluice.dev/compute-limit", "0.5"}}),
                                      false);
  CHECK(pod.errors.empty());
  CHECK(pod.settings.at("main").memory_limit == uint64_t{8} << 30);
  CHECK(pod.settings.at("load").memory_limit == uint64_t{4} << 30);
  CHECK(pod.settings.at("load").compute_limit == 500000u);
  CHECK(!pod.settings.contains("log"));  // it asks for no units
  CHECK(pod.facts.FullName() == "team/p");
  CHECK(!pod.facts.ended);
}

TEST_CASE("a wrong annotation gives a sentence") {
  const PodRecord pod = ReadPodRecord(Pod("u", {{"sluice.dev/memory-limit", "lots"}}), false);
  REQUIRE(pod.errors.size() >= 1);
  CHECK(pod.errors.front().find("sluice.dev/memory-limit: 'lots' is not accepted") == 0);
}

TEST_CASE("gpu-memory without prefix is read only where the webhook reads it") {
  const Json pod = Pod("u", {{"gpu-memory", "1024"}});
  CHECK(ReadPodRecord(pod, true).settings.at("main").gpu_memory == uint64_t{1} << 30);
  CHECK(!ReadPodRecord(pod, false).settings["main"].gpu_memory);
}

TEST_CASE("an object that is not a pod gives an empty record") {
  CHECK(ReadPodRecord(Json::array(), false).facts.uid.empty());
}

TEST_CASE("the node's annotation counts the units of running pods once") {
  Pods pods;
  pods["a"] = ReadPodRecord(Pod("a", Json::object()), false);
  pods["b"] = ReadPodRecord(Pod("b", Json::object(), "Succeeded"), false);
  // The container reuses the init container's units; pod b has ended; pod c is deleted.
  const GivenOut given = {Given("a", "load", "GPU-1", 0, 49), Given("a", "main", "GPU-1", 0, 49),
                          Given("b", "main", "GPU-1", 50, 69), Given("c", "main", "GPU-2", 0, 9)};
  const Json out =
      Json::parse(NodeAnnotation({Card("GPU-1"), Card("GPU-2"), Card("GPU-3")}, UseOfCards(given, pods, {}),
                                 {{"GPU-3", {"not-offered", "MIG is on"}}, {"GPU-1", {"healthy", ""}}}));
  REQUIRE(out.size() == 3);
  CHECK(out[0] == Json{{"uuid", "GPU-1"},
                       {"model", "NVIDIA H200"},
                       {"memory", 1000},
                       {"numa", 1},
                       {"free", 50},
                       {"pods", {{"a", {{"load", 50}, {"main", 50}}}}}});
  CHECK(out[1]["free"] == 100);
  CHECK(out[1]["pods"] == Json::object());
  CHECK(out[2]["free"] == 0);
}

TEST_CASE("reservations list every pod that asks for units and has not ended") {
  Pods pods;
  pods["a"] = ReadPodRecord(Pod("a", {{"sluice.dev/placement", R"({"main":["GPU-1"],"load":["GPU-1"]})"}}), false);
  pods["b"] = ReadPodRecord(Pod("b", {{"sluice.dev/placement", "garbage"}}, "Pending"), false);
  pods["c"] = ReadPodRecord(Pod("c", Json::object(), "Failed"), false);
  pods["d"] = ReadPodRecord(
      {{"metadata", {{"uid", "d"}}}, {"spec", {{"containers", {{{"name", "x"}, {"image", "i"}}}}}}}, false);
  const Json containers = {{{"name", "load"}, {"kind", "init"}, {"units", 50}},
                           {{"name", "main"}, {"kind", "regular"}, {"units", 50}}};
  CHECK(Json::parse(Reservations(pods, {})) ==
        Json{{"version", 1},
             {"pods",
              {{{"uid", "a"}, {"containers", containers}, {"placement", {{"main", {"GPU-1"}}, {"load", {"GPU-1"}}}}},
               {{"uid", "b"}, {"containers", containers}}}}});
}

TEST_CASE("reservations name the cards of a split share, and the order in which the watch showed the pods") {
  Json split = Pod("a", {{"sluice.dev/gpu-count", "2"},
                         {"sluice.dev/injected",
                          R"({"containers":{"main":{"percent":25,"cards":2},"load":{"percent":25,"cards":2}}})"}});
  Pods pods;
  pods["a"] = ReadPodRecord(split, false);
  CHECK(pods["a"].errors.empty());
  pods["a"].order = 3;
  const Json entry = Json::parse(Reservations(pods, {}))["pods"][0];
  CHECK(entry["order"] == 3);
  CHECK(entry["containers"][0]["cards"] == 2);
  CHECK(entry["containers"][1]["units"] == 50);
}

TEST_CASE("pods keep their number, and those of a new list follow by age") {
  const auto of_age = [](const std::string& uid, const std::string& created) {
    Json pod = Pod(uid, Json::object());
    pod["metadata"]["creationTimestamp"] = created;
    return ReadPodRecord(pod, false);
  };
  Pods before, now;
  before["known"] = of_age("known", "2026-01-09T00:00:00Z");
  before["known"].order = 4;
  uint64_t last = 4;
  now["a"] = of_age("a", "2026-01-03T00:00:00Z");
  now["b"] = of_age("b", "2026-01-01T00:00:00Z");
  now["known"] = of_age("known", "2026-01-09T00:00:00Z");
  NumberPods(before, &last, &now);
  CHECK(now["known"].order == 4);
  CHECK(now["b"].order == 5);
  CHECK(now["a"].order == 6);
  CHECK(last == 6);
}

TEST_CASE("the node's annotation tells which GPUs NVLink joins") {
  const PluginCards plugin = ReadPluginState(
      R"({"cards":[{"uuid":"GPU-1","state":"healthy","nvlink":0},{"uuid":"GPU-2","state":"healthy","nvlink":-1}]})");
  const Json out = Json::parse(NodeAnnotation({Card("GPU-1"), Card("GPU-2")}, {}, plugin));
  CHECK(out[0]["nvlink"] == 0);
  CHECK(!out[1].contains("nvlink"));
}

TEST_CASE("the plugin's state file is read, and other text gives no GPUs") {
  const PluginCards cards = ReadPluginState(R"({"cards":[{"uuid":"GPU-1","state":"not-offered","detail":"d"},{}]})");
  CHECK(cards.size() == 1);
  CHECK(cards.at("GPU-1").detail == "d");
  CHECK(OfferProblem(R"({"problem":"no NVML","pciGpus":2,"cards":[]})") == "no NVML");
  CHECK(OfferProblem(R"({"problem":"no NVML","pciGpus":0,"cards":[]})").empty());  // a node without GPUs
  CHECK(OfferProblem(R"({"problem":"no NVML"})").empty());                         // of an older plugin
  CHECK(OfferProblem(R"({"cards":[{"uuid":"GPU-1","state":"not-offered","detail":"d"},
                                  {"uuid":"GPU-2","state":"healthy","detail":""}]})") == "GPU GPU-1: d");
  CHECK(OfferProblem("{").empty());
  CHECK(OfferProblem(R"({"problem":7,"pciGpus":"x"})").empty());
  CHECK(ReadPluginState("{").empty());
  CHECK(ReadPluginState(R"({"cards":7})").empty());
}

}  // namespace sluice::agent
