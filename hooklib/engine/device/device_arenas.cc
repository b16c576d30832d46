// Device: arenas that go back to the driver, allocations that wait for freed ranges, and advice that ends with its
// allocation.
#include <algorithm>
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device_memory.h"
#include "hooklib/engine/device/pools.h"
#include "hooklib/engine/device/range_notes.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/value_waits.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

using memory::Extent;
using memory::kChunkBytes;

// Wholly free arenas leave the tables at once: no address in them is given out, or planned for, any more. Small ones
// only while more than half is free. As long as all fits the budget, freed memory that the driver would keep for its
// pool stays: a program that sets a release threshold allocates it again in its next step.
void DeviceMemory::TakeSurplusArenas(Context* context, bool all) {
  memory::ArenaAllocator& unevictable = *context->unevictable;
  if (unevictable.requested_bytes() > 2 * unevictable.live_bytes() + 4 * kChunkBytes) {
    for (const Extent& arena : unevictable.TakeFreeArenas()) {
      residency.chunks().RemoveArena(arena.base);
      context->unevictable_arenas.erase(arena.base);
      free_arenas_.push_back({context->handle, arena, false, 0});
    }
  }
  const uint64_t others = unmanaged_bytes.load() + requested_bytes - context->managed->requested_bytes();
  const uint64_t room = budget.budget_bytes > others ? budget.budget_bytes - others : 0;
  for (const Extent& arena :
       all ? context->managed->TakeFreeArenas() : context->managed->TakeSurplus(KeptByPools(ordinal), room)) {
    residency.RemoveArena(arena);
    context->managed_arenas.erase(arena.base);
    free_arenas_.push_back({context->handle, arena, true, arena.bytes});
  }
}

void DeviceMemory::ForgetArena(Extent arena) {
  for (const memory::Va found : live.In(arena)) {
    const memory::Allocation* const allocation = live.Find(found, nullptr);
    const uint64_t bytes = memory::ArenaAllocator::SizeFor(allocation->bytes);
    if (allocation->reported) {
      for (auto r = live.reports().lower_bound(found); r != live.reports().end() && r->first < found + bytes; ++r)
        live_bytes -= r->second;
    } else {
      live_bytes -= bytes;
    }
    allocated_bytes -= bytes;
    ReleaseContainer(bytes);
    advice_.erase(found);
    if (allocation->stream_ordered) ForgetServed(found);
    if (allocation->app_managed) ForgetNotesOf({found, bytes});
    live.Remove(found);
  }
  residency.RemoveArena(arena);
  requested_bytes -= arena.bytes;
}

void DeviceMemory::ForgetUnevictableArena(Extent arena) {
  for (const memory::Va found : live.In(arena)) {
    ForgetServed(found);
    live.Remove(found);
  }
  residency.chunks().RemoveArena(arena.base);
  ReleaseUnmanaged(arena.bytes);
}

void DeviceMemory::AwaitEnds(Extent range) {
  if (!AnyBarred()) return;
  const DeviceUnlock unlocked(mutex);
  AwaitUnbarred(range);
}

std::optional<FreeArena> DeviceMemory::TakeFreeArena(CUcontext awaited) {
  DeviceLock lock(mutex);
  ++poll_epoch;
  for (auto arena = free_arenas_.begin(); arena != free_arenas_.end(); ++arena) {
    const auto owner = contexts.find(arena->context);
    if (owner == contexts.end() || owner->second->is_ending ||
        (arena->context != awaited && !IsIdle(owner->second.get())))
      continue;
    const FreeArena taken = *arena;
    free_arenas_.erase(arena);
    ++owner->second->arenas_returning;
    return taken;
  }
  return std::nullopt;
}

void DeviceMemory::ReturnArenas(CUcontext awaited) {
  // The driver would wait for the whole context, and keep the thread that reads values out meanwhile.
  if (value_waits::g_pending.load(std::memory_order_acquire) != 0) return;
  {
    DeviceLock lock(mutex);
    if (!has_surplus_ && free_arenas_.empty()) return;
    ++poll_epoch;
    has_surplus_ = false;
    for (auto& [handle, context] : contexts) {
      if (!context->has_surplus) continue;
      if (handle != awaited && !IsIdle(context.get())) {
        has_surplus_ = true;  // later
        continue;
      }
      context->has_surplus = false;
      TakeSurplusArenas(context.get(), false);
    }
  }
  // Each is looked at again: while one is freed, other threads may queue work.
  std::vector<FreeArena> refused;
  while (const std::optional<FreeArena> arena = TakeFreeArena(awaited)) {
    CUresult result;
    {
      RelaxedCapture relaxed;
      const ContextScope scope(arena->context);
      result = g_real.cuMemFree_v2(arena->range.base);
    }
    DeviceLock lock(mutex);
    // It stays as long as one of its arenas is on its way (Device::EndTransfersOf).
    const auto owner = contexts.find(arena->context);
    if (owner != contexts.end() && owner->second->arenas_returning > 0) --owner->second->arenas_returning;
    if (result != CUDA_SUCCESS) {
      SLUICE_LOG(kDebug, "cuMemFree of an arena of %llu bytes gave %d; it is tried again",
                 static_cast<unsigned long long>(arena->range.bytes), result);
      refused.push_back(*arena);
      continue;
    }
    if (arena->is_managed) {
      requested_bytes -= arena->requested;
    } else {
      ReleaseUnmanaged(arena->range.bytes);
    }
    UpdateMode();
  }
  if (refused.empty()) return;
  DeviceLock lock(mutex);
  // It goes on counting, as long as its context is there.
  for (const FreeArena& arena : refused) {
    if (contexts.contains(arena.context)) free_arenas_.push_back(arena);
  }
}

