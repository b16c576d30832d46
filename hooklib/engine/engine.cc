#include "hooklib/engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/observe/diagnostics.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/trace_recording.h"
#include "sluice/names.h"

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
bool g_ticks = false;       // the ticker runs
// Of the process that this one was forked from.
const std::vector<std::unique_ptr<Device>>* g_inherited = nullptr;

// What is to be done at the end is done by the ticker's thread: who calls exit() may hold any of our locks, where a
// signal's handler calls it. Then it is not waited for.
class Ending {
 public:
  Ending() {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&changed_, &monotonic);
    pthread_condattr_destroy(&monotonic);
  }
  // Of the ticker: sleeps, and whether the process ends.
  bool Begins(uint64_t ns) {
    pthread_mutex_lock(&mutex_);
    Until(MonotonicNs() + ns, [this] { return begun_; });
    const bool begun = begun_;
    pthread_mutex_unlock(&mutex_);
    return begun;
  }
  void Over() {
    pthread_mutex_lock(&mutex_);
    over_ = true;
    pthread_cond_broadcast(&changed_);
    pthread_mutex_unlock(&mutex_);
  }
  // Of who ends the process.
  void Await(uint64_t ns) {
    pthread_mutex_lock(&mutex_);
    begun_ = true;
    pthread_cond_broadcast(&changed_);
    Until(MonotonicNs() + ns, [this] { return over_; });
    pthread_mutex_unlock(&mutex_);
  }

 private:
  template <typename F>
  void Until(uint64_t ns, F done) {
    const timespec at{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
    while (!done() && pthread_cond_timedwait(&changed_, &mutex_, &at) != ETIMEDOUT) {
    }
  }
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed_;
  bool begun_ = false, over_ = false;
};
Ending& TheEnd() {
  static auto& end = *new Ending;
  return end;
}

void TellAtExit() {
  PublishAll();  // what came after the last tick: the agent keeps what stands on the page when the process is gone
  JudgeAtExit();
  PrintSummary("exit");
  LogLibraryCounters();
  if (g_recorder) g_recorder->Finish();
}

// Publishes the counters ten times a second and prints the period's line. Makes no driver call.
void* Ticker(void*) {
  for (uint64_t tick = 1; !TheEnd().Begins(100000000); ++tick) {
    for (const auto& device : Devices()) {
      if (tick % 10 == 0) device->NoteSecond();
      device->tokens.time_slices().BeginSampling(device->Launches());
    }
    PublishAll();
    if (tick % 100 != 0) continue;
    JudgePeriod();
    if (LogEnabled(settings::LogLevel::kInfo)) PrintSummary("now");
  }
  TellAtExit();
  TheEnd().Over();
  return nullptr;
}

// A child of a process that uses CUDA has none of its threads, any of its locks may be held for ever there, and the
// driver serves it nothing. It has no devices of ours: its calls go to the driver as they are. What NVML is asked for
// is answered as it was.
void AfterForkInChild() {
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
  // Another context may get the handle of one that is gone.
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

std::optional<Tracked> FindTracked(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (!device->residency.chunks().MayHold(pointer)) continue;
    std::lock_guard lock(device->mutex);
    memory::Va base = 0;
    if (const memory::Allocation* allocation = device->live.Find(pointer, &base))
      return Tracked{device.get(), base, *allocation};
  }
  return std::nullopt;
}

void EnsureStarted() {
  if (g_started_in.load(std::memory_order_acquire) != 0) return;
  std::lock_guard lock(g_start_mutex);
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
  const bool answered = StartFollower(1000);
  g_ticks = StartOwnThread("sluice", Ticker);
  if (!answered) {
    const settings::Settings& said = GetConfig().settings;
    const bool bounded = said.gpu_memory || said.gpu_percent.value_or(100) < 100;
    SLUICE_LOG(kWarn, SLUICE_ENV_SOCKET ": no agent answers at '%s'; until one does, %s", GetConfig().socket.c_str(),
               bounded ? "the budget is what the environment says" : "this process runs without a budget");
  }
  for (const auto& device : Devices()) {
    SLUICE_LOG(kInfo, "%s: budget %.2f GiB of %.2f GiB, memory-limit %.2f GiB%s%s", device->uuid.c_str(),
               static_cast<double>(device->budget.budget_bytes) / 0x1p30, static_cast<double>(device->total) / 0x1p30,
               static_cast<double>(device->budget.limit_bytes) / 0x1p30,
               device->managed ? "" : "; the budget is a hard limit: ", device->unmanaged_because);
  }
}

double SecondsSinceStart() { return g_started_at ? static_cast<double>(MonotonicNs() - g_started_at) / 1e9 : 0; }

void EngineInit() {
  GetConfig();
  ProcessorMask();  // before the program binds its threads
  g_recorder = trace::Recorder::FromEnvironment();
  WantLibraryCalls();
}

void EngineExit() {
  if (g_started_in.load() != getpid()) return;
  if (!g_ticks) return TellAtExit();
  TheEnd().Await(2000000000);
}

bool FractionView(const char* uuid, uint64_t* total, uint64_t* used) {
  EnsureStarted();
  const auto look = [&](const auto& devices, auto view) {
    for (const auto& device : devices) {
      if (device->uuid != uuid) continue;
      uint64_t free = 0;
      view(*device, &free);
      *used = *total - free;
      return true;
    }
    return false;
  };
  if (g_inherited) return look(*g_inherited, [&](const Device& d, uint64_t* free) { d.ViewUnlocked(total, free); });
  return look(Devices(), [&](Device& d, uint64_t* free) { d.View(total, free); });
}

void OnAllocatorReport(void* pointer, long bytes, signed char device_type, signed char) {
  if (device_type != 1 || bytes == 0 || (Devices().empty() && !Recording())) return;
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
