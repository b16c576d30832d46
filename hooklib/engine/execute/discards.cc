#include "hooklib/engine/execute/discards.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/requests.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

// Long enough that streams which take turns, launch by launch, do not wait for each other.
constexpr uint64_t kMinLaunchesAlone = 256;

enum class DiscardsBy : uint8_t { kUnknown, kRequests, kCalls, kNothing };

// The address space that takes the requests.
struct Space {
  std::atomic<DiscardsBy> by{DiscardsBy::kUnknown};
  Mutex first_request;  // guards no data: one thread looks for the space, and `by` publishes the result
  const DriverPort port = TheDriverPort();
  client::Descriptor space;  // written before `by` is kRequests
};
Space& TheSpace() {
  static auto& space = *new Space;
  return space;
}

DiscardsBy FindSpace(Space* found, memory::Extent unused) {
  DiscardsBy by = eviction_threads::CallsAreExact() ? DiscardsBy::kCalls : DiscardsBy::kNothing;
  if (by == DiscardsBy::kNothing) {
    for (const int number : found->port.address_spaces(-1)) {
      const client::Descriptor space(number);
      if (!requests::Discard(found->port, space, unused)) continue;
      found->space = space;
      by = DiscardsBy::kRequests;
      break;
    }
  }
  if (by == DiscardsBy::kNothing)
    SLUICE_LOG(kInfo, "the driver takes no discard requests: freed memory is written back like other memory");
  return by;
}

bool Request(const std::vector<memory::Extent>& runs) {
  const Space& space = TheSpace();
  return std::all_of(runs.begin(), runs.end(),
                     [&](const memory::Extent& run) { return requests::Discard(space.port, space.space, run); });
}

// False: the contents stay.
bool DiscardRuns(const std::vector<memory::Extent>& runs, CUstream stream) {
  Space& space = TheSpace();
  const DiscardsBy by = space.by.load(std::memory_order_acquire);
  const OwnWait own;
  if (by == DiscardsBy::kCalls) return QueueDiscard(runs, stream) && g_real.cuStreamSynchronize(stream) == CUDA_SUCCESS;
  return by == DiscardsBy::kRequests && Request(runs);
}

// On the driver's thread for host functions: no CUDA call is made.
void CUDA_CB DiscardOnHostThread(void* given) {
  const std::unique_ptr<std::vector<memory::Extent>> runs(static_cast<std::vector<memory::Extent>*>(given));
  if (!Request(*runs)) SLUICE_LOG(kDebug, "discard of %zu runs failed", runs->size());
}

// In the order of the queue's stream, where there are no eviction threads.
CUresult QueueOnHostThread(const std::vector<memory::Extent>& runs, CUstream stream) {
  auto copy = std::make_unique<std::vector<memory::Extent>>(runs);
  const CUresult result = g_real.cuLaunchHostFunc(stream, DiscardOnHostThread, copy.get());
  // Where it fails the error may be an earlier launch's: then the function may still run.
  // NOLINTNEXTLINE(bugprone-unused-return-value): the function owns the copy
  static_cast<void>(copy.release());
  return result;
}

}  // namespace

