// Records a PyTorch program as a trace on a real GPU, without sluice: preloaded, and loaded by the driver through
// CUDA_INJECTION64_PATH. Built on the machine that has CUPTI (see record_traces).
//
// One process makes both halves of a trace, so both have the same addresses. PyTorch's segments become managed memory.
// Undisturbed steps run with all of it resident, and CUPTI's activity records give each kernel's duration. From step
// SLUICE_TRUTH_FROM on the process is *slow*: all memory is host-resident before each launch, so the driver's transfer
// records during the launch are the pages that it touched. Comparing them with a copy (shadow.h) finds the changed
// bytes. The last undisturbed steps run without activity records, which slow the host; host times are taken from these,
// without the time of the callbacks here. `sluice-trace settle` makes one trace of the recording.
//
//   SLUICE_TRUTH_OUT=FILE     the raw trace
//   SLUICE_TRUTH_FROM=N       first slow step (train.py --mark reports the steps)
//   SLUICE_TRUTH_LIGHT=N      first step without activity records
//   SLUICE_TRUTH_KERNEL=FILE  changes.cu, compiled; without it nothing is compared, and the trace has no directions
//   SLUICE_TRUTH_SECONDS=S    seconds that launches are measured; 20 s later the process is ended, its trace complete
//   SLUICE_TRUTH_VERBOSE=1    logs the ranges of each slow launch on stderr
//
// A transfer record has the cause of its pages' move. "Coherence": a GPU access faulted on them, so they were touched.
// "Prefetch": the driver's density heuristic fetched them beside faulting ones. Most of these were about to be touched,
// some (a neighbour's in the same 2 MiB) were not. Both are kept, separately.
#include "truth.h"

#include <cupti.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "activity.h"
#include "arguments.h"
#include "calls.h"
#include "state.h"

