// Device: VMM memory in managed form. The reservation is managed memory; residency calls its mapped ranges
// live. virtual_memory.h has the calls that the application makes.
#include <algorithm>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device_memory.h"
#include "hooklib/engine/device/ending_contexts.h"
#include "hooklib/engine/device/virtual_memory_state.h"
#include "hooklib/engine/execute/discards.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

using memory::Extent;
using memory::kChunkBytes;
using memory::Va;

namespace {
// Residency's transfers end at the ends of its arenas. One of 512 MiB costs 90 KiB for its chunks.
constexpr uint64_t kArenaBytes = uint64_t{512} << 20;
}  // namespace

Refusal DeviceMemory::ChargeHandle(uint64_t bytes) {
  DeviceLock lock(mutex);
  const Refusal refusal = Admit(bytes);
  if (refusal == Refusal::kNone) {
    allocated_bytes += bytes;
  } else {
    LogRefusal(refusal, bytes);
  }
  return refusal;
}

void DeviceMemory::ReleaseHandle(uint64_t bytes) {
  DeviceLock lock(mutex);
  allocated_bytes -= bytes;
  ReleaseContainer(bytes);
}

bool DeviceMemory::IsOwnedByPrimary(CUcontext context) const {
  const PrimaryScope scope(ordinal);
  unsigned flags = 0;
  int active = 0;
  CUcontext primary = nullptr;
  if (g_real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || !active ||
      g_real.cuDevicePrimaryCtxRetain(&primary, ordinal) != CUDA_SUCCESS)
    return false;
  if (g_real.cuDevicePrimaryCtxRelease_v2) g_real.cuDevicePrimaryCtxRelease_v2(ordinal);
  return primary == context;
}

