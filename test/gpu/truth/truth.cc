// Records a PyTorch program as a trace on a real card, without sluice: preloaded, and loaded by the driver through
// CUDA_INJECTION64_PATH. Made on the machine that has CUPTI (see record_traces).
//
// One process makes both halves of a trace, so both name the same addresses. PyTorch's segments come as managed memory
// that lies on the card; steps run undisturbed, and CUPTI's activity records give each kernel's duration. From step
// SLUICE_TRUTH_FROM on the same process is *slow*: everything lies on the host before each launch, so that the driver's
// transfer records during the launch are what it touched, and what the launch changed is found by comparing that with a
// copy (shadow.h). The last undisturbed steps run without activity records, which slow the host: of these, host times
// are taken; they leave out what the callbacks here took. `sluice-trace settle` makes one trace of it.
//
//   SLUICE_TRUTH_OUT=FILE     the trace, raw
//   SLUICE_TRUTH_FROM=N       first slow step (train.py --mark tells the steps)
//   SLUICE_TRUTH_LIGHT=N      first step without activity records
//   SLUICE_TRUTH_KERNEL=FILE  changes.cu, compiled; without it nothing is compared, and the trace carries no directions
//   SLUICE_TRUTH_SECONDS=S    slow launches after that long are not measured; 20 s later the process is ended, its
//                             trace whole
//   SLUICE_TRUTH_VERBOSE=1    what each slow launch touched, on stderr
//
// A transfer record says why its pages moved. "Coherence": a GPU access faulted on them, so they were touched.
// "Prefetch": the driver's density heuristic brought them beside faulting ones; most were about to be touched, some (a
// neighbour's in the same 2 MiB) were not. Both are kept, told apart.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arguments.h"
#include "calls.h"
#include "shadow.h"
#include "trace/recorder.h"

