// A share of several GPUs with the built plugin: kubelet's calls, the agent's file, the allocation folder.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/host/files.h"
#include "test/deviceplugin/rig.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

Json Pod(const std::string& uid, int order, int units, int cards) {
  Json container = {{"name", "main"}, {"kind", "regular"}, {"units", units}};
  if (cards > 1) container["cards"] = cards;
  return {{"uid", uid}, {"order", order}, {"containers", Json::array({container})}};
}

// Four cards; NVLink joins GPU-1 with GPU-3.
struct SplitRig : Rig {
  explicit SplitRig(bool extender) {
    plugin.WriteCards("card GPU-0 0 0\ncard GPU-1 1 0 nvlink-a\ncard GPU-2 2 1\ncard GPU-3 3 1 nvlink-a\n");
    plugin.Configure(std::string("driverAccess: nvidia-runtime\nreservationFile: ") +
                     plugin.Path("run/reservations.json") + (extender ? "\nextender: true\n" : "\n"));
    std::filesystem::create_directories(plugin.Path("run"));
    kubelet.Start();
  }
  void Write(const std::vector<Json>& pods) {
    const std::string text = Json{{"version", 1}, {"pods", pods}}.dump();
    REQUIRE(WriteFileAtomically(plugin.Path("run/reservations.json"), text, Durable::kNo).ok());
  }
  std::map<std::string, int> Gpus(const Admitted& pod) {
    std::map<std::string, int> out;
    std::ifstream in(pod.RunDir() + "/allocation.json");
    const Json file = Json::parse(in);
    for (const Json& gpu : file["gpus"]) out[gpu["uuid"]] = gpu["units"];
    return out;
  }
};

using Gpus = std::map<std::string, int>;

TEST_CASE("split: the built plugin gives parts of several GPUs, neighbours by NVLink first") {
  SplitRig rig(GENERATE(false, true));
  rig.Write({Pod("a", 1, 100, 2), Pod("b", 2, 100, 1), Pod("c", 3, 100, 4), Pod("d", 4, 100, 2)});
  rig.StartPlugin(400);
  const Admitted a = rig.kubelet.Admit("a", "main", 100);
  INFO(Text(a.status) << rig.Log());
  REQUIRE(a.status.ok());
  CHECK(rig.Gpus(a) == Gpus{{"GPU-1", 50}, {"GPU-3", 50}});
  CHECK(a.response.envs().at("NVIDIA_VISIBLE_DEVICES") == "GPU-1,GPU-3");
  CHECK(a.response.envs().at("SLUICE_GPU_FRACTION") == "0.50");
  CHECK(a.response.envs().at("SLUICE_GPU_COUNT") == "2");
  const Admitted b = rig.kubelet.Admit("b", "main", 100);
  REQUIRE(b.status.ok());
  CHECK(rig.Gpus(b).size() == 1);
  CHECK_FALSE(b.response.envs().contains("SLUICE_GPU_COUNT"));
  // 25 of each of four: one of them is taken whole.
  CHECK_THAT(Text(rig.kubelet.Admit("c", "main", 100).status), ContainsSubstring("25 percent of each of 4 GPUs"));
  const Admitted d = rig.kubelet.Admit("d", "main", 100);
  REQUIRE(d.status.ok());
  CHECK(rig.Gpus(d) == Gpus{{"GPU-1", 50}, {"GPU-3", 50}});
  CHECK(rig.Allocations().size() == 3);
}

TEST_CASE("split: a container that got another's share does not start") {
  SplitRig rig(false);
  rig.Write({});
  rig.StartPlugin(400);
  // The agent tells of the pod too late.
  const Admitted late = rig.kubelet.Admit("late", "main", 100);
  REQUIRE(late.status.ok());
  CHECK(rig.Gpus(late).size() == 1);
  rig.Write({Pod("late", 1, 100, 2)});
  const bool refused = rig.kubelet.Await([&] {
    return Text(rig.kubelet.PreStart(late.ids)).find("requests 50 percent of each of 2 GPUs") != std::string::npos;
  });
  CHECK(refused);
}

TEST_CASE("split: the state file tells the agent which GPUs NVLink joins") {
  SplitRig rig(false);
  rig.StartPlugin(400);
  std::map<std::string, int> links;
  const bool written = rig.kubelet.Await([&] {
    std::ifstream in(rig.plugin.Path("run/plugin.json"));
    const Json state = Json::parse(in, nullptr, false);
    if (!state.is_object() || state["cards"].size() != 4) return false;
    for (const Json& card : state["cards"]) links[card["uuid"]] = card["nvlink"];
    return true;
  });
  REQUIRE(written);
  CHECK(links["GPU-1"] >= 0);
  CHECK(links["GPU-1"] == links["GPU-3"]);
  CHECK(links["GPU-0"] == -1);
  CHECK(links["GPU-2"] == -1);
}

}  // namespace
}  // namespace sluice::deviceplugin
