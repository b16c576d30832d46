// What it gives to cut an allocation's mapping: managed memory sent away by requests (send_away.cu) of several threads,
// from one allocation whose mapping advice has cut into parts of 8, 16, 32 MiB or not at all; then 2 GiB each way at
// once. At most 5 GiB of managed memory, refused beyond a quarter of what is free.
// nvcc -O2 -std=c++17 -arch=native -cudart shared test/gpu/probes/cut.cu -o cut -lcuda
#include <cuda.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
unsigned char card[16];
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
CUmemLocation Host() { return {CU_MEM_LOCATION_TYPE_HOST, 0}; }
CUmemLocation Card() { return {CU_MEM_LOCATION_TYPE_DEVICE, 0}; }
CUstream Make() {
  CUstream s;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
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
  CUuuid uuid;
  OK(cuDeviceGetUuid(&uuid, 0));
  std::memcpy(card, uuid.bytes, 16);
  const CUstream b = Make();
  // Host pages that do not exist yet: each allocation goes to the host for the first time.
  for (int threads : {1, 2, 4, 8}) {
    for (size_t split : {0, 8}) {
      CUdeviceptr one = 0;
      OK(cuMemAllocManaged(&one, 1024 * kMiB, CU_MEM_ATTACH_GLOBAL));
      for (size_t at = 0; split && at < 1024 * kMiB; at += 2 * split * kMiB)
        madvise(reinterpret_cast<void*>(one + at), split * kMiB, MADV_RANDOM);
      for (size_t at = 0; at < 1024 * kMiB; at += kBlock)
        OK(cuMemPrefetchAsync_v2(one + at, kBlock, Card(), 0, nullptr));
      OK(cuMemsetD8(one, 5, 1024 * kMiB));
      OK(cuCtxSynchronize());
      Pool pool(threads - 1);
      std::vector<Piece> pieces;
      for (size_t at = 0; at < 1024 * kMiB; at += 8 * kMiB) pieces.push_back({one + at, 8 * kMiB});
      const double begin = Now();
      pool.Run(pieces);
      const double ms = Now() - begin;
      std::printf("first time away, cut each %zu MiB, %d threads: %.1f ms, %.1f GB/s\n", split, threads, ms,
                  1024 * kMiB / ms / 1e6);
      OK(cuMemFree(one));
    }
  }
  std::fflush(stdout);
  for (int round = 0; round < 1; ++round) {
    for (size_t split : {0, 8, 16, 32}) {
      CUdeviceptr one = 0;
      OK(cuMemAllocManaged(&one, 1024 * kMiB, CU_MEM_ATTACH_GLOBAL));
      if (split)
        for (size_t at = 0; at < 1024 * kMiB; at += 2 * split * kMiB)
          if (madvise(reinterpret_cast<void*>(one + at), split * kMiB, MADV_RANDOM) != 0) std::printf("(refused) ");
      const auto bring = [&](size_t bytes) {
        for (size_t at = 0; at < bytes; at += kBlock) OK(cuMemPrefetchAsync_v2(one + at, kBlock, Card(), 0, nullptr));
        OK(cuCtxSynchronize());
      };
      bring(1024 * kMiB);
      OK(cuMemsetD8(one, 5, 1024 * kMiB));
      OK(cuMemPrefetchAsync_v2(one, 1024 * kMiB, Host(), 0, nullptr));
      for (int others : {0, 1, 3}) {
        for (size_t piece : {4, 8, 16}) {
          bring(1024 * kMiB);
          Pool pool(others);
          std::vector<Piece> pieces;
          for (size_t at = 0; at < 1024 * kMiB; at += piece * kMiB) pieces.push_back({one + at, piece * kMiB});
          const double begin = Now();
          pool.Run(pieces);
          const double ms = Now() - begin;
          std::printf("one allocation of 1 GiB cut each %zu MiB, %d threads, %zu MiB each: %.1f ms, %.1f GB/s\n", split,
                      others + 1, piece, ms, 1024 * kMiB / ms / 1e6);
        }
      }
      unsigned char value = 0;
      OK(cuMemcpyDtoH(&value, one + 777 * kMiB, 1));
      Check(value == 5, "the value");
      OK(cuMemAdvise_v2(one, 1024 * kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, Card()));
      OK(cuMemAdvise_v2(one + 3 * kMiB, 64 * kMiB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, Card()));
      OK(cuMemFree(one));
    }
    // Both ways, each by requests or the driver's call.
    for (int in_threads : {0, 1, 2}) {
      for (int out_threads : {2, 4}) {
        for (CUdeviceptr block : p) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
        for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
        OK(cuCtxSynchronize());
        std::vector<Piece> pieces;
        for (CUdeviceptr block : p) pieces.push_back({block, kBlock});
        Pool pool(out_threads - 1);
        const double begin = Now();
        double in_ms = 0;
        CUcontext context;
        OK(cuCtxGetCurrent(&context));
        std::thread fetch([&] {
          if (in_threads == 0) {
            OK(cuCtxSetCurrent(context));
            for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, b));
            OK(cuStreamSynchronize(b));
          } else {
            std::atomic<size_t> next{0};
            std::vector<std::thread> more;
            for (int t = 0; t < in_threads; ++t)
              more.emplace_back([&] {
                for (size_t i; (i = next++) < q.size();) Check(Raw(q[i], kBlock, card, space), "request");
              });
            for (auto& t : more) t.join();
          }
          in_ms = Now() - begin;
        });
        pool.Run(pieces);
        const double out_ms = Now() - begin;
        fetch.join();
        std::printf("2 GiB each way: out by %d threads %.1f ms, in by %s %d %.1f ms\n", out_threads, out_ms,
                    in_threads ? "requests of" : "the driver's call", in_threads, in_ms);
      }
    }
  }
  OK(cuCtxSynchronize());
  return 0;
}