namespace {

using sluice::trace::Access;
using sluice::trace::AccessRange;
using sluice::trace::AccessSource;
using sluice::trace::AllocKind;
using sluice::trace::LaunchRecord;
using sluice::trace::Recorder;
using sluice::truth::Arguments;
using sluice::truth::Guard;
using sluice::truth::Handle;
using sluice::truth::ReadArguments;
using sluice::truth::Shape;
using Ranges = std::vector<AccessRange>;

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // what the driver moves and maps as a whole where it can
constexpr uint64_t kLateNs = 200'000;  // a record that began so long before its flush's launch is an older one's
constexpr size_t kOpenLaunches = 64;

Recorder* g_recorder = nullptr;
uint64_t g_managed_limit = 0, g_managed = 0;
int g_slow_from = -1, g_light_from = -1, g_step = -1;
double g_seconds = 60;
bool g_verbose = false;
std::atomic<bool> g_slow = false, g_over = false;
std::atomic<const char*> g_phase = "loading";
std::atomic<bool> g_moved_by_copy = false;  // copies and memsets may have brought pages to the card

// One slow launch: what it moved, and when it ran by CUPTI's clock.
struct Measured {
  uint64_t ordinal, begin, end;
  Ranges faulted, guessed, changed;
  bool compared = false;
};

// Lock order: g_launch (one launch at a time in slow mode), then g_data.
std::mutex g_launch, g_data;
sluice::truth::Shadow g_shadow;                      // under g_launch once launches are measured
Ranges g_stale;                                      // written by copies and memsets: the shadow has something older
std::deque<Measured> g_open;                         // the newest last; written out when kOpenLaunches behind
std::unordered_map<uint32_t, uint64_t> g_launch_of;  // CUPTI's correlation id -> ordinal
std::map<uint64_t, uint64_t> g_blocks;               // managed allocations
std::map<uint64_t, uint64_t> g_plain;                // the driver's own, by libraries
std::map<uint64_t, uint64_t> g_tensors;              // what PyTorch's allocator reported
Ranges g_on_card;                                    // what must leave before the next launch
Ranges g_between;                                    // moved while no launch was being measured
bool g_measuring = false;
uint64_t g_arrived = 0;  // records of the launch being measured
uint64_t g_transfers = 0, g_guesses = 0, g_late = 0, g_other_causes = 0, g_lost = 0, g_dropped = 0;
uint64_t g_changed = 0, g_overwritten = 0;  // bytes by the shadow
uint64_t g_out_bytes = 0;  // left the card while slow: more than came in by records means that records were lost
uint64_t g_launches = 0, g_measured = 0, g_empty = 0, g_bytes = 0;

uint64_t Now() {
  uint64_t now = 0;
  cuptiGetTimestamp(&now);
  return now;
}

void CUPTIAPI BufferWanted(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *records = 0;
}

// With g_data held. A record belongs to the launch being measured, unless it is late: began well before it, within an
// earlier one. Null: to none.
Measured* Owner(const CUpti_ActivityUnifiedMemoryCounter3& r) {
  if (g_open.empty()) return nullptr;
  Measured& newest = g_open.back();
  if (g_measuring && r.start + kLateNs >= newest.begin) return &newest;
  for (auto launch = g_open.rbegin(); launch != g_open.rend(); ++launch) {
    if (r.start < launch->begin) continue;
    if (r.start <= launch->end) {
      ++g_late;
      return &*launch;
    }
    break;
  }
  return g_measuring ? &newest : nullptr;
}

void Transfer(const CUpti_ActivityUnifiedMemoryCounter3& r) {
  if (r.counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH && g_slow) g_out_bytes += r.value;
  if (r.counterKind != CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD) return;
  const AccessRange range = {r.address, r.value, Access::kUnknown, AccessSource::kParameters};
  (g_measuring ? g_on_card : g_between).push_back(range);
  Measured* owner = Owner(r);
  if (owner == nullptr) return;
  ++g_transfers;
  ++g_arrived;
  g_bytes += r.value;
  if (r.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_PREFETCH) {
    ++g_guesses;
    owner->guessed.push_back(range);
  } else {
    if (r.flags != CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE) ++g_other_causes;
    owner->faulted.push_back(range);
  }
}

void CUPTIAPI BufferDone(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  std::lock_guard lock(g_data);
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) {
      Transfer(*reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter3*>(record));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* r = reinterpret_cast<CUpti_ActivityKernel10*>(record);
      const auto it = g_launch_of.find(r->correlationId);
      if (it == g_launch_of.end()) {
        ++g_lost;
        continue;
      }
      g_recorder->Duration(it->second, std::max<uint64_t>(1, r->end - r->start));
      g_launch_of.erase(it);
    }
  }
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  g_dropped += dropped;
  free(buffer);
}

