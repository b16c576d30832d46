// Device: contexts that end, and peers.
#include <algorithm>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"
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
}

void Device::ContextEnds(CUcontext handle) {
  DeviceLock lock(mutex);
  const auto it = contexts.find(handle);
  if (it == contexts.end()) return;
  for (const auto& stream : streams) {
    if (stream->context == it->second.get())
      eviction_threads::ReleaseWaiters(stream->evict_queue, it->second->eviction_cells);
  }
}

void Device::DropContext(CUcontext handle) {
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
    for (const auto& [base, size] : context->managed_arenas) {
      for (const memory::Va found : live.In({base, size})) {
        const memory::Allocation* allocation = live.Find(found, nullptr);
        const uint64_t bytes = memory::ArenaAllocator::SizeFor(allocation->bytes);
        if (allocation->reported) {
          for (auto r = live.reports().lower_bound(found); r != live.reports().end() && r->first < found + bytes; ++r)
            live_bytes -= r->second;
        } else {
          live_bytes -= bytes;
        }
        allocated_bytes -= bytes;
        live.Remove(found);
      }
      residency.RemoveArena({base, size});
      requested_bytes -= size;
    }
    for (const auto& [base, size] : context->unevictable_arenas) {
      for (const memory::Va found : live.In({base, size})) live.Remove(found);
      residency.chunks().RemoveArena(base);
      ReleaseUnmanaged(size);
    }
    ReleaseUnmanaged(static_cast<uint64_t>(std::max<int64_t>(context->raised_limit_bytes, 0)));
    timings.ForgetContext(context);
    for (const auto& stream : streams) {
      if (stream->context != context) continue;
      if (discard_owner == stream.get()) discard_owner = nullptr;
      stream->context = nullptr;  // events and queues went with the context
      stream->events.clear();
      stream->fetch_queue = {};
      stream->evict_queue = {};
      stream->discard_queue = {};
      residency.ForgetStream(stream->id);
    }
    contexts.erase(it);
    ForgetStreamsOf(handle);
    UpdateMode();
  }
  ForgetStreamCache();
}

}  // namespace sluice
