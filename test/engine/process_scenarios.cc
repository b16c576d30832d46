// Programs that act on the hooked process: descriptors, signals, forks, impossible sizes.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

// Launches over twelve blocks of 64 MiB: more than the smaller budget.
struct Launches {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  Launches() {
    for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
  }
  void Iterate() {
    for (uint32_t i = 0; i < 24; ++i) card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
    OK(cuStreamSynchronize(s));
  }
};

}  // namespace

// Sizes larger than any GPU are refused by every way to allocate, and nothing is lost by it.
SCENARIO(impossible_sizes_are_refused) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr kept = Alloc(kMiB);
  size_t left = 0, total = 0, after = 0;
  OK(cuMemGetInfo(&left, &total));
  const size_t sizes[] = {SIZE_MAX,
                          SIZE_MAX - 1,
                          SIZE_MAX - 511,
                          SIZE_MAX - 512,
                          SIZE_MAX - kMiB,
                          SIZE_MAX - 2 * kMiB,
                          SIZE_MAX - 2 * kMiB + 1,
                          SIZE_MAX - 4 * kMiB,
                          SIZE_MAX - 64 * kMiB,
                          size_t{1} << 63,
                          (size_t{1} << 63) - 1,
                          size_t{1} << 62,
                          size_t{1} << 50};
  for (const size_t bytes : sizes) {
    CUdeviceptr p = 0;
    EXPECT(cuMemAlloc(&p, bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_HOST) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuMemAllocAsync(&p, bytes, s) == CUDA_ERROR_OUT_OF_MEMORY);
    size_t pitch = 0;
    EXPECT(cuMemAllocPitch(&p, &pitch, bytes, 1, 4) != CUDA_SUCCESS);
    EXPECT(cuMemAllocPitch(&p, &pitch, bytes, bytes, 4) != CUDA_SUCCESS);
    EXPECT(cuMemAllocPitch(&p, &pitch, kMiB, bytes, 16) != CUDA_SUCCESS);
    EXPECT(cuMemAllocPitch(&p, &pitch, size_t{1} << 33, size_t{1} << 31, 16) != CUDA_SUCCESS);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT(cuMemCreate(&handle, bytes, &properties, 0) != CUDA_SUCCESS);
    EXPECT(cuMemCreate(&handle, bytes / (2 * kMiB) * (2 * kMiB), &properties, 0) != CUDA_SUCCESS);
  }
  OK(cuMemGetInfo(&after, &total));
  EXPECT(after == left);
  OK(cuMemFree(kept));
}

// Copies and memsets larger than any memory, under pressure: refused at once.
SCENARIO(impossible_copies_are_refused) {
  Launches launches;
  launches.Iterate();
  for (const size_t many : {size_t{1} << 41, size_t{1} << 47, size_t{1} << 60}) {
    CUDA_MEMCPY2D c{};
    c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = launches.p[0];
    c.dstDevice = launches.p[1];
    c.srcPitch = c.dstPitch = c.WidthInBytes = 512;
    c.Height = many / 512;
    EXPECT(cuMemcpy2D(&c) != CUDA_SUCCESS);
    EXPECT(cuMemsetD2D8(launches.p[0], 512, 1, 512, many / 512) != CUDA_SUCCESS);
    EXPECT(cuMemsetD8(launches.p[0], 1, many) != CUDA_SUCCESS);
    EXPECT(cuMemcpyDtoD(launches.p[0], launches.p[1], many) != CUDA_SUCCESS);
  }
  launches.Iterate();
  for (CUdeviceptr at : launches.p) PrintDigest("block", at, 64 * kMiB);
}

// Descriptor 2 is closed and given to a file of the program's, a database say.
SCENARIO(stderr_is_a_file_of_the_program) {
  const char* path = std::getenv("SCENARIO_FILE");
  EXPECT(path != nullptr);
  close(STDERR_FILENO);
  EXPECT(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) == STDERR_FILENO);
  Launches launches;
  launches.Iterate();
  for (CUdeviceptr at : launches.p) PrintDigest("block", at, 64 * kMiB);
}