Refusal DeviceMemory::Reserve(CUcontext context, uint64_t bytes, Va* result) {
  DeviceLock lock(mutex);
  const uint64_t limit = GetConfig().managed_limit;
  if (bytes >> 48 != 0) return Refusal::kDriver;
  if (limit && requested_bytes + reserved_bytes_ + bytes > limit) return Refusal::kManagedLimit;
  CUdeviceptr base = 0;
  {
    RelaxedCapture relaxed;
    if (g_real.cuMemAllocManaged(&base, virtual_memory::AddressBytes(bytes), CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS)
      return Refusal::kDriver;
  }
  if (base % kChunkBytes) {  // never seen; a chunk must be one of the driver's own blocks
    g_real.cuMemFree_v2(base);
    return Refusal::kDriver;
  }
  Reservation& made = reservations_[base];
  made.range = {base, bytes};
  made.context = context;
  made.was_mapped.resize(bytes / kChunkBytes);
  reserved_bytes_ += bytes;
  *result = base;
  return Refusal::kNone;
}

bool DeviceMemory::Unreserve(Va base, bool at_once, bool gone) {
  Extent range;
  CUcontext owner = nullptr;
  {
    DeviceLock lock(mutex);
    ++poll_epoch;
    const auto it = reservations_.find(base);
    if (it == reservations_.end()) return true;
    range = it->second.range;
    owner = it->second.context;
    for (const Extent& arena : it->second.arenas) residency.RemoveArena(arena);
    live.ForgetReports(range);
    reserved_bytes_ -= range.bytes - it->second.mapped_bytes;
    if (gone || at_once) {
      requested_bytes -= it->second.mapped_bytes;
    } else {
      free_arenas_.push_back({owner, range, true, it->second.mapped_bytes});
    }
    reservations_.erase(it);
    UpdateMode();
  }
  if (gone || !at_once) return true;
  RelaxedCapture relaxed;
  const ContextScope scope(owner);
  return g_real.cuMemFree_v2(base) == CUDA_SUCCESS;
}

Reservation* DeviceMemory::ReservationOf(Va va) {
  auto it = reservations_.upper_bound(va);
  if (it == reservations_.begin()) return nullptr;
  --it;
  return va < it->second.range.end() ? &it->second : nullptr;
}

// Returns the runs of chunks that are mapped for the first time.
std::vector<Extent> DeviceMemory::AddChunks(Reservation* reservation, Extent range) {
  std::vector<Extent> fresh;
  const Va base = reservation->range.base;
  for (Va va = range.base; va < range.end(); va += kChunkBytes) {
    if (!residency.chunks().InArena(va)) {
      const Va begin = base + memory::RoundDown(va - base, kArenaBytes);
      const Extent arena{begin, std::min(kArenaBytes, reservation->range.end() - begin)};
      eviction_threads::SplitMapping(arena);
      residency.AddArena(arena, false);
      reservation->arenas.push_back(arena);
      if (!peers_.empty()) AdvisePeers(arena, ordinal, peers_);
    }
    const size_t index = (va - base) / kChunkBytes;
    if (reservation->was_mapped[index]) continue;
    reservation->was_mapped[index] = true;
    if (fresh.empty() || fresh.back().end() != va) fresh.push_back({va, 0});
    fresh.back().bytes += kChunkBytes;
    reservation->mapped_bytes += kChunkBytes;
    requested_bytes += kChunkBytes;
    reserved_bytes_ -= kChunkBytes;
  }
  return fresh;
}

void DeviceMemory::Map(Extent range, bool has_contents) {
  DeviceLock lock(mutex);
  ++poll_epoch;
  Reservation* const reservation = ReservationOf(range.base);
  if (!reservation) return;
  const std::vector<Extent> fresh = AddChunks(reservation, range);
  if (!fresh.empty() && residency.can_discard()) {
    RelaxedCapture relaxed;
    TryDiscard();
  }
  UpdateMode();
  if (Populate(ContextFor(reservation->context), fresh)) {
    for (const Extent& run : fresh) residency.NotePopulated(run);
  }
  memory::Allocation allocation;
  allocation.id = (static_cast<uint64_t>(ordinal) << 56 | uint64_t{1} << 55) + next_allocation_++;
  allocation.reported = !live.ReportsIn(range).empty();
  const std::vector<Va> neighbors = live.Neighbors(range, reservation->range);
  const auto of = [&](Va va) SLUICE_DEVICE_LOCKED { return live.Find(va, nullptr); };
  for (const Va base : neighbors) allocation.reported |= of(base)->reported;
  // One allocator owns the reservation. Where it reports its blocks, a range without a report is free, as in Report.
  for (const Va base : neighbors) {
    if (allocation.reported && !of(base)->reported) SetLive({base, of(base)->bytes}, false);
  }
  const bool is_reported = live.Map(range, reservation->range, allocation)->reported;
  if (!is_reported) {
    if (!has_contents) SetLive(range, true);
  } else {
    for (const Extent& part : live.ReportsIn(range)) SetLive(part, true);
    if (has_contents) SetLive(range, false);
  }
  if (g_captures.load(std::memory_order_relaxed) > 0) PinMappings(range);
  UpdateMode();
}

void DeviceMemory::Unmap(Extent range, bool keeps_contents) {
  DeviceLock lock(mutex);
  ++poll_epoch;
  const auto mapping = live.mappings().find(range.base);
  const memory::Allocation* const allocation = live.Find(range.base, nullptr);
  if (mapping == live.mappings().end() || !allocation) return;  // the reservation is gone
  const bool is_reported = allocation->reported;
  if (!keeps_contents) residency.NoteFreed(range);
  if (is_reported) {
    if (keeps_contents) SetLive(range, true);
    for (const Extent& part : live.ReportsIn(range)) SetLive(part, false);
  } else if (!keeps_contents) {
    SetLive(range, false);
  }
  if (mapping->second.pinned) residency.Pin(range, false);
  live.Unmap(range);
  UpdateMode();
}

void DeviceMemory::EndContents(Extent range) {
  DeviceLock lock(mutex);
  ++poll_epoch;
  if (!ReservationOf(range.base)) return;
  residency.NoteFreed(range);
  SetLive(range, false);
  UpdateMode();
}

std::vector<Extent> DeviceMemory::WrittenParts(Extent range) {
  DeviceLock lock(mutex);
  if (!active) return {range};  // launches are not looked at
  return residency.WrittenParts(range);
}

void DeviceMemory::PinMappings(Extent range) {
  for (auto it = live.MappingAt(range.base); it != live.mappings().end() && it->first < range.end(); ++it) {
    if (std::exchange(it->second.pinned, true)) continue;
    residency.Pin({it->first, it->second.bytes}, true);
    live.InvalidateAnswers({it->first, it->second.bytes});
  }
}

}  // namespace sluice
