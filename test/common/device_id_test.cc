// What kubelet's device ids and resources name. The service itself: test/agent/pod_resources_test.cc.
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "common/kubelet/pod_resources.h"

namespace sluice::kubelet {
namespace {

TEST_CASE("the GPU of a device id") {
  CHECK(GpuOf("GPU-a") == "GPU-a");
  CHECK(GpuOf("GPU-a::17") == "GPU-a");
  for (const char* none : {"MIG-d", "0", "", "nvidia0::1"}) CHECK(GpuOf(none).empty());
  CHECK((IsNvidiaResource("nvidia.com/gpu") && IsNvidiaResource("nvidia.com/mig-1g.5gb")));
  CHECK_FALSE((IsNvidiaResource("sluice.dev/gpu-percent") || IsNvidiaResource("nvidia.company/gpu")));
}

TEST_CASE("only devices of sluice's own resource are visited, with pod and container") {
  Resources resources;
  auto* pod = resources.add_pod_resources();
  pod->set_name("trainer");
  auto* container = pod->add_containers();
  container->set_name("main");
  for (const char* resource : {"sluice.dev/gpu-percent", "nvidia.com/gpu"}) {
    auto* devices = container->add_devices();
    devices->set_resource_name(resource);
    devices->add_device_ids(std::string(resource) + "-1");
    devices->add_device_ids(std::string(resource) + "-2");
  }
  std::vector<std::string> visited;
  ForEachOwnDevice(resources, [&visited](const Pod& of, const Container& in, const std::string& id) {
    visited.push_back(of.name() + "/" + in.name() + "/" + id);
  });
  CHECK(visited ==
        std::vector<std::string>{"trainer/main/sluice.dev/gpu-percent-1", "trainer/main/sluice.dev/gpu-percent-2"});
}

TEST_CASE("a kubelet that is not there is an error that names its socket") {
  const auto held = ListPodResources("/nonexistent/kubelet.sock", std::chrono::seconds(2));
  REQUIRE_FALSE(held.ok());
  CHECK(std::string(held.status().message()).find("/nonexistent/kubelet.sock") != std::string::npos);
  CHECK_FALSE(ListAllocatable("/nonexistent/kubelet.sock", std::chrono::seconds(2)).ok());
}

}  // namespace
}  // namespace sluice::kubelet
