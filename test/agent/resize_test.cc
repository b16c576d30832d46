// Another size for running pods: the share of each, and the rest that is free for others.
#include "agent/kubernetes/resize.h"

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

namespace sluice::agent {
namespace {

using Json = nlohmann::json;

constexpr Bytes kGiB = Bytes{1} << 30;

Json Asks(int units) { return {{"limits", {{"sluice.dev/gpu-percent", std::to_string(units)}}}}; }

// A pod with one container "main" of so many units.
PodRecord Pod(const std::string& uid, int units, Json annotations, const std::string& phase = "Running") {
  return ReadPodRecord(
      {{"metadata", {{"uid", uid}, {"name", uid}, {"namespace", "t"}, {"annotations", annotations}}},
       {"spec", {{"nodeName", "n"}, {"containers", {{{"name", "main"}, {"image", "i"}, {"resources", Asks(units)}}}}}},
       {"status", {{"phase", phase}}}},
      true);
}

Json Fraction(const std::string& value) { return {{"sluice.dev/gpu-fraction", value}}; }

Json Memory(const std::string& value, const std::string& marker) {
  return {{"sluice.dev/gpu-memory", value}, {"sluice.dev/injected", marker}};
}

deviceplugin::CheckpointEntry Given(const std::string& pod, const std::string& gpu, int first, int units,
                                    const std::string& container = "main") {
  deviceplugin::CheckpointEntry given{pod, container, {}, "/alloc/" + pod + container, "", {}};
  for (int i = first; i < first + units; ++i) given.device_ids.push_back(gpu + "::" + std::to_string(i));
  return given;
}

struct World {
  std::vector<CardStatus> cards;
  GivenOut given;
  Pods pods;
  SizeGrants grants;

  explicit World(std::vector<std::string> gpus) {
    for (const std::string& gpu : gpus) {
      CardStatus card;
      card.uuid = gpu;
      card.memory = 80 * kGiB;
      cards.push_back(card);
    }
  }
  void Run(const std::string& uid, const std::string& gpu, int first, int units, const Json& annotations) {
    pods[uid] = Pod(uid, units, annotations);
    given.push_back(Given(uid, gpu, first, units));
  }
  void Annotate(const std::string& uid, int units, const Json& annotations) {
    pods[uid] = Pod(uid, units, annotations);
  }
  const SizeGrants& Decide() { return grants = GrantSizes(cards, given, pods, grants); }
  uint32_t Percent(const std::string& uid) const { return grants.at(uid).at("main").percent; }
  int Free(const std::string& gpu) const { return UseOfCards(given, pods, grants)[gpu].Free(); }
  Json Node() const { return Json::parse(NodeAnnotation(cards, UseOfCards(given, pods, grants), {})); }
  Json File() const { return Json::parse(Reservations(pods, UseOfCards(given, pods, grants)))["pods"]; }
};

}  // namespace

TEST_CASE("pods whose annotations give their units have no answer, and their GPU is as before") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.5"));
  CHECK(w.Decide().empty());
  CHECK(w.Node()[0]["free"] == 50);
  CHECK(!w.File()[0].contains("grown"));
}

