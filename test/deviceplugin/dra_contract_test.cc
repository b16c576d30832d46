// The built driver as kubelet and the API server meet it: registration, calls over real sockets, ResourceSlices.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "dra_health_v1.grpc.pb.h"
#include "dra_health_v1alpha1.grpc.pb.h"
#include "test/deviceplugin/dra_rig.h"
#include "test/deviceplugin/fake_kubelet.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;
using Strings = std::vector<std::string>;

int64_t Generation(const DraRig& rig) {
  const auto slices = rig.api.Slices();
  return slices.size() == 1 ? slices[0]["spec"]["pool"]["generation"].get<int64_t>() : -1;
}

TEST_CASE("the driver registers with kubelet and publishes the node's cards") {
  DraRig rig(2);
  rig.driver.Start();
  pluginregistration::PluginInfo info;
  REQUIRE(rig.Register(&info));
  CHECK(info.type() == "DRAPlugin");
  CHECK(info.name() == "sluice.dev");
  CHECK(info.endpoint() == rig.dir / "kubelet/plugins/sluice.dev/dra.sock");
  CHECK(Strings(info.supported_versions().begin(), info.supported_versions().end()) ==
        Strings{"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"});
  REQUIRE(rig.Await([&] { return rig.Published() == Strings{"gpu-0", "gpu-1"}; }));
  const Json slice = rig.api.Slices()[0];
  CHECK(slice["metadata"]["ownerReferences"][0]["uid"] == "node-uid");
  CHECK(slice["spec"]["devices"][0]["attributes"]["uuid"]["string"] == "GPU-0");
}

TEST_CASE("the driver drops the code pages that only its start needed, and works on") {
  DraRig rig(1);
  rig.Start();
  const long at_start = rig.driver.ResidentFileKiB();
  CHECK(rig.Await([&] { return rig.driver.ResidentFileKiB() < at_start * 2 / 3; }));
  rig.api.PutClaim(MakeClaim({"a", "u-1", {"gpu-0"}, "1Gi", "1"}));
  CHECK(rig.Prepare({{"a", "u-1"}}).claims().at("u-1").error().empty());
}

// Each device of the slice with the value of its taint, if any.
Strings Tainted(const DraRig& rig) {
  Strings out;
  for (const Json& slice : rig.api.Slices()) {
    for (const Json& device : slice["spec"]["devices"]) {
      out.push_back(device["name"]);
      if (device.contains("taints")) {
        const Json& taint = device["taints"][0];
        out.back() += " " + taint["key"].get<std::string>() + "=" + taint["value"].get<std::string>() + ":" +
                      taint["effect"].get<std::string>();
      }
    }
  }
  return out;
}

TEST_CASE("an unhealthy card gets a taint, which goes with its recovery, and whose effect follows the configuration") {
  DraRig rig(2, "recoverSeconds: 0\n");
  rig.Start();
  REQUIRE(rig.Await([&] { return rig.Published().size() == 2; }));
  rig.driver.WriteCards(PluginProcess::Cards(1) + "card GPU-1 1 0 lost\n");
  const bool tainted =
      rig.Await([&] { return Tainted(rig).size() == 2 && Tainted(rig)[1].starts_with("gpu-1 sluice.dev/unhealthy="); });
  INFO(rig.driver.Log());
  REQUIRE(tainted);
  CHECK(Tainted(rig)[0] == "gpu-0");
  CHECK(Tainted(rig)[1].ends_with(":NoSchedule"));
  rig.driver.Configure("recoverSeconds: 0\ntaintEffect: NoExecute\n");
  CHECK(rig.Await([&] { return Tainted(rig).back().ends_with(":NoExecute"); }));
  rig.driver.WriteCards(PluginProcess::Cards(2));
  CHECK(rig.Await([&] { return Tainted(rig) == Strings{"gpu-0", "gpu-1"}; }));
}

