// What leaves the card, sent away by several threads at a time.
//
// The driver's prefetch to the host moves 9 to 15 GB/s on a link of 55: nearly all of its time goes to putting each
// page of 4 KiB into the process' page table, on one thread of the driver's, which also runs the deferred fetches. The
// request that lies behind that call (UVM_MIGRATE of /dev/nvidia-uvm, number and layout as in NVIDIA's open kernel
// modules, the same from 535 to 580) may be made by any thread: four make 34 to 40 GB/s, and fetches go on beside them
// (docs/design/driver.md). Threads wait for each other on one mapping of the process, so arenas are cut (Cut).
//
// Order is the driver's own: a host function in a stream hands the runs to the threads when the stream comes to it, and
// the queue behind waits for a cell of host memory that they raise. The threads make no call of CUDA, so nothing that
// a stream, or a caller inside the driver, holds can be what they wait for. Whoever touches such a page at the wrong
// moment gets it all the same: managed memory is right wherever it lies.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_EVICTION_THREADS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_EVICTION_THREADS_H_

#include <cstdint>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

class EventPool;
struct TransferQueue;

namespace senders {

// Of one context: the cells that its queues wait for.
struct Cells {
  uint32_t* host = nullptr;  // a page that stays mapped whatever becomes of the context
  CUdeviceptr card = 0;
  uint32_t used = 0;
  bool refused = false;
};

// Where what leaves on `queue` waits for the application: a stream of its own, so that departures need not wait for
// each other, or the queue's stream where the driver's call is all there is. `runs`: what is about to leave, of which
// one chunk is tried the first time. With the device's lock held, in the context.
CUstream Beginning(TransferQueue* queue, Cells* cells, const std::vector<memory::Extent>& runs);
// The runs leave behind what `begin`, Beginning's answer, waits for, and before what is queued on the queue's stream
// from here on.
CUresult Send(TransferQueue* queue, CUstream begin, Cells* cells, EventPool* pool,
              const std::vector<memory::Extent>& runs);
// The context is about to go: nothing waits for departures any more, for the driver may drop what they wait for.
void Release(const TransferQueue& queue, const Cells& cells);
// Several threads can map pages of this range at a time: the process' mapping is cut into parts of 8 MiB, by advice
// that means nothing for it.
void Cut(memory::Extent arena);

}  // namespace senders
}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_EVICTION_THREADS_H_
