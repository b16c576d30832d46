// Device: allocation and free, and reports of the application's allocator.
#include <algorithm>
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

using memory::Extent;
using memory::kChunkBytes;

namespace {
// Rounded up, or added to other sizes, such a size would wrap.
bool ExceedsAddressSpace(uint64_t bytes) { return bytes >> 56 != 0; }
}  // namespace

uint64_t Device::HostAllowance() {
  return std::min<uint64_t>(budget.host_bytes, HostMemoryLeft() + residency.stats().host_bytes);
}

template <typename F>
bool Device::AwaitShare(uint64_t bytes, F fits) {
  // A borrower gives up 20 GB/s. A stopped one gives up nothing, and then one such wait a budget is enough.
  constexpr int kMaxWaitMs = 3000, kStepMs = 2, kPublishEveryMs = 100;
  const bool has_agent = budget.generation != 0;
  if (!has_agent || failed_wait_generation_ == budget.generation || g_captures.load() > 0) return false;
  bool came = false;
  awaited_bytes_ += bytes;
  for (int ms = 0; ms < kMaxWaitMs && !came; ms += kStepMs) {
    {
      DeviceUnlock unlocked(mutex);
      if (ms % kPublishEveryMs == 0) PublishAll();  // the agent reclaims as much as is asked for here
      const timespec pause{0, kStepMs * 1'000'000L};
      nanosleep(&pause, nullptr);
    }
    came = fits();
  }
  awaited_bytes_ -= bytes;
  if (!came) failed_wait_generation_ = budget.generation;
  return came;
}

// Small allocations stay on the GPU, in memory of cuMemAlloc's own kind. Where memory is managed the driver takes 3 us
// more for a memset of 64 bytes, and 4 to 8 us more for a copy of 4 bytes (H200, docs/benchmarks.md). A PyTorch step
// has a hundred memsets. All small allocations together are a hundredth of the budget, and count as unmanaged memory.
// PyTorch's segments for small tensors have one chunk.
std::optional<memory::Va> Device::AllocateUnevictable(Context* context, uint64_t bytes, memory::StreamId stream) {
  constexpr uint64_t kMaxUnevictableBytes = uint64_t{64} << 20;
  memory::ArenaAllocator& unevictable = *context->unevictable;
  const uint64_t max_bytes = std::min(kMaxUnevictableBytes, budget.guaranteed_bytes / 64);
  if (bytes > kChunkBytes || max_bytes < kChunkBytes) return std::nullopt;
  if (const auto va = unevictable.Allocate(bytes, stream)) return va;
  const uint64_t unmanaged = unmanaged_bytes.load(std::memory_order_relaxed) + kChunkBytes;
  if (unevictable.requested_bytes() + kChunkBytes > max_bytes || unmanaged > budget.budget_bytes ||
      allocated_bytes + unmanaged > budget.limit_bytes)
    return std::nullopt;
  CUdeviceptr base = 0;
  CUresult result;
  {
    RelaxedCapture relaxed;
    result = g_real.cuMemAlloc_v2(&base, kChunkBytes);
  }
  if (result != CUDA_SUCCESS) return std::nullopt;
  if (base % kChunkBytes) {
    g_real.cuMemFree_v2(base);
    return std::nullopt;
  }
  unmanaged_bytes.fetch_add(kChunkBytes);
  unevictable.AddArena({base, kChunkBytes}, bytes);
  context->unevictable_arenas.emplace(base, kChunkBytes);
  residency.chunks().AddUnevictable({base, kChunkBytes});
  UpdateMode();
  return unevictable.Allocate(bytes, stream);
}

bool Device::ExceedsManagedLimit(uint64_t bytes) {
  DeviceLock lock(mutex);
  const uint64_t limit = GetConfig().managed_limit;
  return limit && requested_bytes + bytes > limit;
}