template <class Service, class Request, class Response>
void CheckHealthStream() {
  DraRig rig(2);
  rig.Start();
  auto stub = Service::NewStub(UnixChannel(rig.endpoint));
  grpc::ClientContext context;
  auto stream = stub->NodeWatchResources(&context, Request());
  Response response;
  REQUIRE(stream->Read(&response));
  REQUIRE(response.devices_size() == 2);
  CHECK(response.devices(0).device().pool_name() == "node-1");
  CHECK(response.devices(0).device().device_name() == "gpu-0");
  CHECK(static_cast<int>(response.devices(0).health()) == 1);
  CHECK(std::abs(response.devices(0).last_updated_time() - std::time(nullptr)) < 300);
  rig.driver.WriteCards(PluginProcess::Cards(2) + "event 1 GPU-1 79\n");
  do {  // a message comes every ten seconds, too
    REQUIRE(stream->Read(&response));
  } while (static_cast<int>(response.devices(1).health()) == 1);
  CHECK(static_cast<int>(response.devices(1).health()) == 2);
  CHECK_THAT(response.devices(1).message(), ContainsSubstring("79"));
  CHECK(static_cast<int>(response.devices(0).health()) == 1);
  // The driver ends although the stream is open.
  CHECK(rig.driver.Terminate() == 0);
  CHECK_FALSE(stream->Read(&response));
}

TEST_CASE("kubelet is told of the cards' health by a stream, in both versions") {
  SECTION("v1") {
    CheckHealthStream<::v1::DRAResourceHealth, ::v1::NodeWatchResourcesRequest, ::v1::NodeWatchResourcesResponse>();
  }
  SECTION("v1alpha1") {
    CheckHealthStream<::v1alpha1::DRAResourceHealth, ::v1alpha1::NodeWatchResourcesRequest,
                      ::v1alpha1::NodeWatchResourcesResponse>();
  }
}

TEST_CASE("without taints the slice follows the cards' health, and is made again when it was deleted") {
  DraRig rig(2);
  rig.api.SetDropsTaints(true);
  rig.Start();
  REQUIRE(rig.Await([&] { return rig.Published().size() == 2; }));
  const int64_t first = Generation(rig);
  rig.driver.WriteCards(PluginProcess::Cards(2) + "event 1 GPU-1 79\n");
  REQUIRE(rig.Await([&] { return rig.Published() == Strings{"gpu-0"}; }));
  CHECK(Generation(rig) > first);
  rig.api.DeleteSlice("node-1-sluice.dev");  // as kubelet does when a driver stays away
  const bool made_again = rig.Await([&] { return rig.Published() == Strings{"gpu-0"}; });
  INFO(rig.driver.Log());
  REQUIRE(made_again);
  const int writes = rig.api.writes();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // ten passes of the reconciler
  CHECK(rig.api.writes() == writes);
}

TEST_CASE("an old slice of the node under another name is removed") {
  DraRig rig(1);
  rig.api.PutSlice(
      {{"metadata", {{"name", "old"}}},
       {"spec",
        {{"driver", "sluice.dev"}, {"pool", {{"name", "node-1"}, {"generation", 9}}}, {"devices", Json::array()}}}});
  rig.Start();
  REQUIRE(rig.Await([&] { return rig.Published() == Strings{"gpu-0"} && rig.api.Slices().size() == 1; }));
  CHECK(Generation(rig) == 10);
}

TEST_CASE("slicesAtExit decides whether the slice outlives the driver") {
  DraRig rig(1);
  rig.Start();
  REQUIRE(rig.Await([&] { return rig.Published().size() == 1; }));
  CHECK(rig.driver.Terminate() == 0);
  CHECK(rig.Published().size() == 1);
  CHECK_FALSE(std::filesystem::exists(rig.RegistrationSocket()));
  rig.driver.Configure("slicesAtExit: delete\n");
  rig.Start();
  REQUIRE(rig.Await([&] { return rig.driver.Log().find("\"msg\":\"registration\"") != std::string::npos; }));
  CHECK(rig.driver.Terminate() == 0);
  CHECK(rig.Published().empty());
}