TEST_CASE("growth gets the free memory of the GPU, and no other pod gets it then") {
  World w({"GPU-1", "GPU-2"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.5"));
  w.Run("b", "GPU-1", 50, 20, Fraction("0.2"));
  w.Annotate("a", 50, Fraction("0.7"));
  w.Decide();
  CHECK(w.Percent("a") == 70);
  CHECK(w.Node()[0]["free"] == 10);
  CHECK(w.Node()[0]["pods"] == Json{{"a", {{"main", 50}}}, {"b", {{"main", 20}}}});
  CHECK(w.Node()[1]["free"] == 100);
  CHECK(w.File()[0]["grown"] == Json{{"GPU-1", 20}});
  CHECK(FormatGranted(w.grants.at("a")) == R"({"main":{"percent":70,"requested":70}})");
  CHECK(!DescribeGrant("main", w.grants.at("a").at("main")).waits);

  w.Annotate("a", 50, Fraction("0.9"));  // more than is free: what there is
  w.Decide();
  CHECK(w.Percent("a") == 80);
  CHECK(w.Free("GPU-1") == 0);
  const ResizeText answer = DescribeGrant("main", w.grants.at("a").at("main"));
  CHECK(answer.waits);
  CHECK(answer.message.starts_with("container main requests 0.9 of GPU GPU-1 and has 0.8: "));

  w.pods.erase("b");  // it ends: the rest follows
  w.Decide();
  CHECK(w.Percent("a") == 90);
  CHECK(w.Free("GPU-1") == 10);
}

TEST_CASE("a share of several GPUs grows as far as all of them have room") {
  World w({"GPU-1", "GPU-2"});
  const auto annotations = [](const std::string& fraction) {
    Json out = Fraction(fraction);
    out["sluice.dev/gpu-count"] = "2";
    out["sluice.dev/injected"] = R"({"containers":{"main":{"percent":50,"cards":2}}})";
    return out;
  };
  w.pods["a"] = Pod("a", 100, annotations("0.5"));
  deviceplugin::CheckpointEntry both = Given("a", "GPU-1", 0, 50);
  for (const std::string& id : Given("a", "GPU-2", 0, 50).device_ids) both.device_ids.push_back(id);
  w.given.push_back(both);
  w.Run("b", "GPU-2", 50, 30, Fraction("0.3"));
  CHECK(w.Decide().empty());
  CHECK(w.Free("GPU-1") == 50);
  CHECK(w.Free("GPU-2") == 20);

  w.Annotate("a", 100, annotations("0.6"));
  w.Decide();
  CHECK(w.Percent("a") == 60);
  CHECK(w.Free("GPU-1") == 40);
  CHECK(w.Free("GPU-2") == 10);
  CHECK(w.File()[0]["grown"] == Json{{"GPU-1", 10}, {"GPU-2", 10}});

  w.Annotate("a", 100, annotations("0.9"));  // GPU-2 has no more than 0.7
  w.Decide();
  CHECK(w.Percent("a") == 70);
  CHECK(w.Free("GPU-1") == 30);
  CHECK(DescribeGrant("main", w.grants.at("a").at("main")).message.find("0.9 of each of 2 GPUs") != std::string::npos);

  w.Annotate("a", 100, annotations("0.2"));
  w.Decide();
  CHECK(w.Percent("a") == 20);
  CHECK(w.pods["a"].errors.empty());
  CHECK(w.pods["a"].facts.containers.front().cards == 2);
}

TEST_CASE("a shrunk pod keeps its units, and another one may grow into the rest") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.3"));
  w.Run("b", "GPU-1", 50, 50, Fraction("0.7"));
  w.Decide();
  CHECK(w.Percent("a") == 30);
  CHECK(w.Percent("b") == 70);
  CHECK(w.Free("GPU-1") == 0);  // kubelet has no unit left
  w.Annotate("a", 50, Fraction("0.45"));
  w.Decide();  // its own units come back before another one's growth
  CHECK(w.Percent("a") == 45);
  CHECK(w.Percent("b") == 55);
  w.Annotate("a", 50, Fraction("0.6"));
  w.Decide();
  CHECK(w.Percent("a") == 50);
  CHECK(w.Percent("b") == 50);
  CHECK(!w.File()[0].contains("grown"));
}

TEST_CASE("a shrunk pod alone frees no unit for the scheduler") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.2"));
  w.Decide();
  CHECK(w.Percent("a") == 20);
  CHECK(w.Free("GPU-1") == 50);
  CHECK(w.File()[0]["grown"] == Json{{"GPU-1", -30}});
}

TEST_CASE("units that kubelet gave meanwhile go before growth") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.9"));
  w.Decide();
  CHECK(w.Percent("a") == 90);
  w.Run("b", "GPU-1", 50, 30, Fraction("0.3"));  // the plugin had not heard of the growth
  w.Decide();
  CHECK(w.Percent("a") == 70);
}

TEST_CASE("growth leaves the reservations of pods that are about to start") {
  World w({"GPU-1", "GPU-2"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.5"));
  w.pods["new"] = Pod(
      "new", 30, {{"sluice.dev/gpu-fraction", "0.3"}, {"sluice.dev/placement", R"({"main":["GPU-1"]})"}}, "Pending");
  w.Annotate("a", 50, Fraction("1"));
  w.Decide();
  CHECK(w.Percent("a") == 70);
  w.given.push_back(Given("new", "GPU-1", 50, 30));
  w.Decide();
  CHECK(w.Percent("a") == 70);
  // Another scheduler's pod may get any GPU.
  w.pods["any"] = Pod("any", 20, Fraction("0.2"), "Pending");
  w.Decide();
  CHECK(w.Percent("a") == 50);
  w.given.push_back(Given("any", "GPU-2", 0, 20));
  w.Decide();
  CHECK(w.Percent("a") == 70);
}

TEST_CASE("the share that grew first keeps its size, also over a restart of the agent") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 30, Fraction("0.3"));
  w.Run("b", "GPU-1", 30, 30, Fraction("0.6"));
  w.Decide();
  REQUIRE(w.Percent("b") == 60);
  w.Annotate("a", 30, Fraction("0.6"));
  w.Decide();
  CHECK(w.Percent("b") == 60);
  CHECK(w.Percent("a") == 40);
  // A new agent knows the annotations alone.
  Json a = Fraction("0.6"), b = Fraction("0.6");
  a["sluice.dev/granted"] = FormatGranted(w.grants.at("a"));
  b["sluice.dev/granted"] = FormatGranted(w.grants.at("b"));
  w.Annotate("a", 30, a);
  w.Annotate("b", 30, b);
  w.grants.clear();
  w.Decide();
  CHECK(w.Percent("b") == 60);
  CHECK(w.Percent("a") == 40);
}

TEST_CASE("growth that waits is served in the order in which it was asked for") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 30, Fraction("0.3"));
  w.Run("b", "GPU-1", 30, 30, Fraction("0.5"));
  w.Run("c", "GPU-1", 60, 40, Fraction("0.4"));
  w.Decide();
  CHECK(w.Percent("b") == 30);
  w.Annotate("a", 30, Fraction("0.5"));  // first by name, second by time
  w.Decide();
  w.pods.erase("c");
  w.given.pop_back();
  w.Run("d", "GPU-1", 60, 15, Fraction("0.15"));
  w.Decide();
  CHECK(w.Percent("b") == 50);
  CHECK(w.Percent("a") == 35);
}

