// One tenant of a shared GPU: launches kernels over its live blocks in turn, and prints its progress over time.
//   tenant LIVE_MIB KERNEL_US SECONDS [BUSY_MS SLEEP_MS [START_MS]]
// Each launch reads and writes one block of 64 MiB and runs about KERNEL_US; every 16 launches the host waits, as a
// training step does. Prints BEGIN once it may launch, then RESULT {"done": [[monotonic seconds, launches], ...], ...}.
// Needs only libcuda.so.1. On the simulated GPU a launch takes exactly KERNEL_US. On a real one it runs a fixed number
// of rounds, measured on an idle GPU (--rounds prints it, and SLUICE_TENANT_ROUNDS passes it). With
// SLUICE_TENANT_MANAGED it allocates managed memory, as a program without sluice must on a GPU that is too small. With
// SLUICE_TENANT_TOUCHED=PART it is a server with a paged cache: a launch is the replay of a graph whose kernels name
// all blocks, and touch that part of each; with SLUICE_TENANT_EAGER it launches those kernels one by one. With
// SLUICE_TENANT_BLOCK_MIB its blocks are parts of allocations of so many MiB (a multiple of 64), as llama.cpp's cache
// and weights are: a kernel names an address inside such an allocation. With SLUICE_TENANT_MOVE_STEPS=N the touched
// part begins 2 MiB further after each N steps, as sequences that grow and end move theirs; the step behind it launches
// one by one, as servers do with prompts.
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBlock = 64 << 20;
constexpr size_t kMove = 2 << 20;

// touch(p, bytes, rounds): reads and writes all bytes, 16 at a time, then multiplies for a while.
constexpr const char* kPtx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 p, .param .u64 bytes, .param .u32 rounds)
{
  .reg .pred %q<3>;
  .reg .b32 %r<12>;
  .reg .f32 %f<3>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [p];
  ld.param.u64 %d2, [bytes];
  ld.param.u32 %r1, [rounds];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mov.u32 %r6, %nctaid.x;
  mul.lo.u32 %r6, %r6, %r3;
  mul.wide.u32 %d3, %r5, 16;
  mul.wide.u32 %d4, %r6, 16;
NEXT:
  setp.ge.u64 %q1, %d3, %d2;
  @%q1 bra SPIN;
  add.u64 %d5, %d1, %d3;
  ld.global.v4.u32 {%r7, %r9, %r10, %r11}, [%d5];
  add.u32 %r7, %r7, 1;
  st.global.v4.u32 [%d5], {%r7, %r9, %r10, %r11};
  add.u64 %d3, %d3, %d4;
  bra NEXT;
SPIN:
  mov.f32 %f1, 0f3F800000;
  mov.u32 %r8, 0;
AGAIN:
  fma.rn.f32 %f1, %f1, 0f3F7FFFFE, 0f33800000;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %q2, %r8, %r1;
  @%q2 bra AGAIN;
  setp.eq.f32 %q1, %f1, 0f447A0000;
  @%q1 st.global.f32 [%d1], %f1;
  ret;
}
)";

void* g_cuda = nullptr;

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define CALL(name, ...)                                                                            \
  do {                                                                                             \
    static const auto function = reinterpret_cast<decltype(&name)>(dlsym(g_cuda, TEXT(name)));     \
    if (function == nullptr) Die(TEXT(name), "is missing");                                        \
    const CUresult result = function(__VA_ARGS__);                                                 \
    if (result != CUDA_SUCCESS) Die(TEXT(name), std::to_string(static_cast<int>(result)).c_str()); \
  } while (false)