// exit() from a signal's handler, at whatever point the launching thread is.
SCENARIO(exit_in_a_signal_handler) {
  Launches launches;
  std::signal(SIGALRM, [](int) { std::exit(0); });
  std::printf("done exit_in_a_signal_handler\n");
  std::fflush(stdout);
  const char* text = std::getenv("SCENARIO_US");
  itimerval when{};
  when.it_value.tv_usec = text != nullptr ? std::atoi(text) : 1000;
  setitimer(ITIMER_REAL, &when, nullptr);
  for (;;) launches.Iterate();
}

// A child asks NVML for free memory (a data loader's worker that logs) while the parent's threads launch.
SCENARIO(forked_child_asks_nvml) {
  Launches launches;
  launches.Iterate();
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  EXPECT(nvml != nullptr);
  using Init = int (*)();
  using ByIndex = int (*)(unsigned, void**);
  struct Memory {
    unsigned long long total, free, used;
  };
  using MemoryInfo = int (*)(void*, Memory*);
  const auto init = reinterpret_cast<Init>(dlsym(nvml, "nvmlInit_v2"));
  const auto by_index = reinterpret_cast<ByIndex>(dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"));
  const auto memory = reinterpret_cast<MemoryInfo>(dlsym(nvml, "nvmlDeviceGetMemoryInfo"));
  EXPECT(init() == 0);
  void* device = nullptr;
  EXPECT(by_index(0, &device) == 0);
  Memory before{};
  EXPECT(memory(device, &before) == 0);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    OK(cuCtxSetCurrent(launches.card.context));
    while (!stop) launches.Iterate();
  });
  std::fflush(stdout);
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      Memory seen{};
      const int result = memory(device, &seen);
      if (Budget() != 0 && (result != 0 || seen.total != before.total)) _exit(5);
      if (i % 2) std::exit(0);
      _exit(0);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) std::fprintf(stderr, "child %d ended with %x\n", i, status);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  other.join();
}

// All descriptors are closed, and their numbers given to files and sockets of the program's: the engine does not write
// to them, read from them or close them.
SCENARIO(descriptors_reused_by_the_program) {
  Launches launches;
  launches.Iterate();
  int pair[2];
  EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
  EXPECT(dup2(pair[0], 1000) == 1000 && dup2(pair[1], 1001) == 1001);
  struct stat before[512]{};
  for (int fd = 3; fd < 512; ++fd) {
    struct stat was{};
    if (fstat(fd, &was) != 0 || fd == pair[0] || fd == pair[1]) continue;
    EXPECT(dup2(fd % 2 ? 1000 : 1001, fd) == fd);  // a socket with data to read and room to write
    EXPECT(fstat(fd, &before[fd]) == 0);
  }
  const char hello[] = "for the program";
  EXPECT(write(1000, hello, sizeof hello) == sizeof hello);
  EXPECT(write(1001, hello, sizeof hello) == sizeof hello);
  for (int i = 0; i < 40; ++i) {
    launches.Iterate();
    usleep(100000);
  }
  for (int fd = 3; fd < 512; ++fd) {
    if (before[fd].st_ino == 0) continue;
    struct stat now{};
    EXPECT(fstat(fd, &now) == 0 && now.st_ino == before[fd].st_ino);
  }
  char got[512];
  for (const int fd : {1000, 1001}) {
    EXPECT(recv(fd, got, sizeof got, MSG_DONTWAIT) == sizeof hello);
    EXPECT(std::memcmp(got, hello, sizeof hello) == 0);
    EXPECT(recv(fd, got, sizeof got, MSG_DONTWAIT) < 0);
  }
  for (CUdeviceptr at : launches.p) PrintDigest("block", at, 64 * kMiB);
}

