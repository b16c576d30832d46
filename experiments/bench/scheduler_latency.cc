// Measures filter, prioritize and bind over HTTP, as one scheduling cycle of kube-scheduler calls them: 1,000 node
// names per call, 8 cards per node, 10,000 pods known. Prints latencies and this process's memory (server, client and
// the test's own copies of the nodes together).
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "scheduler/extender/extender_server.h"
#include "scheduler/placement/random.h"
#include "test/scheduler/fake_cluster.h"

namespace sluice::scheduler {
namespace {

double Millis(std::chrono::steady_clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// Answers at once, because the API server's time for a Binding is not measured here.
class InstantBinder : public Binder {
 public:
  absl::Status Bind(const PodFacts&, const std::string&, const std::map<std::string, std::string>&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<PodFacts> Get(const std::string&, const std::string&) override { return absl::NotFoundError("none"); }
  absl::StatusOr<ClaimFacts> GetClaim(const std::string&) override { return absl::NotFoundError("none"); }
  absl::Status Annotate(const PodFacts&, const std::string&, const std::string&) override { return absl::OkStatus(); }
};

double At(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

long ResidentKib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stol(line.substr(6));
  }
  return 0;
}

int Main(int cycles) {
  constexpr int kNodes = 1000, kPods = 10000;
  static constexpr int kUnits[] = {5, 10, 20, 25, 30, 33, 40, 47, 50, 65, 81, 100};
  const auto policies = *PolicyRefresher::Make("look-ahead");
  ClusterState cluster(*policies);
  InstantBinder binder;
  Extender extender(cluster, binder);
  Random random(1);
  Json names = Json::array();
  ReplaceNodes(cluster, {});
  ReplacePods(cluster, {});
  for (int i = 0; i < kNodes; ++i) {
    std::vector<int> free;
    for (int card = 0; card < 8; ++card) free.push_back(20 * static_cast<int>(random.Below(6)));
    names.push_back("node-" + std::to_string(i));
    cluster.PutNode(ReadNode(MakeNode(names.back(), free)));
  }
  for (int i = 0; i < kPods; ++i) {
    Json pod = MakePod("old-" + std::to_string(i), kUnits[random.Below(12)], std::to_string(1 + random.Below(12)));
    pod["spec"]["nodeName"] = names[random.Below(kNodes)];
    pod["status"] = {{"phase", "Running"}, {"startTime", "2026-01-01T00:00:00Z"}};
    cluster.PutPod(ReadPod(pod));
  }
  const auto server = ExtenderServer::Start({"127.0.0.1", 0}, std::nullopt, extender, cluster);
  if (!server.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(server.status().message()).c_str());
    return 1;
  }
  httplib::Client client("127.0.0.1", (*server)->port());
  client.set_keep_alive(true);
  client.set_tcp_nodelay(true);
  std::vector<double> filter, prioritize, bind, all;
  int bound = 0;
  const std::clock_t cpu_before = std::clock();
  for (int i = 0; i < cycles; ++i) {
    Json pod = MakePod("new-" + std::to_string(i), kUnits[random.Below(12)], std::to_string(1 + random.Below(12)));
    cluster.PutPod(ReadPod(pod));
    const std::string args = Json{{"Pod", pod}, {"NodeNames", names}}.dump();
    const auto t0 = std::chrono::steady_clock::now();
    const auto filtered = client.Post("/filter", args, "application/json");
    const auto t1 = std::chrono::steady_clock::now();
    if (!filtered || filtered->status != 200) return 1;
    const Json fitting = Json::parse(filtered->body)["NodeNames"];
    if (fitting.empty()) continue;
    const std::string fitting_args = Json{{"Pod", pod}, {"NodeNames", fitting}}.dump();
    const auto t2 = std::chrono::steady_clock::now();
    const auto scored = client.Post("/prioritize", fitting_args, "application/json");
    const auto t3 = std::chrono::steady_clock::now();
    if (!scored || scored->status != 200) return 1;
    std::string best;
    for (const Json& host : Json::parse(scored->body)) {
      if (host["Score"] == 10) best = host["Host"];
    }
    const std::string bind_args = Json{
        {"PodName", pod["metadata"]["name"]},
        {"PodNamespace", "default"},
        {"PodUID", pod["metadata"]["uid"]},
        {"Node", best}}.dump();
    const auto t4 = std::chrono::steady_clock::now();
    const auto answer = client.Post("/bind", bind_args, "application/json");
    const auto t5 = std::chrono::steady_clock::now();
    if (!answer || answer->status != 200) return 1;
    bound += Json::parse(answer->body)["Error"] == "";
    pod["spec"]["nodeName"] = best;
    filter.push_back(Millis(t1 - t0));
    prioritize.push_back(Millis(t3 - t2));
    bind.push_back(Millis(t5 - t4));
    all.push_back(filter.back() + prioritize.back() + bind.back());
  }
  std::printf("%d nodes x 8 cards, %d pods known, %zu cycles, %d bound\n", kNodes, kPods, all.size(), bound);
  std::printf("%-12s %10s %10s %10s\n", "ms", "median", "p99", "largest");
  const auto row = [](const char* name, const std::vector<double>& values) {
    std::printf("%-12s %10.2f %10.2f %10.2f\n", name, At(values, 0.5), At(values, 0.99), At(values, 1));
  };
  row("filter", filter);
  row("prioritize", prioritize);
  row("bind", bind);
  row("together", all);
  // On a busy machine this figure varies less. It includes the client, the JSON of the requests and the learning of the
  // policy.
  std::printf("CPU, server and client together: %.2f ms a cycle\n",
              1000.0 * static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC / cycles);
  std::printf("resident: %.1f MiB\n", static_cast<double>(ResidentKib()) / 1024);
  return 0;
}

}  // namespace
}  // namespace sluice::scheduler

int main(int argc, char** argv) { return sluice::scheduler::Main(argc > 1 ? std::atoi(argv[1]) : 1000); }
