// Who runs what a stream defers: whether a host function that takes its time holds up prefetches and host functions of
// other streams, and how fast bytes are sent away by requests that a host function makes (send_away.cu) with a pool of
// threads, alone and beside deferred fetches. At most 4 GiB of managed memory, refused beyond a quarter of what is
// free. nvcc -O2 -std=c++17 -arch=native -cudart shared test/gpu/probes/host_functions.cu -o host_functions -lcuda
#include <cuda.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMiB = 1 << 20, kBlock = 64 * kMiB, kBlocks = 32;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}
#define OK(call) Check((call) == CUDA_SUCCESS, #call)
double Now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
struct Migrate {
  uint64_t base, length;
  unsigned char to[16];
  uint32_t flags;
  uint64_t semaphore;
  uint32_t payload;
  int32_t node;
  uint64_t user_start, user_length;
  uint32_t status;
};
constexpr unsigned char kHost[16] = {0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2,
                                     0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73};
int space = -1;
bool Raw(uintptr_t base, size_t length, const unsigned char* to, int fd) {
  Migrate m{};
  m.base = base;
  m.length = length;
  std::memcpy(m.to, to, 16);
  m.node = -1;
  m.status = 0xffff;
  return ioctl(fd, 51, &m) == 0 && m.status == 0;
}

struct Piece {
  uintptr_t base;
  size_t bytes;
};
struct Pool {
  std::mutex mutex;
  std::condition_variable work, over;
  const std::vector<Piece>* pieces = nullptr;
  size_t next = 0, done = 0;
  bool stop = false;
  std::vector<std::thread> threads;
  explicit Pool(int others) {
    for (int i = 0; i < others; ++i)
      threads.emplace_back([this] {
        std::unique_lock lock(mutex);
        while (true) {
          work.wait(lock, [this] { return stop || (pieces && next < pieces->size()); });
          if (stop) return;
          Take(&lock);
        }
      });
  }
  void Take(std::unique_lock<std::mutex>* lock) {
    while (pieces && next < pieces->size()) {
      const Piece piece = (*pieces)[next++];
      lock->unlock();
      Check(Raw(piece.base, piece.bytes, kHost, space), "request");
      lock->lock();
      if (++done == pieces->size()) over.notify_all();
    }
  }
  void Run(const std::vector<Piece>& all) {
    std::unique_lock lock(mutex);
    pieces = &all;
    next = done = 0;
    work.notify_all();
    Take(&lock);
    over.wait(lock, [&] { return done == all.size(); });
    pieces = nullptr;
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    work.notify_all();
    for (auto& t : threads) t.join();
  }
};
struct Job {
  Pool* pool;
  std::vector<Piece> pieces;
};
void Run(void* job) { static_cast<Job*>(job)->pool->Run(static_cast<Job*>(job)->pieces); }
void Sleep(void*) { usleep(30000); }
void Stamp(void* at) { *static_cast<double*>(at) = Now(); }
__global__ void Spin(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < ns);
}
CUmemLocation Host() { return {CU_MEM_LOCATION_TYPE_HOST, 0}; }
CUmemLocation Card() { return {CU_MEM_LOCATION_TYPE_DEVICE, 0}; }
CUstream Make() {
  CUstream s;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
}
double Until(CUstream s) {
  while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY) {
  }
  return Now();
}

}  // namespace

