// The interface of /dev/nvidia-uvm-tools, as NVIDIA's open kernel modules have it: counters and queues of events. For
// fault_events.cu.
#ifndef SLUICE_EXPERIMENTS_PROBES_UVM_EVENTS_H_
#define SLUICE_EXPERIMENTS_PROBES_UVM_EVENTS_H_

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr unsigned long kInit = 56, kEnableEvents = 58, kDisableEvents = 59, kEnableCounters = 60,
                        kDisableCounters = 61, kFlush = 67, kInit2 = 76, kUuids2 = 77;
constexpr uint64_t kMigration = 1u << 2, kGpuFault = 1u << 3;
constexpr uint64_t kToCard = 1u << 0, kToHost = 1u << 1, kCpuFaults = 1u << 2, kGpuFaults = 1u << 9;
constexpr size_t kBytes = size_t{64} << 20, kPage = 4096, kChunk = size_t{2} << 20;

struct Init {
  uint64_t queue, entries, control;
  uint8_t processor[16];
  uint32_t all, uvm_fd, status;
};
struct Flags {
  uint64_t flags;
  uint32_t status;
};
struct Uuids {
  uint64_t table;
  uint32_t status;
};
struct Control {
  volatile uint32_t get_ahead, get_behind, put_ahead, put_behind;
  volatile uint64_t dropped[64];
};
struct Event {  // a migration, second layout
  uint8_t type, cause;
  uint16_t pad, from, to;
  int32_t from_node, to_node;
  uint64_t address, bytes, begin, end, group, gpu_begin, gpu_end;
  // A fault's record has its address at byte 8, where a migration has nodes.
  uint64_t FaultAddress() const {
    uint64_t a;
    std::memcpy(&a, reinterpret_cast<const char*>(this) + 8, sizeof a);
    return a;
  }
};
struct Event1 {  // first layout
  uint8_t type, cause, from, to;
  uint32_t pad;
  uint64_t address, bytes, begin, end, group, gpu_begin, gpu_end;
};
static_assert(sizeof(Init) == 56 && sizeof(Flags) == 16 && sizeof(Control) == 528 && sizeof(Event) == 72 &&
              sizeof(Event1) == 64);

const char* const kCauses[] = {"invalid", "user", "coherence", "density", "eviction", "access counters"};
char* g_p = nullptr;  // the block of kBytes that the probe moves
unsigned* g_out = nullptr;
using Clock = std::chrono::steady_clock;
double Since(Clock::time_point t) { return std::chrono::duration<double, std::milli>(Clock::now() - t).count(); }

template <typename T>
void* Shared(T bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

std::vector<int> UvmFds() {
  std::vector<int> fds;
  DIR* d = opendir("/proc/self/fd");
  if (d == nullptr) return fds;
  while (dirent* e = readdir(d)) {
    char name[256] = {};
    const std::string path = std::string("/proc/self/fd/") + e->d_name;
    if (readlink(path.c_str(), name, sizeof(name) - 1) <= 0) continue;
    if (std::strstr(name, "nvidia") != nullptr) std::printf("  fd %s -> %s\n", e->d_name, name);
    if (std::strcmp(name, "/dev/nvidia-uvm") == 0) fds.push_back(std::atoi(e->d_name));
  }
  closedir(d);
  std::sort(fds.begin(), fds.end());
  return fds;
}

struct Tracker {
  int fd = -1;
  Control* control = nullptr;
  uint64_t* counters = nullptr;
  char* queue = nullptr;
  uint32_t entries = 0;
  bool second = true;

  bool Open(const std::vector<int>& uvm, unsigned long request, uint32_t n) {
    const auto begin = Clock::now();
    fd = open("/dev/nvidia-uvm-tools", O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      std::printf("  open /dev/nvidia-uvm-tools: %s\n", std::strerror(errno));
      return false;
    }
    entries = n;
    second = request == kInit2;
    void* page = Shared(4096);
    control = static_cast<Control*>(page);
    counters = static_cast<uint64_t*>(page);
    if (n != 0) queue = static_cast<char*>(Shared(size_t{n} * 72));
    for (const int candidate : uvm) {
      Init init = {};
      init.queue = reinterpret_cast<uint64_t>(queue);
      init.entries = n;
      init.control = reinterpret_cast<uint64_t>(page);
      init.all = 1;
      init.uvm_fd = static_cast<uint32_t>(candidate);
      const int rc = ioctl(fd, request, &init);
      std::printf("  init %lu with %u entries, uvm fd %d: ioctl %d%s%s, status 0x%x, %.3f ms\n", request, n, candidate,
                  rc, rc != 0 ? " " : "", rc != 0 ? std::strerror(errno) : "", init.status, Since(begin));
      if (rc == 0 && init.status == 0) return true;
    }
    Close();
    return false;
  }
  bool Set(unsigned long request, uint64_t flags) {
    const auto begin = Clock::now();
    Flags f = {flags, 0};
    const int rc = ioctl(fd, request, &f);
    if (g_verbose || rc != 0 || f.status != 0)
      std::printf("  request %lu flags 0x%llx: ioctl %d, status 0x%x, %.3f ms\n", request, (unsigned long long)flags,
                  rc, f.status, Since(begin));
    return rc == 0 && f.status == 0;
  }
  std::vector<Event> Drain() {
    std::vector<Event> out;
    if (control == nullptr || entries == 0) return out;
    uint32_t at = control->get_behind;
    const uint32_t end = __atomic_load_n(&control->put_behind, __ATOMIC_ACQUIRE);
    for (; at != end; at = (at + 1) & (entries - 1)) {
      Event e = {};
      if (second) {
        std::memcpy(&e, queue + size_t{at} * 72, 72);
      } else {
        Event1 f = {};
        std::memcpy(&f, queue + size_t{at} * 64, 64);
        e = {f.type,    f.cause, 0,       f.from, f.to,    0,           0,
             f.address, f.bytes, f.begin, f.end,  f.group, f.gpu_begin, f.gpu_end};
      }
      out.push_back(e);
    }
    control->get_ahead = end;
    __atomic_store_n(&control->get_behind, end, __ATOMIC_RELEASE);
    return out;
  }
  void Close() {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  static inline bool g_verbose = true;
};

void LogEvents(const char* what, const std::vector<Event>& events, bool each) {
  std::map<std::tuple<int, int, int, int>, std::pair<size_t, uint64_t>> sums;
  for (const Event& e : events) {
    auto& sum = sums[{e.type, e.cause, e.from, e.to}];
    ++sum.first;
    sum.second += e.bytes;
  }
  std::printf("%s: %zu events\n", what, events.size());
  for (const auto& [key, sum] : sums) {
    const auto& [type, cause, from, to] = key;
    std::printf("  type %d cause %d (%s) %d -> %d: %zu events, %.3f MiB\n", type, cause,
                type == 2 && cause < 6 ? kCauses[cause] : "?", from, to, sum.first, double(sum.second) / (1 << 20));
  }
  if (!each) return;
  size_t shown = 0;
  for (const Event& e : events) {
    if (++shown > 24) break;
    std::printf("    type %d cause %d page %.2f (+%.3f MiB) %llu KiB, begin %llu end %llu\n", e.type, e.cause,
                double(int64_t(e.address - reinterpret_cast<uint64_t>(g_p))) / kPage,
                double(int64_t(e.address - reinterpret_cast<uint64_t>(g_p))) / (1 << 20),
                (unsigned long long)e.bytes >> 10, (unsigned long long)e.begin, (unsigned long long)e.end);
  }
}

}  // namespace

#endif  // SLUICE_EXPERIMENTS_PROBES_UVM_EVENTS_H_
