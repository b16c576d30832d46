// Several processes on one card share memory, the driver's eviction, compute and the common clock. The memory of an
// ended process is released.
#include <nvml.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

using Figures = std::map<std::string, double>;

class Tenant {
 public:
  // NOLINTNEXTLINE(bugprone-command-processor): the test's own program
  explicit Tenant(const std::string& arguments) { pipe_ = popen((TENANT " " + arguments).c_str(), "r"); }
  Figures Wait() {
    Figures f;
    char key[64];
    double value;
    while (std::fscanf(pipe_, "%63s %lf", key, &value) == 2) f[key] = value;
    const int status = pclose(pipe_);
    f["status"] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return f;
  }

 private:
  FILE* pipe_;
};

struct SharedCard {
  std::string path;
  explicit SharedCard(const char* tenants) {
    char name[] = "/tmp/simgpu-test-XXXXXX";
    path = name;
    const int fd = mkstemp(path.data());
    close(fd);
    unlink(path.c_str());
    setenv("SIMGPU_STATE", path.c_str(), 1);
    setenv("SIMGPU_PROFILE", "card-8g", 1);
    setenv("SIMGPU_TENANTS", tenants, 1);
    // A slow tenant on a loaded machine must not drop out of the common clock.
    setenv("SIMGPU_PATIENCE_MS", "20000", 1);
  }
  ~SharedCard() {
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".wake");
  }
};

constexpr double kGiB = 1 << 30;

}  // namespace

TEST_CASE("two tenants that fit share compute evenly") {
  SharedCard card("2");
  Tenant a("2 20"), b("2 20");
  const Figures fa = a.Wait(), fb = b.Wait();
  REQUIRE(fa.at("status") == 0);
  REQUIRE(fb.at("status") == 0);
  CHECK(fa.at("fault_bytes") == 0);
  // 20 rounds of 32 launches of 0.5 ms: 320 ms alone, twice that beside an equal tenant.
  CHECK(fa.at("ns") > 500e6);
  CHECK(fa.at("ns") < 720e6);
  CHECK(fb.at("ns") > 500e6);
  CHECK(fb.at("ns") < 720e6);
}

TEST_CASE("two tenants larger than the card evict each other's memory") {
  SharedCard card("2");
  Tenant a("5 3"), b("5 3");
  const Figures fa = a.Wait(), fb = b.Wait();
  REQUIRE(fa.at("status") == 0);
  REQUIRE(fb.at("status") == 0);
  CHECK(fa.at("fault_bytes") > 2 * kGiB);
  CHECK(fb.at("fault_bytes") > 2 * kGiB);
  CHECK(fa.at("card_used_bytes") <= 8 * kGiB);
}

TEST_CASE("two tenants' runs repeat") {
  Figures first;
  for (int i = 0; i < 3; ++i) {
    SharedCard card("2");
    Tenant a("5 3"), b("5.5 3");
    const Figures fa = a.Wait(), fb = b.Wait();
    // The first process to attach gets the first slot. Only this order may differ between runs, so the pair of results
    // must be equal.
    const double sum = fa.at("ns") + fb.at("ns");
    if (i == 0) first["sum"] = sum;
    CHECK(sum > first.at("sum") * 0.999);
    CHECK(sum < first.at("sum") * 1.001);
  }
}

TEST_CASE("a sleeping tenant does not delay the other one") {
  SharedCard card("2");
  Tenant sleeper("1 2 sleep"), other("2 20");
  const auto from = std::chrono::steady_clock::now();
  CHECK(other.Wait().at("status") == 0);
  // The sleeper sleeps until it is woken. If the other one waited for it, it would wait as long as the patience.
  CHECK(std::chrono::steady_clock::now() - from < std::chrono::seconds(15));
  std::ofstream(card.path + ".wake").put('\n');
  CHECK(sleeper.Wait().at("status") == 0);
}

TEST_CASE("after processes were killed during launches, others can use the card") {
  SharedCard card("1");
  for (int i = 0; i < 20; ++i) {
    pid_t pids[2];
    for (pid_t& pid : pids) {
      pid = fork();
      if (pid != 0) continue;
      if (std::freopen("/dev/null", "w", stdout)) execl(TENANT, TENANT, "5", "1", "launching", nullptr);
      _exit(127);
    }
    for (const pid_t pid : pids) {
      usleep(static_cast<useconds_t>(20'000 + 7'000 * i));
      kill(pid, SIGKILL);
      int status = 0;
      REQUIRE(waitpid(pid, &status, 0) == pid);
      CHECK(WIFSIGNALED(status));
      CHECK(WTERMSIG(status) == SIGKILL);  // it had not ended by itself
    }
  }
  const Figures f = Tenant("5 2").Wait();
  CHECK(f.at("status") == 0);
  CHECK(f.at("fault_bytes") == 0);
  CHECK(f.at("card_used_bytes") == 5 * kGiB + (192 << 20));
}

TEST_CASE("the memory of an ended process is free again, and NVML lists running processes only") {
  SharedCard card("1");
  REQUIRE(Tenant("6 4 die").Wait().at("status") == 9);
  const Figures f = Tenant("7 2").Wait();
  CHECK(f.at("status") == 0);
  CHECK(f.at("fault_bytes") == 0);
  REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
  nvmlDevice_t d;
  REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &d) == NVML_SUCCESS);
  unsigned count = 0;
  CHECK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, nullptr) == NVML_SUCCESS);
  CHECK(count == 0);
  nvmlMemory_t m;
  REQUIRE(nvmlDeviceGetMemoryInfo(d, &m) == NVML_SUCCESS);
  CHECK(m.total == 8ull << 30);
  CHECK(m.used == 64ull << 20);
}
