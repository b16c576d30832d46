#include "hooklib/engine/execute/eviction_threads.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <set>

#include "common/mutex.h"
#include "hooklib/client/descriptor.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/driver_port.h"
#include "hooklib/engine/execute/own_thread.h"
#include "hooklib/engine/execute/requests.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice::eviction_threads {

namespace {

using memory::Extent;

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
constexpr int kMaxSplits = 1 << 14;     // of 65,530 mappings that a process has by default
constexpr int kMaxFailuresInARow = 64;  // requests; then the driver's call is used again
constexpr int kMaxPieceWaits = 100;
constexpr std::chrono::milliseconds kPieceWait{20};
constexpr size_t kPageBytes = 4096;
constexpr uint32_t kCellsPerPage = kPageBytes / sizeof(uint32_t);

enum class JobKind : uint8_t { kEvict, kDiscard };

// Evictions or discards that were queued together.
struct Job {
  JobKind kind;
  std::vector<Extent> pieces;
  size_t next = 0, unfinished = 0;  // the first piece that no thread has taken; pieces that are not done
  uint32_t* cell;
  uint32_t value;               // of the cell, when this job and all before it on the queue are done
  Job* next_reached = nullptr;  // the stream comes to it together with this one
};

enum class State : uint8_t { kUnknown, kUsed, kUnused };

struct Shared {
  const DriverPort port = TheDriverPort();
  std::atomic<State> state{State::kUnknown};
  std::atomic<int> failures_in_a_row{0};
  std::atomic<int> splits{0};
  client::Descriptor space;  // the address space that CUDA uses; written before state is kUsed
  bool by_port = false;      // the driver's extension evicts, in its own time; written before state is kUsed
  Mutex first_request;       // guards no data: one thread makes it (two devices have two locks), and `state` publishes
  Mutex mutex;               // no other lock is taken inside
  Condition work, piece_done;
  std::vector<void*> free_pages SLUICE_GUARDED_BY(mutex);  // of cells, whose contexts are gone
  std::set<Job*> unreached SLUICE_GUARDED_BY(mutex);       // queued on a stream that has not come to them
  std::vector<Extent> under_way SLUICE_GUARDED_BY(mutex);  // pieces that threads work on
  std::deque<Job*> jobs SLUICE_GUARDED_BY(mutex);          // with pieces that no thread has taken
  std::map<uint32_t*, std::deque<Job*>> jobs_of SLUICE_GUARDED_BY(mutex);  // by cell: unfinished ones, in order
};

Shared& TheShared() {
  static auto& shared = *new Shared;  // threads outlive exit
  return shared;
}

void FinishPiece(Shared& shared, Job* job) SLUICE_REQUIRES(shared.mutex) {
  if (--job->unfinished != 0) return;
  uint32_t* const cell = job->cell;
  std::deque<Job*>& queue = shared.jobs_of[cell];
  while (!queue.empty() && queue.front()->unfinished == 0) {  // the job itself is among these, sooner or later
    // Never lowered: ReleaseWaiters may have raised it already.
    const uint32_t now = __atomic_load_n(cell, __ATOMIC_RELAXED), value = queue.front()->value;
    if (static_cast<int32_t>(value - now) > 0) __atomic_store_n(cell, value, __ATOMIC_RELEASE);
    delete queue.front();
    queue.pop_front();
  }
}

void* EvictionThread(void*) {
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  while (true) {
    while (shared.jobs.empty()) shared.work.Wait(shared.mutex);
    Job* const job = shared.jobs.front();
    const Extent piece = job->pieces[job->next++];
    if (job->next == job->pieces.size()) shared.jobs.pop_front();
    if (piece.bytes != 0) {  // not cancelled
      shared.under_way.push_back(piece);
      MutexUnlock unlocked(shared.mutex);
      const auto request = job->kind == JobKind::kEvict ? requests::Evict : requests::Discard;
      if (request(shared.port, shared.space, piece)) {
        shared.failures_in_a_row = 0;
      } else if (++shared.failures_in_a_row == kMaxFailuresInARow) {
        shared.state = State::kUnused;
        SLUICE_LOG(kInfo, "evictions by=driver reason=\"it refuses requests of the engine's threads\"");
      }
    }
    if (piece.bytes != 0) {
      std::erase_if(shared.under_way, [&piece](const Extent& other) { return other.base == piece.base; });
      shared.piece_done.NotifyAll();
    }
    FinishPiece(shared, job);
  }
  return nullptr;
}

// A stream has come to these. On the driver's thread for host functions: nothing is waited for.
void CUDA_CB OnStreamReached(void* given) {
  Shared& shared = TheShared();
  {
    MutexLock lock(shared.mutex);
    for (auto* job = static_cast<Job*>(given); job; job = job->next_reached) {
      shared.unreached.erase(job);
      shared.jobs_of[job->cell].push_back(job);
      shared.jobs.push_back(job);
    }
  }
  shared.work.NotifyAll();
}

// In the order in which threads had better take them: neighbours share a mapping.
std::vector<Extent> SplitIntoPieces(std::span<const Extent> runs) {
  std::vector<std::pair<size_t, Extent>> numbered;
  for (const Extent& run : runs) {
    size_t number = 0;
    for (memory::Va at = run.base; at < run.end();) {
      const memory::Va next = std::min(memory::RoundDown(at, kPieceBytes) + kPieceBytes, run.end());
      numbered.push_back({number++, {at, next - at}});
      at = next;
    }
  }
  std::stable_sort(numbered.begin(), numbered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Extent> pieces;
  pieces.reserve(numbered.size());
  for (const auto& [number, piece] : numbered) pieces.push_back(piece);
  return pieces;
}

bool StartThreads(int count) {
  int started = 0;
  while (started < count && StartOwnThread("sluice-evict", EvictionThread)) ++started;
  return started > 0;
}

// Makes the first request, of a chunk that is about to be evicted in any case.
State Try(Shared& shared, std::span<const Extent> runs) {
  const int wanted = GetConfig().eviction_threads;
  if (CallsAreExact()) {
    shared.by_port = true;  // whatever CPUs this machine has
    return wanted > 0 ? State::kUsed : State::kUnused;
  }
  // One thread alone does no more than the driver's own.
  const int threads = CpusAllowed() > 1 ? std::min(wanted, CpusAllowed()) : 0;
  if (threads == 0 || !g_real.cuLaunchHostFunc || !g_real.cuStreamWaitValue32_v2 || !g_real.cuMemHostRegister_v2)
    return State::kUnused;
  for (const int number : shared.port.address_spaces(-1)) {
    const client::Descriptor space(number);
    if (!requests::Evict(shared.port, space, {runs.front().base, memory::kChunkBytes})) continue;
    shared.space = space;
    return StartThreads(threads) ? State::kUsed : State::kUnused;
  }
  return State::kUnused;
}

// Whether evictions are made by requests.
bool AreUsed(std::span<const Extent> runs) {
  Shared& shared = TheShared();
  const auto known = [&shared] { return shared.state.load(std::memory_order_acquire); };
  if (known() != State::kUnknown) return known() == State::kUsed;
  if (runs.empty()) return false;
  MutexLock lock(shared.first_request);
  if (known() != State::kUnknown) return known() == State::kUsed;
  const State found = Try(shared, runs);
  shared.state = found;
  SLUICE_LOG(kDebug, "evictions by=%s", found == State::kUsed ? "threads" : "driver");
  return found == State::kUsed;
}

void* TakePage() {
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  // Shared: after a fork the GPU and this process must go on seeing the same page.
  if (shared.free_pages.empty()) return uvm_tools::SharedPages(kPageBytes);
  void* const page = shared.free_pages.back();
  shared.free_pages.pop_back();
  return page;
}

bool MakeCells(CUstream stream, CellPage* cells) {
  void* const page = TakePage();
  if (!page || g_real.cuMemHostRegister_v2(page, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS ||
      g_real.cuMemHostGetDevicePointer_v2(&cells->device, page, 0) != CUDA_SUCCESS)
    return false;
  cells->host = static_cast<uint32_t*>(page);
  // This fails on a GPU that cannot wait for a value.
  return g_real.cuStreamWaitValue32_v2(stream, cells->device, 0, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
}

// Gives the queue a cell of its context's page.
bool AssignCell(TransferQueue* queue, CellPage* cells) SLUICE_DEVICE_LOCKED {
  if (TheShared().by_port) return true;
  if (cells->refused) return false;
  if (queue->cell) return true;
  if (cells->used == kCellsPerPage) return false;
  if (!cells->host && !MakeCells(queue->stream, cells)) {
    cells->refused = true;
    return false;
  }
  queue->cell = ++cells->used;
  // A cell goes on where its last queue, of an ended context, has left it: late jobs of that raise it no further.
  queue->newest_cell_value = __atomic_load_n(cells->host + queue->cell - 1, __ATOMIC_RELAXED);
  return true;
}

// By an event: a wait for a value alone is no order that the driver knows of.
void WaitForStream(CUstream before, CUstream after, EventPool* pool) SLUICE_DEVICE_LOCKED {
  if (CUevent event = pool->Record(before)) {
    g_real.cuStreamWaitEvent(after, event, 0);
    pool->Give(event);
  }
}

// Makes jobs of the parts, which the threads take when `entry` comes to this place. The queue's stream waits for it.
// False: the driver refused, and a job is left alone: the error may be an earlier launch's.
bool HandOver(JobKind kind, const TransferQueue& queue, CUstream entry, EventPool* pool, CellPage* cells,
              std::span<const EvictionPart> parts) SLUICE_DEVICE_LOCKED {
  Job *first = nullptr, *last = nullptr;
  uint32_t value = queue.newest_cell_value;
  for (const EvictionPart& part : parts) {
    auto* const job = new Job{kind, SplitIntoPieces(part.runs), 0, 0, cells->host + queue.cell - 1, ++value};
    job->unfinished = job->pieces.size();
    (last ? last->next_reached : first) = job;
    last = job;
    MutexLock lock(TheShared().mutex);
    TheShared().unreached.insert(job);
  }
  const bool are_taken = g_real.cuLaunchHostFunc(entry, OnStreamReached, first) == CUDA_SUCCESS;
  if (!are_taken) cells->refused = true;
  WaitForStream(entry, queue.stream, pool);
  return are_taken;
}

CUresult EvictByPort(const TransferQueue& queue, CUstream entry, std::span<const Extent> runs) SLUICE_DEVICE_LOCKED {
  std::vector<uint64_t> bases, lengths;
  for (const Extent& run : runs) {
    bases.push_back(run.base);
    lengths.push_back(run.bytes);
  }
  return static_cast<CUresult>(TheShared().port.evict(entry, queue.stream, bases.data(), lengths.data(), runs.size(),
                                                      GetConfig().eviction_threads));
}

// The queue's stream waits until the threads have done the next job.
CUresult AwaitJob(TransferQueue* queue, CellPage* cells) SLUICE_DEVICE_LOCKED {
  ++queue->newest_cell_value;
  const CUdeviceptr cell = cells->device + (queue->cell - 1) * sizeof(uint32_t);
  const CUresult waits =
      g_real.cuStreamWaitValue32_v2(queue->stream, cell, queue->newest_cell_value, CU_STREAM_WAIT_VALUE_GEQ);
  if (waits != CUDA_SUCCESS) cells->refused = true;
  return waits;
}

}  // namespace

bool CallsAreExact() {
  static const bool exact = [] {
    const DriverPort port = TheDriverPort();
    return port.evict && port.evict(nullptr, nullptr, nullptr, nullptr, 0, 0) == CUDA_SUCCESS;
  }();
  return exact;
}

bool MayDiscard() { return CallsAreExact() || TheShared().state.load(std::memory_order_relaxed) != State::kUnused; }

CUstream EntryStream(TransferQueue* queue, CellPage* cells, std::span<const Extent> runs) {
  if (!AreUsed(runs) || !AssignCell(queue, cells)) return queue->stream;
  if (!queue->entry) queue->entry = MakeQueueStream();
  return queue->entry ? queue->entry : queue->stream;
}

CUresult QueueEvictions(TransferQueue* queue, CUstream entry, CellPage* cells, EventPool* pool,
                        std::span<const EvictionPart> parts) {
  const bool by_call = entry == queue->stream, by_port = !by_call && TheShared().by_port;
  std::vector<AllowedRuns> allowed;
  std::vector<EvictionPart> jobs;
  for (const EvictionPart& part : parts) {
    allowed.emplace_back(part.runs);
    if (!(*allowed.back()).empty()) jobs.push_back({*allowed.back(), part.op});
  }
  const bool by_threads =
      !by_call && !by_port && !jobs.empty() && HandOver(JobKind::kEvict, *queue, entry, pool, cells, jobs);
  CUresult first_error = CUDA_SUCCESS;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::span<const Extent> runs = *allowed[i];
    CUresult result = CUDA_SUCCESS;
    if (by_threads && !runs.empty()) {
      result = AwaitJob(queue, cells);
    } else if (by_port && !runs.empty()) {
      result = EvictByPort(*queue, entry, runs);
    } else if (!runs.empty()) {
      result = EvictRuns(runs, queue->stream);
    }
    if (first_error == CUDA_SUCCESS) first_error = result;
    queue->Stamp(parts[i].op, pool);
  }
  return first_error;
}

CUresult QueueDiscard(TransferQueue* queue, CUstream entry, CellPage* cells, EventPool* pool,
                      std::span<const Extent> all) {
  const AllowedRuns allowed(all);
  const std::span<const Extent> runs = *allowed;
  if (runs.empty()) return CUDA_SUCCESS;
  if (CallsAreExact()) {
    if (entry != queue->stream) WaitForStream(entry, queue->stream, pool);
    return sluice::QueueDiscard(runs, queue->stream) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  }
  const EvictionPart part{runs, 0};
  if (entry == queue->stream || !HandOver(JobKind::kDiscard, *queue, entry, pool, cells, {&part, 1}))
    return EvictRuns(runs, queue->stream);
  return AwaitJob(queue, cells);
}

void ReleaseWaiters(const TransferQueue& queue, const CellPage& cells) {
  if (queue.cell && cells.host)
    __atomic_store_n(cells.host + queue.cell - 1, queue.newest_cell_value, __ATOMIC_RELEASE);
}

void ReturnPage(const CellPage& cells) {
  if (!cells.host) return;
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  shared.free_pages.push_back(cells.host);
}

bool CancelIn(const std::vector<Extent>& arenas) {
  const auto overlaps = [&arenas](const Extent& piece) {
    return std::any_of(arenas.begin(), arenas.end(), [&piece](const Extent& arena) {
      return piece.bytes != 0 && piece.base < arena.end() && arena.base < piece.end();
    });
  };
  Shared& shared = TheShared();
  MutexLock lock(shared.mutex);
  const auto cancel = [&overlaps](Job* job) {
    for (size_t i = job->next; i < job->pieces.size(); ++i) {
      if (overlaps(job->pieces[i])) job->pieces[i].bytes = 0;
    }
  };
  for (Job* const job : shared.unreached) cancel(job);
  for (Job* const job : shared.jobs) cancel(job);
  // A forked child has no threads, and some request of its parent's may have been under way.
  for (int i = 0; i < kMaxPieceWaits && std::any_of(shared.under_way.begin(), shared.under_way.end(), overlaps); ++i)
    shared.piece_done.WaitUntil(shared.mutex, std::chrono::steady_clock::now() + kPieceWait);
  return shared.state.load(std::memory_order_acquire) == State::kUsed && !shared.by_port;
}

void SplitMapping(Extent arena) {
  Shared& shared = TheShared();
  if (shared.state.load(std::memory_order_relaxed) == State::kUnused || GetConfig().eviction_threads == 0 ||
      shared.port.evict)
    return;
  for (memory::Va at = memory::RoundUp(arena.base, kPieceBytes); at < arena.end() && shared.splits < kMaxSplits;
       at += 2 * kPieceBytes) {
    ++shared.splits;
    // Every second part differs from its neighbours, so that they cannot be one mapping. No file is read there.
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a managed address is the same on the GPU and on the host
    if (madvise(reinterpret_cast<void*>(at), std::min(kPieceBytes, arena.end() - at), MADV_RANDOM) != 0) return;
  }
}

}  // namespace sluice::eviction_threads
