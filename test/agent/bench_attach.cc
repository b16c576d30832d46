// Many processes at one agent: bench_attach SOCKET COUNT AGENT_PID. Prints how long all attaches take, the round trip
// of one, the agent's memory and its processor time at rest. Connections of one program stand for processes: the agent
// sees a socket, a pidfd and a page each.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/wire.h"

namespace {

using Clock = std::chrono::steady_clock;
double Ms(Clock::time_point since) { return std::chrono::duration<double, std::milli>(Clock::now() - since).count(); }

long Field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return std::stol(line.substr(name.size()));
  }
  return 0;
}

long CpuTicks(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  long user = 0, system = 0;
  std::sscanf(text.c_str() + text.rfind(')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
              &system);
  return user + system;
}

int Connect(const char* path) {
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  std::strncpy(addr.sun_path, path, sizeof(addr.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  return connect(fd, reinterpret_cast<sockaddr*>(&addr), sizeof(addr)) == 0 ? fd : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const size_t count = std::stoul(argv[2]);
  const std::string pid = argv[3];
  std::vector<int> fds(count, -1);
  std::vector<double> first_budget(count, -1);
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < count; i += 8) {
        const auto begin = Clock::now();
        fds[i] = Connect(argv[1]);
        sluice_frame f{};
        f.h = {SLUICE_WIRE_MAGIC, SLUICE_WIRE_MAJOR, SLUICE_WIRE_MINOR, SLUICE_HELLO, 1};
        if (fds[i] < 0 || send(fds[i], &f, sizeof(f), 0) != sizeof(f)) continue;
        while (recv(fds[i], &f, sizeof(f), 0) == sizeof(f)) {
          if (f.h.type != SLUICE_BUDGET) continue;
          first_budget[i] = Ms(begin);
          break;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  const double all = Ms(start);
  const size_t lost = static_cast<size_t>(std::ranges::count(first_budget, -1));
  std::ranges::sort(first_budget);
  const long rss = Field("/proc/" + pid + "/status", "VmRSS:");
  const long anon = Field("/proc/" + pid + "/status", "RssAnon:");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const long before = CpuTicks(pid);
  std::this_thread::sleep_for(std::chrono::seconds(5));
  const double cpu = static_cast<double>(CpuTicks(pid) - before) / static_cast<double>(sysconf(_SC_CLK_TCK)) / 5 * 100;
  std::printf(
      "%zu attached: all in %.0f ms, %zu lost; to the first budget p50 %.2f ms, p99 %.2f ms; agent %.1f MiB resident "
      "(%.1f private), "
      "%.2f %% of a core at rest\n",
      count, all, lost, first_budget[count / 2], first_budget[count * 99 / 100], static_cast<double>(rss) / 1024,
      static_cast<double>(anon) / 1024, cpu);
  return lost == 0 ? 0 : 1;
}