// Contexts are created and destroyed on two GPUs in turn, so that a handle's address is used again on the other GPU.
SCENARIO(contexts_on_gpus_in_turn) {
  OK(cuInit(0));
  for (int i = 0; i < 200; ++i) {
    const CUdevice gpu = i % 2;
    CUcontext context = nullptr;
    OK(CreateContext(&context, gpu));
    const CUdeviceptr p = Alloc(64 * kMiB);
    int ordinal = -1;
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    EXPECT(ordinal == gpu);
    size_t left = 0, total = 0;
    OK(cuMemGetInfo(&left, &total));
    if (Budget() != 0) EXPECT(total - left == 64 * kMiB);
    CUstream s = nullptr;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8Async(p, 1, 64 * kMiB, s));
    OK(cuCtxDestroy(context));
  }
}

// The reset of a primary context ends everything in it, although it is still retained.
SCENARIO(reset_of_a_retained_context) {
  OK(cuInit(0));
  CUcontext held = nullptr;
  OK(cuDevicePrimaryCtxRetain(&held, 0));
  for (int i = 0; i < 40; ++i) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstream s = nullptr;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int block = 0; block < 12; ++block) OK(cuMemsetD8Async(Alloc(64 * kMiB), 1, 64 * kMiB, s));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxReset(0));
  }
}

// The last release of a primary context, or the end of another one, frees memory that the engine's threads still evict
// for another one, which ends before or goes on.
SCENARIO(contexts_that_end_while_their_memory_is_evicted) {
  OK(cuInit(0));
  constexpr int kBlocks = 4;
  for (int i = 0; i < 8; ++i) {
    CUcontext owner = nullptr, user = nullptr;
    const bool is_primary = i % 2 == 0;
    OK(is_primary ? cuDevicePrimaryCtxRetain(&owner, 0) : CreateContext(&owner, 0));
    OK(cuCtxSetCurrent(owner));
    CUdeviceptr blocks[kBlocks];
    for (CUdeviceptr& block : blocks) OK(cuMemsetD8(block = Alloc(64 * kMiB), 1, 64 * kMiB));
    OK(CreateContext(&user, 0));
    CUstream s = nullptr;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CUmodule module = nullptr;
    CUfunction two = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel two params 8,8 ns 20000\n"));
    OK(cuModuleGetFunction(&two, module, "two"));
    for (uint32_t launch = 0; launch < 8; ++launch) {
      const uint32_t first = launch % kBlocks, second = (launch + 1) % kBlocks;
      std::array<CUdeviceptr, 2> named{blocks[first], blocks[second]};
      std::array<void*, 2> params{&named[0], &named[1]};
      const std::array<simgpu_touch, 2> touches{Update(named[0], 64 * kMiB, first),
                                                Update(named[1], 64 * kMiB, second)};
      simgpu_next_launch(touches.data(), touches.size(), 20000, 0);
      OK(cuLaunchKernel(two, 1, 1, 1, 1, 1, 1, 0, s, params.data(), nullptr));
    }
    const bool ends_first = i % 4 < 2;
    OK(ends_first ? cuCtxDestroy(user) : cuStreamSynchronize(s));
    OK(cuCtxSetCurrent(owner));
    OK(is_primary ? cuDevicePrimaryCtxRelease(0) : cuCtxDestroy(owner));
    if (!ends_first) OK(cuCtxDestroy(user));
  }
}

// After a reset the same handles are used again, and their memory is held to the budget as before.
SCENARIO(budget_holds_after_a_reset) {
  OK(cuInit(0));
  constexpr int kBlocks = 12;
  for (int reset = 0; reset < 3; ++reset) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUdeviceptr blocks[kBlocks];
    for (CUdeviceptr& block : blocks) block = Alloc(64 * kMiB);
    for (int round = 0; round < 3; ++round) {
      for (const CUdeviceptr block : blocks) OK(cuMemsetD8Async(block, 1, 64 * kMiB, nullptr));
      OK(cuCtxSynchronize());
    }
    uint64_t resident = 0;
    for (const CUdeviceptr block : blocks) resident += simgpu_resident_bytes(block, 64 * kMiB);
    if (Budget() != 0) EXPECT(resident <= Budget() + 64 * kMiB);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxReset(0));
  }
}

