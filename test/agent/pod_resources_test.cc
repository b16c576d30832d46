// Kubelet's pod-resources service, over a real socket and gRPC.
#include "agent/pod_resources.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <string>
#include <thread>

#include "podresources.grpc.pb.h"

namespace sluice::agent {
namespace {

class Kubelet : public ::v1::PodResourcesLister::Service {
 public:
  grpc::Status List(grpc::ServerContext*, const ::v1::ListPodResourcesRequest*,
                    ::v1::ListPodResourcesResponse* out) override {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    *out = answer;
    return status;
  }
  ::v1::ListPodResourcesResponse answer;
  grpc::Status status;
  std::chrono::milliseconds delay{0};
};

struct Rig {
  Rig() {
    char path[] = "/tmp/sluice-pod-resources-XXXXXX";
    dir = mkdtemp(path);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + Socket(), grpc::InsecureServerCredentials());
    builder.RegisterService(&kubelet);
    server = builder.BuildAndStart();
  }
  ~Rig() {
    server->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(dir);
  }
  std::string Socket() const { return dir + "/kubelet.sock"; }
  std::string dir;
  Kubelet kubelet;
  std::unique_ptr<grpc::Server> server;
};

TEST_CASE("each of our devices is listed with its container, and no other resource is") {
  Rig rig;
  auto* pod = rig.kubelet.answer.add_pod_resources();
  pod->set_namespace_("team");
  pod->set_name("trainer");
  auto* container = pod->add_containers();
  container->set_name("main");
  auto* ours = container->add_devices();
  ours->set_resource_name("sluice.dev/gpu-percent");
  ours->add_device_ids("GPU-a::3");
  ours->add_device_ids("GPU-a::4");
  auto* others = container->add_devices();
  others->set_resource_name("nvidia.com/gpu");
  others->add_device_ids("GPU-b");
  others->add_device_ids("GPU-c::1");  // a replica of time slicing
  others->add_device_ids("MIG-d");
  auto* nic = container->add_devices();
  nic->set_resource_name("rdma/hca");
  nic->add_device_ids("mlx5_0");
  rig.kubelet.answer.add_pod_resources()->set_name("cpu-only");
  auto* claimed = rig.kubelet.answer.add_pod_resources();
  claimed->set_namespace_("team");
  claimed->set_name("claimed");
  claimed->add_containers()->add_dynamic_resources()->set_claim_name("gpu");
  auto* own = rig.kubelet.answer.add_pod_resources();  // a claim of sluice's own driver, whose card the agent knows
  own->set_namespace_("team");
  own->set_name("share");
  auto* share = own->add_containers()->add_dynamic_resources();
  share->set_claim_name("gpu");
  share->add_claim_resources()->set_driver_name("sluice.dev");
  std::string error;
  OtherOwners elsewhere;
  const auto in_use = ListDevicesInUse(rig.Socket(), 5000, &error, &elsewhere);
  REQUIRE(in_use);
  CHECK(elsewhere ==
        OtherOwners{{"GPU-b", {"team/trainer"}}, {"GPU-c", {"team/trainer"}}, {"", {"team/trainer", "team/claimed"}}});
  CHECK(error.empty());
  CHECK(in_use->size() == 2);
  const DeviceOwner& owner = in_use->at("GPU-a::4");
  CHECK((owner.ns == "team" && owner.pod == "trainer" && owner.container == "main"));
}

TEST_CASE("a missing, slow or refusing kubelet gives a sentence in bounded time") {
  std::string error;
  CHECK_FALSE(ListDevicesInUse("/nonexistent/kubelet.sock", 2000, &error));
  CHECK(error.find("/nonexistent/kubelet.sock") != std::string::npos);
  Rig rig;
  rig.kubelet.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many requests"};
  CHECK_FALSE(ListDevicesInUse(rig.Socket(), 5000, &error));
  CHECK(error.find("too many requests") != std::string::npos);
  rig.kubelet.status = grpc::Status::OK;
  rig.kubelet.delay = std::chrono::seconds(3);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(ListDevicesInUse(rig.Socket(), 200, &error));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2500));
}

}  // namespace
}  // namespace sluice::agent
