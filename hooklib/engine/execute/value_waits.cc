#include "hooklib/engine/execute/value_waits.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/driver_port.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice::value_waits {

std::atomic<uint32_t> g_pending{0};

namespace {

constexpr size_t kPageBytes = 4096;

// Two words: the stream writes the first when it comes to a wait, and waits for the second. They are never lowered:
// each wait has a value of one more than the one before.
struct Cell {
  uint32_t* host;
  CUdeviceptr device;
  uint32_t newest;
};
constexpr size_t kRaised = 1;  // the second word

// It stays mapped whatever becomes of its context, and serves another one then. Its cells go on from `newest`.
struct Page {
  uint32_t* words = nullptr;
  uint32_t newest = 0;
};

// Of one context that owns memory. The waits of its green contexts are among them: work of these goes on when they end.
struct Place {
  CUstream reader = nullptr;
  volatile uint64_t* read = nullptr;  // where copies of words arrive
  std::vector<Cell> free;             // cells that no wait has
  std::vector<uint32_t*> pages;
};

struct Wait {
  uint64_t number;
  CUcontext context;
  Awaited awaited;
  Cell cell;
};

struct Shared {
  Mutex mutex;  // no other lock is taken inside
  Condition work;
  std::map<CUcontext, Place> places SLUICE_GUARDED_BY(mutex);
  std::vector<Page> free_pages SLUICE_GUARDED_BY(mutex);  // of contexts that are gone
  std::vector<Wait> waits SLUICE_GUARDED_BY(mutex);
  uint64_t next_number SLUICE_GUARDED_BY(mutex) = 0;
  // Since when the reader's calls of the driver last; the epoch: it makes none.
  std::chrono::steady_clock::time_point calls_since SLUICE_GUARDED_BY(mutex);
  bool is_started SLUICE_GUARDED_BY(mutex) = false;
};
Shared& TheShared() {
  static auto& shared = *new Shared;  // the thread outlives exit
  return shared;
}

bool Holds(const Awaited& c, uint64_t word) {
  const auto wide = [&](uint64_t value) { return c.is_wide ? value : value & 0xFFFFFFFFu; };
  const uint64_t now = wide(word), value = wide(c.value);
  switch (c.flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:  // cyclic
      return c.is_wide ? static_cast<int64_t>(now - value) >= 0
                       : static_cast<int32_t>(static_cast<uint32_t>(now) - static_cast<uint32_t>(value)) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:  // CU_STREAM_WAIT_VALUE_NOR
      return wide(~(now | value)) != 0;
  }
}

// Adds a page of cells. In the context.
bool AddPage(Shared& shared, Place* place) SLUICE_REQUIRES(shared.mutex) {
  if (!g_real.cuMemHostRegister_v2 || !g_real.cuMemHostGetDevicePointer_v2 || !g_real.cuStreamWaitValue32_v2 ||
      !g_real.cuStreamWriteValue32_v2)
    return false;
  Page page;
  if (shared.free_pages.empty()) {
    page.words = static_cast<uint32_t*>(uvm_tools::SharedPages(kPageBytes));
  } else {
    page = shared.free_pages.back();
    shared.free_pages.pop_back();
  }
  CUdeviceptr device = 0;
  if (!page.words ||
      g_real.cuMemHostRegister_v2(page.words, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS ||
      g_real.cuMemHostGetDevicePointer_v2(&device, page.words, 0) != CUDA_SUCCESS)
    return false;
  if (!place->reader) {
    place->reader = MakeQueueStream();
    place->read = reinterpret_cast<volatile uint64_t*>(page.words);
  }
  for (uint32_t i = sizeof(uint64_t) / sizeof(uint32_t); i < kPageBytes / sizeof(uint32_t); i += 2)
    place->free.push_back({page.words + i, device + i * sizeof(uint32_t), page.newest});
  place->pages.push_back(page.words);
  return place->reader != nullptr;
}

enum class Found : uint8_t { kNotYet, kHolds, kGone };

bool IsReached(const Wait& wait) {
  return static_cast<int32_t>(__atomic_load_n(wait.cell.host, __ATOMIC_ACQUIRE) - wait.cell.newest) >= 0;
}
size_t BytesOf(const Awaited& awaited) { return awaited.is_wide ? 8 : 4; }

// Looks at one wait. The driver is asked for nothing before the stream has come to it.
Found Look(const Wait& wait, CUstream reader, volatile uint64_t* read) {
  if (!IsReached(wait)) return Found::kNotYet;
  const ContextScope scope(wait.context);
  if (!scope.is_current()) return Found::kGone;
  RelaxedCapture relaxed;
  *read = 0;
  if (g_real.cuMemcpyDtoHAsync_v2(const_cast<uint64_t*>(read), wait.awaited.address, BytesOf(wait.awaited), reader) !=
          CUDA_SUCCESS ||
      g_real.cuStreamSynchronize(reader) != CUDA_SUCCESS)
    return Found::kGone;
  return Holds(wait.awaited, *read) ? Found::kHolds : Found::kNotYet;
}

// Ends waits. Their cells are free again.
template <typename Is>
void Forget(Shared& shared, Is is) SLUICE_REQUIRES(shared.mutex) {
  const auto ended =
      std::stable_partition(shared.waits.begin(), shared.waits.end(), [&](const Wait& wait) { return !is(wait); });
  for (auto it = ended; it != shared.waits.end(); ++it) {
    const auto place = shared.places.find(it->context);
    if (place != shared.places.end()) place->second.free.push_back(it->cell);
    g_pending.fetch_sub(1, std::memory_order_release);
  }
  shared.waits.erase(ended, shared.waits.end());
}

// The cell's context may have ended meanwhile, and another one use the cell.
void Raise(const Cell& cell) {
  uint32_t* const word = cell.host + kRaised;
  uint32_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (static_cast<int32_t>(cell.newest - now) > 0 &&
         !__atomic_compare_exchange_n(word, &now, cell.newest, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

// One round over all waits; whether one ended. Without the lock while the driver is called: a wait may end with its
// context meanwhile.
bool LookAtAll(Shared& shared) SLUICE_REQUIRES(shared.mutex) {
  bool any = false;
  for (const Wait& wait : std::vector<Wait>(shared.waits)) {
    const auto place = shared.places.find(wait.context);
    if (place == shared.places.end()) continue;
    const CUstream reader = place->second.reader;
    volatile uint64_t* const read = place->second.read;
    Found found;
    shared.calls_since = std::chrono::steady_clock::now();
    {
      MutexUnlock unlocked(shared.mutex);
      found = Look(wait, reader, read);
      if (found == Found::kHolds) Raise(wait.cell);
    }
    shared.calls_since = {};
    if (found == Found::kNotYet) continue;
    any = true;
    Forget(shared, [&](const Wait& other) { return other.number == wait.number; });
  }
  return any;
}

void* ReadValues(void*) {
  constexpr std::chrono::microseconds kMinPause{20}, kMaxPause{320};
  Shared& shared = TheShared();
  std::chrono::microseconds pause = kMinPause;
  uint64_t seen = 0;  // the number of the next wait, as of the last round
  MutexLock lock(shared.mutex);
  while (true) {
    while (shared.waits.empty()) shared.work.Wait(shared.mutex);
    const bool is_news = LookAtAll(shared) || shared.next_number != seen;
    pause = is_news ? kMinPause : std::min(2 * pause, kMaxPause);
    seen = shared.next_number;
    shared.work.WaitUntil(shared.mutex, std::chrono::steady_clock::now() + pause);
  }
  return nullptr;
}

// A call of the program's may hold a lock of the driver's until a stream goes on that waits here (cuGreenCtxCreate
// does; H200, driver 580). The reader's calls then wait for that lock, and this thread reads the words instead.
void* ReadBesideTheDriver(void*) {
  constexpr std::chrono::milliseconds kPatience{5};
  const auto read = TheDriverPort().read;
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  while (true) {
    while (shared.waits.empty()) shared.work.Wait(shared.mutex);
    shared.work.WaitUntil(shared.mutex, std::chrono::steady_clock::now() + kPatience);
    const bool has_calls = shared.calls_since != std::chrono::steady_clock::time_point{};
    if (!has_calls || std::chrono::steady_clock::now() - shared.calls_since < kPatience) continue;
    for (const Wait& wait : std::vector<Wait>(shared.waits)) {
      bool holds = false;
      {
        MutexUnlock unlocked(shared.mutex);
        uint64_t word = 0;
        holds = IsReached(wait) && read(wait.awaited.address, &word, BytesOf(wait.awaited)) == 0 &&
                Holds(wait.awaited, word);
        if (holds) Raise(wait.cell);
      }
      if (holds) Forget(shared, [&](const Wait& other) { return other.number == wait.number; });
    }
  }
  return nullptr;
}

}  // namespace

CUresult Queue(const Stream& stream, CUstream handle, bool per_thread, const Awaited& awaited) {
  Shared& shared = TheShared();
  RelaxedCapture relaxed;
  const CUcontext home = stream.device->MemoryContext(stream.owner);
  const ContextScope scope(stream.owner);
  Wait wait{0, home, awaited, {}};
  {
    MutexLock lock(shared.mutex);
    if (!shared.is_started) {
      shared.is_started =
          StartOwnThread("sluice-values", ReadValues) && StartOwnThread("sluice-words", ReadBesideTheDriver);
    }
    Place& place = shared.places[home];
    // Calls of the driver under the lock, but none that waits for the GPU.
    const ContextScope in_home(home);
    if (!shared.is_started || (place.free.empty() && !AddPage(shared, &place))) return CUDA_ERROR_NOT_SUPPORTED;
    wait.cell = place.free.back();
    place.free.pop_back();
    ++wait.cell.newest;
    wait.number = shared.next_number++;
    shared.waits.push_back(wait);
    g_pending.fetch_add(1, std::memory_order_release);
  }
  shared.work.NotifyAll();
  // The thread may raise the second word before the stream waits for it.
  CUresult result = (per_thread ? g_real.cuStreamWriteValue32_v2_ptsz : g_real.cuStreamWriteValue32_v2)(
      handle, wait.cell.device, wait.cell.newest, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result == CUDA_SUCCESS) {
    result = (per_thread ? g_real.cuStreamWaitValue32_v2_ptsz : g_real.cuStreamWaitValue32_v2)(
        handle, wait.cell.device + kRaised * sizeof(uint32_t), wait.cell.newest, CU_STREAM_WAIT_VALUE_GEQ);
  }
  if (result == CUDA_SUCCESS) return result;
  MutexLock lock(shared.mutex);
  Forget(shared, [&](const Wait& other) { return other.number == wait.number; });
  return result;
}

bool IsAwaitedIn(memory::Extent range) {
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  return std::any_of(shared.waits.begin(), shared.waits.end(), [&](const Wait& wait) {
    return wait.awaited.address >= range.base && wait.awaited.address < range.end();
  });
}

void ForgetContext(CUcontext context) {
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  Forget(shared, [context](const Wait& wait) { return wait.context == context; });
  const auto place = shared.places.find(context);
  if (place == shared.places.end()) return;
  uint32_t newest = 0;
  for (const Cell& cell : place->second.free) newest = std::max(newest, cell.newest);
  for (uint32_t* const words : place->second.pages) shared.free_pages.push_back({words, newest});
  shared.places.erase(place);
}

}  // namespace sluice::value_waits
