// The recorder's entry points: the driver's injection, PyTorch's allocations and reports, and the steps of train.py.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "activity.h"
#include "arguments.h"
#include "calls.h"
#include "state.h"
#include "truth.h"

namespace {

using namespace sluice::truth;  // NOLINT(google-build-using-namespace): this is a part of it
using sluice::trace::AllocKind;
using sluice::trace::Recorder;

// Logs the progress, and ends the process, with a complete trace, when its time is over.
void Watch() {
  const auto start = std::chrono::steady_clock::now();
  double slow_since = -1;
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (g_slow && slow_since < 0) slow_since = now;
    std::fprintf(
        stderr, "sluice-truth: %.0f s, step %d, %llu launches, %llu measured, %.1f GiB moved in, %llu records; %s\n",
        now, g_step, static_cast<unsigned long long>(g_counters.launches),
        static_cast<unsigned long long>(g_counters.measured), static_cast<double>(g_counters.in_bytes) / (1 << 30),
        static_cast<unsigned long long>(g_counters.transfers), g_phase.load());
    if (slow_since >= 0 && now > slow_since + g_seconds && !g_over.exchange(true)) {
      std::fprintf(stderr, "sluice-truth: time is over: later launches get no truth\n");
    }
    if ((slow_since >= 0 && now > slow_since + g_seconds + 20) || now > g_seconds + 60) {
      std::fprintf(stderr, "sluice-truth: ended in phase '%s'\n", g_phase.load());
      WriteAll();
      g_recorder->Finish();
      _exit(3);
    }
  }
}

void AtExit() {
  const Guard guard;
  g_phase = "the end";
  cuptiActivityFlushAll(1);
  WriteAll();
  std::fprintf(
      stderr,
      "sluice-truth: %llu MiB managed; %llu launches, %llu measured, %llu of them without any transfer; %llu transfer "
      "records, %llu by the driver's guess, %.2f GiB in, %.2f GiB out, %llu late, %llu of other causes, %llu dropped; "
      "%.2f GiB changed, %.2f GiB overwritten%s; %llu kernels without a launch, %llu functions without parameters\n",
      static_cast<unsigned long long>(g_managed >> 20), static_cast<unsigned long long>(g_counters.launches),
      static_cast<unsigned long long>(g_counters.measured), static_cast<unsigned long long>(g_counters.empty),
      static_cast<unsigned long long>(g_counters.transfers), static_cast<unsigned long long>(g_counters.guesses),
      static_cast<double>(g_counters.in_bytes) / (1 << 30), static_cast<double>(g_counters.out_bytes) / (1 << 30),
      static_cast<unsigned long long>(g_counters.late), static_cast<unsigned long long>(g_counters.other_causes),
      static_cast<unsigned long long>(g_counters.dropped), static_cast<double>(g_counters.changed_bytes) / (1 << 30),
      static_cast<double>(g_counters.overwritten_bytes) / (1 << 30), g_shadow.on() ? "" : " (comparison stopped)",
      static_cast<unsigned long long>(g_counters.lost), static_cast<unsigned long long>(FunctionsWithoutLayout()));
  g_recorder->Finish();
}

void* Runtime(const char* name) {
  static void* const library = [] {
    void* found = nullptr;
    for (const char* so : {"libcudart.so.13", "libcudart.so.12"}) {
      if (found == nullptr) found = dlopen(so, RTLD_NOLOAD | RTLD_NOW);
    }
    return found;
  }();
  return library != nullptr ? dlsym(library, name) : nullptr;
}

}  // namespace

