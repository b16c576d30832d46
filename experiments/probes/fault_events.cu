// The driver's reports of its migrations (ioctls of /dev/nvidia-uvm-tools): counters, and one event for each moved
// piece, with its cause. Blocks of 64 MiB of managed memory are read by faults and by prefetch. Then the probe measures
// the cost of the reports. Nine seconds at most.
//   nvcc -O2 -std=c++17 -arch=native experiments/probes/fault_events.cu -o probe && timeout -k 2 60 ./probe
#include <cuda_runtime.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "uvm_events.h"

#define CHECK(call)                                                                                 \
  do {                                                                                              \
    const cudaError_t e = (call);                                                                   \
    if (e != cudaSuccess) {                                                                         \
      std::fprintf(stderr, "fault_events.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (0)

// Reads one word of each `stride` bytes.
__global__ void ReadSome(const char* p, size_t n, size_t stride, unsigned* out) {
  unsigned sum = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    sum += *reinterpret_cast<const unsigned*>(p + i * stride);
  if (sum == 0x12345678u) *out = sum;
}
__global__ void WriteSome(char* p, size_t n, size_t stride) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    *reinterpret_cast<unsigned*>(p + i * stride) = 7;
}

namespace {

cudaMemLocation At(bool card) { return {card ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost, 0}; }
void Move(bool card, size_t bytes = kBytes) { CHECK(cudaMemPrefetchAsync(g_p, bytes, At(card), 0, nullptr)); }
void Sync() { CHECK(cudaDeviceSynchronize()); }
void ReadAt(size_t page) { ReadSome<<<1, 1>>>(g_p + page * kPage, 1, 4, g_out); }
void ReadAll() { ReadSome<<<1024, 256>>>(g_p, kBytes / 16, 16, g_out); }

}  // namespace

int main() {
  const char* limit = std::getenv("SLUICE_MANAGED_LIMIT");
  if (limit != nullptr && std::strtoull(limit, nullptr, 10) < 2 * kBytes) {
    std::fprintf(stderr, "fault_events: 128 MiB of managed memory are needed (SLUICE_MANAGED_LIMIT)\n");
    return 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (FILE* f = std::fopen("/proc/driver/nvidia/version", "r")) {
    char line[256] = {};
    if (std::fgets(line, sizeof(line), f) != nullptr) std::printf("%s", line);
    std::fclose(f);
  }
  struct stat st = {};
  if (stat("/dev/nvidia-uvm-tools", &st) == 0)
    std::printf("/dev/nvidia-uvm-tools mode %o, uid %d (we are %d)\n", st.st_mode & 07777, int(st.st_uid),
                int(getuid()));
  CHECK(cudaFree(nullptr));
  cudaDeviceProp prop = {};
  CHECK(cudaGetDeviceProperties(&prop, 0));
  std::printf("%s, descriptors:\n", prop.name);
  const std::vector<int> uvm = UvmFds();
  CHECK(cudaMallocManaged(&g_p, kBytes));
  CHECK(cudaMalloc(&g_out, 4));
  std::memset(g_p, 1, kBytes);
  ReadAll();  // loads the kernels before counting
  WriteSome<<<1, 1>>>(g_p, 1, 4);
  Sync();
  Move(false);
  Sync();

  // (a), (b)
  std::printf("\n(a, b) counters\n");
  Tracker counters;
  const bool have_counters =
      counters.Open(uvm, kInit, 0) && counters.Set(kEnableCounters, kToCard | kToHost | kCpuFaults | kGpuFaults);
  auto show = [&](const char* what, auto act) {
    uint64_t before[10] = {};
    if (have_counters) std::memcpy(before, counters.counters, sizeof(before));
    act();
    Sync();
    if (!have_counters) return;
    auto delta = [&](int i) { return double(counters.counters[i] - before[i]); };
    std::printf("  %s: to the card %.3f MiB, to the host %.3f MiB, cpu faults %.0f, gpu faults %.0f", what,
                delta(0) / (1 << 20), delta(1) / (1 << 20), delta(2), delta(9));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::printf("; 10 ms later %.3f, %.3f\n", delta(0) / (1 << 20), delta(1) / (1 << 20));
  };
  show("read all by faults", ReadAll);
  show("read again (resident)", ReadAll);
  show("prefetch to the host", [] { Move(false); });
  show("prefetch to the card", [] { Move(true); });
  show("prefetch again (resident)", [] { Move(true); });
  show("written by the host, page 9", [] { g_p[9 * kPage] = 3; });
  show("to the host, kernel reads pages 0, 5, 300", [] { Move(false), Sync(), ReadAt(0), ReadAt(5), ReadAt(300); });
  show("to the host, kernel writes a word of each 2 MiB",
       [] { Move(false), Sync(), WriteSome<<<1, 32>>>(g_p, kBytes / kChunk, kChunk); });
  show("to the host, copied by cudaMemcpy to another block", [] {
    Move(false), Sync();
    void* q = nullptr;
    CHECK(cudaMalloc(&q, kBytes));
    CHECK(cudaMemcpy(q, g_p, kBytes, cudaMemcpyDefault));
    CHECK(cudaFree(q));
  });

  // (c)
  std::printf("\n(c) events\n");
  Tracker events;
  bool have_events = events.Open(uvm, kInit2, 65536);
  if (!have_events) have_events = events.Open(uvm, kInit, 65536);
  have_events = have_events && events.Set(kEnableEvents, kMigration);
  if (!uvm.empty()) {
    std::vector<uint8_t> table(257 * 16);
    Uuids u = {reinterpret_cast<uint64_t>(table.data()), 0};
    const int rc = ioctl(uvm[0], kUuids2, &u);
    std::printf("  uuids: ioctl %d status 0x%x; not nil:", rc, u.status);
    for (int i = 0; i < 257; ++i) {
      if (std::any_of(&table[i * 16], &table[i * 16] + 16, [](uint8_t b) { return b != 0; })) {
        std::printf(" [%d]", i);
        for (int k = 0; k < 16; ++k) std::printf("%02x", table[i * 16 + k]);
      }
    }
    std::printf("; the card's own ");
    for (int k = 0; k < 16; ++k) std::printf("%02x", uint8_t(prop.uuid.bytes[k]));
    std::printf("\n");
  }
  auto log_events = [&](const char* what, auto act, bool each) {
    Move(false);
    Sync();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    events.Drain();
    act();
    Sync();
    std::vector<Event> all = events.Drain();
    std::printf("at once %zu;", all.size());
    size_t more = 0;
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto late = events.Drain();
      if (!late.empty()) std::printf(" after %d ms %zu;", i + 1, late.size());
      more += late.size();
      all.insert(all.end(), late.begin(), late.end());
    }
    uint32_t status = 0;
    const int rc = uvm.empty() ? -1 : ioctl(uvm[0], kFlush, &status);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const auto flushed = events.Drain();
    std::printf(" after a flush (ioctl %d, 0x%x) %zu. ", rc, status, flushed.size());
    all.insert(all.end(), flushed.begin(), flushed.end());
    LogEvents(what, all, each);
  };
  if (have_events) {
    log_events("kernels read pages 0, 5, 300, one launch each", [] { ReadAt(0), ReadAt(5), ReadAt(300); }, true);
    log_events(
        "a kernel reads a word of each 2 MiB", [] { ReadSome<<<1, 32>>>(g_p, kBytes / kChunk, kChunk, g_out); }, true);
    log_events(
        "a kernel reads 8 MiB from +16 MiB",
        [] { ReadSome<<<256, 256>>>(g_p + (16 << 20), (8 << 20) / 16, 16, g_out); }, true);
    log_events("a kernel reads all", ReadAll, false);
    log_events("prefetch to the card, then read", [] { Move(true), ReadAll(); }, false);
    log_events("prefetch of half, then read all", [] { Move(true, kBytes / 2), ReadAll(); }, false);
    log_events("prefetch to the card, then twice again", [] { Move(true), Move(true), Move(true); }, false);
    log_events(
        "copied by cudaMemcpy to another block",
        [] {
          void* q = nullptr;
          CHECK(cudaMalloc(&q, kBytes));
          CHECK(cudaMemcpy(q, g_p, kBytes, cudaMemcpyDefault));
          CHECK(cudaFree(q));
        },
        false);
    log_events("filled by cudaMemset", [] { CHECK(cudaMemset(g_p, 5, kBytes)); }, false);
    log_events(
        "on the card, then read by the host (64 pages)",
        [] {
          Move(true), Sync();
          volatile char sum = 0;
          for (int i = 0; i < 64; ++i) sum = sum + g_p[i * 16 * kPage];
        },
        false);
    log_events(
        "accessed-by, a kernel reads all remotely",
        [] {
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseSetPreferredLocation, At(false)));
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseSetAccessedBy, At(true)));
          ReadAll(), Sync();
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseUnsetAccessedBy, At(true)));
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseUnsetPreferredLocation, At(true)));
        },
        false);
    log_events(
        "read-mostly, prefetch of the duplicate, read",
        [] {
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseSetReadMostly, At(true)));
          Move(true), ReadAll(), Sync();
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseUnsetReadMostly, At(true)));
        },
        false);
    log_events(
        "read-mostly, read by faults",
        [] {
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseSetReadMostly, At(true)));
          ReadAll(), Sync();
          CHECK(cudaMemAdvise(g_p, kBytes, cudaMemAdviseUnsetReadMostly, At(true)));
        },
        false);
    char* fresh = nullptr;
    CHECK(cudaMallocManaged(&fresh, kBytes));
    log_events(
        "a kernel writes memory that was never written", [&] { WriteSome<<<1024, 256>>>(fresh, kBytes / 16, 16); },
        false);
    log_events("nothing", [] {}, false);
    CHECK(cudaFree(fresh));
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int rc = 0;
    waitpid(child, &rc, 0);
    log_events("after a fork, a kernel reads all", ReadAll, false);
    std::printf("  dropped migrations %llu\n", (unsigned long long)events.control->dropped[2]);

    Tracker small;
    if (small.Open(uvm, events.second ? kInit2 : kInit, 16) && small.Set(kEnableEvents, kMigration)) {
      Move(false), Sync();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::printf("  a queue of 16 after 64 MiB to the host: %zu read, %llu dropped\n", small.Drain().size(),
                  (unsigned long long)small.control->dropped[2]);
    }
    small.Close();
    events.Set(kDisableEvents, kMigration);
    events.Drain();
    events.Set(kEnableEvents, kGpuFault);
    auto log_faults = [&](const char* what, auto act, bool each) {
      Move(false), Sync(), events.Drain();
      act();
      Sync();
      const auto all = events.Drain();
      std::map<uint64_t, size_t> pages, chunks;
      for (const Event& e : all) {
        const uint64_t address = e.FaultAddress();
        ++pages[(address - reinterpret_cast<uint64_t>(g_p)) / kPage];
        ++chunks[(address - reinterpret_cast<uint64_t>(g_p)) / kChunk];
      }
      std::printf("%s: %zu records of faults at once, %zu pages in %zu chunks of 2 MiB;", what, all.size(),
                  pages.size(), chunks.size());
      size_t shown = 0;
      for (const auto& [page, n] : pages) {
        if (each && ++shown <= 40) std::printf(" %llux%zu", (unsigned long long)page, n);
      }
      std::printf("\n");
    };
    log_faults("pages 0, 5, 300", [] { ReadAt(0), ReadAt(5), ReadAt(300); }, true);
    log_faults("a word of each 2 MiB", [] { ReadSome<<<1, 32>>>(g_p, kBytes / kChunk, kChunk, g_out); }, true);
    log_faults(
        "8 MiB from +16 MiB", [] { ReadSome<<<256, 256>>>(g_p + (16 << 20), (8 << 20) / 16, 16, g_out); }, false);
    log_faults("all", ReadAll, false);
    log_faults("prefetch, then all", [] { Move(true), ReadAll(); }, false);
    log_faults(
        "copied by cudaMemcpy",
        [] {
          void* q = nullptr;
          CHECK(cudaMalloc(&q, kBytes));
          CHECK(cudaMemcpy(q, g_p, kBytes, cudaMemcpyDefault));
          CHECK(cudaFree(q));
        },
        false);
    events.Set(kDisableEvents, kGpuFault);
  }
  if (have_counters) counters.Set(kDisableCounters, kToCard | kToHost | kCpuFaults | kGpuFaults);

  // (d)
  std::printf("\n(d) ms for 64 MiB: median of 9 (minimum), settings alternate\n");
  Tracker::g_verbose = false;
  struct Setting {
    const char* name;
    bool count;
    uint64_t events;  // kinds of records
    std::vector<double> ms[4] = {};
  };
  Setting settings[] = {{"no reports", false, 0},
                        {"byte counters", true, 0},
                        {"gpu fault events", false, kGpuFault},
                        {"counters and gpu fault events", true, kGpuFault},
                        {"migration events", false, kMigration},
                        {"migration and gpu fault events", false, kMigration | kGpuFault}};
  const char* const acts[] = {"faults", "to the host", "to the card", "to the card, 2 MiB a call"};
  size_t drained = 0;
  for (int round = 0; round < 9; ++round) {
    for (Setting& setting : settings) {
      if ((setting.count && !have_counters) || (setting.events != 0 && !have_events)) continue;
      if (setting.count) counters.Set(kEnableCounters, kToCard | kToHost);
      if (setting.events != 0) events.Set(kEnableEvents, setting.events);
      Move(false), Sync();
      for (int act = 0; act < 4; ++act) {
        if (act == 3) Move(false), Sync();
        const auto begin = Clock::now();
        if (act == 0) ReadAll();
        if (act == 1) Move(false);
        if (act == 2) Move(true);
        if (act == 3) {
          for (size_t at = 0; at < kBytes; at += kChunk)
            CHECK(cudaMemPrefetchAsync(g_p + at, kChunk, At(true), 0, nullptr));
        }
        Sync();
        setting.ms[act].push_back(Since(begin));
      }
      if (setting.events != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        const auto begin = Clock::now();
        const size_t n = events.Drain().size();
        drained += n;
        if (round == 8) std::printf("  %s: %zu events drained in %.3f ms\n", setting.name, n, Since(begin));
        events.Set(kDisableEvents, kMigration | kGpuFault);
      }
      if (setting.count) counters.Set(kDisableCounters, kToCard | kToHost);
    }
  }
  for (Setting& setting : settings) {
    std::printf("  %s:", setting.name);
    for (int act = 0; act < 4; ++act) {
      if (setting.ms[act].empty()) continue;
      std::sort(setting.ms[act].begin(), setting.ms[act].end());
      std::printf(" %s %.3f (%.3f)%s", acts[act], setting.ms[act][setting.ms[act].size() / 2], setting.ms[act][0],
                  act < 3 ? "," : "\n");
    }
  }
  if (have_events)
    std::printf("  %zu events in all, %llu dropped\n", drained, (unsigned long long)events.control->dropped[2]);
  counters.Close();
  events.Close();
  CHECK(cudaFree(g_p));

  std::printf("\n(e) a tracker that outlives its context\n");
  Tracker::g_verbose = true;
  Tracker last;
  const bool open = last.Open(uvm, kInit, 0) && last.Set(kEnableCounters, kToCard | kToHost);
  CHECK(cudaDeviceReset());
  CHECK(cudaMallocManaged(&g_p, kBytes));
  std::printf("  descriptors after the reset:\n");
  UvmFds();
  std::memset(g_p, 1, kBytes);
  Move(true), Sync();
  if (open) std::printf("  prefetch in the new context: counted %.3f MiB\n", double(last.counters[0]) / (1 << 20));
  std::printf("done\n");  // the tracker is still open
  return 0;
}