Refusal Device::Grow(Context* context, uint64_t bytes) {
  const uint64_t size = context->managed->GrowthFor(bytes);
  const uint64_t limit = GetConfig().managed_limit;
  if (limit && requested_bytes + size > limit) return Refusal::kManagedLimit;
  CUdeviceptr base = 0;
  CUresult result;
  {
    RelaxedCapture relaxed;
    result = g_real.cuMemAllocManaged(&base, size, CU_MEM_ATTACH_GLOBAL);
  }
  if (result != CUDA_SUCCESS) {
    SLUICE_LOG(kDebug, "cuMemAllocManaged(%llu) gave %d", static_cast<unsigned long long>(size), result);
    return Refusal::kDriver;
  }
  if (base % kChunkBytes) {  // never seen; a chunk must be one of the driver's own blocks
    g_real.cuMemFree_v2(base);
    return Refusal::kDriver;
  }
  const Extent arena{base, size};
  eviction_threads::SplitMapping(arena);
  requested_bytes += size;
  UpdateMode();
  bool is_populated = false;
  if (residency.resident_bytes() + size <= residency.capacity() && g_captures.load() == 0) {
    // As cuMemAlloc does: the pages are on the GPU when the call returns, so that no kernel faults on memory that fits.
    // The wait is for our own prefetch alone, no work of the application.
    const CUstream housekeeping = Housekeeping(context);
    is_populated = FetchRuns({arena}, ordinal, housekeeping) == CUDA_SUCCESS &&
                   g_real.cuStreamSynchronize(housekeeping) == CUDA_SUCCESS;
  }
  context->managed->AddArena(arena, bytes);
  context->managed_arenas.emplace(base, size);
  residency.AddArena(arena, is_populated);
  if (!peers_.empty()) AdvisePeers(arena, ordinal, peers_);
  return Refusal::kNone;
}

// Wholly free arenas leave the tables at once: no address in them is given out, or planned for, any more. Small ones
// only while more than half is free.
void Device::TakeSurplusArenas(Context* context, bool all) {
  memory::ArenaAllocator& unevictable = *context->unevictable;
  if (unevictable.requested_bytes() > 2 * unevictable.live_bytes() + 4 * kChunkBytes) {
    for (const Extent& arena : unevictable.TakeSurplus(true)) {
      residency.chunks().RemoveArena(arena.base);
      context->unevictable_arenas.erase(arena.base);
      free_arenas_.push_back({context->handle, arena, false});
    }
  }
  for (const Extent& arena : context->managed->TakeSurplus(all)) {
    residency.RemoveArena(arena);
    context->managed_arenas.erase(arena.base);
    free_arenas_.push_back({context->handle, arena, true});
  }
}

void Device::ReturnArenas(bool only_idle) {
  std::vector<FreeArena> taken, refused;
  {
    DeviceLock lock(mutex);
    if (!has_surplus_ && free_arenas_.empty()) return;
    if (only_idle) {
      ++poll_epoch;
      for (const auto& stream : streams) {
        if (stream->context && !Done({stream->id, stream->seq.load(std::memory_order_acquire)})) return;
      }
    }
    has_surplus_ = false;
    for (auto& [handle, context] : contexts) TakeSurplusArenas(context.get(), false);
    taken.swap(free_arenas_);
  }
  if (taken.empty()) return;
  for (const FreeArena& arena : taken) {
    RelaxedCapture relaxed;
    const ContextScope scope(arena.context);
    const CUresult result = g_real.cuMemFree_v2(arena.range.base);
    if (result == CUDA_SUCCESS) continue;
    SLUICE_LOG(kDebug, "cuMemFree of an arena of %llu bytes gave %d; it is tried again",
               static_cast<unsigned long long>(arena.range.bytes), result);
    refused.push_back(arena);
  }
  DeviceLock lock(mutex);
  // An arena that was refused goes on counting, as long as its context is there.
  std::erase_if(refused,
                [&](const FreeArena& arena) SLUICE_DEVICE_LOCKED { return !contexts.contains(arena.context); });
  const auto is_refused = [&](const FreeArena& arena) {
    return std::any_of(refused.begin(), refused.end(),
                       [&](const FreeArena& other) { return other.range.base == arena.range.base; });
  };
  for (const FreeArena& arena : taken) {
    if (is_refused(arena)) continue;
    if (arena.is_managed) {
      requested_bytes -= arena.range.bytes;
    } else {
      ReleaseUnmanaged(arena.range.bytes);
    }
  }
  free_arenas_.insert(free_arenas_.end(), refused.begin(), refused.end());
  UpdateMode();
}