TEST_CASE("without the feature gate the slice is written once, and the driver says that claims get whole cards") {
  DraRig rig(1);
  rig.api.SetDropsSharing(true);
  rig.Start();
  REQUIRE(rig.Await([&] { return rig.driver.Log().find("claims get whole cards") != std::string::npos; }));
  const int writes = rig.api.writes();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(rig.api.writes() == writes);
}

TEST_CASE("each claim of a call has its own result") {
  DraRig rig(2);
  rig.Start();
  rig.api.PutClaim(MakeClaim({"a", "u-a", {"gpu-0"}, "40Gi", "50"}));
  ClaimOrder wrong{"b", "u-b", {"gpu-0"}, "10Gi", "5", Json::array()};
  wrong.config = {
      {{"source", "FromClaim"}, {"opaque", {{"driver", "sluice.dev"}, {"parameters", {{"prefetch", "on"}}}}}}};
  rig.api.PutClaim(MakeClaim(wrong));
  const auto response = rig.Prepare({{"a", "u-a"}, {"b", "u-b"}, {"c", "u-c"}});
  REQUIRE(response.claims().size() == 3);
  const auto& good = response.claims().at("u-a");
  INFO(good.error());
  REQUIRE(good.devices_size() == 1);
  CHECK(good.devices(0).pool_name() == "node-1");
  CHECK(good.devices(0).device_name() == "gpu-0");
  CHECK(Strings(good.devices(0).request_names().begin(), good.devices(0).request_names().end()) == Strings{"gpu"});
  CHECK(Strings(good.devices(0).cdi_device_ids().begin(), good.devices(0).cdi_device_ids().end()) ==
        Strings{"sluice.dev/claim=u-a", "sluice.dev/gpu=GPU-0"});
  CHECK_THAT(response.claims().at("u-b").error(),
             ContainsSubstring("prefetch: 'on' is not accepted; accepted: off, launch"));
  CHECK_THAT(response.claims().at("u-c").error(), ContainsSubstring("there is no ResourceClaim team/c"));
  CHECK(rig.Folders() == Strings{"claim-u-a"});
  const auto given = rig.Unprepare({{"a", "u-a"}, {"x", "u-x"}});
  CHECK(given.claims().size() == 2);
  CHECK(given.claims().at("u-a").error().empty());
  CHECK(given.claims().at("u-x").error().empty());
  CHECK(rig.Folders().empty());
}

TEST_CASE("a killed driver starts again with its claims, and answers as before") {
  DraRig rig(1);
  rig.Start();
  rig.api.PutClaim(MakeClaim({"a", "u-a", {"gpu-0"}, "40Gi", "50"}));
  rig.api.PutClaim(MakeClaim({"gone", "u-gone", {"gpu-0"}, "40Gi", "50"}));
  const std::string before = rig.Prepare({{"a", "u-a"}}).claims().at("u-a").SerializeAsString();
  REQUIRE(rig.Prepare({{"gone", "u-gone"}}).claims().at("u-gone").error().empty());
  rig.driver.Kill();
  rig.api.DeleteClaim("gone");
  std::filesystem::remove_all(rig.driver.Path("cdi"));  // a reboot
  rig.Start();
  CHECK(rig.Prepare({{"a", "u-a"}}).claims().at("u-a").SerializeAsString() == before);
  CHECK(IsFile(rig.driver.Path("cdi/sluice.dev-claim_u-a.json")));
  // The API server no longer has the other one.
  CHECK(rig.Await([&] { return rig.Folders() == Strings{"claim-u-a"}; }));
}