[[noreturn]] void Die(const char* what, const char* why) {
  std::fprintf(stderr, "tenant: %s: %s\n", what, why);
  std::_Exit(1);
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main(int argc, char** argv) {
  const bool measure = argc == 3 && std::strcmp(argv[1], "--rounds") == 0;
  if (argc < 4 && !measure) {
    std::fprintf(
        stderr, "usage: tenant LIVE_MIB KERNEL_US SECONDS [BUSY_MS SLEEP_MS [START_MS]] | tenant --rounds KERNEL_US\n");
    return 2;
  }
  const size_t live = measure ? kBlock : std::strtoull(argv[1], nullptr, 10) << 20;
  const double kernel_us = std::atof(argv[2]), seconds = measure ? 0 : std::atof(argv[3]);
  const double busy = argc > 5 ? std::atof(argv[4]) / 1e3 : 0, sleeps = argc > 5 ? std::atof(argv[5]) / 1e3 : 0;
  if (argc > 6) std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(argv[6]) / 1e3));

  g_cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_cuda == nullptr) Die("libcuda.so.1", dlerror());
  const bool simulated = dlsym(g_cuda, "simgpu_next_launch") != nullptr;
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction touch;
  CUstream stream;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  const std::string image = "simgpu-module 1\nkernel touch params 8,8,4 ns " +
                            std::to_string(static_cast<long>(kernel_us * 1000)) + "\nupdate p0 0 p1\n";
  CALL(cuModuleLoadData, &module, simulated ? image.c_str() : kPtx);
  CALL(cuModuleGetFunction, &touch, module, "touch");
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  std::vector<CUdeviceptr> blocks;
  size_t allocation = kBlock;
  if (const char* text = std::getenv("SLUICE_TENANT_BLOCK_MIB")) allocation = std::strtoull(text, nullptr, 10) << 20;
  if (allocation == 0 || allocation % kBlock != 0) Die("SLUICE_TENANT_BLOCK_MIB", "accepted: a multiple of 64");
  for (size_t have = 0; have < live; have += allocation) {
    CUdeviceptr p;
    if (std::getenv("SLUICE_TENANT_MANAGED") != nullptr) {
      CALL(cuMemAllocManaged, &p, allocation, CU_MEM_ATTACH_GLOBAL);
    } else {
      CALL(cuMemAlloc, &p, allocation);
    }
    for (size_t part = 0; part < allocation && blocks.size() * kBlock < live; part += kBlock)
      blocks.push_back(p + part);
  }
  unsigned rounds = 1000;
  if (const char* text = std::getenv("SLUICE_TENANT_ROUNDS")) rounds = static_cast<unsigned>(std::atol(text));
  uint64_t bytes = kBlock;
  size_t offset = 0;
  const auto launch_kernel = [&](size_t i) {
    CUdeviceptr p = blocks[i % blocks.size()] + offset;
    void* parameters[] = {&p, &bytes, &rounds};
    CALL(cuLaunchKernel, touch, 264, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  };
  CUgraphExec steps = nullptr;
  const auto capture = [&] {
    CUgraph graph = nullptr;
    CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (size_t i = 0; i < blocks.size(); ++i) launch_kernel(i);
    CALL(cuStreamEndCapture, stream, &graph);
    if (steps != nullptr) CALL(cuGraphExecDestroy, steps);
    CALL(cuGraphInstantiateWithFlags, &steps, graph, 0);
    CALL(cuGraphDestroy, graph);
  };
  if (const char* part = std::getenv("SLUICE_TENANT_TOUCHED")) {
    bytes = static_cast<uint64_t>(static_cast<double>(kBlock) * std::atof(part)) / 4096 * 4096;
    // As servers do with their caches: every page is written once.
    for (const CUdeviceptr p : blocks) CALL(cuMemsetD8Async, p, 0, kBlock, stream);
    CALL(cuStreamSynchronize, stream);
    if (std::getenv("SLUICE_TENANT_EAGER") == nullptr) capture();
  }
  size_t move_steps = 0, move_at = 0;
  if (const char* text = std::getenv("SLUICE_TENANT_MOVE_STEPS"))
    move_steps = move_at = std::strtoull(text, nullptr, 10);
  const auto launch = [&](size_t i) {
    if (steps == nullptr) return launch_kernel(i);
    CALL(cuGraphLaunch, steps, stream);
  };
  if (measure) {
    launch(0);
    CALL(cuStreamSynchronize, stream);
    double us = 0;
    for (int i = 0; i < 8 && !simulated; ++i) {
      const double begin = Now();
      for (int n = 0; n < 20; ++n) launch(0);
      CALL(cuStreamSynchronize, stream);
      us = (Now() - begin) / 20 * 1e6;
      rounds = static_cast<unsigned>(std::max(100.0, rounds * kernel_us / us));
    }
    std::printf("%u\n", rounds);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // lets the caller sample the context's memory
    return 0;
  }

  std::puts("BEGIN");
  std::fflush(stdout);
  const double begin = Now(), end = begin + seconds;
  double last_sample = begin, woke = begin;
  size_t done = 0;
  std::string samples = "[" + std::to_string(begin) + ",0]";
  double slowest = 0, prompt = 0;
  while (Now() < end) {
    const double from = Now();
    for (int i = 0; i < 16; ++i) launch(done++);
    CALL(cuStreamSynchronize, stream);
    const double now = Now();
    if (move_steps != 0 && done >= move_at) {
      move_at += move_steps;
      offset = (offset + kMove) % (kBlock - bytes) / kMove * kMove;
      if (steps != nullptr) {
        for (size_t i = 0; i < blocks.size(); ++i) launch_kernel(i);
        CALL(cuStreamSynchronize, stream);
        prompt = std::max(prompt, Now() - now);
        capture();
      }
    }
    slowest = std::max(slowest, now - from);
    if (now - last_sample > 0.05) {
      samples += ",[" + std::to_string(now) + "," + std::to_string(done) + "]";
      last_sample = now;
    }
    if (busy > 0 && now - woke > busy) {
      std::this_thread::sleep_for(std::chrono::duration<double>(sleeps));
      woke = Now();
    }
  }
  std::printf(
      "RESULT {\"done\":[%s],\"launches\":%zu,\"seconds\":%.3f,\"kernel_us\":%.1f,\"slowest_s\":%.3f,"
      "\"prompt_s\":%.3f}\n",
      samples.c_str(), done, Now() - begin, kernel_us, slowest, prompt);
  return 0;
}