void TryDiscard() {
  Space& space = TheSpace();
  if (space.by.load(std::memory_order_acquire) != DiscardsBy::kUnknown) return;
  MutexLock lock(space.first_request);
  if (space.by != DiscardsBy::kUnknown) return;
  // Never used, and so never populated. It is not freed, since that would wait for the GPU.
  CUdeviceptr block = 0;
  const bool has_block = g_real.cuMemAllocManaged(&block, memory::kChunkBytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS;
  space.by = has_block ? FindSpace(&space, {block, memory::kChunkBytes}) : DiscardsBy::kNothing;
}

bool MayDiscardInOrder() {
  return eviction_threads::MayDiscard() ||
         (TheSpace().by.load(std::memory_order_acquire) == DiscardsBy::kRequests && g_real.cuLaunchHostFunc);
}

void DiscardNow(const policy::Plan& plan, Stream* stream) {
  if (plan.discard.empty()) return;
  Device* const device = stream->device;
  const CUstream housekeeping = device->Housekeeping(stream->context);
  if (DiscardRuns(plan.discard, housekeeping)) return;
  device->residency.set_can_discard(false);
  EvictRuns(plan.discard, housekeeping);
}

bool WorksAlone(Stream* stream) {
  Device* const device = stream->device;
  const uint64_t now = device->residency.launches();
  if (device->HasPeers() || g_several_devices_work) return false;
  for (const auto& other : device->streams) {
    if (other.get() == stream || !other->context) continue;
    const uint64_t seq = other->seq.load(std::memory_order_acquire);
    if (seq == 0) continue;
    if (other->last_launch != 0 && now - other->last_launch < kMinLaunchesAlone) return false;
    if (seq > other->completed && !device->Done({other->id, seq})) return false;
  }
  return true;
}

bool IsOrderKnown(Stream* stream) {
  if (g_captures.load(std::memory_order_relaxed) > 0) return false;
  if (!stream->blocking || stream->legacy()) return true;
  // Its work also waits for the legacy stream's; that an event alone does so is nowhere written.
  Device* const device = stream->device;
  for (const auto& other : device->streams) {
    if (!other->legacy() || other->context != stream->context) continue;
    device->PollEvents(other.get());
    if (other->completed < other->seq.load(std::memory_order_acquire)) return false;
  }
  return true;
}

void DiscardFreed(const policy::Plan& plan, Stream* stream) {
  if (plan.stream_discard.empty()) return;
  Device* const device = stream->device;
  TransferQueue* const queue = &stream->discard_queue;
  EventPool* const pool = &stream->context->events;
  // Where anything fails the free chunks only stay resident: too many are resident, and later fetched for nothing.
  if (!queue->HasStream()) return;
  eviction_threads::CellPage* const cells = &stream->context->eviction_cells;
  const CUstream entry = eviction_threads::EntryStream(queue, cells, plan.stream_discard);
  if (!queue->Follow(stream->handle, entry, pool)) return;
  const bool by_threads =
      entry != queue->stream || TheSpace().by.load(std::memory_order_acquire) != DiscardsBy::kRequests;
  const CUresult result = by_threads ? eviction_threads::QueueDiscard(queue, entry, cells, pool, plan.stream_discard)
                                     : QueueOnHostThread(plan.stream_discard, queue->stream);
  if (result != CUDA_SUCCESS)
    SLUICE_LOG(kDebug, "discard of %zu runs failed with %d", plan.stream_discard.size(), result);
  queue->Stamp(queue->newest + 1, pool);
  WaitFor(queue->events, queue->newest, stream->handle);
  if (stream->fetch_queue.HasStream()) WaitFor(queue->events, queue->newest, stream->fetch_queue.stream);
  device->discard_owner = stream;
  device->discard_op = queue->newest;
  stream->pending_discard_work = 1;
}

void Repopulate(const policy::Plan& plan, Stream* stream) {
  if (plan.repopulate.empty()) return;
  Device* const device = stream->device;
  // On a queue of its own: the driver takes no discard on the legacy stream, and prefetches for launches to come must
  // not wait for this stream's work.
  TransferQueue* const queue = &stream->discard_queue;
  EventPool* const pool = &stream->context->events;
  if (!queue->HasStream()) return;  // faults bring it, contents and all
  const bool ordered = queue->Follow(stream->handle, queue->stream, pool);
  if (plan.repopulate_after) WaitFor(stream->evict_queue.events, plan.repopulate_after, queue->stream);
  CUresult result =
      ordered ? RepopulateRuns(plan.repopulate, device->ordinal, queue->stream) : CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) {
    device->residency.NoteNotRepopulated(plan);
    result = FetchRuns(plan.repopulate, device->ordinal, queue->stream);
  }
  if (result != CUDA_SUCCESS)
    SLUICE_LOG(kDebug, "prefetch of %zu runs to be overwritten failed with %d", plan.repopulate.size(), result);
  queue->Stamp(queue->newest + 1, pool);
  device->timings.WaitForTransfer(stream, *queue, queue->newest);
}

void AwaitDiscards(Stream* stream, CUstream waiter) {
  const Device* const device = stream->device;
  const Stream* const owner = device->discard_owner;
  if (!owner || owner == stream || owner->discard_queue.done >= device->discard_op) return;
  WaitFor(owner->discard_queue.events, device->discard_op, waiter);
}

}  // namespace sluice