Ranges Merged(Ranges ranges, uint64_t align) {
  for (AccessRange& r : ranges) {
    const uint64_t end = (r.address + r.bytes + align - 1) / align * align;
    r.address = r.address / align * align;
    r.bytes = end - r.address;
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const AccessRange& a, const AccessRange& b) { return a.address < b.address; });
  Ranges merged;
  for (const AccessRange& range : ranges) {
    if (!merged.empty() && range.address <= merged.back().address + merged.back().bytes) {
      merged.back().bytes =
          std::max(merged.back().address + merged.back().bytes, range.address + range.bytes) - merged.back().address;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// The part of every managed block that lies in the range, to one place.
void Move(uint64_t address, uint64_t bytes, CUmemLocation to) {
  auto block = g_blocks.upper_bound(address);
  if (block != g_blocks.begin()) --block;
  for (; block != g_blocks.end() && block->first < address + bytes; ++block) {
    const uint64_t first = std::max(address, block->first),
                   end = std::min(address + bytes, block->first + block->second);
    if (first < end) TRY(cuMemPrefetchAsync(first, end - first, to, 0, nullptr));
  }
}

constexpr CUmemLocation kHost = {CU_MEM_LOCATION_TYPE_HOST, {0}}, kCard = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};

// Everything that is known to have come to the card leaves it; whole blocks of the driver, so that one call moves much.
void Evict(Ranges ranges) {
  for (const AccessRange& range : Merged(std::move(ranges), kBlockBytes)) Move(range.address, range.bytes, kHost);
  TRY(cuCtxSynchronize());
}

void Print(const char* what, const Ranges& ranges) {
  std::fprintf(stderr, "   %s:", what);
  size_t shown = 0;
  for (const AccessRange& r : ranges) {
    auto block = g_blocks.upper_bound(r.address);
    const uint64_t base = block != g_blocks.begin() ? std::prev(block)->first : 0;
    if (++shown <= 10) {
      std::fprintf(stderr, " +%.3f..%.3f MiB", static_cast<double>(r.address - base) / 1048576.0,
                   static_cast<double>(r.address + r.bytes - base) / 1048576.0);
    }
  }
  std::fprintf(stderr, " (%zu ranges)\n", ranges.size());
}

// With g_data held.
void WriteOut(const Measured& m) {
  const Ranges faulted = Merged(m.faulted, 4096), guessed = Merged(m.guessed, 4096);
  g_recorder->Truth(m.ordinal, faulted);
  g_recorder->Guessed(m.ordinal, guessed);
  if (m.compared) g_recorder->Changed(m.ordinal, m.changed);
  if (g_verbose) {
    std::fprintf(stderr, "launch %llu\n", static_cast<unsigned long long>(m.ordinal));
    Print("faulted", faulted);
    Print("guessed", guessed);
    Ranges changed, overwritten;
    for (const AccessRange& r : m.changed) (r.access == Access::kWrite ? overwritten : changed).push_back(r);
    Print("changed", changed);
    Print("overwritten", overwritten);
  }
}

void WriteAll() {
  std::lock_guard lock(g_data);
  for (const Measured& m : g_open) WriteOut(m);
  g_open.clear();
}

void Synchronise() {
  TRY(cuCtxSynchronize());
  TRY(cuptiActivityFlushAll(1));
}

// What copies and memsets brought leaves before the launch.
void EmptyCard() {
  if (g_moved_by_copy.exchange(false)) {
    g_phase = "emptying the card";
    Synchronise();
    Ranges stale;
    {
      std::lock_guard lock(g_data);
      stale.swap(g_stale);
    }
    for (const AccessRange& r : stale) g_shadow.Refresh(r.address, r.bytes);
    if (!stale.empty()) Synchronise();  // reading it brought it to the card
  }
  Ranges ranges;
  {
    std::lock_guard lock(g_data);
    ranges.swap(g_between);
  }
  if (!ranges.empty()) Evict(std::move(ranges));
}

// Before the first managed allocation: CUPTI then follows it from its beginning.
void ConfigureOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
    if (g_slow_from < 0) return;
    CUpti_ActivityUnifiedMemoryCounterConfig config[2]{};
    for (auto& c : config) {
      c.scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
      c.deviceId = 0;
      c.enable = 1;
    }
    config[0].kind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
    config[1].kind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH;
    TRY(cuptiActivityConfigureUnifiedMemoryCounter(config, 2));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER));
  });
}

