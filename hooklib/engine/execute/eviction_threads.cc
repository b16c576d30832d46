#include "hooklib/engine/execute/eviction_threads.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "hooklib/client/descriptor.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice::senders {

namespace {

using memory::Extent;

constexpr uint64_t kPart = uint64_t{8} << 20;
constexpr int kMostCuts = 1 << 14;  // mappings of a process: 65,530 by default
constexpr int kMostFailures = 64;   // pieces in a row; then the driver's call is used again
constexpr uint32_t kCells = 4096 / sizeof(uint32_t);

struct Migrate {
  uint64_t base, length;
  unsigned char to[16];
  uint32_t flags;
  uint64_t semaphore;
  uint32_t payload;
  int32_t node;
  uint64_t user_start, user_length;
  uint32_t status;
};
static_assert(sizeof(Migrate) == 80);
constexpr unsigned long kMigrate = 51;
// What the driver calls the host.
constexpr unsigned char kHost[16] = {0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2,
                                     0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73};

// Departures that were queued together.
struct Job {
  std::vector<Extent> pieces;
  size_t next = 0, open = 0;  // the first that nobody has taken; those that are not over
  uint32_t* cell;
  uint32_t value;  // of the cell, when all of this and of what came before it on the queue is over
};

enum class State : uint8_t { kUnknown, kUsed, kUnused };

struct Shared {
  KernelSide kernel = TheKernelSide();
  std::atomic<State> state{State::kUnknown};
  std::atomic<int> failures{0};
  std::atomic<int> cuts{0};
  client::Descriptor space;  // CUDA's
  bool simulated = false;    // the simulated driver does it, in its own time
  std::mutex finding;
  std::mutex mutex;  // of what follows
  std::condition_variable work;
  std::deque<Job*> jobs;                     // with pieces that nobody has taken
  std::map<uint32_t*, std::deque<Job*>> of;  // by cell, all that are not over, in order
};

Shared& The() {
  static auto& shared = *new Shared;  // threads outlive exit
  return shared;
}

bool Request(const Shared& shared, const client::Descriptor& space, Extent piece) {
  if (!space.IsOurs()) return false;  // the program has closed it, perhaps opened something else in its place
  Migrate request{};
  request.base = piece.base;
  request.length = piece.bytes;
  std::memcpy(request.to, kHost, sizeof kHost);
  request.node = -1;
  request.status = ~0u;
  return shared.kernel.control(space.fd(), kMigrate, &request) == 0 && request.status == 0;
}

void Over(Shared* shared, Job* job) {
  if (--job->open != 0) return;
  uint32_t* const cell = job->cell;
  std::deque<Job*>& queue = shared->of[cell];
  while (!queue.empty() && queue.front()->open == 0) {  // the job itself is among these, sooner or later
    // Never back: Release may have raised it already.
    const uint32_t now = __atomic_load_n(cell, __ATOMIC_RELAXED), value = queue.front()->value;
    if (static_cast<int32_t>(value - now) > 0) __atomic_store_n(cell, value, __ATOMIC_RELEASE);
    delete queue.front();
    queue.pop_front();
  }
}

void* Work(void*) {
  Shared& shared = The();
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.work.wait(lock, [&] { return !shared.jobs.empty(); });
    Job* const job = shared.jobs.front();
    const Extent piece = job->pieces[job->next++];
    if (job->next == job->pieces.size()) shared.jobs.pop_front();
    lock.unlock();
    if (Request(shared, shared.space, piece)) {
      shared.failures = 0;
    } else if (++shared.failures == kMostFailures) {
      shared.state = State::kUnused;
      SLUICE_LOG(kInfo,
                 "requests of this engine's to send memory away fail: the driver's own calls are used from here on");
    }
    lock.lock();
    Over(&shared, job);
  }
  return nullptr;
}

// A stream has come to it. On the driver's thread for host functions: nothing is waited for.
void CUDA_CB Begin(void* given) {
  auto* const job = static_cast<Job*>(given);
  Shared& shared = The();
  {
    std::lock_guard lock(shared.mutex);
    shared.of[job->cell].push_back(job);
    shared.jobs.push_back(job);
  }
  shared.work.notify_all();
}