namespace sluice::truth {

using trace::Access;
using trace::AccessRange;
using trace::AccessSource;
using trace::AllocKind;
using trace::LaunchRecord;
using trace::Recorder;

namespace {

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // the driver moves and maps such blocks as a whole where it can
constexpr size_t kMaxOpenLaunches = 64;

thread_local bool t_measured = false;  // between a slow launch's entry and its end: holds g_launch
thread_local Ranges t_named;           // the tensors that its parameters point into
thread_local CUstream t_stream = nullptr;

// The driver's queue of records is short: a kernel that touches a few hundred MiB fills it, and further records are
// lost silently. So the queue is flushed while the kernel runs.
void WaitForKernel() {
  static CUevent done = nullptr;
  if (done == nullptr) TRY(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  TRY(cuEventRecord(done, t_stream));
  while (cuEventQuery(done) == CUDA_ERROR_NOT_READY) cuptiActivityFlushAll(1);
}

// The tensors and blocks that parameter words point into. With g_data held.
Ranges Named(const std::vector<uint64_t>& words) {
  Ranges ranges;
  for (const uint64_t word : words) {
    for (const auto* map : {&g_tensors, &g_blocks}) {
      const auto next = map->upper_bound(word);
      if (next == map->begin()) continue;
      const auto& [address, bytes] = *std::prev(next);
      if (word - address >= bytes) continue;
      ranges.push_back({address, bytes, Access::kUnknown, AccessSource::kParameters});
      break;
    }
  }
  return ranges;
}

// Evicts the ranges that are known to be resident, in whole blocks of the driver, so that one call moves much.
void Evict(Ranges ranges) {
  for (const AccessRange& range : Merged(std::move(ranges), kBlockBytes)) Move(range.address, range.bytes, kHost);
  TRY(cuCtxSynchronize());
}

// Evicts the pages that copies and memsets fetched.
void EvictCopied() {
  if (g_moved_by_copy.exchange(false)) {
    g_phase = "evicting copied pages";
    Synchronise();
    Ranges stale;
    {
      std::lock_guard lock(g_data);
      stale.swap(g_stale);
    }
    for (const AccessRange& r : stale) g_shadow.Refresh(r.address, r.bytes);
    if (!stale.empty()) Synchronise();  // the refresh made them resident
  }
  Ranges ranges;
  {
    std::lock_guard lock(g_data);
    ranges.swap(g_between);
  }
  if (!ranges.empty()) Evict(std::move(ranges));
}

bool OnDevice(const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(g_data);
  for (const auto* blocks : {&g_blocks, &g_library_blocks}) {
    const auto block = blocks->upper_bound(address);
    if (block != blocks->begin() && address < std::prev(block)->first + std::prev(block)->second) return true;
  }
  return false;
}

void NoteWritten(uint64_t to, uint64_t bytes) {
  if (!g_slow) return;
  std::lock_guard lock(g_data);
  g_stale.push_back({to, bytes, Access::kWrite, AccessSource::kCopy});
}

}  // namespace

void Move(uint64_t address, uint64_t bytes, CUmemLocation to) {
  auto block = g_blocks.upper_bound(address);
  if (block != g_blocks.begin()) --block;
  for (; block != g_blocks.end() && block->first < address + bytes; ++block) {
    const uint64_t first = std::max(address, block->first),
                   end = std::min(address + bytes, block->first + block->second);
    if (first < end) TRY(cuMemPrefetchAsync(first, end - first, to, 0, nullptr));
  }
}

void ChangeShadow(uint64_t address, uint64_t bytes) {
  if (!g_slow) return;
  std::unique_lock lock(g_launch, std::defer_lock);
  if (!t_measured) lock.lock();
  bytes != 0 ? g_shadow.Follow(address, bytes, false) : g_shadow.Forget(address);
}

void BeginLight() {
  Synchronise();
  TRY(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
}

void BeginSlow() {
  g_phase = "evicting all memory";
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
  std::fprintf(stderr, "sluice-truth: %.2f GiB evicted in %.2f s; every launch is measured from now on\n",
               static_cast<double>(g_managed) / (1 << 30), static_cast<double>(Now() - begin) / 1e9);
  g_slow = true;
  g_phase = "slow";
}

void LaunchBegins(const Shape& shape, const char* symbol, uint32_t correlation) {
  ConfigureOnce();
  const Arguments arguments = ReadArguments(shape.function, shape.parameters, shape.extra);
  t_measured = g_slow && !g_over;
  if (t_measured) {
    g_launch.lock();
    EvictCopied();
    g_phase = "a launch";
  }
  LaunchRecord record;
  record.function = g_recorder->Function(reinterpret_cast<uint64_t>(shape.function), symbol, arguments.layout);
  record.stream = reinterpret_cast<uint64_t>(shape.stream);
  std::copy(shape.grid, shape.grid + 3, record.grid);
  std::copy(shape.block, shape.block + 3, record.block);
  record.shared_bytes = shape.shared;
  record.words = arguments.words;
  std::lock_guard lock(g_data);  // so that the kernel's record arrives after its ordinal is known
  const uint64_t ordinal = g_recorder->Launch(record);
  ++g_counters.launches;
  if (!t_measured) {
    if (!g_slow && (g_light_from < 0 || g_step < g_light_from)) g_launch_of[correlation] = ordinal;
    return;
  }
  if (g_open.size() == kMaxOpenLaunches) {
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
  // Nearly every kernel touches memory: without a record so far, the driver's queue may lag behind.
  for (int i = 0; i < 3 && g_arrived == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    TRY(cuptiActivityFlushAll(1));
  }
  Ranges ranges;
  {
    std::lock_guard lock(g_data);
    g_open.back().end = end;
    g_measuring = false;
    ranges.swap(g_fetched);
  }
  g_phase = "comparing";
  Ranges changed = g_shadow.Changed(ranges);
  {
    std::lock_guard lock(g_data);
    for (const AccessRange& r : changed)
      (r.access == Access::kWrite ? g_counters.overwritten_bytes : g_counters.changed_bytes) += r.bytes;
    g_open.back().changed = std::move(changed);
    g_open.back().compared = g_shadow.on();
    // Evicted as well, in case a record was lost: the next launch must find all pages host-resident.
    ranges.insert(ranges.end(), t_named.begin(), t_named.end());
    if (g_arrived == 0) ++g_counters.empty;
    if (++g_counters.measured % 64 == 0) g_recorder->Flush();  // keeps the measured launches if the process is killed
  }
  g_phase = "evicting";
  Evict(std::move(ranges));
  g_phase = "slow";
  g_launch.unlock();
}

void Freed(uint64_t address) {
  g_recorder->Free(address);
  {
    std::lock_guard lock(g_data);
    g_library_blocks.erase(address);
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
  NoteWritten(reinterpret_cast<uint64_t>(to), bytes);
  g_recorder->Copy(reinterpret_cast<uint64_t>(stream), reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from),
                   bytes,
                   (OnDevice(from) ? uint32_t{kCopyFromDevice} : 0) | (OnDevice(to) ? uint32_t{kCopyToDevice} : 0) |
                       (waits ? uint32_t{kCopySync} : 0));
}

void Filled(CUstream stream, uint64_t to, size_t bytes, uint64_t value) {
  g_moved_by_copy = true;
  NoteWritten(to, bytes);
  g_recorder->Set(reinterpret_cast<uint64_t>(stream), to, bytes, value);
}

void LibraryAllocated(uint64_t address, uint64_t bytes) {
  g_recorder->Alloc(AllocKind::kDevice, address, bytes);
  std::lock_guard lock(g_data);
  g_library_blocks[address] = bytes;
}

Recorder& TheRecorder() { return *g_recorder; }

}  // namespace sluice::truth
