// The plugin's behaviour under any kubelet. Runs with the kubelet in the test's process, and unchanged with the real
// one (test_node.h).
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "deviceplugin/host/files.h"
#include "test/deviceplugin/test_node.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

std::string CardOf(const Admitted& admitted) { return ParseDeviceId(admitted.ids.at(0))->uuid; }

TEST_CASE("contract: pods survive restarts of kubelet and plugin") {
  auto node = TestNode::Make(1, "");
  REQUIRE(node->Admit("stays", 30).refusal == "");
  SECTION("kubelet restarts") { node->RestartKubelet(); }
  SECTION("our socket is deleted") {
    const int before = node->Registrations();
    fs::remove(node->plugin->Path("kubelet/device-plugins/sluice.sock"));
    REQUIRE(node->Await([&] { return node->Registrations() > before; }));
  }
  SECTION("the plugin is killed") {
    node->plugin->Kill();
    REQUIRE(node->AwaitUnits(0, 100));
    node->plugin->Start();
  }
  SECTION("both are killed") {
    node->plugin->Kill();
    node->RestartKubelet();
    node->plugin->Start();
  }
  INFO(node->Log());
  CHECK(node->AwaitUnits(100));
  CHECK(node->Restart("stays") == "");
  CHECK(node->Admit("new", 70).refusal == "");
}

TEST_CASE("contract: a pod gets a share of one card, library, directory and variables") {
  auto node = TestNode::Make(2, "");
  const AdmittedPod pod = node->Admit("one", 50);
  REQUIRE(pod.refusal == "");
  const Admitted& first = pod.containers.at(0);
  CHECK(first.ids.size() == 50);
  const std::string uuid = CardOf(first);
  for (const auto& id : first.ids) CHECK(ParseDeviceId(id)->uuid == uuid);
  const auto& envs = first.response.envs();
  CHECK(envs.at("LD_PRELOAD") == "/opt/sluice/lib/libsluice.so");
  CHECK(envs.at("SLUICE_GPU_FRACTION") == "0.50");
  CHECK(envs.at("NVIDIA_VISIBLE_DEVICES") == "void");
  REQUIRE(first.response.mounts_size() == 2);
  for (const auto& mount : first.response.mounts()) {
    CHECK(mount.read_only());
    CHECK(IsDir(mount.host_path()));
  }
  REQUIRE(first.response.cdi_devices_size() == 1);
  CHECK(first.response.cdi_devices(0).name() == "sluice.dev/gpu=" + uuid);
  // The second half goes to the same card; a whole card then takes the other one.
  const AdmittedPod second = node->Admit("two", 50);
  REQUIRE(second.refusal == "");
  CHECK(CardOf(second.containers.at(0)) == uuid);
  CHECK(node->Admit("three", 100).refusal == "");
  CHECK(node->Allocations().size() == 3);
}

TEST_CASE("contract: a request that no card can hold is refused with a clear message") {
  auto node = TestNode::Make(2, "");
  REQUIRE(node->Admit("one", 60).refusal == "");
  REQUIRE(node->Admit("two", 60).refusal == "");
  CHECK_THAT(node->Admit("three", 60).refusal, ContainsSubstring("no GPU of this node has 60 percent free"));
  CHECK_THAT(node->Admit("four", 150).refusal,
             ContainsSubstring("neither a share of one GPU") || ContainsSubstring("unavailable"));
  CHECK(node->Admit("five", 40).refusal == "");
}

TEST_CASE("contract: an init container's units pass to the next container of the pod") {
  auto node = TestNode::Make(2, "");
  const AdmittedPod pod = node->Admit("pod", {{"init", 20, true}, {"main", 20}, {"beside", 30}});
  REQUIRE(pod.refusal == "");
  REQUIRE(pod.containers.size() == 3);
  CHECK(pod.containers[0].ids == pod.containers[1].ids);
  CHECK(pod.containers[0].RunDir() != pod.containers[1].RunDir());
  // More units than the init container had: from the same card.
  const AdmittedPod wider = node->Admit("wider", {{"init", 20, true}, {"main", 40}});
  REQUIRE(wider.refusal == "");
  for (const auto& id : wider.containers[1].ids) CHECK(ParseDeviceId(id)->uuid == CardOf(wider.containers[0]));
}

TEST_CASE("contract: a sidecar keeps its units while the pod's other containers run") {
  auto node = TestNode::Make(1, "");
  const AdmittedPod pod = node->Admit("pod", {{"init", 20, true}, {"side", 20, false, true}, {"main", 20}});
  REQUIRE(pod.refusal == "");
  REQUIRE(pod.containers.size() == 3);
  const Admitted &side = pod.containers[1], &main = pod.containers[2];
  CHECK(side.ids == pod.containers[0].ids);
  std::set<std::string> both(side.ids.begin(), side.ids.end());
  both.insert(main.ids.begin(), main.ids.end());
  CHECK(both.size() == 40);
  CHECK(side.RunDir() != main.RunDir());
  CHECK(node->Restart("pod") == "");
  CHECK(node->Admit("beside", 60).refusal == "");
}

