// Measures the webhook: webhook_bench SLUICE_WEBHOOK GOLDEN_FOLDER [SECONDS]
// Open loop: each request has an intended time, and latency counts from it. A server that stalls cannot hide it.
#include <fcntl.h>
#include <httplib.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "common/tls/rotation.h"
#include "golden.h"
#include "webhook/decision/review.h"

namespace {

using namespace sluice;                 // NOLINT(google-build-using-namespace)
using namespace sluice::webhook;        // NOLINT(google-build-using-namespace): the program measured
using namespace sluice::webhook::test;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

std::string Wrap(const Json& pod, int i) {
  const Json review = {{"apiVersion", "admission.k8s.io/v1"},
                       {"kind", "AdmissionReview"},
                       {"request",
                        {{"uid", "u-" + std::to_string(i)},
                         {"operation", "CREATE"},
                         {"namespace", "team-a"},
                         {"userInfo", {{"username", "system:serviceaccount:kube-system:job-controller"}}},
                         {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
                         {"object", pod}}}};
  return review.dump();
}

long Status(pid_t pid, const std::string& field) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(field + ":")) return std::strtol(line.c_str() + field.size() + 1, nullptr, 10);
  }
  return 0;
}

struct Load {
  std::vector<double> milliseconds;
  size_t good = 0, refused = 0, failed = 0;
  double At(double share) {
    std::sort(milliseconds.begin(), milliseconds.end());
    return milliseconds.empty()
               ? 0
               : milliseconds[static_cast<size_t>(share * static_cast<double>(milliseconds.size() - 1))];
  }
};

Load Run(int port, const std::vector<std::string>& bodies, int rate, int seconds, int connections) {
  const size_t total = static_cast<size_t>(rate) * static_cast<size_t>(seconds);
  std::atomic<size_t> next = 0;
  std::vector<Load> parts(static_cast<size_t>(connections));
  const auto start = Clock::now() + std::chrono::milliseconds(300);
  std::vector<std::jthread> threads;
  for (Load& part : parts) {
    threads.emplace_back([&] {
      httplib::SSLClient client("127.0.0.1", port);
      client.enable_server_certificate_verification(false);
      client.set_keep_alive(true);
      client.set_tcp_nodelay(true);
      client.Get("/healthz");  // makes the handshake before the first measured request
      for (size_t i = 0; (i = next++) < total;) {
        const auto intended =
            start + std::chrono::nanoseconds(static_cast<int64_t>(1e9 / rate * static_cast<double>(i)));
        std::this_thread::sleep_until(intended);
        const auto r = client.Post("/mutate", bodies[i % bodies.size()], "application/json");
        const double ms = std::chrono::duration<double, std::milli>(Clock::now() - intended).count();
        part.milliseconds.push_back(ms);
        if (!r) {
          ++part.failed;
        } else if (r->status == 200) {
          ++part.good;
        } else {
          ++part.refused;
        }
      }
    });
  }
  threads.clear();
  Load all;
  for (const Load& p : parts) {
    all.milliseconds.insert(all.milliseconds.end(), p.milliseconds.begin(), p.milliseconds.end());
    all.good += p.good;
    all.refused += p.refused;
    all.failed += p.failed;
  }
  return all;
}

void Print(const char* what, Load load) {
  std::printf("%s: %zu answered, %zu refused, %zu failed; ms p50 %.2f p90 %.2f p99 %.2f p99.9 %.2f max %.2f\n", what,
              load.good, load.refused, load.failed, load.At(0.5), load.At(0.9), load.At(0.99), load.At(0.999),
              load.At(1));
}

// CPU time of this thread, so that other programs do not count.
double CpuMicroseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double Microseconds(const Json& pod, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const double start = CpuMicroseconds();
    const Decision d = Decide({pod, "team-a", {}, {}});
    times.push_back(CpuMicroseconds() - start);
    if (d.verdict != Verdict::kPatch) std::printf("not patched: %s\n", d.Message().c_str());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int seconds = argc > 3 ? std::atoi(argv[3]) : 60;
  std::vector<std::string> bodies;
  Json typical;
  for (const std::string& path : FindCases(argv[2])) {
    const GoldenCase c = LoadCase(path);
    if (c.documents.size() != 1 || c.documents[0].value("kind", "") != "Pod") continue;
    bodies.push_back(Wrap(c.documents[0], static_cast<int>(bodies.size())));
    if (c.name == "everything") typical = c.documents[0];
  }
  Json wide = typical;
  for (int i = 0; i < 199; ++i) {
    const std::string name = "c" + std::to_string(i);
    wide["spec"]["containers"].push_back({{"name", name}, {"image", "x"}, {"env", {{{"name", "A"}, {"value", "1"}}}}});
    wide["metadata"]["annotations"]["gpu-fraction.sluice.dev/" + name] = "0.01";
  }
  wide["metadata"]["annotations"].erase("sluice.dev/gpu-fraction");
  wide["metadata"]["annotations"]["gpu-fraction.sluice.dev/trainer"] = "0.01";
  std::printf("decision, typical pod: %.0f us; 200 containers, each with a share: %.0f us (medians)\n",
              Microseconds(typical, 2000), Microseconds(wide, 100));

  if (seconds == 0) return 0;
  std::string folder = (std::filesystem::temp_directory_path() / "sluice-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  RotationOptions options;
  options.names = {"localhost"};
  const SecretData secret = Rotate({}, std::chrono::system_clock::now(), {}, options).data;
  std::ofstream(folder + "/c") << secret.at("tls.crt");
  std::ofstream(folder + "/k") << secret.at("tls.key");
  const pid_t pid = fork();
  if (pid == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    execl(argv[1], argv[1], "--cert", (folder + "/c").c_str(), "--key", (folder + "/k").c_str(), "--listen",
          "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--port-file", (folder + "/p").c_str(), "--drain", "0",
          nullptr);
    _exit(127);
  }
  int port = 0;
  for (int i = 0; i < 100 && port == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ifstream(folder + "/p") >> port;
  }
  if (port == 0) return 1;
  std::printf("%zu distinct bodies; idle memory: %ld kB resident, %ld kB of it anonymous\n", bodies.size(),
              Status(pid, "VmRSS"), Status(pid, "RssAnon"));
  Print("1,000/s", Run(port, bodies, 1000, seconds, 16));
  const long before = Status(pid, "VmRSS");
  Print("4,000/s", Run(port, bodies, 4000, std::min(seconds, 15), 64));
  std::printf("memory: %ld kB before the overload, at most %ld kB\n", before, Status(pid, "VmHWM"));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  Print("1,000/s, one second later", Run(port, bodies, 1000, 3, 16));
  kill(pid, SIGTERM);
  waitpid(pid, nullptr, 0);
  std::filesystem::remove_all(folder);
  return 0;
}
