// Common to the probes of evictions: the request behind the driver's prefetch (UVM_MIGRATE, number 51 of
// /dev/nvidia-uvm, as NVIDIA's open kernel modules have it), and threads that make it.
#ifndef SLUICE_EXPERIMENTS_PROBES_REQUESTS_H_
#define SLUICE_EXPERIMENTS_PROBES_REQUESTS_H_

#include <cuda.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

constexpr size_t kMiB = 1 << 20;

inline void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}
#define OK(call) Check((call) == CUDA_SUCCESS, #call)

inline double Now() {  // ms
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Fails if `bytes` of managed memory are more than a quarter of the free memory.
inline void Guard(size_t bytes) {
  size_t free_bytes, total;
  OK(cuMemGetInfo(&free_bytes, &total));
  Check(bytes < free_bytes / 4, "needing less than a quarter of the free memory");
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
static_assert(sizeof(Migrate) == 80);
constexpr unsigned char kHost[16] = {0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2,
                                     0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73};
inline int space = -1;  // CUDA's descriptor
inline unsigned char card[16];

inline bool Request(uintptr_t base, size_t length, const unsigned char* to, int fd = space,
                    uint32_t* status = nullptr) {
  Migrate m{};
  m.base = base;
  m.length = length;
  std::memcpy(m.to, to, 16);
  m.node = -1;
  m.status = 0xffff;
  const int rc = ioctl(fd, 51, &m);
  if (status) *status = m.status;
  return rc == 0 && m.status == 0;
}

// Finds `space`, the descriptor that accepts the request for managed memory at `at`, and sets `card`.
inline void FindSpace(uintptr_t at) {
  CUuuid uuid;
  OK(cuDeviceGetUuid(&uuid, 0));
  std::memcpy(card, uuid.bytes, 16);
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[64] = {};
    if (readlinkat(dirfd(folder), entry->d_name, target, 63) <= 0 || std::strcmp(target, "/dev/nvidia-uvm")) continue;
    const int fd = std::atoi(entry->d_name);
    uint32_t status = 0;
    const bool ok = Request(at, 2 * kMiB, kHost, fd, &status);
    std::printf("descriptor %d: %s, status 0x%x\n", fd, ok ? "accepted" : "refused", status);
    if (ok && space < 0) space = fd;
  }
  closedir(folder);
  Check(space >= 0, "finding the address space");
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
      Check(Request(piece.base, piece.bytes, kHost, space), "request");
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

inline CUmemLocation Host(CUmemLocationType type = CU_MEM_LOCATION_TYPE_HOST, int id = 0) { return {type, id}; }
inline CUmemLocation Card() { return {CU_MEM_LOCATION_TYPE_DEVICE, 0}; }
inline CUstream Make() {
  CUstream s;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
}

#endif  // SLUICE_EXPERIMENTS_PROBES_REQUESTS_H_