TEST_CASE("contract: unhealthy cards are withdrawn and offered again after recovery") {
  // The long recovery time keeps a faulty card unhealthy until kubelet has reported it.
  auto node = TestNode::Make(2, "recoverSeconds: 3600\n");
  SECTION("a fatal XID") { node->plugin->WriteCards(PluginProcess::Cards(2) + "event 1 GPU-1 79\n"); }
  SECTION("a lost card") { node->plugin->WriteCards("card GPU-0 0 0\ncard GPU-1 1 1 lost\n"); }
  SECTION("a card that disappears") { node->plugin->WriteCards(PluginProcess::Cards(1)); }
  CHECK(node->AwaitUnits(100, 100));
  node->plugin->Configure("recoverSeconds: 1\n");
  node->plugin->WriteCards(PluginProcess::Cards(2));
  CHECK(node->AwaitUnits(200));
}

TEST_CASE("contract: old responses stay valid after an upgrade of the plugin") {
  auto node = TestNode::Make(1, "collectSeconds: 1\ncollectGraceSeconds: 2\n");
  const AdmittedPod pod = node->Admit("old", 30);
  REQUIRE(pod.refusal == "");
  const Admitted& given = pod.containers.at(0);
  const std::string old_lib = given.response.mounts(0).host_path();
  node->plugin->Kill();
  std::ofstream(node->plugin->Path("src/libsluice_engine.so")) << "engine of the next version";
  REQUIRE(node->AwaitUnits(0, 100));
  node->plugin->Start();
  REQUIRE(node->AwaitUnits(100));
  CHECK(node->Restart("old") == "");
  const AdmittedPod next = node->Admit("next", 30);
  REQUIRE(next.refusal == "");
  CHECK(next.containers.at(0).response.mounts(0).host_path() != old_lib);
  CHECK(IsFile(old_lib + "/libsluice.so"));
  // Kubelet removes the first pod's entry at the next admission. Then nothing refers to the old version.
  node->Delete("old");
  REQUIRE(node->Admit("last", 5).refusal == "");
  INFO(node->Log());
  CHECK(node->Await([&] { return !fs::exists(old_lib); }));
  CHECK(node->Await([&] { return !fs::exists(given.RunDir()); }));
  CHECK(IsDir(next.containers.at(0).RunDir()));
}

TEST_CASE("contract: a container whose directory is incomplete is not restarted") {
  auto node = TestNode::Make(1, "");
  const AdmittedPod pod = node->Admit("pod", 30);
  REQUIRE(pod.refusal == "");
  fs::remove(pod.containers.at(0).RunDir() + "/allocation.json");
  CHECK_THAT(node->Restart("pod"), ContainsSubstring("allocation.json is missing"));
}

TEST_CASE("contract: a plugin that starts restores allocations that the disk has lost") {
  auto node = TestNode::Make(1, "");
  const AdmittedPod pod = node->Admit("pod", 30);
  REQUIRE(pod.refusal == "");
  node->plugin->Kill();
  REQUIRE(node->AwaitUnits(0, 100));
  fs::remove(pod.containers.at(0).RunDir() + "/allocation.json");
  node->plugin->Start();
  REQUIRE(node->AwaitUnits(100));
  CHECK(node->Restart("pod") == "");
}

TEST_CASE("contract: a card that another plugin offers is not offered, unless coexist allows it") {
  auto node = TestNode::Make(2, "");
  node->OfferFromOtherPlugin("nvidia.com/gpu", {"GPU-1::0", "GPU-1::1"});
  CHECK(node->AwaitUnits(100));
  CHECK(node->Await(
      [&] { return ReadFile(node->plugin->Path("run/plugin.json"))->find("coexist: allow") != std::string::npos; }));
  node->plugin->Configure("coexist: allow\n");
  CHECK(node->AwaitUnits(200));
}

TEST_CASE("contract: the directories and units of deleted pods are freed") {
  auto node = TestNode::Make(2, "collectSeconds: 1\ncollectGraceSeconds: 2\n");
  for (int i = 0; i < 5; ++i) REQUIRE(node->Admit("pod-" + std::to_string(i), 5).refusal == "");
  CHECK(node->Allocations().size() == 5);
  for (int i = 0; i < 5; ++i) node->Delete("pod-" + std::to_string(i));
  INFO(node->Log());
  CHECK(node->Await([&] { return node->Allocations().empty(); }));
  CHECK(node->Admit("whole", 200).refusal == "");
}

}  // namespace
}  // namespace sluice::deviceplugin
