// Attaches many processes to one agent: bench_attach SOCKET COUNT AGENT_PID [busy]. Forks COUNT processes that attach
// at once, and prints the time and the agent's CPU time. Busy ones write into their pages each second, as processes at
// work do: heartbeat, launches, live bytes. Then it follows commands on standard input:
//   budget   waits until each process had another BUDGET since the last command; prints the first and the last time
//   tokens   round trips of a compute token
//   singles  processes that attach one after the other
//   rest     the agent's CPU time while nothing happens
//   end
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/wire.h"

namespace {

struct Child {
  std::atomic<double> started, attached, budget;  // monotonic ms; 0: not yet
};

double NowMs() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Mib(const std::string& pid, const std::string& name) {
  std::ifstream in("/proc/" + pid + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return static_cast<double>(std::stol(line.substr(name.size()))) / 1024;
  }
  return 0;
}

// CPU time of all threads in milliseconds, exact to the nanosecond.
double CpuMs(const std::string& pid) {
  double sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
    std::ifstream in(task.path() / "schedstat");
    double ns = 0;
    in >> ns;
    sum += ns / 1e6;
  }
  return sum;
}

int Connect(const char* path) {
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  std::strncpy(addr.sun_path, path, sizeof(addr.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  return fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&addr), sizeof(addr)) == 0 ? fd : -1;
}

bool Send(int fd, uint16_t type, const sluice_token* token = nullptr) {
  sluice_frame f{};
  f.h = {SLUICE_WIRE_MAGIC, SLUICE_WIRE_MAJOR, SLUICE_WIRE_MINOR, type, 1};
  if (token != nullptr) f.u.token = *token;
  return send(fd, &f, sizeof(f), 0) == sizeof(f);
}

void Work(sluice_page* page, int number) {
  const auto store = [](uint64_t& to, uint64_t value) { __atomic_store_n(&to, value, __ATOMIC_RELAXED); };
  store(page->gpu[0].launches, page->gpu[0].launches + 100);
  store(page->gpu[0].live_bytes, static_cast<uint64_t>(number % 64 + 1) << 20);
  store(page->heartbeat_ns, static_cast<uint64_t>(NowMs() * 1e6));
}

// Maps the agent's page as a hook does, and follows the budget in it.
void RunChild(const char* path, Child& me, int number, bool busy) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  me.started = NowMs();
  const int fd = Connect(path);
  if (fd < 0 || !Send(fd, SLUICE_HELLO)) _exit(1);
  sluice_page* page = nullptr;
  double worked = 0;
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    if (busy && page != nullptr && (poll(&ready, 1, 1000) == 0 || NowMs() - worked > 1000)) {
      Work(page, number);
      worked = NowMs();
      if (ready.revents == 0) continue;
    }
    sluice_frame f{};
    iovec iov{&f, sizeof(f)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    if (recvmsg(fd, &msg, MSG_CMSG_CLOEXEC) != sizeof(f)) _exit(1);
    if (const cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr && c->cmsg_type == SCM_RIGHTS) {
      int memory = -1;
      std::memcpy(&memory, CMSG_DATA(c), sizeof(int));
      void* p = mmap(nullptr, SLUICE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
      if (p != MAP_FAILED) page = static_cast<sluice_page*>(p);
      close(memory);
    }
    if (f.h.type != SLUICE_BUDGET) continue;
    if (page != nullptr) {
      std::memcpy(page->gpu[0].uuid, f.u.budget.uuid, sizeof(page->gpu[0].uuid));
      __atomic_store_n(&page->gpu[0].budget_bytes, f.u.budget.budget_bytes, __ATOMIC_RELAXED);
      __atomic_store_n(&page->gpu[0].generation, f.u.budget.generation, __ATOMIC_RELAXED);
    }
    me.budget = NowMs();
    if (me.attached == 0) me.attached = NowMs();
  }
}

double Percentile(std::vector<double> v, double p) {
  std::ranges::sort(v);
  return v.empty() ? -1 : v[std::min(v.size() - 1, static_cast<size_t>(static_cast<double>(v.size()) * p))];
}

