// dra_bench [CALLS]: NodePrepareResources beside the device plugin's Allocate and PreStartContainer, over kubelet's
// sockets, in turns on one machine. Both write an allocation folder, and both end when the agent serves it. Prints the
// ratio; sets no limits, since machines differ.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "deviceplugin.grpc.pb.h"
#include "test/deviceplugin/dra_rig.h"
#include "test/deviceplugin/fake_kubelet.h"

namespace sluice::deviceplugin {
namespace {

using Clock = std::chrono::steady_clock;

struct Row {
  const char* what;
  std::vector<double> ms = {};

  double At(double share) {
    std::sort(ms.begin(), ms.end());
    return ms[std::min(ms.size() - 1, static_cast<size_t>(static_cast<double>(ms.size()) * share))];
  }
  void Print() { std::printf("%-46s %8.3f %8.3f %8.3f\n", what, At(0.5), At(0.99), At(1)); }
};

void Must(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "dra_bench: %s\n", status.error_message().c_str());
  std::exit(1);
}

template <class Call>
double Timed(const Call& call) {
  const auto began = Clock::now();
  call();
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

long ResidentKiB(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atol(line.c_str() + 6);
  }
  return -1;
}

int Run(int calls) {
  TempDir dir;
  PluginProcess plugin(dir.path());
  FakeKubelet kubelet(dir / "kubelet");
  plugin.WriteCards(PluginProcess::Cards(16));
  plugin.Configure("pollMs: 10000\n");
  kubelet.Start();
  EagerAgents agents(plugin.Path("alloc"));
  plugin.Start();
  if (!kubelet.AwaitDevices(1600)) {
    std::fprintf(stderr, "dra_bench: waited 30 s for 1,600 units; the plugin's log:\n%s", plugin.Log().c_str());
    return 1;
  }
  auto stub = v1beta1::DevicePlugin::NewStub(UnixChannel(kubelet.plugin_dir() + "/sluice.sock"));
  DraRig dra(16, "pollMs: 10000\n");
  dra.Start();

  Row allocate{"Allocate"}, start{"Allocate, then PreStartContainer"}, prepare{"NodePrepareResources"},
      again{"NodePrepareResources, prepared before"}, unprepare{"NodeUnprepareResources"};
  for (int i = 0; i < calls; ++i) {
    const std::string card = std::to_string(i % 16), uid = "u-" + std::to_string(i), name = "c" + std::to_string(i);
    // Kubelet gives other units each time; the plugin keeps no account of them.
    const int first = i / 16 % 90;
    v1beta1::AllocateRequest allocation;
    v1beta1::PreStartContainerRequest beginning;
    auto* container = allocation.add_container_requests();
    for (int unit = first; unit < first + 10; ++unit) {
      const std::string id = FormatDeviceId("GPU-" + card, unit);
      container->add_devices_ids(id);
      beginning.add_devices_ids(id);
    }
    allocate.ms.push_back(Timed([&] {
      grpc::ClientContext context;
      v1beta1::AllocateResponse response;
      Must(stub->Allocate(&context, allocation, &response));
    }));
    start.ms.push_back(allocate.ms.back() + Timed([&] {
                         grpc::ClientContext context;
                         v1beta1::PreStartContainerResponse response;
                         Must(stub->PreStartContainer(&context, beginning, &response));
                       }));
    dra.api.PutClaim(MakeClaim({name, uid, {"gpu-" + card}, "1Gi", "1"}));
    const auto call = [&] {
      const auto response = dra.Prepare({{name, uid}});
      if (!response.claims().at(uid).error().empty()) Must({grpc::UNKNOWN, response.claims().at(uid).error()});
    };
    prepare.ms.push_back(Timed(call));
    again.ms.push_back(Timed(call));
    if (i % 2 == 0) unprepare.ms.push_back(Timed([&] { (void)dra.Unprepare({{name, uid}}); }));
  }
  std::printf("%-46s %8s %8s %8s   ms, %d calls, 16 GPUs\n", "", "p50", "p99", "max", calls);
  for (Row* row : {&allocate, &start, &prepare, &again, &unprepare}) row->Print();
  std::printf("NodePrepareResources / (Allocate, then PreStartContainer): p50 %.2f, p99 %.2f\n",
              prepare.At(0.5) / start.At(0.5), prepare.At(0.99) / start.At(0.99));
  std::printf("NodePrepareResources / Allocate alone: p50 %.2f, p99 %.2f\n", prepare.At(0.5) / allocate.At(0.5),
              prepare.At(0.99) / allocate.At(0.99));
  std::printf("resident: sluice-dra-driver %.1f MiB with %d claims, sluice-device-plugin %.1f MiB\n",
              static_cast<double>(ResidentKiB(dra.driver.pid())) / 1024, calls - calls / 2,
              static_cast<double>(ResidentKiB(plugin.pid())) / 1024);
  return 0;
}

}  // namespace
}  // namespace sluice::deviceplugin

int main(int argc, char** argv) { return sluice::deviceplugin::Run(argc > 1 ? std::atoi(argv[1]) : 500); }
