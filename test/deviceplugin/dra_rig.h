// The built sluice-dra-driver, with a kubelet's DRA side and an API server in the test's process.
#ifndef SLUICE_TEST_DEVICEPLUGIN_DRA_RIG_H_
#define SLUICE_TEST_DEVICEPLUGIN_DRA_RIG_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/unix_channel.h"
#include "deviceplugin/host/files.h"
#include "dra_v1.grpc.pb.h"
#include "dra_v1beta1.grpc.pb.h"
#include "pluginregistration.grpc.pb.h"
#include "test/deviceplugin/eager_agents.h"
#include "test/deviceplugin/fake_api.h"
#include "test/deviceplugin/plugin_process.h"

namespace sluice::deviceplugin {

namespace drav1 = k8s::io::kubelet::pkg::apis::dra::v1;
namespace drav1beta1 = k8s::io::kubelet::pkg::apis::dra::v1beta1;

struct DraRig {
  TempDir dir;
  FakeApi api;
  PluginProcess driver{dir.path()};
  std::unique_ptr<EagerAgents> agents;
  std::string endpoint;  // of the last registration
  std::unique_ptr<drav1::DRAPlugin::Stub> stub;

  explicit DraRig(int cards, const std::string& yaml = "") {
    std::filesystem::create_directories(dir / "kubelet/plugins_registry");
    api.WriteKubeconfig(dir / "kubeconfig");
    driver.RunAs(SLUICE_DRA_PROGRAM, {"--kubeconfig", dir / "kubeconfig", "--node-name", "node-1", "--plugins-dir",
                                      dir / "kubelet/plugins", "--registry-dir", dir / "kubelet/plugins_registry"});
    driver.WriteCards(PluginProcess::Cards(cards));
    driver.Configure(yaml);
    agents = std::make_unique<EagerAgents>(driver.Path("alloc"));
  }

  static bool Await(const std::function<bool()>& predicate) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!predicate()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  std::string RegistrationSocket() const { return dir / "kubelet/plugins_registry/sluice.dev-reg.sock"; }

  // Kubelet's plugin watcher: finds the socket, asks, connects, and tells the result. False: no driver came.
  bool Register(pluginregistration::PluginInfo* info) {
    return Await([&] {
      auto registration = pluginregistration::Registration::NewStub(UnixChannel(RegistrationSocket()));
      grpc::ClientContext context, second;
      if (!registration->GetInfo(&context, {}, info).ok()) return false;
      endpoint = info->endpoint();
      stub = drav1::DRAPlugin::NewStub(UnixChannel(endpoint));
      pluginregistration::RegistrationStatus status;
      status.set_plugin_registered(true);
      pluginregistration::RegistrationStatusResponse response;
      return registration->NotifyRegistrationStatus(&second, status, &response).ok();
    });
  }

  void Start() {
    driver.Start();
    pluginregistration::PluginInfo info;
    if (!Register(&info)) throw std::runtime_error("no registration: " + driver.Log());
  }

  using Names = std::vector<std::pair<std::string, std::string>>;  // name and uid

  drav1::NodePrepareResourcesResponse Prepare(const Names& claims) {
    drav1::NodePrepareResourcesRequest request;
    for (const auto& [name, uid] : claims) {
      auto* claim = request.add_claims();
      claim->set_namespace_("team");
      claim->set_name(name);
      claim->set_uid(uid);
    }
    drav1::NodePrepareResourcesResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub->NodePrepareResources(&context, request, &response);
    if (!status.ok()) throw std::runtime_error("NodePrepareResources: " + status.error_message());
    return response;
  }

  drav1::NodeUnprepareResourcesResponse Unprepare(const Names& claims) {
    drav1::NodeUnprepareResourcesRequest request;
    for (const auto& [name, uid] : claims) {
      auto* claim = request.add_claims();
      claim->set_namespace_("team");
      claim->set_name(name);
      claim->set_uid(uid);
    }
    drav1::NodeUnprepareResourcesResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub->NodeUnprepareResources(&context, request, &response);
    if (!status.ok()) throw std::runtime_error("NodeUnprepareResources: " + status.error_message());
    return response;
  }

  std::vector<std::string> Folders() const {
    auto names = ListDir(driver.Path("alloc"));
    return names.ok() ? *names : std::vector<std::string>{};
  }

  // The devices of the published slice by name; empty: there is none.
  std::vector<std::string> Published() const {
    std::vector<std::string> out;
    for (const auto& slice : api.Slices()) {
      for (const auto& device : slice["spec"]["devices"]) out.push_back(device["name"]);
    }
    return out;
  }
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_DRA_RIG_H_