void Tokens(const char* path) {
  const int fd = Connect(path);
  sluice_frame f{};
  sluice_token t{};
  Send(fd, SLUICE_HELLO);
  while (recv(fd, &f, sizeof(f), 0) == sizeof(f) && f.h.type != SLUICE_BUDGET) {
  }
  std::memcpy(t.uuid, f.u.budget.uuid, sizeof(t.uuid));
  std::vector<double> us;
  for (int i = 0; i < 1000; ++i) {
    const double begin = NowMs();
    Send(fd, SLUICE_TOKEN_REQUEST, &t);
    do {
      if (recv(fd, &f, sizeof(f), 0) != sizeof(f)) return;
    } while (f.h.type != SLUICE_TOKEN_GRANT);
    us.push_back((NowMs() - begin) * 1000);
    t.id = f.u.token.id;
    Send(fd, SLUICE_TOKEN_RELEASE, &t);
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  close(fd);
  std::printf("token round trip: p50 %.0f us, p99 %.0f us\n", Percentile(us, 0.5), Percentile(us, 0.99));
}

// One after the other, beside the attached ones: from connect to the first budget. The time has the agent's work and
// the context switches. Fewer than the agent lets one allocation connect in a second.
void Singles(const char* path) {
  std::vector<double> us;
  for (int i = 0; i < 300; ++i) {
    sluice_frame f{};
    const double begin = NowMs();
    const int fd = Connect(path);
    Send(fd, SLUICE_HELLO);
    while (recv(fd, &f, sizeof(f), 0) == sizeof(f) && f.h.type != SLUICE_BUDGET) {
    }
    us.push_back((NowMs() - begin) * 1000);
    close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(6));
  }
  std::printf("one more attaches: p50 %.0f us, p99 %.0f us to its first budget\n", Percentile(us, 0.5),
              Percentile(us, 0.99));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const size_t count = std::stoul(argv[2]);
  const std::string pid = argv[3];
  const bool busy = argc > 4 && std::string(argv[4]) == "busy";
  auto* children = static_cast<Child*>(
      mmap(nullptr, count * sizeof(Child), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const double cpu_before = CpuMs(pid), begin = NowMs();
  std::vector<pid_t> pids;
  for (size_t i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) RunChild(argv[1], children[i], static_cast<int>(i), busy);
    pids.push_back(child);
  }
  const double forked = NowMs();
  const auto all = [&](auto done) { return std::all_of(children, children + count, done); };
  for (int i = 0; i < 3000 && !all([](const Child& c) { return c.attached != 0; }); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const size_t lost =
      static_cast<size_t>(std::count_if(children, children + count, [](const Child& c) { return c.attached == 0; }));
  std::vector<double> own;
  double last = 0;
  for (size_t i = 0; i < count; ++i) {
    if (children[i].attached == 0) continue;
    own.push_back(children[i].attached - children[i].started);
    last = std::max<double>(last, children[i].attached);
  }
  std::printf(
      "%zu processes: forked in %.0f ms, all attached %.0f ms after the first began, %zu lost; each within %.0f ms of "
      "its start "
      "(p50 %.1f); agent: %.0f us of CPU time each, %.1f MiB resident (%.1f private)\n",
      count, forked - begin, last - begin, lost, Percentile(own, 1), Percentile(own, 0.5),
      (CpuMs(pid) - cpu_before) * 1000 / static_cast<double>(count), Mib(pid, "VmRSS:"), Mib(pid, "RssAnon:"));
  std::fflush(stdout);
  double mark = NowMs();
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
    if (line == "budget") {
      for (int i = 0; i < 2000 && !all([&](const Child& c) { return c.attached == 0 || c.budget > mark; }); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      double first = 1e18, latest = 0;
      size_t had = 0;
      for (size_t i = 0; i < count; ++i) {
        if (children[i].budget <= mark) continue;
        ++had;
        first = std::min<double>(first, children[i].budget);
        latest = std::max<double>(latest, children[i].budget);
      }
      std::printf("budget %zu first %.3f last %.3f\n", had, first, latest);
    } else if (line == "tokens") {
      Tokens(argv[1]);
    } else if (line == "singles") {
      Singles(argv[1]);
    } else if (line == "rest") {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      const double before = CpuMs(pid);
      std::this_thread::sleep_for(std::chrono::seconds(10));
      std::printf("at rest: %.3f %% of a core, %.1f MiB resident (%.1f private)\n", (CpuMs(pid) - before) / 10000 * 100,
                  Mib(pid, "VmRSS:"), Mib(pid, "RssAnon:"));
    }
    std::fflush(stdout);
    mark = NowMs();
  }
  for (const pid_t p : pids) kill(p, SIGKILL);
  for (const pid_t p : pids) waitpid(p, nullptr, 0);
  return lost == 0 ? 0 : 1;
}