// From here on launches leave no records of their durations.
void BeginLight() {
  Synchronise();
  TRY(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
}

// From here on every launch is measured.
void BeginSlow() {
  g_phase = "everything to the host";
  Synchronise();
  if (g_light_from < 0) TRY(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  const uint64_t begin = Now();
  const char* kernel = std::getenv("SLUICE_TRUTH_KERNEL");
  if (kernel != nullptr && *kernel != 0) g_shadow.Load(kernel);
  for (const auto& [address, bytes] : g_blocks) g_shadow.Follow(address, bytes, true);
  TRY(cuCtxSynchronize());
  for (const auto& [address, bytes] : std::map<uint64_t, uint64_t>(g_blocks)) Move(address, bytes, kHost);
  Synchronise();
  {
    std::lock_guard lock(g_data);
    g_between.clear();
  }
  std::fprintf(stderr, "sluice-truth: %.2f GiB to the host in %.2f s; now every launch is measured\n",
               static_cast<double>(g_managed) / (1 << 30), static_cast<double>(Now() - begin) / 1e9);
  g_slow = true;
  g_phase = "slow";
}

// Tells how far it is, and sees to it that the process ends, with what it has, when its time is over.
void Watch() {
  const auto start = std::chrono::steady_clock::now();
  double slow_since = -1;
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (g_slow && slow_since < 0) slow_since = now;
    std::fprintf(
        stderr, "sluice-truth: %.0f s, step %d, %llu launches, %llu measured, %.1f GiB moved in, %llu records; %s\n",
        now, g_step, static_cast<unsigned long long>(g_launches), static_cast<unsigned long long>(g_measured),
        static_cast<double>(g_bytes) / (1 << 30), static_cast<unsigned long long>(g_transfers), g_phase.load());
    if (slow_since >= 0 && now > slow_since + g_seconds && !g_over.exchange(true)) {
      std::fprintf(stderr, "sluice-truth: time is over: the launches from here on carry no truth\n");
    }
    if ((slow_since >= 0 && now > slow_since + g_seconds + 20) || now > g_seconds + 60) {
      std::fprintf(stderr, "sluice-truth: ended in phase '%s'\n", g_phase.load());
      WriteAll();
      g_recorder->Finish();
      _exit(3);
    }
  }
}

thread_local bool t_measured = false;  // between a slow launch's entry and its end: holds g_launch
thread_local Ranges t_named;           // the tensors that its parameters point into
thread_local CUstream t_stream = nullptr;

// The driver's queue of records is short (a kernel that touches a few hundred MiB fills it, and what does not fit is
// lost without a word): it is emptied all the while the kernel runs.
void WaitForKernel() {
  static CUevent done = nullptr;
  if (done == nullptr) TRY(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  TRY(cuEventRecord(done, t_stream));
  while (cuEventQuery(done) == CUDA_ERROR_NOT_READY) cuptiActivityFlushAll(1);
}

// With g_data held.
Ranges Named(const std::vector<uint64_t>& words) {
  Ranges ranges;
  for (const uint64_t word : words) {
    for (const auto* things : {&g_tensors, &g_blocks}) {
      const auto thing = things->upper_bound(word);
      if (thing == things->begin()) continue;
      const auto& [address, bytes] = *std::prev(thing);
      if (word - address >= bytes) continue;
      ranges.push_back({address, bytes, Access::kUnknown, AccessSource::kParameters});
      break;
    }
  }
  return ranges;
}

// Never with g_data held: the driver may hand over records on the way.
void ChangeShadow(uint64_t address, uint64_t bytes) {
  if (!g_slow) return;
  std::unique_lock lock(g_launch, std::defer_lock);
  if (!t_measured) lock.lock();
  bytes != 0 ? g_shadow.Follow(address, bytes, false) : g_shadow.Forget(address);
}

bool OnDevice(const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(g_data);
  for (const auto* blocks : {&g_blocks, &g_plain}) {
    const auto block = blocks->upper_bound(address);
    if (block != blocks->begin() && address < std::prev(block)->first + std::prev(block)->second) return true;
  }
  return false;
}

void Wrote(uint64_t to, uint64_t bytes) {
  if (!g_slow) return;
  std::lock_guard lock(g_data);
  g_stale.push_back({to, bytes, Access::kWrite, AccessSource::kCopy});
}

void AtExit() {
  const Guard guard;
  g_phase = "the end";
  cuptiActivityFlushAll(1);
  WriteAll();
  std::fprintf(
      stderr,
      "sluice-truth: %llu MiB managed; %llu launches, %llu measured, %llu of them without any transfer; %llu transfer "
      "records, %llu by the "
      "driver's guess, %.2f GiB in, %.2f GiB out, %llu late, %llu of other causes, %llu dropped; %.2f GiB changed, "
      "%.2f "
      "GiB overwritten%s; %llu kernels without a launch, %llu functions without parameters\n",
      static_cast<unsigned long long>(g_managed >> 20), static_cast<unsigned long long>(g_launches),
      static_cast<unsigned long long>(g_measured), static_cast<unsigned long long>(g_empty),
      static_cast<unsigned long long>(g_transfers), static_cast<unsigned long long>(g_guesses),
      static_cast<double>(g_bytes) / (1 << 30), static_cast<double>(g_out_bytes) / (1 << 30),
      static_cast<unsigned long long>(g_late), static_cast<unsigned long long>(g_other_causes),
      static_cast<unsigned long long>(g_dropped), static_cast<double>(g_changed) / (1 << 30),
      static_cast<double>(g_overwritten) / (1 << 30), g_shadow.on() ? "" : " (not compared to the end)",
      static_cast<unsigned long long>(g_lost),
      static_cast<unsigned long long>(sluice::truth::FunctionsWithoutLayout()));
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

namespace sluice::truth {

void LaunchBegins(const Shape& shape, const char* symbol, uint32_t correlation) {
  ConfigureOnce();
  const Arguments arguments = ReadArguments(shape.function, shape.parameters, shape.extra);
  t_measured = g_slow && !g_over;
  if (t_measured) {
    g_launch.lock();
    EmptyCard();
    g_phase = "a launch";
  }
  LaunchRecord record;
  record.function = g_recorder->Function(reinterpret_cast<uint64_t>(shape.function), symbol, arguments.layout);
  record.stream = reinterpret_cast<uint64_t>(shape.stream);
  std::copy(shape.grid, shape.grid + 3, record.grid);
  std::copy(shape.block, shape.block + 3, record.block);
  record.shared_bytes = shape.shared;
  record.words = arguments.words;
  std::lock_guard lock(g_data);  // the kernel's record cannot arrive before its ordinal is known
  const uint64_t ordinal = g_recorder->Launch(record);
  ++g_launches;
  if (!t_measured) {
    if (!g_slow && (g_light_from < 0 || g_step < g_light_from)) g_launch_of[correlation] = ordinal;
    return;
  }
  if (g_open.size() == kOpenLaunches) {
    WriteOut(g_open.front());
    g_open.pop_front();
  }
  t_named = Named(arguments.words);
  t_stream = shape.stream;
  g_open.push_back({ordinal, Now(), UINT64_MAX, {}, {}, {}, false});
  g_measuring = true;
  g_arrived = 0;
}

void LaunchEnded() {
  if (!t_measured) return;
  t_measured = false;
  WaitForKernel();
  Synchronise();
  const uint64_t end = Now();
  // Nearly every kernel touches something: where no record is there yet, the driver's queue may be behind.
  for (int i = 0; i < 3 && g_arrived == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    TRY(cuptiActivityFlushAll(1));
  }
  Ranges ranges;
  {
    std::lock_guard lock(g_data);
    g_open.back().end = end;
    g_measuring = false;
    ranges.swap(g_on_card);
  }
  g_phase = "comparing";
  Ranges changed = g_shadow.Changed(ranges);
  {
    std::lock_guard lock(g_data);
    for (const AccessRange& r : changed) (r.access == Access::kWrite ? g_overwritten : g_changed) += r.bytes;
    g_open.back().changed = std::move(changed);
    g_open.back().compared = g_shadow.on();
    // Should a record be lost all the same, the next launch finds its page on the host nevertheless.
    ranges.insert(ranges.end(), t_named.begin(), t_named.end());
    if (g_arrived == 0) ++g_empty;
    if (++g_measured % 64 == 0) g_recorder->Flush();  // what is measured stays, whatever comes
  }
  g_phase = "leaving the card";
  Evict(std::move(ranges));
  g_phase = "slow";
  g_launch.unlock();
}

void Freed(uint64_t address) {
  g_recorder->Free(address);
  {
    std::lock_guard lock(g_data);
    g_plain.erase(address);
    const auto it = g_blocks.find(address);
    if (it == g_blocks.end()) return;
    g_managed -= it->second;
    g_blocks.erase(it);
  }
  ChangeShadow(address, 0);
}

void Copied(CUstream stream, const void* to, const void* from, size_t bytes, bool waits) {
  using namespace sluice::trace;
  g_moved_by_copy = true;
  Wrote(reinterpret_cast<uint64_t>(to), bytes);
  g_recorder->Copy(reinterpret_cast<uint64_t>(stream), reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from),
                   bytes,
                   (OnDevice(from) ? uint32_t{kCopyFromDevice} : 0) | (OnDevice(to) ? uint32_t{kCopyToDevice} : 0) |
                       (waits ? uint32_t{kCopySync} : 0));
}

void Filled(CUstream stream, uint64_t to, size_t bytes, uint64_t value) {
  g_moved_by_copy = true;
  Wrote(to, bytes);
  g_recorder->Set(reinterpret_cast<uint64_t>(stream), to, bytes, value);
}

void PlainAllocated(uint64_t address, uint64_t bytes) {
  g_recorder->Alloc(AllocKind::kDevice, address, bytes);
  std::lock_guard lock(g_data);
  g_plain[address] = bytes;
}

Recorder& TheRecorder() { return *g_recorder; }

}  // namespace sluice::truth

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
  g_recorder->UseClock(sluice::truth::ProgramTime, nullptr);
  g_recorder->Meta("source", "recorded by test/gpu/truth");
  if (const char* command = std::getenv("SLUICE_TRUTH_COMMAND")) g_recorder->Meta("command", command);
  if (const char* gpu = std::getenv("SLUICE_TRUTH_GPU")) g_recorder->Meta("gpu", gpu);
  if (g_slow_from >= 0) g_recorder->Meta("slow-from", std::to_string(g_slow_from).c_str());
  if (g_light_from >= 0) g_recorder->Meta("light-from", std::to_string(g_light_from).c_str());
  sluice::truth::Subscribe();
  TRY(cuptiActivityRegisterCallbacks(BufferWanted, BufferDone));
  std::atexit(AtExit);
  std::thread(Watch).detach();
  return 1;
}

// train.py --mark calls this.
__attribute__((visibility("default"))) void sluice_truth_step(const char* name) {
  if (g_recorder == nullptr) return;
  const Guard guard;
  g_recorder->Step(name);
  ++g_step;
  if (g_step == g_light_from) BeginLight();
  if (g_step == g_slow_from) BeginSlow();
}

// PyTorch's segments come from the runtime's cudaMalloc: managed memory, on the card while steps run undisturbed, on
// the host while they are measured (a first touch by the GPU would make no transfer).
__attribute__((visibility("default"))) cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  static const auto plain = reinterpret_cast<cudaError_t (*)(void**, size_t)>(Runtime("cudaMalloc"));
  static const auto managed = reinterpret_cast<cudaError_t (*)(void**, size_t, unsigned)>(Runtime("cudaMallocManaged"));
  if (managed == nullptr) return cudaErrorInitializationError;
  if (g_recorder == nullptr || g_slow_from < 0) return plain(pointer, bytes);
  // The guard: a card whose managed memory is oversubscribed can hang.
  if (g_managed + bytes > g_managed_limit) {
    std::fprintf(stderr, "sluice-truth: managed memory beyond %llu bytes refused\n",
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
  Move(address, bytes, g_slow ? kHost : kCard);
  TRY(cuCtxSynchronize());
  return result;
}

__attribute__((visibility("default"))) cudaError_t cudaFree(void* pointer) {
  static const auto real = reinterpret_cast<cudaError_t (*)(void*)>(Runtime("cudaFree"));
  if (real == nullptr) return cudaErrorInitializationError;
  if (g_recorder != nullptr && g_blocks.count(Handle(pointer)) != 0) {
    const Guard guard;
    sluice::truth::Freed(Handle(pointer));
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