// Before an allocation is refused: memory that the application has freed may still wait for the GPU. The real cuMemFree
// would have waited itself, and PyTorch relies on it: it frees its cache and allocates again. Bounded, and without the
// lock.
// `may_block`: the application's call is not stream-ordered.
std::optional<memory::Va> Device::AllocateWhenFreed(Context* context, uint64_t bytes, bool may_block) {
  constexpr int kMaxAttempts = 2000;
  constexpr timespec kPause{0, 1'000'000};
  if (g_captures.load() > 0) return std::nullopt;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    ++poll_epoch;
    fences.Close();
    auto va = context->managed->Allocate(bytes);
    if (!va && may_block) {
      TakeSurplusArenas(context, true);
      if (!free_arenas_.empty()) {
        DeviceUnlock unlocked(mutex);
        ReturnArenas(false);
      }
    }
    if (!va && Grow(context, bytes) == Refusal::kNone) va = context->managed->Allocate(bytes);
    if (va || !context->managed->has_quarantined()) return va;
    DeviceUnlock unlocked(mutex);
    nanosleep(&kPause, nullptr);
  }
  return std::nullopt;
}

// A host that frees and allocates ahead of the GPU would hold a new range for each: the driver's cuMemFree waits for
// the GPU, and so bounds that. Here an allocation waits instead, for a while, where much more is held than is live.
std::optional<memory::Va> Device::AwaitFreed(Context* context, uint64_t bytes) {
  constexpr int kMaxAttempts = 100;
  constexpr timespec kPause{0, 500'000};
  for (int attempt = 0; attempt < kMaxAttempts && context->managed->ShouldAwaitFreed(bytes) && g_captures.load() == 0;
       ++attempt) {
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

CUresult Device::Allocate(uint64_t bytes, bool app_managed, CUdeviceptr* result, memory::StreamId stream) {
  CUcontext handle = nullptr;
  if (g_real.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle) return CUDA_ERROR_INVALID_CONTEXT;
  handle = MemoryContext(handle);
  const ContextScope scope(handle);
  DeviceLock lock(mutex);
  ++poll_epoch;
  Context* context = ContextFor(handle);
  const uint64_t size = memory::ArenaAllocator::SizeFor(bytes);
  // Bytes beyond the guarantee are host-resident sooner or later: a borrowed budget is reclaimed, and a guarantee that
  // is lent out now returns.
  const auto beyond = [&]() SLUICE_DEVICE_LOCKED {
    const uint64_t all = allocated_bytes + size + unmanaged_bytes.load(std::memory_order_relaxed);
    return all > budget.guaranteed_bytes ? all - budget.guaranteed_bytes : 0;
  };
  // The allowance is read from files: not for an allocation within the guarantee.
  const auto fits = [&]() SLUICE_DEVICE_LOCKED { return beyond() == 0 || beyond() <= HostAllowance(); };
  Refusal refusal = Refusal::kNone;
  if (ExceedsAddressSpace(bytes) ||
      allocated_bytes + size + unmanaged_bytes.load(std::memory_order_relaxed) > budget.limit_bytes) {
    refusal = Refusal::kLimit;
  } else if (!fits() && (beyond() <= budget.host_bytes || !AwaitShare(size, fits))) {
    refusal = Refusal::kHost;
  }
  std::optional<memory::Va> va;
  bool is_unevictable = false;
  if (refusal == Refusal::kNone) {
    if (!app_managed) va = AllocateUnevictable(context, bytes, stream);
    is_unevictable = va.has_value();
    if (!va) va = context->managed->Allocate(bytes, stream);
    if (!va && stream == 0) va = AwaitFreed(context, bytes);
    if (!va) {
      refusal = Grow(context, bytes);
      if (refusal == Refusal::kNone) {
        va = context->managed->Allocate(bytes);
      } else {
        va = AllocateWhenFreed(context, bytes, stream == 0);
      }
    }
  }
  if (!va) {
    LogRefusal(refusal, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory::Allocation allocation;
  allocation.bytes = bytes;
  allocation.id = (static_cast<uint64_t>(ordinal) << 56 | uint64_t{1} << 55) + next_allocation_++;
  allocation.app_managed = app_managed;
  managed_seen |= app_managed;
  allocation.captured = g_captures.load(std::memory_order_relaxed) > 0;
  allocation.unevictable = is_unevictable;
  live.Add(*va, allocation);
  *result = *va;
  if (is_unevictable) return CUDA_SUCCESS;
  allocated_bytes += size;
  const Extent range{*va, size};
  SetLive(range, true);
  if (app_managed || allocation.captured) residency.Pin(range, true);
  UpdateMode();
  return CUDA_SUCCESS;
}

void Device::SetLive(Extent range, bool alive, Extent owner) {
  if (alive) {
    residency.AddLive(range);
    live_bytes += range.bytes;
    peak_live_bytes = std::max(peak_live_bytes, live_bytes);
  } else {
    residency.RemoveLive(range, owner);
    live_bytes -= range.bytes;
  }
  Withdraw();
}

std::optional<CUresult> Device::Free(CUdeviceptr pointer, memory::StreamId stream) {
  DeviceLock lock(mutex);
  ++poll_epoch;
  memory::Va base = 0;
  const memory::Allocation* allocation = live.Find(pointer, &base);
  if (!allocation) {
    // Freed already, or never given out: the driver would free the whole arena that begins here.
    if (residency.chunks().InArena(pointer)) return CUDA_ERROR_INVALID_VALUE;
    return std::nullopt;
  }
  if (base != pointer) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t size = memory::ArenaAllocator::SizeFor(allocation->bytes);
  const Extent range{base, size};
  const bool is_unevictable = allocation->unevictable;
  ForgetHostCopies(base, size);
  EndAdvice(base);
  if (!is_unevictable) {  // else residency does not know it, and it does not count as managed
    residency.NoteFreed(range);
    if (allocation->reported) {
      const auto& reports = live.reports();
      for (auto it = reports.lower_bound(base); it != reports.end() && it->first < base + size; ++it)
        SetLive({it->first, it->second}, false);
    } else {
      SetLive(range, false);
    }
    if (allocation->app_managed || allocation->captured) residency.Pin(range, false);
  }
  live.Remove(base);
  if (!is_unevictable) allocated_bytes -= size;
  Context* owner = nullptr;
  for (auto& [handle, context] : contexts) {
    const auto& arenas = is_unevictable ? context->unevictable_arenas : context->managed_arenas;
    auto it = arenas.upper_bound(base);
    if (it != arenas.begin() && base < std::prev(it)->first + std::prev(it)->second) owner = context.get();
  }
  if (!owner) return CUDA_SUCCESS;
  (is_unevictable ? owner->unevictable : owner->managed)->Free(base, size, stream);
  has_surplus_ = true;
  UpdateMode();
  if (stream) return CUDA_SUCCESS;
  lock.Unlock();
  ReturnArenas(false);
  return CUDA_SUCCESS;
}

void Device::Report(CUdeviceptr pointer, int64_t bytes) {
  DeviceLock lock(mutex);
  memory::Va base = 0;
  memory::Allocation* allocation = live.Find(pointer, &base);
  if (!allocation || allocation->app_managed) return;
  if (bytes > 0) reports_seen = true;
  if (allocation->unevictable) return;
  const Extent whole{base, memory::ArenaAllocator::SizeFor(allocation->bytes)};
  if (g_captures.load(std::memory_order_relaxed) > 0 && !allocation->captured) {
    allocation->captured = true;
    residency.Pin(whole, true);
  }
  if (bytes > 0) {
    if (!allocation->reported) SetLive(whole, false, whole);
    if (auto old = live.Unreport(pointer)) SetLive(*old, false, whole);
    const Extent range{pointer, std::min<uint64_t>(static_cast<uint64_t>(bytes), base + allocation->bytes - pointer)};
    if (live.Report(range, base, allocation)) SetLive(range, true);
  } else if (auto range = live.Unreport(pointer)) {
    SetLive(*range, false, whole);
  }
  residency.set_capacity(Capacity());
}

void Device::NoteAdvice(Extent range, CUmem_advise advice, CUmemLocation location) {
  DeviceLock lock(mutex);
  memory::Va base = 0;
  if (!IsLasting(advice) || !live.Find(range.base, &base)) return;
  std::vector<GivenAdvice>& given = advice_[base];
  const auto is_same = [&](const GivenAdvice& other) {
    return other.range.base == range.base && other.range.bytes == range.bytes && other.advice == advice &&
           other.location.type == location.type && other.location.id == location.id;
  };
  if (std::none_of(given.begin(), given.end(), is_same)) given.push_back({range, advice, location});
}

void Device::EndAdvice(memory::Va base) {
  const auto it = advice_.find(base);
  if (it == advice_.end()) return;
  RelaxedCapture relaxed;
  for (const GivenAdvice& given : it->second) {
    Unset(given);
    if (!peers_.empty()) AdvisePeers(given.range, ordinal, peers_);
  }
  advice_.erase(it);
}

void Device::MarkCaptured(memory::Va va) {
  DeviceLock lock(mutex);
  memory::Va base = 0;
  memory::Allocation* allocation = live.Find(va, &base);
  if (!allocation || allocation->captured || allocation->unevictable) return;
  allocation->captured = true;
  if (!allocation->app_managed) residency.Pin({base, memory::ArenaAllocator::SizeFor(allocation->bytes)}, true);
}

bool Device::ReserveUnmanaged(uint64_t bytes) {
  {
    DeviceLock lock(mutex);
    const auto fits = [&]() SLUICE_DEVICE_LOCKED {
      return !ExceedsAddressSpace(bytes) && unmanaged_bytes.load() + bytes <= budget.budget_bytes;
    };
    // A guarantee that was lent out returns; bytes beyond it are promised to no one.
    const bool is_owed = !ExceedsAddressSpace(bytes) && unmanaged_bytes.load() + bytes <= budget.guaranteed_bytes;
    if (!fits() && (!is_owed || !AwaitShare(bytes, fits))) {
      LogRefusal(Refusal::kLimit, bytes);
      return false;
    }
    unmanaged_bytes.fetch_add(bytes);
    UpdateMode();
  }
  MakeRoom();
  return true;
}

void Device::LogRefusal(Refusal refusal, uint64_t bytes) {
  bool& logged = logged_refusal_[static_cast<int>(refusal)];
  if (logged) return;
  logged = true;
  const auto size = [](uint64_t n) { return settings::HumanBytes(n, 2); };
  const std::string requested = size(bytes), have = size(allocated_bytes + unmanaged_bytes.load());
  const auto warn = settings::LogLevel::kWarn;
  switch (refusal) {
    case Refusal::kLimit:
      NotifyAgent(SLUICE_NOTICE_LIMIT_REACHED, uuid.c_str());
      Log(warn, "%s: out of memory: %s requested beside %s; memory-limit is %s, budget %s", uuid.c_str(),
          requested.c_str(), have.c_str(), size(budget.limit_bytes).c_str(), size(budget.budget_bytes).c_str());
      break;
    case Refusal::kHost:
      Log(warn,
          "%s: out of memory: %s requested beside %s would need more host memory than the container or node has left",
          uuid.c_str(), requested.c_str(), have.c_str());
      break;
    case Refusal::kManagedLimit:
      Log(warn, "%s: out of memory: %s requested beside %s; SLUICE_MANAGED_LIMIT is %s", uuid.c_str(),
          requested.c_str(), have.c_str(), size(GetConfig().managed_limit).c_str());
      break;
    default:
      Log(warn, "%s: out of memory: the driver gave no managed memory", uuid.c_str());
  }
}

}  // namespace sluice
