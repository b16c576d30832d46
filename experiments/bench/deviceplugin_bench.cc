// deviceplugin_bench [CALLS]: the latencies that kubelet sees over the socket, on a node of 16 GPUs with 90 % of the
// units given out. Also measures the file system alone for the same durability. Prints a table; sets no limits, since
// machines differ.
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
#include <thread>

#include "common/unix_channel.h"
#include "deviceplugin.grpc.pb.h"
#include "deviceplugin/host/files.h"
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

double Timed(const std::function<grpc::Status()>& call) {
  const auto began = Clock::now();
  const grpc::Status status = call();
  const double ms = Ms(Clock::now() - began);
  if (!status.ok()) {
    std::fprintf(stderr, "deviceplugin_bench: %s\n", status.error_message().c_str());
    std::exit(1);
  }
  return ms;
}

long FromStatus(pid_t pid, const std::string& key) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atol(line.c_str() + key.size() + 1);
  }
  return -1;
}

// CPU time of all threads from the kernel's schedstat: a clock tick is ten times the measured value.
double CpuMs(pid_t pid) {
  double sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream file(task.path() / "schedstat");
    double ns = 0;
    file >> ns;
    sum += ns / 1e6;
  }
  return sum;
}

bool Synced(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool synced = fsync(fd) == 0;
  return close(fd) == 0 && synced;
}

// The extra wait of Allocate if it synced its directory itself.
grpc::Status DurableDirectory(const std::string& root, int i) {
  const std::string dir = root + "/raw-" + std::to_string(i);
  const std::string file = dir + "/allocation.json";
  const bool made = mkdir(dir.c_str(), 0755) == 0;
  std::ofstream(file) << std::string(3000, 'x');
  if (!made || !Synced(file) || !SyncDir(dir).ok() || !SyncDir(root).ok()) {
    return {grpc::StatusCode::INTERNAL, dir + " cannot be written"};
  }
  return grpc::Status::OK;
}

int Run(int calls) {
  TempDir dir;
  PluginProcess plugin(dir.path());
  FakeKubelet kubelet(dir / "kubelet");
  plugin.WriteCards(PluginProcess::Cards(16));
  plugin.Configure("pollMs: 10000\n");
  kubelet.Start();
  const auto missing = [&](const char* awaited) {
    std::fprintf(stderr, "deviceplugin_bench: waited 30 s for %s; the plugin's log:\n%s", awaited,
                 plugin.Log().c_str());
    return 1;
  };
  auto began = Clock::now();
  plugin.Start();
  const bool up = kubelet.Await([&] { return kubelet.registrations() == 1; });
  const double to_registered = Ms(Clock::now() - began);
  if (!up || !kubelet.AwaitDevices(1600)) return missing("the first registration");
  kubelet.Stop();
  began = Clock::now();
  kubelet.Start();
  if (!kubelet.Await([&] { return kubelet.registrations() == 2; })) return missing("registration after a restart");
  const double to_again = Ms(Clock::now() - began);
  if (!kubelet.AwaitDevices(1600)) return missing("1,600 units");
  // A killed kubelet leaves its socket, on which the plugin's attempts fail and back off.
  kubelet.Crash();
  std::this_thread::sleep_for(std::chrono::seconds(5));
  began = Clock::now();
  kubelet.Start();
  if (!kubelet.Await([&] { return kubelet.registrations() == 3; })) return missing("registration after a crash");
  const double after_death = Ms(Clock::now() - began);
  if (!kubelet.AwaitDevices(1600)) return missing("1,600 units");

  // 90 % given out, in shares that leave a different rest on each card.
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
  auto prefer = [&](const auto& available, int size) {
    v1beta1::PreferredAllocationRequest request;
    auto* one = request.add_container_requests();
    for (const auto& id : available) one->add_available_deviceids(id);
    one->set_allocation_size(size);
    v1beta1::PreferredAllocationResponse response;
    grpc::ClientContext context;
    const double ms = Timed([&] { return stub->GetPreferredAllocation(&context, request, &response); });
    const auto& ids = response.container_responses(0).deviceids();
    chosen.assign(ids.begin(), ids.end());
    return ms;
  };
  auto prefer_some = [&] {
    std::shuffle(free.begin(), free.end(), random);
    return prefer(free, static_cast<int>(1 + random() % 16));
  };
  auto allocate = [&] {
    v1beta1::AllocateRequest request;
    auto* one = request.add_container_requests();
    for (const auto& id : chosen) one->add_devices_ids(id);
    v1beta1::AllocateResponse response;
    grpc::ClientContext context;
    return Timed([&] { return stub->Allocate(&context, request, &response); });
  };
  prefer_some(), allocate();

  std::vector<double> preferred, of_many, served, raw;
  for (int i = 0; i < calls; ++i) {
    preferred.push_back(prefer_some());
    served.push_back(allocate());
    of_many.push_back(prefer(taken, 50));
    raw.push_back(Timed([&] { return DurableDirectory(dir / "alloc", i); }));
  }
  std::printf("%-58s %8s %8s %8s   %s\n", "milliseconds, client-side over the socket", "p50", "p99", "max", "goal");
  Row("GetPreferredAllocation, 16 GPUs, 160 of 1,600 units free", preferred, "p99 <= 1");
  Row("GetPreferredAllocation, 1,440 units free", of_many, "");
  Row("Allocate, restored from kubelet's checkpoint if lost", served, "p99 <= 2");
  Row("the same directory, synced", raw, "");
  std::printf(
      "start to registered %.0f ms (goal 500), after kubelet's restart %.0f ms (goal 2000), after a kubelet was down "
      "for 5 "
      "s %.0f ms\n",
      to_registered, to_again, after_death);
  const pid_t pid = plugin.pid();
  const auto rest = std::chrono::seconds(calls >= 1000 ? 60 : 5);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double cpu = CpuMs(pid);
  std::this_thread::sleep_for(rest);
  std::printf("resident %.1f MiB (goal 15), of it private %.1f; CPU at rest %.3f %% over %ld s (goal 0.1)\n",
              static_cast<double>(FromStatus(pid, "VmRSS")) / 1024,
              static_cast<double>(FromStatus(pid, "RssAnon")) / 1024, 100 * (CpuMs(pid) - cpu) / Ms(rest),
              static_cast<long>(rest.count()));
  return 0;
}

}  // namespace
}  // namespace sluice::deviceplugin

int main(int argc, char** argv) { return sluice::deviceplugin::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 1000); }
