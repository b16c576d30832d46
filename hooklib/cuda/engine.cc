#include "hooklib/cuda/engine.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "hooklib/cuda/config.h"
#include "hooklib/cuda/diagnostics.h"
#include "hooklib/cuda/follower.h"
#include "hooklib/cuda/library.h"
#include "hooklib/cuda/log.h"
#include "hooklib/cuda/record.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {

// None of these is ever destroyed: other threads may run on while the process exits.
std::vector<std::unique_ptr<Device>>& MutableDevices() {
  static auto& devices = *new std::vector<std::unique_ptr<Device>>();
  return devices;
}
std::mutex g_start_mutex;
std::atomic<pid_t> g_started_in{0};
uint64_t g_started_at = 0;  // MonotonicNs

// Publishes the counters ten times a second and prints the period's line. Makes no driver call.
void* Ticker(void*) {
  for (uint64_t tick = 1;; ++tick) {
    const timespec pause{0, 100000000};
    nanosleep(&pause, nullptr);
    for (const auto& device : Devices()) {
      if (tick % 10 == 0) device->NoteSecond();
      device->tokens.turns().Sample(device->Launches());
    }
    PublishAll();
    if (tick % 100 != 0) continue;
    JudgePeriod();
    if (LogEnabled(settings::LogLevel::kInfo)) PrintSummary("now");
  }
  return nullptr;
}

void StartThread() {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 128 << 10);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, Ticker, nullptr) == 0) pthread_setname_np(thread, "sluice");
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

thread_local CUcontext t_context = nullptr;
thread_local Device* t_device = nullptr;

}  // namespace

std::atomic<const std::vector<std::unique_ptr<Device>>*> g_devices{nullptr};

uint64_t MonotonicNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000 + static_cast<uint64_t>(ts.tv_nsec);
}

Device* DeviceByOrdinal(CUdevice ordinal) {
  for (const auto& device : Devices()) {
    if (device->ordinal == ordinal) return device.get();
  }
  return nullptr;
}

Device* CurrentDevice(CUcontext* out) {
  CUcontext context = nullptr;
  if (!g_real.cuCtxGetCurrent || g_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) return nullptr;
  if (out) *out = context;
  if (context == t_context && t_device) return t_device;
  CUdevice ordinal = 0;
  if (g_real.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) return nullptr;
  EnsureStarted();
  t_device = DeviceByOrdinal(ordinal);
  t_context = context;
  return t_device;
}

std::optional<Tracked> FindTracked(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (!device->residency.chunks().MayHold(pointer)) continue;
    std::lock_guard lock(device->mutex);
    core::Va base = 0;
    if (const core::Allocation* allocation = device->live.Find(pointer, &base))
      return Tracked{device.get(), base, *allocation};
  }
  return std::nullopt;
}

void EnsureStarted() {
  const pid_t self = getpid();
  if (g_started_in.load(std::memory_order_acquire) == self) return;
  std::lock_guard lock(g_start_mutex);
  if (g_started_in.load() == self) return;
  if (!g_devices.load()) {
    int count = 0;
    if (!g_real.cuDeviceGetCount || g_real.cuDeviceGetCount(&count) != CUDA_SUCCESS) return;  // before cuInit
    for (int i = 0; i < count; ++i) {
      CUdevice ordinal = 0;
      if (g_real.cuDeviceGet(&ordinal, i) == CUDA_SUCCESS)
        MutableDevices().push_back(std::make_unique<Device>(ordinal));
    }
    g_devices.store(&MutableDevices(), std::memory_order_release);
  }
  g_started_at = MonotonicNs();
  g_started_in = self;
  StartFollower(1000);
  StartThread();
  for (const auto& device : Devices()) {
    SLUICE_LOG(kInfo, "%s: budget %.2f GiB of %.2f GiB, memory-limit %.2f GiB%s%s", device->uuid.c_str(),
               static_cast<double>(device->budget.budget_bytes) / 0x1p30, static_cast<double>(device->total) / 0x1p30,
               static_cast<double>(device->budget.limit_bytes) / 0x1p30,
               device->managed ? "" : "; the budget is a hard limit: ", device->plain_because);
  }
}

double SecondsSinceStart() { return g_started_at ? static_cast<double>(MonotonicNs() - g_started_at) / 1e9 : 0; }

void EngineInit() {
  GetConfig();
  g_recorder = trace::Recorder::FromEnvironment();
  WantLibraryCalls();
}

void EngineExit() {
  if (g_started_in.load() != getpid()) return;
  PublishAll();  // what came after the last tick: the agent keeps what stands on the page when the process is gone
  JudgeAtExit();
  PrintSummary("exit");
  LogLibraryCounters();
  if (g_recorder) g_recorder->Finish();
}

bool FractionView(const char* uuid, uint64_t* total, uint64_t* used) {
  EnsureStarted();
  for (const auto& device : Devices()) {
    if (device->uuid != uuid) continue;
    uint64_t free = 0;
    device->View(total, &free);
    *used = *total - free;
    return true;
  }
  return false;
}

void OnAllocatorReport(void* pointer, long bytes, signed char device_type, signed char) {
  if (device_type != 1 || bytes == 0) return;
  const auto va = reinterpret_cast<CUdeviceptr>(pointer);
  if (bytes < 0) ForgetHostCopies(va, static_cast<uint64_t>(-bytes));
  for (const auto& device : Devices()) {
    if (device->residency.chunks().MayHold(va)) {
      device->Report(va, bytes);
      break;
    }
  }
  if (Recording()) g_recorder->Report(va, bytes);
}

}  // namespace sluice
