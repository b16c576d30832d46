// Device: allocation and free, and reports of the application's allocator.
#include <algorithm>
#include <ctime>

#include "hooklib/client/agent_client.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/device/pools.h"
#include "hooklib/engine/device/range_notes.h"
#include "hooklib/engine/execute/discards.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

using memory::Extent;
using memory::kChunkBytes;

namespace {
// Rounded up, or added to other sizes, such a size would wrap.
bool ExceedsAddressSpace(uint64_t bytes) { return bytes >> 56 != 0; }

// Why the driver gave the thread's allocation no memory: its own answer is the application's.
constinit thread_local CUresult t_driver_answer = CUDA_SUCCESS;
}  // namespace

uint64_t DeviceMemory::HostAllowance() {
  return std::min<uint64_t>(budget.host_bytes, HostMemoryLeft() + residency.stats().host_bytes);
}

template <typename F, typename G>
bool DeviceMemory::AwaitShare(uint64_t bytes, F fits, G is_patient) {
  // A borrower gives up 20 GB/s. A stopped one gives up nothing, and then one such wait a budget is enough.
  constexpr uint64_t kMaxWaitMs = 3000, kStepMs = 2, kPublishEveryMs = 100;
  const bool has_agent = budget.generation != 0;
  if (!has_agent || failed_wait_generation_ == budget.generation || g_captures.load() > 0) return false;
  bool came = false;
  awaited_bytes_ += bytes;
  for (uint64_t ms = 0; (ms < kMaxWaitMs || is_patient()) && !came; ms += kStepMs) {
    {
      DeviceUnlock unlocked(mutex);
      if (ms % kPublishEveryMs == 0) PublishAll();  // the agent reclaims as much as is asked for here
      const timespec pause{0, static_cast<long>(kStepMs) * 1'000'000};
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
std::optional<memory::Va> DeviceMemory::AllocateUnevictable(Context* context, uint64_t bytes, memory::StreamId stream) {
  constexpr uint64_t kMaxUnevictableBytes = uint64_t{64} << 20;
  memory::ArenaAllocator& unevictable = *context->unevictable;
  // Words that streams write and wait for cannot be managed memory: the driver refuses it there (H100, driver 580).
  constexpr uint64_t kWordBytes = 4096;
  const bool may_hold_words = bytes <= kWordBytes && stream == 0 && budget.guaranteed_bytes >= 8 * kChunkBytes;
  const uint64_t max_bytes = std::max(std::min(kMaxUnevictableBytes, budget.guaranteed_bytes / 64),
                                      may_hold_words ? uint64_t{kChunkBytes} : 0);
  if (bytes > kChunkBytes || max_bytes < kChunkBytes) return std::nullopt;
  if (const auto va = unevictable.Allocate(bytes, stream)) return va;
  const uint64_t unmanaged = unmanaged_bytes.load(std::memory_order_relaxed) + kChunkBytes;
  if (unevictable.requested_bytes() + kChunkBytes > max_bytes || unmanaged > UnmanagedBound() ||
      allocated_bytes + unmanaged > budget.limit_bytes || !ChargeWithinLease(kChunkBytes))
    return std::nullopt;
  CUdeviceptr base = 0;
  CUresult result;
  {
    RelaxedCapture relaxed;
    result = g_real.cuMemAlloc_v2(&base, kChunkBytes);
  }
  if (result == CUDA_SUCCESS && base % kChunkBytes) {
    g_real.cuMemFree_v2(base);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    ReleaseContainer(kChunkBytes);
    return std::nullopt;
  }
  AwaitEnds({base, kChunkBytes});
  unmanaged_bytes.fetch_add(kChunkBytes);
  unevictable.AddArena({base, kChunkBytes}, bytes);
  context->unevictable_arenas.emplace(base, kChunkBytes);
  residency.chunks().AddUnevictable({base, kChunkBytes});
  UpdateMode();
  return unevictable.Allocate(bytes, stream);
}

bool DeviceMemory::ExceedsManagedLimit(uint64_t bytes) {
  DeviceLock lock(mutex);
  const uint64_t limit = GetConfig().managed_limit;
  return limit && requested_bytes + reserved_bytes_ + bytes > limit;
}

bool DeviceMemory::HoldsManaged() {
  DeviceLock lock(mutex);
  return requested_bytes + reserved_bytes_ > 0;
}

// As cuMemAlloc does: the pages are on the GPU when the call returns, so that no kernel faults on memory that fits.
bool DeviceMemory::Populate(Context* context, const std::vector<Extent>& runs) {
  uint64_t bytes = 0;
  for (const Extent& run : runs) bytes += run.bytes;
  if (bytes == 0 || residency.resident_bytes() + bytes > residency.capacity() || g_captures.load() > 0) return false;
  const OwnWait own;
  const CUstream housekeeping = Housekeeping(context);
  return FetchRuns(runs, ordinal, housekeeping) == CUDA_SUCCESS &&
         g_real.cuStreamSynchronize(housekeeping) == CUDA_SUCCESS;
}

Refusal DeviceMemory::Grow(Context* context, uint64_t bytes) {
  const uint64_t size = ReturnArenasBefore(context, bytes);
  if (const uint64_t limit = GetConfig().managed_limit; limit && requested_bytes + reserved_bytes_ + size > limit)
    return Refusal::kManagedLimit;
  CUdeviceptr base = 0;
  CUresult result;
  {
    RelaxedCapture relaxed;
    result = g_real.cuMemAllocManaged(&base, size, CU_MEM_ATTACH_GLOBAL);
  }
  if (result != CUDA_SUCCESS) {
    NoteAnswer(context->handle, result);
    t_driver_answer = result;
    SLUICE_LOG(kDebug, "cuMemAllocManaged(%llu) gave %d", static_cast<unsigned long long>(size), result);
    return Refusal::kDriver;
  }
  if (base % kChunkBytes) {  // never seen; a chunk must be one of the driver's own blocks
    g_real.cuMemFree_v2(base);
    return Refusal::kDriver;
  }
  const Extent arena{base, size};
  AwaitEnds(arena);
  eviction_threads::SplitMapping(arena);
  if (residency.can_discard()) {
    RelaxedCapture relaxed;
    TryDiscard();
  }
  requested_bytes += size;
  UpdateMode();
  const bool is_populated = Populate(context, {arena});
  context->managed->AddArena(arena, bytes);
  context->managed_arenas.emplace(base, size);
  residency.AddArena(arena, is_populated);
  if (!peers_.empty()) AdvisePeers(arena, ordinal, peers_);
  return Refusal::kNone;
}

Refusal DeviceMemory::Admit(uint64_t bytes) {
  if (ExceedsAddressSpace(bytes)) return Refusal::kLimit;
  AskToWake();
  const uint64_t size = memory::ArenaAllocator::SizeFor(bytes);
  // Bytes beyond the guarantee are host-resident sooner or later: a borrowed budget is reclaimed, and a guarantee that
  // is lent out now returns.
  const auto beyond = [&]() SLUICE_DEVICE_LOCKED {
    const uint64_t all = allocated_bytes + size + unmanaged_bytes.load(std::memory_order_relaxed);
    return all > budget.guaranteed_bytes ? all - budget.guaranteed_bytes : 0;
  };
  // The allowance is read from files: not for an allocation within the guarantee.
  const auto fits = [&]() SLUICE_DEVICE_LOCKED { return beyond() == 0 || beyond() <= HostAllowance(); };
  const uint64_t all = allocated_bytes + size + unmanaged_bytes.load(std::memory_order_relaxed);
  if (all > budget.limit_bytes || !ChargeContainer(size)) return Refusal::kLimit;
  if (fits() || (beyond() > budget.host_bytes && AwaitShare(size, fits, [] { return false; }))) return Refusal::kNone;
  ReleaseContainer(size);
  return Refusal::kHost;
}

CUresult DeviceMemory::Allocate(uint64_t bytes, bool app_managed, CUdeviceptr* result, memory::StreamId stream) {
  CUcontext handle = nullptr;
  if (g_real.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle) return CUDA_ERROR_INVALID_CONTEXT;
  handle = MemoryContext(handle);
  const ContextScope scope(handle);
  DeviceLock lock(mutex);
  ++poll_epoch;
  const uint64_t size = ExceedsAddressSpace(bytes) ? 0 : memory::ArenaAllocator::SizeFor(bytes);
  Refusal refusal = Admit(bytes);
  const uint64_t charged = refusal == Refusal::kNone ? size : 0;
  t_driver_answer = CUDA_SUCCESS;
  Context* context = ContextFor(handle);
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
  if (!va || is_unevictable) ReleaseContainer(charged);  // the memory of an unevictable one is charged already
  if (!va) {
    LogRefusal(refusal, bytes);
    return refusal == Refusal::kDriver && t_driver_answer != CUDA_SUCCESS ? t_driver_answer : CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory::Allocation allocation;
  allocation.bytes = bytes;
  allocation.id = (static_cast<uint64_t>(ordinal) << 56 | uint64_t{1} << 55) + next_allocation_++;
  allocation.app_managed = app_managed;
  allocation.stream_ordered = stream != 0;
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

void DeviceMemory::SetLive(Extent range, bool alive, Extent owner) {
  if (alive) {
    residency.AddLive(range);
    if (g_several_devices_work && residency.has_reused_chunks()) PopulateDiscarded(false);
    live_bytes += range.bytes;
    peak_live_bytes = std::max(peak_live_bytes, live_bytes);
  } else {
    residency.RemoveLive(range, owner);
    live_bytes -= range.bytes;
  }
  Withdraw();
}

std::optional<CUresult> DeviceMemory::Free(CUdeviceptr pointer, memory::StreamId stream, bool is_async) {
  DeviceLock lock(mutex);
  ++poll_epoch;
  memory::Va base = 0;
  const memory::Allocation* allocation = live.Find(pointer, &base);
  if (!allocation) {
    // Freed already, or never given out: the driver would free the whole arena that begins here.
    if (residency.chunks().InArena(pointer)) return CUDA_ERROR_INVALID_VALUE;
    return std::nullopt;
  }
  if (base != pointer || allocation->mapped) return CUDA_ERROR_INVALID_VALUE;
  if (is_async && allocation->app_managed && !allocation->stream_ordered) return CUDA_ERROR_NOT_SUPPORTED;
  EndAdvice(base);
  allocation = live.Find(pointer, &base);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;  // its context ended meanwhile
  const uint64_t size = memory::ArenaAllocator::SizeFor(allocation->bytes);
  const Extent range{base, size};
  const bool is_unevictable = allocation->unevictable, is_ordered = stream != 0 || allocation->stream_ordered;
  ForgetHostCopies(base, size);
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
  if (allocation->stream_ordered) ForgetServed(base);
  if (allocation->app_managed) ForgetNotesOf(range);
  live.Remove(base);
  if (!is_unevictable) {
    allocated_bytes -= size;
    ReleaseContainer(size);
  }
  Context* const owner = OwnerOf(base, is_unevictable);
  if (!owner) return CUDA_SUCCESS;
  (is_unevictable ? owner->unevictable : owner->managed)->Free(base, size, stream);
  owner->has_surplus = has_surplus_ = true;
  UpdateMode();
  // The driver does not wait in a stream-ordered free, nor in cuMemFree of a pool's memory.
  if (is_ordered) return CUDA_SUCCESS;
  const CUcontext awaited = owner->handle;
  lock.Unlock();
  ReturnArenas(awaited);
  return CUDA_SUCCESS;
}

void DeviceMemory::Report(CUdeviceptr pointer, int64_t bytes) {
  DeviceLock lock(mutex);
  memory::Va base = 0;
  memory::Allocation* allocation = live.Find(pointer, &base);
  // A block that ends while it is unmapped stays dead when its range is mapped again.
  if (!allocation && bytes < 0 && !reservations_.empty() && ReservationOf(pointer)) live.Unreport(pointer);
  if (!allocation || allocation->app_managed) return;
  if (bytes > 0) reports_seen = true;
  if (allocation->unevictable) return;
  const Extent whole{base, memory::ArenaAllocator::SizeFor(allocation->bytes)};
  // Of a block that VMM memory holds in part, the unmapped part is not live.
  const auto inside = [&whole](const Extent& block) {
    return Extent{block.base, std::min(block.end(), whole.end()) - block.base};
  };
  if (g_captures.load(std::memory_order_relaxed) > 0) {
    if (allocation->mapped) {
      PinMappings({pointer, static_cast<uint64_t>(bytes > 0 ? bytes : 1)});
    } else if (!allocation->captured) {
      allocation->captured = true;
      residency.Pin(whole, true);
    }
  }
  if (bytes > 0) {
    if (!allocation->reported) SetLive(whole, false, whole);
    if (auto old = live.Unreport(pointer)) SetLive(inside(*old), false, whole);
    const Extent range{pointer, std::min<uint64_t>(static_cast<uint64_t>(bytes), base + allocation->bytes - pointer)};
    if (live.Report(range, base, allocation)) SetLive(range, true);
  } else if (auto range = live.Unreport(pointer)) {
    SetLive(inside(*range), false, whole);
  }
  residency.set_capacity(Capacity());
}

void DeviceMemory::MarkCaptured(memory::Va va) {
  DeviceLock lock(mutex);
  memory::Va base = 0;
  memory::Allocation* allocation = live.Find(va, &base);
  if (!allocation || allocation->captured || allocation->unevictable) return;
  if (allocation->mapped) {
    bool is_reported = false;
    const std::optional<Extent> block = live.Resolve(va, &is_reported);
    PinMappings(block && is_reported ? *block : Extent{va, 1});
    return;
  }
  allocation->captured = true;
  if (!allocation->app_managed) residency.Pin({base, memory::ArenaAllocator::SizeFor(allocation->bytes)}, true);
}

bool DeviceMemory::ReserveUnmanaged(uint64_t bytes) {
  {
    DeviceLock lock(mutex);
    AskToWake();
    const auto fits = [&]() SLUICE_DEVICE_LOCKED {
      return !ExceedsAddressSpace(bytes) && unmanaged_bytes.load() + bytes <= UnmanagedBound();
    };
    // A guarantee that was lent out returns; bytes beyond it are promised to no one.
    const bool is_owed = !ExceedsAddressSpace(bytes) && unmanaged_bytes.load() + bytes <= budget.guaranteed_bytes;
    // An opportunistic process waits for lent memory as its launches do, without end, while the agent serves it. It
    // gets so much for certain once any is lent.
    constexpr uint64_t kOpportunisticBytes = uint64_t{512} << 20;
    const auto is_patient = [&]() SLUICE_DEVICE_LOCKED {
      return budget.priority == SLUICE_PRIORITY_OPPORTUNISTIC && Client()->attached() &&
             unmanaged_bytes.load() + bytes <= kOpportunisticBytes;
    };
    const bool is_charged = (fits() || is_owed) && ChargeContainer(bytes);
    if (!is_charged || (!fits() && (!is_owed || !AwaitShare(bytes, fits, is_patient)))) {
      if (is_charged) ReleaseContainer(bytes);
      LogRefusal(Refusal::kLimit, bytes);
      return false;
    }
    unmanaged_bytes.fetch_add(bytes);
    UpdateMode();
  }
  MakeRoom();
  return true;
}

void DeviceMemory::LogRefusal(Refusal refusal, uint64_t bytes) {
  bool& logged = logged_refusal_[static_cast<int>(refusal)];
  if (logged) return;
  logged = true;
  const auto size = [](uint64_t n) { return settings::HumanBytes(n, 2); };
  const std::string requested = size(bytes);
  const uint64_t others = KnownOthersBytes();
  const std::string have = size(allocated_bytes + unmanaged_bytes.load()) +
                           (others ? " and " + size(others) + " of the container's other processes" : "");
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
