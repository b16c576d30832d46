// In which orders is a write kept that follows a discard of managed memory (cuMemDiscardBatchAsync)? Each case discards
// 64 MiB that is resident, populates it again or not, writes it by a kernel, evicts it, and reads it back. Printed:
// runs whose write was lost, and runs whose kernel was slow, which is one that faulted.
//
//   nvcc -O2 -std=c++17 -arch=native -cudart shared experiments/probes/discard.cu -o discard -lcuda
//   timeout -k 2 200 ./discard
#include <cuda.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define OK(call)                                                         \
  do {                                                                   \
    const auto status = static_cast<CUresult>(call);                     \
    if (status != CUDA_SUCCESS) {                                        \
      std::printf("%s:%d: %s: %d\n", __FILE__, __LINE__, #call, status); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

namespace {

constexpr size_t kBytes = size_t{64} << 20, kWords = kBytes / 4, kPiece = size_t{2} << 20;
constexpr int kRuns = 20;

__global__ void Fill(uint32_t* p, size_t n, uint32_t value) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += step)
    p[i] = value ^ static_cast<uint32_t>(i);
}
__global__ void CountWrong(const uint32_t* p, size_t n, uint32_t value, unsigned long long* wrong) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  unsigned long long mine = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += step)
    mine += p[i] != (value ^ static_cast<uint32_t>(i));
  if (mine != 0) atomicAdd(wrong, mine);
}
__global__ void Spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

struct Run {
  CUstream app, first, second;  // the program's stream; two of the engine's
  CUdeviceptr p = 0;
  std::vector<CUdeviceptr> at;
  std::vector<size_t> sizes;
  CUmemLocation gpu{}, host{};
  CUevent event;

  void Busy() { Spin<<<1, 1, 0, app>>>(4'000'000); }  // some 2 ms
  void Order(CUstream before, CUstream after) {
    OK(cuEventRecord(event, before));
    OK(cuStreamWaitEvent(after, event, 0));
  }
  void Discard(CUstream s) { OK(cuMemDiscardBatchAsync(at.data(), sizes.data(), at.size(), 0, s)); }
  void Fetch(CUstream s) {
    size_t index = 0;
    OK(cuMemPrefetchBatchAsync(at.data(), sizes.data(), at.size(), &gpu, &index, 1, 0, s));
  }
  void Repopulate(CUstream s) {
    size_t index = 0;
    OK(cuMemDiscardAndPrefetchBatchAsync(at.data(), sizes.data(), at.size(), &gpu, &index, 1, 0, s));
  }
  void Whole() {
    at = {p};
    sizes = {kBytes};
  }
  // The request below cuMemDiscardBatchAsync (UVM_DISCARD, with its flag UNMAP).
  bool Request(int fd) {
    for (size_t i = 0; i < at.size(); ++i) {
      struct {
        uint64_t base, length, flags;
        uint32_t status;
      } discard{at[i], sizes[i], 1, ~0u};
      if (ioctl(fd, 80, &discard) != 0 || discard.status != 0) return false;
    }
    return true;
  }
  void Request() {
    static int space = -1;
    if (space >= 0) {
      if (!Request(space)) std::exit(2);
      return;
    }
    DIR* folder = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(folder)) {
      char target[64] = {};
      if (readlinkat(dirfd(folder), entry->d_name, target, 63) <= 0 || std::strcmp(target, "/dev/nvidia-uvm") != 0)
        continue;
      if (Request(std::atoi(entry->d_name))) space = std::atoi(entry->d_name);
    }
    closedir(folder);
    if (space < 0) std::printf("no descriptor takes the request\n"), std::exit(2);
  }
  static void CUDA_CB OnHost(void* run) { static_cast<Run*>(run)->Request(); }
  void ToHost(CUstream s) {
    size_t index = 0;
    OK(cuMemPrefetchBatchAsync(at.data(), sizes.data(), at.size(), &host, &index, 1, 0, s));
  }
  void Wait(CUstream s, int us = 0) {
    OK(cuStreamSynchronize(s));
    if (us > 0) usleep(us);
  }
};

struct Case {
  const char* name;
  std::function<void(Run&)> prepare;
};

}  // namespace

