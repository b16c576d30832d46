#include "hooklib/engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/device/virtual_memory.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/observe/diagnostics.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/trace_recording.h"
#include "hooklib/engine/share.h"
#include "sluice/names.h"

namespace sluice {

namespace {

// The first lock that is taken: held while devices are made and the threads started.
Mutex g_start_mutex;
// None of these is ever destroyed: other threads may run on while the process exits. `g_devices` publishes them.
std::vector<std::unique_ptr<Device>>& MutableDevices() SLUICE_REQUIRES(g_start_mutex) {
  static auto& devices = *new std::vector<std::unique_ptr<Device>>();
  return devices;
}
std::atomic<pid_t> g_started_in{0};
uint64_t g_started_at = 0;              // MonotonicNs
std::atomic<bool> g_has_ticker{false};  // a thread may end the process while another starts the engine
// Of the process that this one was forked from.
const std::vector<std::unique_ptr<Device>>* g_inherited = nullptr;

// The ticker's thread writes the last lines, because a thread that calls exit() in a signal's handler may hold any of
// our locks. In that case the exiting thread gives up after a while.
class ExitHandshake {
 public:
  // The ticker: sleeps for so long. True: the process ends.
  bool AwaitExit(std::chrono::nanoseconds time) {
    const auto end = Clock::now() + time;
    MutexLock lock(mutex_);
    while (!exiting_ && Clock::now() < end) changed_.WaitUntil(mutex_, end);
    return exiting_;
  }
  // The ticker: the last lines are written.
  void Finish() {
    MutexLock lock(mutex_);
    finished_ = true;
    changed_.NotifyAll();
  }
  // The thread that ends the process: asks the ticker to finish, and waits at most so long.
  void RequestAndAwait(std::chrono::nanoseconds time) {
    const auto end = Clock::now() + time;
    MutexLock lock(mutex_);
    exiting_ = true;
    changed_.NotifyAll();
    while (!finished_ && Clock::now() < end) changed_.WaitUntil(mutex_, end);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Mutex mutex_;  // no other lock is taken inside
  Condition changed_;
  bool exiting_ SLUICE_GUARDED_BY(mutex_) = false;
  bool finished_ SLUICE_GUARDED_BY(mutex_) = false;
};
ExitHandshake& TheExitHandshake() {
  static auto& handshake = *new ExitHandshake;
  return handshake;
}

void ReportAtExit() {
  for (const auto& device : Devices()) device->NoteSecond();
  PublishAll();  // the changes after the last tick: the agent keeps the page's figures when the process is gone
  CheckAtExit();
  LogSummary("exit");
  LogLibraryCounters();
  if (g_recorder) g_recorder->Finish();
}

// Publishes the counters ten times a second and logs the period's line. Makes no driver call.
//
// A program whose main thread ends by pthread_exit ends with its last thread: the C library calls exit(0) there. The
// engine's threads would keep it alive, and as these block all signals, SIGTERM would stay pending. To unblock it in
// one of them is no remedy: a program that blocks a signal everywhere and waits for it would be ended by it. So the
// ticker makes the C library's call when only the engine's threads are left.
void* Ticker(void*) {
  constexpr std::chrono::milliseconds kTick{100};
  constexpr uint64_t kTicksPerSecond = 10, kTicksPerPeriod = 100;
  bool is_last = false;
  struct Idle {
    uint64_t launches = 0, ticks = 0;
  };
  std::vector<Idle> idle(Devices().size());
  for (uint64_t tick = 1; !TheExitHandshake().AwaitExit(kTick); ++tick) {
    for (size_t i = 0; i < Devices().size(); ++i) {
      Device& device = *Devices()[i];
      if (tick % kTicksPerSecond == 0) device.NoteSecond();
      const uint64_t now = device.Launches();
      device.tokens.time_slices().BeginSampling(now);
      // Launches correct an excess that earlier ones have left above the budget. Where none comes for a period, the
      // follower does.
      idle[i].ticks = std::exchange(idle[i].launches, now) == now ? idle[i].ticks + 1 : 0;
      if (idle[i].ticks >= kTicksPerPeriod && device.OverCapacity()) WakeFollower();
    }
    PublishAll();
    is_last = OnlyOwnThreadsAreLeft();
    if (is_last) break;
    if (tick % kTicksPerPeriod != 0) continue;
    CheckPeriod();
    if (LogEnabled(settings::LogLevel::kInfo)) LogSummary("status");
  }
  ReportAtExit();
  TheExitHandshake().Finish();
  if (is_last) exit(0);
  return nullptr;
}

// A child of a process that uses CUDA has none of its threads, any of its locks may be held for ever there, and the
// driver serves it nothing. It has no devices of ours: its calls go to the driver as they are. NVML's answers stay as
// they were.
void AfterForkInChild() {
  g_is_forked_child = true;
  if (const auto* devices = g_devices.exchange(nullptr)) g_inherited = devices;
  g_recorder = nullptr;  // the file is the parent's
  g_library_calls_wanted = false;
  ForgetStreamCache();
}

thread_local CUcontext t_context = nullptr;
thread_local uint64_t t_generation = 0;
thread_local Device* t_device = nullptr;

}  // namespace

std::atomic<const std::vector<std::unique_ptr<Device>>*> g_devices{nullptr};

uint64_t MonotonicNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000 + static_cast<uint64_t>(ts.tv_nsec);
}

const std::vector<std::unique_ptr<Device>>* InheritedDevices() { return g_inherited; }

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
  // The handle of a context that is gone may be given to another.
  const uint64_t generation = HandleGeneration();
  if (context == t_context && generation == t_generation && t_device) return t_device;
  CUdevice ordinal = 0;
  if (g_real.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) return nullptr;
  EnsureStarted();
  t_device = DeviceByOrdinal(ordinal);
  t_context = context;
  t_generation = generation;
  return t_device;
}