// In the order in which threads had better take them: neighbours share a mapping.
std::vector<Extent> Pieces(const std::vector<Extent>& runs) {
  std::vector<std::pair<size_t, Extent>> parts;
  for (const Extent& run : runs) {
    size_t number = 0;
    for (memory::Va at = run.base; at < run.end();) {
      const memory::Va next = std::min(memory::RoundDown(at, kPart) + kPart, run.end());
      parts.push_back({number++, {at, next - at}});
      at = next;
    }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Extent> pieces;
  pieces.reserve(parts.size());
  for (const auto& [number, piece] : parts) pieces.push_back(piece);
  return pieces;
}

bool StartThreads(int count) {
  int made = 0;
  while (made < count && StartOwnThread("sluice-send", Work)) ++made;
  return made > 0;
}

// Whether requests are to be made. The first time, one is: of a chunk that is about to leave anyhow.
bool Used(const std::vector<Extent>& runs) {
  Shared& shared = The();
  const auto known = [&shared] { return shared.state.load(std::memory_order_acquire); };
  if (known() != State::kUnknown) return known() == State::kUsed;
  if (runs.empty()) return false;
  std::lock_guard lock(shared.finding);  // two devices have two locks
  if (known() != State::kUnknown) return known() == State::kUsed;
  State found = State::kUnused;
  // One alone does no more than the driver's own.
  const int threads = ProcessorsAllowed() > 1 ? std::min(GetConfig().senders, ProcessorsAllowed()) : 0;
  if (g_real.simgpu_send_away && g_real.simgpu_send_away(nullptr, nullptr, nullptr, nullptr, 0, 0) == CUDA_SUCCESS) {
    shared.simulated = true;  // its machine is not this one
    found = GetConfig().senders > 0 ? State::kUsed : State::kUnused;
  } else if (threads > 0 && g_real.cuLaunchHostFunc && g_real.cuStreamWaitValue32_v2 && g_real.cuMemHostRegister_v2) {
    for (const int number : shared.kernel.spaces(g_real.simgpu_uvm_open ? shared.kernel.open() : -1)) {
      const client::Descriptor space(number);
      if (!Request(shared, space, {runs.front().base, memory::kChunkBytes})) continue;
      shared.space = space;
      if (StartThreads(threads)) found = State::kUsed;
      break;
    }
  }
  shared.state = found;
  SLUICE_LOG(kDebug, "what leaves the card is sent away by %s",
             found == State::kUsed ? "requests of this engine's" : "the driver's calls");
  return found == State::kUsed;
}

// The queue's place among its context's cells.
bool HasCell(TransferQueue* queue, Cells* cells) {
  if (The().simulated) return true;
  if (cells->refused) return false;
  if (queue->cell) return true;
  if (cells->used == kCells) return false;
  if (!cells->host) {
    // Shared: after a fork the card and this process must go on seeing the same page.
    void* const page = uvm_tools::SharedPages(4096);
    cells->refused = true;
    if (!page || g_real.cuMemHostRegister_v2(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS ||
        g_real.cuMemHostGetDevicePointer_v2(&cells->card, page, 0) != CUDA_SUCCESS)
      return false;
    cells->host = static_cast<uint32_t*>(page);
    // Where the card cannot wait for a value, it says so here.
    if (g_real.cuStreamWaitValue32_v2(queue->stream, cells->card, 0, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
      return false;
    cells->refused = false;
  }
  queue->cell = ++cells->used;
  return true;
}

}  // namespace

CUstream Beginning(TransferQueue* queue, Cells* cells, const std::vector<Extent>& runs) {
  if (!Used(runs) || !HasCell(queue, cells)) return queue->stream;
  if (!queue->begin) queue->begin = MakeQueue();
  return queue->begin ? queue->begin : queue->stream;
}

CUresult Send(TransferQueue* queue, CUstream begin, Cells* cells, EventPool* pool, const std::vector<Extent>& runs) {
  if (runs.empty()) return CUDA_SUCCESS;
  if (begin == queue->stream) return EvictRuns(runs, queue->stream);
  if (The().simulated) {
    std::vector<uint64_t> bases, lengths;
    for (const Extent& run : runs) {
      bases.push_back(run.base);
      lengths.push_back(run.bytes);
    }
    return static_cast<CUresult>(
        g_real.simgpu_send_away(begin, queue->stream, bases.data(), lengths.data(), runs.size(), GetConfig().senders));
  }
  const uint32_t place = queue->cell - 1;
  auto* const job = new Job{Pieces(runs), 0, 0, cells->host + place, queue->sent + 1};
  job->open = job->pieces.size();
  const CUresult result = g_real.cuLaunchHostFunc(begin, Begin, job);
  // By an event, too: a wait for a value alone is no order that the driver knows of.
  CUevent event = pool->Take();
  if (event && g_real.cuEventRecord(event, begin) == CUDA_SUCCESS) g_real.cuStreamWaitEvent(queue->stream, event, 0);
  if (event) pool->Give(event);
  if (result != CUDA_SUCCESS) {
    // The job is left alone: the error may be an earlier launch's.
    cells->refused = true;
    return EvictRuns(runs, queue->stream);
  }
  ++queue->sent;
  const CUresult waits = g_real.cuStreamWaitValue32_v2(queue->stream, cells->card + place * sizeof(uint32_t),
                                                       queue->sent, CU_STREAM_WAIT_VALUE_GEQ);
  if (waits != CUDA_SUCCESS) cells->refused = true;
  return waits;
}

void Release(const TransferQueue& queue, const Cells& cells) {
  if (queue.cell && cells.host) __atomic_store_n(cells.host + queue.cell - 1, queue.sent, __ATOMIC_RELEASE);
}

void Cut(Extent arena) {
  Shared& shared = The();
  if (shared.state.load(std::memory_order_relaxed) == State::kUnused || GetConfig().senders == 0 ||
      g_real.simgpu_send_away)
    return;
  for (memory::Va at = memory::RoundUp(arena.base, kPart); at < arena.end() && shared.cuts < kMostCuts;
       at += 2 * kPart) {
    ++shared.cuts;
    // Every second part differs from its neighbours, so that they cannot be one mapping. Nobody reads a file there.
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the card's is one of the host's
    if (madvise(reinterpret_cast<void*>(at), std::min(kPart, arena.end() - at), MADV_RANDOM) != 0) return;
  }
}

}  // namespace sluice::senders