void DeviceMemory::ReturnKept() {
  {
    DeviceLock lock(mutex);
    NoteSurplus();
  }
  ReturnArenas();
}

bool DeviceMemory::ReturnFreeArenas(Context* context) {
  if (!IsIdle(context)) return false;
  TakeSurplusArenas(context, true);
  if (!free_arenas_.empty()) {
    DeviceUnlock unlocked(mutex);
    ReturnArenas();
  }
  return true;
}

uint64_t DeviceMemory::ReturnArenasBefore(Context* context, uint64_t bytes) {
  const uint64_t growth = context->managed->GrowthFor(bytes);
  if (!active && requested_bytes + unmanaged_bytes.load() + growth > budget.budget_bytes) ReturnFreeArenas(context);
  return growth;
}

// Before an allocation is refused: memory that the application has freed may still wait for the GPU. The real cuMemFree
// would have waited itself, and PyTorch relies on it: it frees its cache and allocates again. Bounded, and without the
// lock.
// `may_block`: the application's call is not stream-ordered.
std::optional<memory::Va> DeviceMemory::AllocateWhenFreed(Context* context, uint64_t bytes, bool may_block) {
  constexpr int kMaxAttempts = 2000;
  constexpr timespec kPause{0, 1'000'000};
  if (g_captures.load() > 0) return std::nullopt;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    ++poll_epoch;
    fences.Close();
    auto va = context->managed->Allocate(bytes);
    const bool is_idle = !va && ReturnFreeArenas(context);  // where the driver's cuMemFree waits for nothing
    if (!va && Grow(context, bytes) == Refusal::kNone) va = context->managed->Allocate(bytes);
    // Arenas may be free that go back to the driver when the context's work is done.
    const bool may_return =
        !va && may_block && !is_idle && context->managed->requested_bytes() - context->managed->live_bytes() >= bytes;
    if (va || (!context->managed->has_quarantined() && !may_return)) return va;
    DeviceUnlock unlocked(mutex);
    nanosleep(&kPause, nullptr);
  }
  return std::nullopt;
}

// A host that frees and allocates ahead of the GPU would hold a new range for each: the driver's cuMemFree waits for
// the GPU, and so bounds that. Here an allocation waits instead, for a while, where much more is held than is live.
std::optional<memory::Va> DeviceMemory::AwaitFreed(Context* context, uint64_t bytes) {
  constexpr int kMaxAttempts = 100;
  constexpr uint64_t kAllocationsAfterFailedWait = 256;  // a kernel may run for ever
  constexpr timespec kPause{0, 500'000};
  if (next_allocation_ < await_freed_from_) return std::nullopt;
  for (int attempt = 0; context->managed->ShouldAwaitFreed(bytes) && g_captures.load() == 0; ++attempt) {
    if (attempt == kMaxAttempts) {
      await_freed_from_ = next_allocation_ + kAllocationsAfterFailedWait;
      break;
    }
    {
      DeviceUnlock unlocked(mutex);
      nanosleep(&kPause, nullptr);
    }
    ++poll_epoch;
    fences.Close();
    if (auto va = context->managed->Allocate(bytes)) return va;
  }
  return std::nullopt;
}

void DeviceMemory::NoteAdvice(Extent range, CUmem_advise advice, CUmemLocation location) {
  DeviceLock lock(mutex);
  memory::Va base = 0;
  if (!StaysUntilUnset(advice) || !live.Find(range.base, &base)) return;
  std::vector<GivenAdvice>& given = advice_[base];
  const auto same = std::find_if(given.begin(), given.end(), [&](const GivenAdvice& other) {
    return other.advice == advice && other.location.type == location.type && other.location.id == location.id;
  });
  if (same == given.end()) return given.push_back({range, advice, location});
  // However many parts of the block it was given for: all between them lose it together.
  const memory::Va begin = std::min(same->range.base, range.base), end = std::max(same->range.end(), range.end());
  same->range = {begin, end - begin};
}

void DeviceMemory::EndAdvice(memory::Va base) {
  const auto it = advice_.find(base);
  if (it == advice_.end()) return;
  const std::vector<GivenAdvice> all = std::move(it->second);
  const std::vector<CUdevice> peers = peers_;
  advice_.erase(it);
  const DeviceUnlock unlocked(mutex);  // the driver may wait for transfers
  const RelaxedCapture relaxed;
  for (const GivenAdvice& given : all) {
    Unset(given);
    if (!peers.empty()) AdvisePeers(given.range, ordinal, peers);
  }
}

}  // namespace sluice