TEST_CASE("a hook library that a claim mounts stays when another version is installed") {
  DraRig rig(1, "collectSeconds: 1\ncollectGraceSeconds: 0\n");
  rig.Start();
  rig.api.PutClaim(MakeClaim({"a", "u-a", {"gpu-0"}, "40Gi", "50"}));
  REQUIRE(rig.Prepare({{"a", "u-a"}}).claims().at("u-a").error().empty());
  const auto before = ListDir(rig.driver.Path("lib"));
  REQUIRE(before->size() == 1);
  rig.driver.Terminate();
  REQUIRE(WriteFileAtomically(rig.driver.Path("src/libsluice.so"), "newer", Durable::kNo).ok());
  // Kubelet's checkpoint of device plugins, which must be readable for anything to be removed.
  REQUIRE(WriteFileAtomically(rig.dir / "kubelet/device-plugins/kubelet_internal_checkpoint",
                              R"({"Data":{"PodDeviceEntries":null}})", Durable::kNo)
              .ok());
  rig.Start();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // two collections
  CHECK(ListDir(rig.driver.Path("lib"))->size() == 2);
  REQUIRE(rig.Unprepare({{"a", "u-a"}}).claims().at("u-a").error().empty());
  CHECK(rig.Await([&] { return ListDir(rig.driver.Path("lib"))->size() == 1; }));
  CHECK_FALSE(IsDir(rig.driver.Path("lib/" + before->front())));
}

TEST_CASE("kubelets that speak v1beta1 are served too") {
  DraRig rig(1);
  rig.Start();
  rig.api.PutClaim(MakeClaim({"a", "u-a", {"gpu-0"}, "40Gi", "50"}));
  auto stub = drav1beta1::DRAPlugin::NewStub(UnixChannel(rig.endpoint));
  drav1beta1::NodePrepareResourcesRequest request;
  auto* claim = request.add_claims();
  claim->set_namespace_("team");
  claim->set_name("a");
  claim->set_uid("u-a");
  drav1beta1::NodePrepareResourcesResponse response;
  grpc::ClientContext context;
  REQUIRE(stub->NodePrepareResources(&context, request, &response).ok());
  CHECK(response.claims().at("u-a").devices(0).cdi_device_ids(0) == "sluice.dev/claim=u-a");
}