int main() {
  cudaFree(nullptr);
  size_t free_bytes, total;
  OK(cuMemGetInfo(&free_bytes, &total));
  Check(2 * kBlocks * kBlock < free_bytes / 4, "a quarter of what is free");
  std::vector<CUdeviceptr> p(kBlocks), q(kBlocks);
  for (auto* list : {&p, &q})
    for (CUdeviceptr& block : *list) {
      OK(cuMemAllocManaged(&block, kBlock, CU_MEM_ATTACH_GLOBAL));
      OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
      OK(cuMemsetD8Async(block, 7, kBlock, nullptr));
      OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
    }
  OK(cuCtxSynchronize());
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[64] = {};
    if (readlinkat(dirfd(folder), entry->d_name, target, 63) <= 0 || std::strcmp(target, "/dev/nvidia-uvm")) continue;
    if (Raw(p[0], 2 * kMiB, kHost, std::atoi(entry->d_name))) space = std::atoi(entry->d_name);
  }
  Check(space >= 0, "finding the address space");
  const CUstream app = Make(), a = Make(), b = Make(), c = Make(), d = Make();
  CUevent e;
  OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  for (int round = 0; round < 2; ++round) {
    // 1: a host function of 30 ms on a, behind a kernel of 2 ms; beside it a deferred fetch on b, a host function on c,
    // a deferred departure on d.
    double at_c = 0;
    for (size_t i = 0; i < 4; ++i) OK(cuMemPrefetchAsync_v2(q[i], kBlock, Card(), 0, nullptr));
    OK(cuCtxSynchronize());
    double begin = Now();
    Spin<<<1, 1, 0, app>>>(2000000);
    OK(cuEventRecord(e, app));
    for (CUstream s : {a, b, c, d}) OK(cuStreamWaitEvent(s, e, 0));
    OK(cuLaunchHostFunc(a, Sleep, nullptr));
    OK(cuMemPrefetchAsync_v2(p[0], kBlock, Card(), 0, b));
    OK(cuLaunchHostFunc(c, Stamp, &at_c));
    OK(cuMemPrefetchAsync_v2(q[0], kBlock, Host(), 0, d));
    const double b_over = Until(b) - begin, d_over = Until(d) - begin, a_over = Until(a) - begin;
    std::printf(
        "host function of 30 ms over after %.1f; deferred fetch %.1f, host function of another stream %.1f, "
        "deferred departure %.1f ms\n",
        a_over, b_over, at_c - begin, d_over);
    OK(cuCtxSynchronize());
    // 2: deferred departures and fetches by the driver's calls.
    for (int both = 0; both < 2; ++both) {
      for (CUdeviceptr block : p) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
      for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
      OK(cuCtxSynchronize());
      begin = Now();
      Spin<<<1, 1, 0, app>>>(1000000);
      OK(cuEventRecord(e, app));
      for (CUstream s : {a, b}) OK(cuStreamWaitEvent(s, e, 0));
      for (size_t i = 0; i < 16; ++i) {
        OK(cuMemPrefetchAsync_v2(p[i], kBlock, Host(), 0, a));
        if (both) OK(cuMemPrefetchAsync_v2(q[i], kBlock, Card(), 0, b));
      }
      double a_ms = 0, b_ms = 0;
      while (!a_ms || !b_ms) {
        if (!b_ms && cuStreamQuery(b) == CUDA_SUCCESS) b_ms = Now() - begin;
        if (!a_ms && cuStreamQuery(a) == CUDA_SUCCESS) a_ms = Now() - begin;
      }
      std::printf("1 GiB away by deferred calls%s: %.1f ms, fetched %.1f ms\n", both ? " beside 1 GiB fetched" : "",
                  a_ms - 1, b_ms - 1);
    }
    // 3: departures by host functions.
    for (int others : {0, 1, 3, 5}) {
      for (int blocks_a_job : {1, 4}) {
        for (int both = 0; both < 2; ++both) {
          Pool pool(others);
          for (CUdeviceptr block : p) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
          for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
          OK(cuCtxSynchronize());
          std::vector<Job> jobs;
          for (size_t i = 0; i < 16; i += blocks_a_job) {
            Job job{&pool, {}};
            for (size_t at = 0; at < kBlock; at += 8 * kMiB)
              for (int k = 0; k < blocks_a_job; ++k) job.pieces.push_back({p[i + k] + at, 8 * kMiB});
            jobs.push_back(job);
          }
          begin = Now();
          Spin<<<1, 1, 0, app>>>(1000000);
          OK(cuEventRecord(e, app));
          for (CUstream s : {a, b}) OK(cuStreamWaitEvent(s, e, 0));
          for (Job& job : jobs) OK(cuLaunchHostFunc(a, Run, &job));
          for (size_t i = 0; both && i < 16; ++i) OK(cuMemPrefetchAsync_v2(q[i], kBlock, Card(), 0, b));
          double a_ms = 0, b_ms = 0;
          while (!a_ms || !b_ms) {
            if (!b_ms && cuStreamQuery(b) == CUDA_SUCCESS) b_ms = Now() - begin;
            if (!a_ms && cuStreamQuery(a) == CUDA_SUCCESS) a_ms = Now() - begin;
          }
          std::printf("1 GiB away by host functions of %d x 64 MiB, %d threads%s: %.1f ms, fetched %.1f ms\n",
                      blocks_a_job, others + 1, both ? " beside 1 GiB fetched" : "", a_ms - 1, b_ms - 1);
        }
      }
    }
  }
  OK(cuCtxSynchronize());
  return 0;
}