TEST_CASE("bytes grow as percents of the container's own GPU do") {
  World w({"GPU-1"});
  const std::string computed =
      R"({"containers":{"main":{"percent":25,"memory":21474836480,"units":"computed"}}})";  // 20 GiB of 80
  w.Run("a", "GPU-1", 0, 25, Memory("20Gi", computed));
  CHECK(w.Decide().empty());
  w.Annotate("a", 25, Memory("40Gi", computed));
  w.Decide();
  CHECK(w.Percent("a") == 50);
  CHECK(w.grants.at("a").at("main").memory == 40 * kGiB);
  CHECK(w.Free("GPU-1") == 50);
  w.Run("b", "GPU-1", 25, 60, Fraction("0.6"));
  w.Decide();
  CHECK(w.Percent("a") == 40);
  CHECK(w.grants.at("a").at("main").memory == 80 * kGiB * 40 / 100);
  w.Annotate("a", 25, Memory("100Gi", computed));  // the webhook was down
  w.Decide();
  CHECK(DescribeGrant("main", w.grants.at("a").at("main")).waits);
  w.Annotate("a", 25, Memory("8Gi", computed));
  w.Decide();
  CHECK(w.Percent("a") == 10);
  CHECK(w.grants.at("a").at("main").memory == 8 * kGiB);
  // Units that the user chose beside the bytes stay.
  const std::string chosen = R"({"containers":{"main":{"percent":25,"memory":1073741824}}})";
  w.Annotate("a", 25, Memory("10Gi", chosen));
  w.Decide();
  CHECK(w.Percent("a") == 25);
  CHECK(w.grants.at("a").at("main").memory == 10 * kGiB);
}

TEST_CASE("an init container and the one that takes over its units count once") {
  World w({"GPU-1"});
  const auto pod = [](const std::string& fraction) {
    return ReadPodRecord(
        {{"metadata", {{"uid", "a"}, {"name", "a"}, {"namespace", "t"}, {"annotations", Fraction(fraction)}}},
         {"spec",
          {{"initContainers", {{{"name", "load"}, {"image", "i"}, {"resources", Asks(50)}}}},
           {"containers", {{{"name", "main"}, {"image", "i"}, {"resources", Asks(50)}}}}}},
         {"status", {{"phase", "Running"}}}},
        false);
  };
  w.pods["a"] = pod("0.5");
  w.given = {Given("a", "GPU-1", 0, 50, "load"), Given("a", "GPU-1", 0, 50)};
  CHECK(w.Decide().empty());
  CHECK(w.Free("GPU-1") == 50);
  w.Run("b", "GPU-1", 50, 20, Fraction("0.2"));
  w.pods["a"] = pod("0.8");
  w.Decide();
  CHECK(w.grants.at("a").at("load").percent == 80);
  CHECK(w.Percent("a") == 80);
  CHECK(w.Free("GPU-1") == 0);
}

TEST_CASE("a container on whole GPUs keeps them, and a wrong size changes nothing") {
  World w({"GPU-1", "GPU-2"});
  w.pods["a"] = Pod("a", 200, Fraction("2"));
  w.given = {Given("a", "GPU-1", 0, 100)};
  const auto second = Given("a", "GPU-2", 0, 100);
  w.given[0].device_ids.insert(w.given[0].device_ids.end(), second.device_ids.begin(), second.device_ids.end());
  CHECK(w.Decide().empty());
  w.Annotate("a", 200, Fraction("0.5"));
  REQUIRE(w.pods["a"].errors.size() == 1);
  CHECK(w.pods["a"].errors.front().find("runs on 2 whole GPUs and keeps this number") != std::string::npos);
  CHECK(w.Decide().empty());
}

TEST_CASE("a pod that returns to its units is told so") {
  World w({"GPU-1"});
  w.Run("a", "GPU-1", 0, 50, Fraction("0.7"));
  w.Decide();
  Json annotations = Fraction("0.5");
  annotations["sluice.dev/granted"] = FormatGranted(w.grants.at("a"));
  w.Annotate("a", 50, annotations);
  w.grants.clear();  // the agent was restarted in between
  w.Decide();
  CHECK(FormatGranted(w.grants.at("a")) == R"({"main":{"percent":50,"requested":50}})");
  CHECK(w.Free("GPU-1") == 50);
}

TEST_CASE("an answer in another form is skipped") {
  for (const char* text : {"", "{", "[]", "7", R"({"main":7})", R"({"main":{"percent":-1,"requested":2}})",
                           R"({"main":{"percent":"70","requested":70}})", R"({"main":{"percent":70}})"}) {
    INFO(text);
    CHECK(ParseGranted(text).empty());
  }
  CHECK(ParseGranted(R"({"main":{"percent":70,"requested":90,"new":1}})").at("main").requested == 90);
}

}  // namespace sluice::agent
