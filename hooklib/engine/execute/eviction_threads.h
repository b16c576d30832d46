// Eviction by several threads at a time, and discards in a stream's order.
//
// The driver's prefetch to the host moves 9 to 15 GB/s on a link of 55. Nearly all of its time goes to putting each
// page of 4 KiB into the process's page table. One thread of the driver's does so, and it also runs the deferred
// fetches.
//
// Any thread may make the request behind that call (requests.h). Four threads move 34 to 40 GB/s, and fetches go on
// beside them (docs/design/driver.md). Threads wait for each other on one mapping of the process, so arenas are split
// (SplitMapping).
//
// The order is the driver's own. When a stream comes to it, a host function hands the runs to the threads. The queue
// behind waits for a cell of host memory that the threads raise. The threads make no CUDA call, so they
// cannot wait for anything that a stream, or a caller inside the driver, holds. An access to such a page at the wrong
// moment is right all the same: managed memory is coherent wherever its pages are.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_EVICTION_THREADS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_EVICTION_THREADS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/engine/device/device_lock.h"
#include "hooklib/memory/types.h"

namespace sluice {

class EventPool;
struct TransferQueue;

namespace eviction_threads {

// Of one context: the cells that its queues wait for.
struct CellPage {
  uint32_t* host = nullptr;  // a page that stays mapped whatever becomes of the context, and is used again
  CUdeviceptr device = 0;    // the same page
  uint32_t used = 0;         // cells
  bool refused = false;      // by the driver, or the GPU cannot wait for a value
};

// The stream where evictions and discards on `queue` wait for the application. It is a stream of its own, so that
// evictions need not wait for each other; where the driver's call is used, the queue's stream. `runs`: about to be
// evicted. The first time a request is tried on one chunk of them. In the context of the queue.
CUstream EntryStream(TransferQueue* queue, CellPage* cells, std::span<const memory::Extent> runs) SLUICE_DEVICE_LOCKED;
// Runs that are evicted together, and the number of this operation.
struct EvictionPart {
  std::span<const memory::Extent> runs;
  uint64_t op;
};
// Queues the evictions, one behind the other and stamped (TransferQueue), behind everything that `entry` (EntryStream's
// answer) waits for. Anything that is queued on the queue's stream from here on comes behind them. The first error is
// returned, and the other parts are still tried.
CUresult QueueEvictions(TransferQueue* queue, CUstream entry, CellPage* cells, EventPool* pool,
                        std::span<const EvictionPart> parts) SLUICE_DEVICE_LOCKED;
// The same for a discard, after which nothing that is queued on the queue's stream from here on can be overtaken by it.
// Where there are no threads the runs are evicted instead.
CUresult QueueDiscard(TransferQueue* queue, CUstream entry, CellPage* cells, EventPool* pool,
                      std::span<const memory::Extent> runs) SLUICE_DEVICE_LOCKED;
// Whether QueueDiscard may discard. It evicts where the threads are known not to be used.
bool MayDiscard();
// Whether the driver's own calls do their work before their streams go on. Only a driver's extension says so.
bool CallsAreExact();
// The context is about to go: nothing waits for evictions any more, for the driver may drop the work that they wait
// for.
void ReleaseWaiters(const TransferQueue& queue, const CellPage& cells) SLUICE_DEVICE_LOCKED;
// Its context is gone: another one may use the page. Nothing waits for its cells.
void ReturnPage(const CellPage& cells);
// The arenas are about to be freed: their evictions and discards are left out from here on, and those under way are
// waited for. Otherwise a late request would meet other memory of the same addresses. Their order is kept. False: the
// driver's calls evict, which cannot be left out.
bool CancelIn(const std::vector<memory::Extent>& arenas);
// Lets several threads map pages of this range at a time: the process's mapping is split into parts of 8 MiB, by advice
// that has no other effect.
void SplitMapping(memory::Extent arena);

}  // namespace eviction_threads
}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_EVICTION_THREADS_H_
