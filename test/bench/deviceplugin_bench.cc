// deviceplugin_bench [CALLS]: latencies that kubelet sees over the socket, on a node of 16 GPUs with 90 % given out,
// beside what the file system alone costs for the same durability. Prints a table and fails on nothing: machines
// differ.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <thread>

#include "deviceplugin.grpc.pb.h"
#include "deviceplugin/channel.h"
#include "deviceplugin/files.h"
#include "test/deviceplugin/fake_kubelet.h"
#include "test/deviceplugin/plugin_process.h"

namespace sluice::deviceplugin {
namespace {

using Clock = std::chrono::steady_clock;

double Ms(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

void Row(const char* what, std::vector<double> ms, const char* goal) {
  std::sort(ms.begin(), ms.end());
  std::printf("%-58s %8.3f %8.3f %8.3f   %s\n", what, ms[ms.size() / 2], ms[ms.size() * 99 / 100], ms.back(), goal);
}

std::vector<double> Time(int calls, const std::function<void(int)>& call) {
  std::vector<double> out;
  for (int i = 0; i < calls; ++i) {
    const auto began = Clock::now();
    call(i);
    out.push_back(Ms(Clock::now() - began));
  }
  return out;
}

long FromStatus(pid_t pid, const std::string& key) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atol(line.c_str() + key.size() + 1);
  }
  return -1;
}

double CpuSeconds(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::vector<std::string> fields((std::istream_iterator<std::string>(rest)), {});
  return (std::atof(fields[11].c_str()) + std::atof(fields[12].c_str())) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void Check(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "deviceplugin_bench: %s\n", status.error_message().c_str());
  std::exit(1);
}

// What Allocate must wait for at least: a folder, a file in it, both durable.
void DurableDirectory(const std::string& root, int i) {
  const std::string dir = root + "/raw-" + std::to_string(i);
  const std::string file = dir + "/allocation.json";
  const bool made = mkdir(dir.c_str(), 0755) == 0;
  std::ofstream(file) << std::string(3000, 'x');
  if (!made || !SyncFile(file).ok() || !SyncDir(dir).ok() || !SyncDir(root).ok()) {
    std::fprintf(stderr, "deviceplugin_bench: %s cannot be written\n", dir.c_str());
    std::exit(1);
  }
}

int Run(int calls) {
  TempDir dir;
  PluginProcess plugin(dir.path());
  FakeKubelet kubelet(dir / "kubelet");
  plugin.Node(PluginProcess::Cards(16));
  plugin.Configure("pollMs: 10000\n");
  kubelet.Start();
  auto began = Clock::now();
  plugin.Start();
  const bool up = kubelet.Await([&] { return kubelet.registrations() == 1; });
  const double to_registered = Ms(Clock::now() - began);
  if (!up || !kubelet.AwaitDevices(1600)) return 1;
  kubelet.Stop();
  began = Clock::now();
  kubelet.Start();
  if (!kubelet.Await([&] { return kubelet.registrations() == 2; })) return 1;
  const double to_again = Ms(Clock::now() - began);
  if (!kubelet.AwaitDevices(1600)) return 1;

  // 90 % given out, in shares of all sizes that leave every card a different rest.
  std::mt19937 random(1);
  std::set<std::string> taken;
  std::vector<std::string> free;
  for (int card = 0; card < 16; ++card) {
    const int rest = card % 2 == 0 ? 4 : 16;
    for (int unit = 0; unit < 100; ++unit) {
      const std::string id = FormatDeviceId("GPU-" + std::to_string(card), unit);
      unit >= rest ? void(taken.insert(id)) : free.push_back(id);
    }
  }
  auto stub = v1beta1::DevicePlugin::NewStub(UnixChannel(kubelet.plugin_dir() + "/sluice.sock"));
  std::vector<std::string> chosen;
  auto prefer = [&](int) {
    std::shuffle(free.begin(), free.end(), random);
    v1beta1::PreferredAllocationRequest request;
    auto* one = request.add_container_requests();
    for (const auto& id : free) one->add_available_deviceids(id);
    one->set_allocation_size(static_cast<int>(1 + random() % 16));
    v1beta1::PreferredAllocationResponse response;
    grpc::ClientContext context;
    Check(stub->GetPreferredAllocation(&context, request, &response));
    const auto& ids = response.container_responses(0).deviceids();
    chosen.assign(ids.begin(), ids.end());
  };
  auto prefer_all = [&](int) {
    v1beta1::PreferredAllocationRequest request;
    auto* one = request.add_container_requests();
    for (const auto& id : taken) one->add_available_deviceids(id);
    one->set_allocation_size(50);
    v1beta1::PreferredAllocationResponse response;
    grpc::ClientContext context;
    Check(stub->GetPreferredAllocation(&context, request, &response));
  };
  auto allocate = [&](int) {
    v1beta1::AllocateRequest request;
    auto* one = request.add_container_requests();
    for (const auto& id : chosen) one->add_devices_ids(id);
    v1beta1::AllocateResponse response;
    grpc::ClientContext context;
    Check(stub->Allocate(&context, request, &response));
  };
  prefer(0), allocate(0);

  std::printf("%-58s %8s %8s %8s   %s\n", "milliseconds, client-side over the socket", "p50", "p99", "max", "goal");
  Row("GetPreferredAllocation, 16 GPUs, 160 of 1,600 units free", Time(calls, prefer), "p99 <= 1");
  Row("GetPreferredAllocation, 1,440 units free", Time(calls, prefer_all), "");
  std::vector<double> served, raw;
  for (int i = 0; i < calls; ++i) {
    prefer(i);
    const auto one = Time(1, allocate), other = Time(1, [&](int) { DurableDirectory(dir / "alloc", i); });
    served.push_back(one[0]);
    raw.push_back(other[0]);
  }
  Row("Allocate, directory and metadata durable", served, "p99 <= 2");
  Row("the file system alone: the same directory, synced", raw, "");
  std::printf("start to registered %.0f ms (goal 500), after kubelet's restart %.0f ms (goal 2000)\n", to_registered,
              to_again);
  const pid_t pid = plugin.pid();
  const double cpu = CpuSeconds(pid);
  const auto rest = Clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(10));
  std::printf("resident %.1f MiB (goal 15), of it private %.1f; CPU at rest %.2f %% (goal 0.1)\n",
              static_cast<double>(FromStatus(pid, "VmRSS")) / 1024,
              static_cast<double>(FromStatus(pid, "RssAnon")) / 1024,
              100e3 * (CpuSeconds(pid) - cpu) / Ms(Clock::now() - rest));
  return 0;
}

}  // namespace
}  // namespace sluice::deviceplugin

int main(int argc, char** argv) { return sluice::deviceplugin::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 1000); }
