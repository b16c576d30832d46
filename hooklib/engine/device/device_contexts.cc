// Device: contexts that end, and peers.
#include <algorithm>
#include <ctime>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/device/ending_contexts.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/green_contexts.h"
#include "hooklib/engine/device/pools.h"
#include "hooklib/engine/device/range_notes.h"
#include "hooklib/engine/execute/driver.h"

namespace sluice {

void Device::AddPeer(CUdevice peer) {
  DeviceLock lock(mutex);
  if (peer == ordinal || std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return;
  peers_.push_back(peer);
  RelaxedCapture relaxed;
  // Peers need the preferred location, and a duplicate of a range that prefers the GPU would not leave it.
  residency.set_read_mostly(false);
  Withdraw();
  for (const auto& [handle, context] : contexts) {
    for (const auto& [base, size] : context->managed_arenas) AdvisePeers({base, size}, ordinal, peers_);
  }
  for (const auto& [base, reservation] : reservations_) {
    for (const memory::Extent& arena : reservation.arenas) AdvisePeers(arena, ordinal, peers_);
  }
}

void Device::NoteWrittenByPeer(memory::Extent range) {
  {
    DeviceLock lock(mutex);
    residency.NoteWrittenElsewhere(range);
  }
  if (OverCapacity()) WakeFollower();  // this GPU may have no work of its own, whose plans would evict
}

void Device::ContextEnds(CUcontext handle) {
  tokens.ContextEnds(handle);
  DeviceLock lock(mutex);
  const auto it = contexts.find(handle);
  if (it == contexts.end()) return;
  for (const auto& stream : streams) {
    if (stream->context == it->second.get())
      for (const TransferQueue* const queue : {&stream->evict_queue, &stream->discard_queue})
        eviction_threads::ReleaseWaiters(*queue, it->second->eviction_cells);
  }
}

// The driver frees the memory without a wait for work of other contexts, and for the engine's threads.
void Device::EndTransfersOf(CUcontext handle, bool ends) {
  constexpr int kMaxAttempts = 2000;
  constexpr timespec kPause{0, 1'000'000};
  std::vector<memory::Extent> arenas;
  {
    DeviceLock lock(mutex);
    const auto it = contexts.find(handle);
    if (it == contexts.end()) return;
    for (const auto& [base, size] : it->second->managed_arenas) arenas.push_back({base, size});
    for (const auto& [base, reservation] : reservations_) {
      if (reservation.context == handle) arenas.push_back(reservation.range);
    }
    std::erase_if(arenas, [](const memory::Extent& arena) { return arena.bytes == 0; });
    if (ends) {
      it->second->is_ending = true;
      std::vector<memory::Extent> barred = arenas;
      for (const auto& [base, size] : it->second->unevictable_arenas) barred.push_back({base, size});
      BarRanges(it->second.get(), barred);
    }
  }
  const bool evictions_end = eviction_threads::CancelIn(arenas);
  for (int attempt = 0; attempt < kMaxAttempts && ReturnsArenas(handle); ++attempt) nanosleep(&kPause, nullptr);
  for (int attempt = 0; attempt < kMaxAttempts && IsMovedElsewhere(handle, arenas, !evictions_end); ++attempt)
    nanosleep(&kPause, nullptr);
}

bool Device::ReturnsArenas(CUcontext handle) {
  DeviceLock lock(mutex);
  const auto it = contexts.find(handle);
  return it != contexts.end() && it->second->arenas_returning > 0;
}

void Device::ContextStays(CUcontext handle) {
  DeviceLock lock(mutex);
  if (const auto it = contexts.find(handle); it != contexts.end()) {
    it->second->is_ending = false;
    UnbarRanges(it->second.get());
  }
}

bool Device::IsMovedElsewhere(CUcontext handle, const std::vector<memory::Extent>& arenas, bool by_evictions) {
  DeviceLock lock(mutex);
  const auto it = contexts.find(handle);
  if (it == contexts.end() || contexts.size() == 1) return false;
  RelaxedCapture relaxed;
  ++poll_epoch;
  std::vector<const memory::Chunk*> moving;
  for (const memory::Extent& arena : arenas) {
    residency.chunks().ForEach(arena, [&moving](const memory::Chunk& chunk) {
      if (chunk.fetch_op() || chunk.evict_op()) moving.push_back(&chunk);
    });
  }
  const auto is_elsewhere = [&](memory::StreamId id) SLUICE_DEVICE_LOCKED {
    const Stream* const stream = StreamById(id);
    return stream && stream->context && stream->context != it->second.get();
  };
  for (const memory::Chunk* const chunk : moving) {
    if (chunk->fetch_op() && is_elsewhere(chunk->fetch_stream()) && !InDone(chunk->fetch_stream(), chunk->fetch_op()))
      return true;
    if (by_evictions && chunk->evict_op() && is_elsewhere(chunk->evict_stream()) &&
        !OutDone(chunk->evict_stream(), chunk->evict_op()))
      return true;
  }
  return false;
}

std::vector<CUdeviceptr> Device::BlocksOf(CUcontext handle) {
  std::vector<CUdeviceptr> blocks;
  DeviceLock lock(mutex);
  const auto it = contexts.find(handle);
  if (it == contexts.end()) return blocks;
  for (const auto* const arenas : {&it->second->managed_arenas, &it->second->unevictable_arenas}) {
    for (const auto& [base, size] : *arenas) {
      for (const memory::Va found : live.In({base, size})) {
        if (!live.Find(found, nullptr)->stream_ordered) blocks.push_back(found);
      }
    }
  }
  return blocks;
}

void Device::DropContext(CUcontext handle) {
  ForgetFailure(handle);
  {
    DeviceLock lock(mutex);
    if (!contexts.contains(handle)) return;
  }
  tokens.DropContext(handle);
  {
    DeviceLock lock(mutex);
    const auto it = contexts.find(handle);
    if (it == contexts.end()) return;
    Context* context = it->second.get();
    UnbarRanges(context);
    for (const auto& [base, size] : context->managed_arenas) ForgetArena({base, size});
    for (const auto& [base, size] : context->unevictable_arenas) ForgetUnevictableArena({base, size});
    ReleaseUnmanaged(static_cast<uint64_t>(std::max<int64_t>(context->raised_limit_bytes, 0)));
    std::erase_if(free_arenas_, [&](const FreeArena& arena) SLUICE_DEVICE_LOCKED {
      if (arena.context != handle) return false;
      if (arena.is_managed) {
        requested_bytes -= arena.requested;
      } else {
        ReleaseUnmanaged(arena.range.bytes);
      }
      return true;
    });
    timings.ForgetContext(context);
    for (const auto& stream : streams) {
      if (stream->context != context) continue;
      if (discard_owner == stream.get()) discard_owner = nullptr;
      for (const TransferQueue* const queue : {&stream->evict_queue, &stream->discard_queue})
        eviction_threads::ReleaseWaiters(*queue, context->eviction_cells);
      stream->context = nullptr;  // events and queues went with the context
      stream->pending_discard_work = 0;
      // Those of other GPUs' work are of other contexts.
      if (stream.get() == context->peer_frees) {
        for (const auto& [number, event] : stream->events) g_real.cuEventDestroy_v2(event);
      }
      stream->events.clear();
      stream->fetch_queue = {};
      stream->evict_queue = {};
      stream->discard_queue = {};
      residency.ForgetStream(stream->id);
      if (!std::exchange(stream->destroyed, true)) retired_.push_back(stream.get());
    }
    eviction_threads::ReturnPage(context->eviction_cells);
    for (const eviction_threads::CellPage& cells : context->spare_cells) eviction_threads::ReturnPage(cells);
    contexts.erase(it);
    ForgetStreamsOf(handle);
    UpdateMode();
  }
  ForgetStreamCache();
}

CUcontext Device::PoolContext(CUcontext owner) {
  if (owner == primary_.load(std::memory_order_relaxed) && retains_primary_.load(std::memory_order_acquire))
    return owner;
  const CUcontext primary = RetainPrimary(owner);
  return primary ? primary : OwnContext();
}

CUcontext Device::RetainPrimary(CUcontext owner) {
  const PrimaryScope scope(ordinal);
  RelaxedCapture relaxed;
  unsigned flags = 0;
  int is_active = 0;
  CUcontext primary = nullptr;
  // A primary context that no program asked for would show itself (cuDevicePrimaryCtxGetState), and end with a reset.
  if (!g_real.cuDevicePrimaryCtxRelease_v2 ||
      (!IsGreenContext(owner) &&
       (g_real.cuDevicePrimaryCtxGetState(ordinal, &flags, &is_active) != CUDA_SUCCESS || !is_active)))
    return nullptr;
  if (g_real.cuDevicePrimaryCtxRetain(&primary, ordinal) != CUDA_SUCCESS) return nullptr;
  primary_.store(primary, std::memory_order_relaxed);
  if (retains_primary_.exchange(true, std::memory_order_acq_rel)) g_real.cuDevicePrimaryCtxRelease_v2(ordinal);
  return primary;
}

// It takes as much GPU memory as any context, 524 MiB on an H200. So there is one at most, where it is needed.
CUcontext Device::OwnContext() {
  if (const CUcontext made = own_context_.load(std::memory_order_acquire)) return made;
  CUcontext context = nullptr, none = nullptr, popped = nullptr;
  if (!g_real.cuCtxCreate_v2 || g_real.cuCtxCreate_v2(&context, CU_CTX_SCHED_AUTO, ordinal) != CUDA_SUCCESS)
    return nullptr;
  g_real.cuCtxPopCurrent_v2(&popped);
  AwaitContextEnd(context);
  if (own_context_.compare_exchange_strong(none, context, std::memory_order_acq_rel)) return context;
  g_real.cuCtxDestroy_v2(context);  // another thread has made one meanwhile
  return none;
}

bool Device::ReleasePrimary(bool anyway) {
  const CUcontext primary = primary_.load(std::memory_order_relaxed);
  if (!retains_primary_.load(std::memory_order_acquire)) return false;
  if (!anyway) {
    if (AnyServedIn(primary)) return true;
    // Freed in the order of another context's stream, memory may still be in use.
    DeviceLock lock(mutex);
    RelaxedCapture relaxed;
    ++poll_epoch;
    for (const auto& stream : streams) {
      if (stream->owner != primary && !IsOver(stream.get())) return true;
    }
  }
  if (retains_primary_.exchange(false, std::memory_order_acq_rel)) g_real.cuDevicePrimaryCtxRelease_v2(ordinal);
  return false;
}

void Device::EndGreenContext(CUcontext handle) {
  {
    DeviceLock lock(mutex);
    if (!contexts.contains(handle)) return;  // another GPU's: asking would make this one's primary context
  }
  const CUcontext primary = MemoryContext(handle);
  {
    DeviceLock lock(mutex);
    const auto it = contexts.find(handle);
    if (it == contexts.end() || primary == handle) return;
    Context* const old = it->second.get();
    Context* const heir = ContextFor(primary);
    RelaxedCapture relaxed;
    for (const auto& stream : streams) {
      if (stream->context != old) continue;
      Retire(stream.get());
      // Queues of the green context end with it. An event behind a stream of the primary one's, which waits for theirs,
      // stands for all of them.
      const ContextScope scope(primary);
      const CUstream housekeeping = Housekeeping(heir);
      for (NumberedEvents* const events :
           {&stream->events, &stream->fetch_queue.events, &stream->evict_queue.events, &stream->discard_queue.events}) {
        if (events->empty()) continue;
        const uint64_t newest = events->back().first;
        for (const auto& [number, event] : *events) {
          g_real.cuStreamWaitEvent(housekeeping, event, 0);
          heir->events.Give(event);
        }
        events->clear();
        if (CUevent event = heir->events.Record(housekeeping)) events->emplace_back(newest, event);
      }
      for (TransferQueue* const queue : {&stream->evict_queue, &stream->discard_queue}) {
        eviction_threads::ReleaseWaiters(*queue, old->eviction_cells);
        if (queue->entry) g_real.cuStreamDestroy_v2(std::exchange(queue->entry, nullptr));
        queue->cell = 0;
      }
      stream->context = heir;
      for (TransferQueue* const queue : {&stream->fetch_queue, &stream->evict_queue, &stream->discard_queue})
        if (queue->stream) g_real.cuStreamDestroy_v2(std::exchange(queue->stream, nullptr));
    }
    for (const CUstream own : {old->housekeeping, old->gate_stream})
      if (own) g_real.cuStreamDestroy_v2(own);
    if (old->gate) heir->events.Give(old->gate);
    heir->events.TakeOver(&old->events);
    heir->timing_events.TakeOver(&old->timing_events);
    // The page stays registered with the primary context.
    if (old->eviction_cells.host) heir->spare_cells.push_back(old->eviction_cells);
    timings.ForgetContext(old);
    contexts.erase(it);
    ForgetStreamsOf(handle);
  }
  tokens.DropContext(handle);
  ForgetStreamCache();
}

}  // namespace sluice
