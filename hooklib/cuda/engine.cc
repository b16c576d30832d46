#include "hooklib/cuda/engine.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "hooklib/cuda/config.h"
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
std::atomic<bool> g_devices_ready{false};
std::mutex g_start_mutex;
std::atomic<pid_t> g_started_in{0};

// Says once why a process is slow: when its streams stood waiting for the link for a good part of the last ten seconds.
void WarnIfSlow() {
  static std::vector<sluice_gpu_counters> before;
  static bool said = false;
  before.resize(Devices().size());
  for (size_t i = 0; i < Devices().size(); ++i) {
    sluice_gpu_counters now{};
    Devices()[i]->Publish(&now);
    const double waited = static_cast<double>(now.stall_ns - before[i].stall_ns) / 1e10;
    const double in = static_cast<double>(now.bytes_in - before[i].bytes_in) / 0x1p30,
                 out = static_cast<double>(now.bytes_out - before[i].bytes_out) / 0x1p30;
    const double faults = static_cast<double>(now.fault_bytes - before[i].fault_bytes) / 0x1p30;
    if (!said && (waited > 0.3 || faults > 20)) {
      said = true;
      SLUICE_LOG(kWarn,
                 "%s: live %.1f GiB in %.1f GiB: in the last 10 s %.1f GiB came in, %.1f GiB went out, %.1f GiB by "
                 "faults; %.0f %% of the time "
                 "waits for the link; a larger fraction or a smaller batch helps",
                 now.uuid[0] ? now.uuid : Devices()[i]->uuid.c_str(), static_cast<double>(now.live_bytes) / 0x1p30,
                 static_cast<double>(now.budget_bytes) / 0x1p30, in, out, faults, 100 * waited);
    }
    before[i] = now;
  }
}

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
    WarnIfSlow();
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

const std::vector<std::unique_ptr<Device>>& Devices() {
  static const std::vector<std::unique_ptr<Device>> none;
  return g_devices_ready.load(std::memory_order_acquire) ? MutableDevices() : none;
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

bool MayBeTracked(CUdeviceptr pointer) {
  for (const auto& device : Devices()) {
    if (device->residency.chunks().MayHold(pointer)) return true;
  }
  return false;
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
  if (!g_devices_ready.load()) {
    int count = 0;
    if (!g_real.cuDeviceGetCount || g_real.cuDeviceGetCount(&count) != CUDA_SUCCESS) return;  // before cuInit
    for (int i = 0; i < count; ++i) {
      CUdevice ordinal = 0;
      if (g_real.cuDeviceGet(&ordinal, i) == CUDA_SUCCESS)
        MutableDevices().push_back(std::make_unique<Device>(ordinal));
    }
    g_devices_ready.store(true, std::memory_order_release);
  }
  g_started_in = self;
  StartFollower(1000);
  StartThread();
  for (const auto& device : Devices()) {
    SLUICE_LOG(kInfo, "%s: budget %.2f GiB of %.2f GiB, memory-limit %.2f GiB%s", device->uuid.c_str(),
               static_cast<double>(device->budget.budget_bytes) / 0x1p30, static_cast<double>(device->total) / 0x1p30,
               static_cast<double>(device->budget.limit_bytes) / 0x1p30,
               device->managed ? "" : "; no managed memory here: the budget is a hard limit");
  }
}

void PrintSummary(const char* when) {
  constexpr double kGi = 0x1p30;
  for (const auto& device : Devices()) {
    sluice_gpu_counters c{};
    device->Publish(&c);
    if (!c.launches && !c.requested_bytes && !c.plain_bytes) continue;
    const uint64_t looked = c.hits + c.misses;
    LogAlways(
        "%s pid %d %s: budget %.2f GiB, live %.2f GiB, plain %.2f GiB, in %.2f GiB, out %.2f GiB, without copy %.2f "
        "GiB, faults %.2f GiB "
        "(estimated), hits %.1f %%, stalls %.2f s, access known %.1f %%, factor %u, launches %llu, over budget %llu",
        when, getpid(), device->uuid.c_str(), static_cast<double>(c.budget_bytes) / kGi,
        static_cast<double>(c.live_bytes) / kGi, static_cast<double>(c.plain_bytes) / kGi,
        static_cast<double>(c.bytes_in) / kGi, static_cast<double>(c.bytes_out) / kGi,
        static_cast<double>(c.bytes_saved) / kGi, static_cast<double>(c.fault_bytes) / kGi,
        looked ? 100.0 * static_cast<double>(c.hits) / static_cast<double>(looked) : 100.0,
        static_cast<double>(c.stall_ns) / 1e9,
        c.launches ? 100.0 * static_cast<double>(c.launches_known) / static_cast<double>(c.launches) : 100.0, c.factor,
        static_cast<unsigned long long>(c.launches), static_cast<unsigned long long>(c.over_budget_launches));
  }
}

void EngineInit() {
  GetConfig();
  g_recorder = trace::Recorder::FromEnvironment();
  if (g_recorder) g_library_calls_wanted = true;
}

void EngineExit() {
  if (g_started_in.load() != getpid()) return;
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