// Many threads allocate and free at the budget's end at once.
SCENARIO(many_threads_at_the_budget) {
  Card card;
  std::atomic<uint64_t> got{0}, refused{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 32; ++t) {
    threads.emplace_back([&, t] {
      OK(cuCtxSetCurrent(card.context));
      CUstream s = card.Stream();
      std::mt19937 random(t);
      std::vector<std::pair<CUdeviceptr, bool>> mine;
      for (int i = 0; i < 400; ++i) {
        CUdeviceptr p = 0;
        const uint64_t bytes = uint64_t{1} << (random() % 17 + 10);
        const bool ordered = random() % 2;
        const CUresult result = ordered ? cuMemAllocAsync(&p, bytes, s) : cuMemAlloc(&p, bytes);
        if (result == CUDA_SUCCESS) {
          ++got;
          mine.emplace_back(p, ordered);
        } else {
          EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
          ++refused;
        }
        while (!mine.empty() && (mine.size() > 12 || random() % 3 == 0)) {
          const auto [q, was_ordered] = mine[random() % mine.size()];
          std::erase(mine, std::pair{q, was_ordered});
          OK(was_ordered ? cuMemFreeAsync(q, s) : cuMemFree(q));
        }
      }
      for (const auto& [q, was_ordered] : mine) OK(was_ordered ? cuMemFreeAsync(q, s) : cuMemFree(q));
      OK(cuStreamSynchronize(s));
    });
  }
  for (std::thread& thread : threads) thread.join();
  OK(cuCtxSynchronize());
  std::fprintf(stderr, "got %" PRIu64 ", refused %" PRIu64 "\n", got.load(), refused.load());
  size_t left = 0, total = 0;
  OK(cuMemGetInfo(&left, &total));
  if (Budget() != 0) EXPECT(total - left <= 64 * kMiB);
}

// Checkpoints of this process, before it has memory and then, and of a child and of another program.
SCENARIO(checkpoints) {
  Card card;
  const auto state_of = [](int pid) {
    CUprocessState state{};
    const CUresult result = cuCheckpointProcessGetState(pid, &state);
    return result == CUDA_SUCCESS ? static_cast<int>(state) : -static_cast<int>(result);
  };
  const int self = getpid();
  OK(cuCheckpointProcessLock(self, nullptr));
  OK(cuCheckpointProcessCheckpoint(self, nullptr));
  EXPECT(state_of(self) == CU_PROCESS_STATE_CHECKPOINTED);
  OK(cuCheckpointProcessRestore(self, nullptr));
  OK(cuCheckpointProcessUnlock(self, nullptr));
  const CUdeviceptr p = Alloc(64 * kMiB);
  const CUstream s = card.Stream();
  card.Named(s, {Write(p, 64 * kMiB, 1)});
  const int locked = cuCheckpointProcessLock(self, nullptr),
            checkpointed = cuCheckpointProcessCheckpoint(self, nullptr);
  std::fprintf(stderr, "own %d %d, state %d\n", locked, checkpointed, state_of(self));
  if (locked == CUDA_SUCCESS) {
    OK(cuCheckpointProcessRestore(self, nullptr));
    OK(cuCheckpointProcessUnlock(self, nullptr));
  }
  OK(cuMemFree(p));
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const pid_t other = fork();
  if (other == 0) {
    execle("/bin/sleep", "sleep", "60", nullptr, std::array<char*, 1>{}.data());
    _exit(1);
  }
  // Until it is the other program: its maps no longer hold this one's libraries.
  while (std::filesystem::read_symlink("/proc/" + std::to_string(other) + "/exe").filename() == "engine_scenarios")
    usleep(1000);
  std::fprintf(stderr, "child %d, other %d\n", cuCheckpointProcessLock(child, nullptr),
               cuCheckpointProcessLock(other, nullptr));
  for (const pid_t pid : {child, other}) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  const CUdeviceptr q = Alloc(64 * kMiB);
  card.Named(s, {Write(q, 64 * kMiB, 2)});
  PrintDigest("after", q, 64 * kMiB);
}