int main() {
  OK(cuInit(0));
  CUdevice device = 0;
  CUcontext context = nullptr;
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  Run r;
  for (CUstream* s : {&r.app, &r.first, &r.second}) OK(cuStreamCreate(s, CU_STREAM_NON_BLOCKING));
  r.gpu.type = CU_MEM_LOCATION_TYPE_DEVICE;
  r.host.type = CU_MEM_LOCATION_TYPE_HOST;
  OK(cuEventCreate(&r.event, CU_EVENT_DISABLE_TIMING));
  CUevent begin = nullptr, end = nullptr;
  OK(cuEventCreate(&begin, 0));
  OK(cuEventCreate(&end, 0));
  unsigned long long* wrong = nullptr;
  OK(cudaMallocHost(&wrong, sizeof *wrong));

  const auto lag = [](int us, bool populate) {
    return [us, populate](Run& r) {
      r.Busy();
      r.Order(r.app, r.first);
      r.Discard(r.first);
      r.Wait(r.first, us);
      if (populate) {
        r.Fetch(r.second);
        r.Order(r.second, r.app);
      }
    };
  };
  const Case cases[] = {
      {"idle: discard, no fetch",
       [](Run& r) {
         r.Discard(r.first);
         r.Wait(r.first);
       }},
      {"idle: discard, wait, fetch on another stream",
       [](Run& r) {
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"GPU busy: discard, wait, fetch on another stream",
       [](Run& r) {
         r.Busy();
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"GPU busy: discard, wait, deferred fetch",
       [](Run& r) {
         r.Busy();
         r.Discard(r.first);
         r.Wait(r.first);
         r.Order(r.app, r.second);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"GPU busy: discard, wait, to the host, wait",
       [](Run& r) {
         r.Busy();
         r.Discard(r.first);
         r.Wait(r.first);
         r.ToHost(r.first);
         r.Wait(r.first);
       }},
      {"deferred discard, fetch on the same stream",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Fetch(r.first);
         r.Order(r.first, r.app);
       }},
      {"deferred discard, event, fetch on another stream",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Order(r.first, r.second);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"deferred discard, wait, fetch on the same stream",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.first);
         r.Order(r.first, r.app);
       }},
      {"deferred discard, wait, fetch on another stream", lag(0, true)},
      {"deferred discard, wait, 100 us, fetch", lag(100, true)},
      {"deferred discard, wait, 300 us, fetch", lag(300, true)},
      {"deferred discard, wait, 3 ms, fetch", lag(3000, true)},
      {"deferred discard, wait, 3 ms, no fetch", lag(3000, false)},
      {"deferred discard, a second discard, wait, fetch",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"deferred discard, wait, discard again, wait, fetch",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Wait(r.first);
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"deferred discard, wait, fetch twice",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"request, no fetch", [](Run& r) { r.Request(); }},
      {"request, fetch",
       [](Run& r) {
         r.Request();
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"GPU busy: request, fetch",
       [](Run& r) {
         r.Busy();
         r.Request();
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"request in a host function, fetch",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         OK(cuLaunchHostFunc(r.first, Run::OnHost, &r));
         r.Order(r.first, r.second);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"request in a host function, wait, fetch",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         OK(cuLaunchHostFunc(r.first, Run::OnHost, &r));
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"deferred discard and prefetch in one call",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Repopulate(r.first);
         r.Order(r.first, r.app);
       }},
      {"the same, then wait",
       [](Run& r) {
         r.Busy();
         r.Order(r.app, r.first);
         r.Repopulate(r.first);
         r.Wait(r.first);
       }},
      {"one range: discard, wait, fetch",
       [](Run& r) {
         r.Whole();
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"one range: discard, wait, no fetch",
       [](Run& r) {
         r.Whole();
         r.Discard(r.first);
         r.Wait(r.first);
       }},
      {"one range: deferred discard, wait, fetch",
       [](Run& r) {
         r.Whole();
         r.Busy();
         r.Order(r.app, r.first);
         r.Discard(r.first);
         r.Wait(r.first);
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"one range: request, fetch",
       [](Run& r) {
         r.Whole();
         r.Request();
         r.Fetch(r.second);
         r.Order(r.second, r.app);
       }},
      {"one range: request, no fetch",
       [](Run& r) {
         r.Whole();
         r.Request();
       }},
  };
  for (const Case& c : cases) {
    int lost = 0, slow = 0;
    float worst = 0;
    for (int i = 0; i < kRuns; ++i) {
      OK(cuMemAllocManaged(&r.p, kBytes, CU_MEM_ATTACH_GLOBAL));
      r.at.clear();
      r.sizes.clear();
      for (size_t at = 0; at < kBytes; at += kPiece) {
        r.at.push_back(r.p + at);
        r.sizes.push_back(kPiece);
      }
      auto* const words = reinterpret_cast<uint32_t*>(r.p);
      r.Fetch(r.app);
      Fill<<<512, 256, 0, r.app>>>(words, kWords, 1);
      OK(cuStreamSynchronize(r.app));
      c.prepare(r);
      OK(cuEventRecord(begin, r.app));
      Fill<<<512, 256, 0, r.app>>>(words, kWords, 7);
      OK(cuEventRecord(end, r.app));
      OK(cuCtxSynchronize());
      usleep(2000);
      r.ToHost(r.app);
      r.Fetch(r.app);
      *wrong = 0;
      CountWrong<<<512, 256, 0, r.app>>>(words, kWords, 7, wrong);
      OK(cuCtxSynchronize());
      float ms = 0;
      OK(cuEventElapsedTime(&ms, begin, end));
      lost += *wrong != 0;
      slow += ms > 1;
      worst = ms > worst ? ms : worst;
      OK(cuMemFree(r.p));
    }
    std::printf("%-52s %2d of %d lost, %2d slow, %.2f ms at most\n", c.name, lost, kRuns, slow, worst);
    std::fflush(stdout);
  }
}