TEST_CASE("the driver waits while the device plugin has the node") {
  DraRig rig(1);
  const int lock = open(rig.driver.Path("kubelet/device-plugins").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(flock(lock, LOCK_EX | LOCK_NB) == 0);  // as the device plugin does
  rig.driver.Start();
  REQUIRE(
      rig.Await([&] { return rig.driver.Log().find("waiting for the device plugin to end") != std::string::npos; }));
  CHECK(rig.Published().empty());
  CHECK_FALSE(std::filesystem::exists(rig.RegistrationSocket()));
  close(lock);
  CHECK(rig.Await([&] { return rig.Published().size() == 1; }));
}

TEST_CASE("units that the device plugin's containers still hold are left out of the slice until they end") {
  DraRig rig(1, "collectSeconds: 1\ncollectGraceSeconds: 0\n");
  Json devices = Json::array();
  for (const std::string& id : Ids("GPU-0", 0, 25)) devices.push_back(id);
  const std::string run_dir = rig.driver.Path("alloc/pod-1");
  REQUIRE(MakeDirs(run_dir).ok());
  REQUIRE(WriteFileAtomically(run_dir + "/allocation.json",
                              Json{{"version", 1}, {"id", "pod-1"}, {"devices", devices}}.dump(), Durable::kNo)
              .ok());
  rig.Start();
  const auto memory = [&]() -> std::string {
    const auto slices = rig.api.Slices();
    return slices.empty() || slices[0]["spec"]["devices"].empty()
               ? ""
               : slices[0]["spec"]["devices"][0]["capacity"]["memory"]["value"].get<std::string>();
  };
  CHECK(rig.Await([&] { return memory() == "60Gi"; }));
  // Kubelet's checkpoint no longer names it.
  REQUIRE(WriteFileAtomically(rig.dir / "kubelet/device-plugins/kubelet_internal_checkpoint",
                              R"({"Data":{"PodDeviceEntries":null}})", Durable::kNo)
              .ok());
  CHECK(rig.Await([&] { return memory() == "80Gi"; }));
}

// A node offers its cards in one way at a time, and running pods keep their units through each switch.
TEST_CASE("a node that switches between device plugin and driver drains nothing and gives nothing out twice") {
  DraRig rig(1);
  PluginProcess plugin(rig.dir.path());  // the same files, which its constructor writes anew
  plugin.WriteCards(PluginProcess::Cards(1));
  plugin.Configure("collectSeconds: 1\ncollectGraceSeconds: 0\n");
  FakeKubelet kubelet(rig.dir / "kubelet");
  kubelet.Start();
  plugin.Start();
  REQUIRE(kubelet.AwaitDevices(100));
  const Admitted pod = kubelet.Admit("pod-a", "main", 25);
  REQUIRE(pod.status.ok());
  // The driver comes while the plugin serves: it offers nothing, and prepares nothing.
  rig.driver.Start();
  REQUIRE(
      rig.Await([&] { return rig.driver.Log().find("waiting for the device plugin to end") != std::string::npos; }));
  CHECK(rig.Published().empty());
  CHECK_FALSE(std::filesystem::exists(rig.RegistrationSocket()));
  REQUIRE(plugin.Terminate() == 0);
  pluginregistration::PluginInfo info;
  REQUIRE(rig.Register(&info));
  const auto memory = [&] {
    const auto slices = rig.api.Slices();
    return slices.empty() ? "" : slices[0]["spec"]["devices"][0]["capacity"]["memory"]["value"].get<std::string>();
  };
  CHECK(rig.Await([&] { return memory() == "60Gi"; }));
  CHECK(IsFile(pod.RunDir() + "/allocation.json"));  // the container runs on
  rig.api.PutClaim(MakeClaim({"a", "u-a", {"gpu-0"}, "40Gi", "50"}));
  REQUIRE(rig.Prepare({{"a", "u-a"}}).claims().at("u-a").error().empty());
  rig.api.PutClaim(MakeClaim({"b", "u-b", {"gpu-0"}, "30Gi", "10"}));
  CHECK_THAT(rig.Prepare({{"b", "u-b"}}).claims().at("u-b").error(),
             ContainsSubstring("has 60Gi for claims") && ContainsSubstring("containers of the device plugin"));
  // Back again: the plugin waits for the driver's end, and withholds the units that the claim holds.
  REQUIRE(rig.driver.Terminate() == 0);
  const int before = kubelet.registrations();
  plugin.Start();
  REQUIRE(kubelet.Await([&] { return kubelet.registrations() > before; }));
  const bool withheld = kubelet.AwaitDevices(50, 50);
  INFO(plugin.Log());
  REQUIRE(withheld);
  CHECK(IsFile(rig.driver.Path("alloc/claim-u-a/allocation.json")));
  CHECK(IsFile(pod.RunDir() + "/allocation.json"));
  CHECK(kubelet.Admit("pod-b", "main", 25).status.ok());
  CHECK_THAT(kubelet.AllocateIds(Ids("GPU-0", 75, 100)).error_message(),
             ContainsSubstring("held by claims of Dynamic Resource Allocation"));
  // The claim ends: the driver would remove its folder.
  REQUIRE(RemoveTree(rig.driver.Path("alloc/claim-u-a")).ok());
  CHECK(kubelet.AwaitDevices(100));
}

TEST_CASE("sockets that were removed are made again") {
  DraRig rig(1);
  rig.Start();
  unlink(rig.RegistrationSocket().c_str());
  pluginregistration::PluginInfo info;
  CHECK(rig.Register(&info));
}

TEST_CASE("an API server that is down delays the slice and refuses claims with its reason") {
  DraRig rig(1);
  rig.api.SetDown(true);
  rig.Start();
  CHECK_THAT(rig.Prepare({{"a", "u-a"}}).claims().at("u-a").error(),
             ContainsSubstring("ResourceClaim team/a cannot be read"));
  rig.api.SetDown(false);
  CHECK(rig.Await([&] { return rig.Published().size() == 1; }));
}

}  // namespace
}  // namespace sluice::deviceplugin