extern "C" {

// The driver calls this in cuInit when CUDA_INJECTION64_PATH names this object.
__attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("SLUICE_TRUTH_OUT");
  if (path == nullptr || g_recorder != nullptr) return 1;
  if (const char* from = std::getenv("SLUICE_TRUTH_FROM")) g_slow_from = std::atoi(from);
  if (const char* light = std::getenv("SLUICE_TRUTH_LIGHT")) g_light_from = std::atoi(light);
  if (const char* seconds = std::getenv("SLUICE_TRUTH_SECONDS")) g_seconds = std::atof(seconds);
  g_verbose = std::getenv("SLUICE_TRUTH_VERBOSE") != nullptr;
  const char* limit = std::getenv("SLUICE_MANAGED_LIMIT");
  g_managed_limit = limit != nullptr ? std::strtoull(limit, nullptr, 10) : uint64_t{12} << 30;
  g_recorder = new Recorder(path);
  g_recorder->UseClock(ProgramTime, nullptr);
  g_recorder->Meta("source", "recorded by test/gpu/truth");
  if (const char* command = std::getenv("SLUICE_TRUTH_COMMAND")) g_recorder->Meta("command", command);
  if (const char* gpu = std::getenv("SLUICE_TRUTH_GPU")) g_recorder->Meta("gpu", gpu);
  if (g_slow_from >= 0) g_recorder->Meta("slow-from", std::to_string(g_slow_from).c_str());
  if (g_light_from >= 0) g_recorder->Meta("light-from", std::to_string(g_light_from).c_str());
  Subscribe();
  RegisterActivity();
  std::atexit(AtExit);
  std::thread(Watch).detach();
  return 1;
}

// Called by train.py --mark.
__attribute__((visibility("default"))) void sluice_truth_step(const char* name) {
  if (g_recorder == nullptr) return;
  const Guard guard;
  g_recorder->Step(name);
  ++g_step;
  if (g_step == g_light_from) BeginLight();
  if (g_step == g_slow_from) BeginSlow();
}

// PyTorch allocates its segments by the runtime's cudaMalloc. They become managed memory, resident while steps run
// undisturbed, host-resident while they are measured (a first touch by the GPU would make no transfer).
__attribute__((visibility("default"))) cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  static const auto unmanaged = reinterpret_cast<cudaError_t (*)(void**, size_t)>(Runtime("cudaMalloc"));
  static const auto managed = reinterpret_cast<cudaError_t (*)(void**, size_t, unsigned)>(Runtime("cudaMallocManaged"));
  if (managed == nullptr) return cudaErrorInitializationError;
  if (g_recorder == nullptr || g_slow_from < 0) return unmanaged(pointer, bytes);
  // A GPU whose managed memory is oversubscribed can hang.
  if (g_managed + bytes > g_managed_limit) {
    std::fprintf(stderr, "sluice-truth: refused: more than %llu bytes of managed memory\n",
                 static_cast<unsigned long long>(g_managed_limit));
    return cudaErrorMemoryAllocation;
  }
  const Guard guard;
  ConfigureOnce();
  const cudaError_t result = managed(pointer, bytes, cudaMemAttachGlobal);
  if (result != cudaSuccess) return result;
  const uint64_t address = Handle(*pointer);
  g_recorder->Alloc(AllocKind::kDevice, address, bytes);
  {
    std::lock_guard lock(g_data);
    g_blocks[address] = bytes;
    g_managed += bytes;
  }
  ChangeShadow(address, bytes);
  Move(address, bytes, g_slow ? kHost : kGpu);
  TRY(cuCtxSynchronize());
  return result;
}

__attribute__((visibility("default"))) cudaError_t cudaFree(void* pointer) {
  static const auto real = reinterpret_cast<cudaError_t (*)(void*)>(Runtime("cudaFree"));
  if (real == nullptr) return cudaErrorInitializationError;
  if (g_recorder != nullptr && g_blocks.count(Handle(pointer)) != 0) {
    const Guard guard;
    Freed(Handle(pointer));
    return real(pointer);
  }
  return real(pointer);
}

// c10::reportMemoryUsageToProfiler(void*, long, unsigned long, unsigned long, c10::Device); Device is two bytes, passed
// in a register.
__attribute__((visibility("default"))) void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    void* pointer, long bytes, size_t allocated, size_t reserved, short device) {
  using Report = void (*)(void*, long, size_t, size_t, short);
  static const auto real = [] {
    void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_NOW);
    return library != nullptr
               ? reinterpret_cast<Report>(dlsym(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"))
               : nullptr;
  }();
  if (g_recorder != nullptr && (device & 0xff) == 1) {
    const Guard guard;
    g_recorder->Report(reinterpret_cast<uint64_t>(pointer), bytes, static_cast<uint32_t>((device >> 8) & 0xff));
    std::lock_guard lock(g_data);
    if (bytes > 0) {
      g_tensors[reinterpret_cast<uint64_t>(pointer)] = static_cast<uint64_t>(bytes);
    } else {
      g_tensors.erase(reinterpret_cast<uint64_t>(pointer));
    }
  }
  if (real != nullptr) real(pointer, bytes, allocated, reserved, device);
}
}