std::optional<TrackedAddress> FindTracked(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (!device->MayHold(pointer)) continue;
    DeviceLock lock(device->mutex);
    memory::Va base = 0;
    if (const memory::Allocation* allocation = device->live.Find(pointer, &base))
      return TrackedAddress{device.get(), base, *allocation};
  }
  return std::nullopt;
}

bool IsFreeInArena(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (!device->MayHold(pointer)) continue;
    DeviceLock lock(device->mutex);
    memory::Va base = 0;
    if (device->residency.chunks().InArena(pointer) && !device->live.Find(pointer, &base)) return true;
  }
  return virtual_memory::IsUnmapped(pointer);
}

std::atomic<bool> g_several_devices_work{false};

void NoteDeviceWorks(Device* device) {
  if (device->works.exchange(true)) return;
  const auto devices = Devices();
  if (std::count_if(devices.begin(), devices.end(), [](const auto& each) { return each->works.load(); }) < 2) return;
  g_several_devices_work = true;
  for (const auto& each : devices) each->PrepareForOtherDevices();
}

void EnsureStarted() {
  constexpr int kMaxFirstBudgetMs = 1000;
  if (g_started_in.load(std::memory_order_acquire) != 0) return;
  MutexLock lock(g_start_mutex);
  if (g_started_in.load() != 0 || g_inherited) return;
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
  g_started_in = getpid();
  pthread_atfork(nullptr, nullptr, &AfterForkInChild);
  const bool has_answer = StartFollower(kMaxFirstBudgetMs);
  g_has_ticker = StartOwnThread("sluice", Ticker);
  if (!has_answer) {
    const settings::Settings& set = GetConfig().settings;
    const bool is_bounded = set.gpu_memory || set.gpu_percent.value_or(100) < 100;
    SLUICE_LOG(kWarn, SLUICE_ENV_SOCKET ": no agent answers at '%s'; until one does, %s", GetConfig().socket.c_str(),
               is_bounded ? "the environment sets the budget" : "this process runs without a budget");
  }
  for (const auto& device : Devices()) {
    const sluice_budget budget = device->Budget();
    SLUICE_LOG(kInfo, "start gpu=%s budget_bytes=%llu limit_bytes=%llu gpu_bytes=%llu managed=%d reason=\"%s\"",
               device->uuid.c_str(), static_cast<unsigned long long>(budget.budget_bytes),
               static_cast<unsigned long long>(budget.limit_bytes),
               static_cast<unsigned long long>(device->total_bytes), device->managed ? 1 : 0, device->unmanaged_reason);
  }
}

double SecondsSinceStart() { return g_started_at ? static_cast<double>(MonotonicNs() - g_started_at) / 1e9 : 0; }

void EngineInit() {
  GetConfig();
  CpuMask();  // before the program binds its threads
  InitShare();
  g_recorder = trace::Recorder::FromEnvironment();
  WantLibraryCalls();
}

void EngineExit() {
  if (g_started_in.load() != getpid()) return;
  constexpr std::chrono::seconds kMaxExit{2};
  if (!g_has_ticker) return ReportAtExit();
  TheExitHandshake().RequestAndAwait(kMaxExit);
}

void OnAllocatorReport(void* pointer, long bytes, signed char device_type, signed char) {
  if (device_type != 1 || bytes == 0 || (Devices().empty() && !Recording())) return;
  const auto va = reinterpret_cast<CUdeviceptr>(pointer);
  if (bytes < 0) ForgetHostCopies(va, static_cast<uint64_t>(-bytes));
  for (const auto& device : Devices()) {
    if (device->MayHold(va)) {
      device->Report(va, bytes);
      break;
    }
  }
  if (Recording()) g_recorder->Report(va, bytes);
}

}  // namespace sluice
