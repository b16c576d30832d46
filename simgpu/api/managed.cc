// Managed memory: prefetch, discard, advice.
#include <algorithm>
#include <cstdlib>

#include "call.h"
#include "driver_port.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Op;
using simgpu::OpKind;
using simgpu::PrefetchRange;
using simgpu::Sim;

namespace {

// Node 0 alone is there.
bool IsNoNode(const CUmemLocation& l) { return l.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && l.id != 0; }

CUresult Target(const CUmemLocation& l, int32_t* out) {
  switch (l.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return simgpu::CardOf(l.id, out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      NEED_ARG(!IsNoNode(l));
      [[fallthrough]];
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      *out = simgpu::kHostCard;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// A range stays in one allocation (H100, driver 580; of neighbours as well).
bool ManagedRange(CUdeviceptr p, size_t n) {
  const Allocation* a = simgpu::FindAllocation(p);
  return n != 0 && a != nullptr && a->kind == MemoryKind::kManaged && n <= a->base + a->size - p;
}

// The calling thread does a prefetch on an idle stream itself. Behind unfinished work it is deferred, and the queue of
// deferred prefetches is short.
CUresult Prefetch(simgpu::Call& call, CUstream stream, OpKind kind, std::vector<PrefetchRange> ranges, bool discard) {
  if (Sim().profile().concurrent_managed_access == 0) return CUDA_ERROR_INVALID_DEVICE;
  if (simgpu::Capturing(stream)) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (const CUresult refused = simgpu::RefuseImplicit(call, stream); refused != CUDA_SUCCESS) return refused;
  simgpu::HostThread& thread = simgpu::ThisThread();
  const simgpu::Profile& p = Sim().profile();
  Sim().CatchUp(call.lock);
  const bool deferred = stream->sim->Busy();
  const auto pieces = static_cast<int64_t>(ranges.size());
  thread.now += deferred ? p.prefetch_deferred_host_ns + (pieces - 1) * p.prefetch_batch_piece_host_ns
                         : p.prefetch_call_ns + (pieces - 1) * p.prefetch_batch_piece_host_ns;
  if (deferred && stream->sim->pending_prefetches >= p.prefetch_queue) {
    // The queue is full: the caller waits until one is done.
    while (stream->sim->pending_prefetches >= p.prefetch_queue) {
      simgpu::FencePtr first;
      for (Op* op : stream->sim->queue) {
        if (op->kind != OpKind::kPrefetch && op->kind != OpKind::kDiscard) continue;
        if (op->fence == nullptr) op->fence = std::make_shared<simgpu::Fence>();
        first = op->fence;
        break;
      }
      if (first == nullptr) break;
      Sim().WaitFence(call.lock, first, "room in the queue of deferred prefetches");
    }
  }
  if (kind == OpKind::kPrefetch || discard) {
    for (const PrefetchRange& r : ranges) simgpu::NotePrefetch(r);
  }
  Op* op = Sim().NewOp(kind);
  op->discard_too = discard && kind == OpKind::kDiscard;
  op->ranges = std::move(ranges);
  double host_share = 0, in_time = 0;
  bool out = false;
  for (const PrefetchRange& r : op->ranges) {
    if (r.target == simgpu::kHostCard) {
      out = true;
    } else {
      const uint64_t there = std::min<uint64_t>(Sim().ResidentBytes(r.address, r.length), r.length);
      in_time += static_cast<double>(r.length - there) / p.PrefetchRate(true, r.length);
      host_share += static_cast<double>(there) / static_cast<double>(simgpu::kBlockBytes) *
                    static_cast<double>(p.prefetch_resident_block_ns);
    }
  }
  if (kind == OpKind::kPrefetch) ++stream->sim->pending_prefetches;
  simgpu::FencePtr fence;
  if (!deferred && out && kind == OpKind::kPrefetch) op->fence = fence = std::make_shared<simgpu::Fence>();
  Sim().Submit(call.lock, stream->sim, op);
  if (deferred) return CUDA_SUCCESS;
  if (fence != nullptr) {
    Sim().WaitFence(call.lock, fence, "a prefetch to the host", true);
  } else if (kind == OpKind::kPrefetch) {
    thread.now += static_cast<int64_t>(in_time * 0.5 + host_share);
  }
  return CUDA_SUCCESS;
}

CUresult PrefetchOne(simgpu::Call& call, CUstream stream, CUdeviceptr p, size_t n, const CUmemLocation& location,
                     unsigned flags) {
  NEED_ARG(flags == 0 && p != 0 && n != 0);
  int32_t target;
  if (const CUresult r = Target(location, &target); r != CUDA_SUCCESS) return r;
  NEED_ARG(ManagedRange(p, n));
  return Prefetch(call, stream, OpKind::kPrefetch, {{p, n, target}}, false);
}

CUresult PrefetchMany(simgpu::Call& call, CUstream stream, OpKind kind, const CUdeviceptr* ptrs, const size_t* sizes,
                      size_t count, const CUmemLocation* locations, const size_t* index, size_t location_count,
                      unsigned long long flags, bool discard) {
  NEED_ARG(ptrs != nullptr && sizes != nullptr && count != 0 && flags == 0);
  if (!discard || locations != nullptr) {
    NEED_ARG(locations != nullptr && index != nullptr && location_count != 0 && location_count <= count &&
             index[0] == 0);
  }
  std::vector<PrefetchRange> ranges;
  ranges.reserve(count);
  size_t l = 0;
  for (size_t i = 0; i < count; ++i) {
    NEED_ARG(ManagedRange(ptrs[i], sizes[i]));
    int32_t target = simgpu::kHostCard;
    if (locations != nullptr) {
      while (l + 1 < location_count && index[l + 1] <= i) ++l;
      NEED_ARG(Target(locations[l], &target) == CUDA_SUCCESS);
    }
    ranges.push_back({ptrs[i], sizes[i], target});
  }
  return Prefetch(call, stream, kind, std::move(ranges), locations != nullptr);
}

// The caller's time for one block when read-mostly advice is set or withdrawn.
int64_t ReadMostly(Allocation* a, const simgpu::BlockPart& part, bool set) {
  const simgpu::Profile& p = Sim().profile();
  simgpu::Block* b = part.block;
  simgpu::SharedState::Lock lock(Sim().state());
  Sim().memory().Validate(b);
  if (!set) {
    Sim().NoteDuplicateDropped(a, part, simgpu::ThisThread().now);
    Sim().memory().WithdrawDuplicates(b, part);
    return p.read_mostly_card_ns_per_block;
  }
  const bool in_host = b->resident == 0 && b->host != 0;
  const bool first = !b->was_duplicated, moved = b->was_evicted;
  b->read_mostly = b->was_duplicated = true;
  b->was_evicted = false;
  Sim().memory().UpdateChunk(b, part.block_bytes);
  if (!in_host) return p.read_mostly_card_ns_per_block;
  return !moved  ? p.read_mostly_host_ns_per_block
         : first ? p.read_mostly_first_ns_per_block
                 : p.read_mostly_moved_ns_per_block;
}

CUresult Advise(simgpu::Call& call, CUdeviceptr p, size_t n, CUmem_advise advice, int32_t target) {
  NEED_ARG(ManagedRange(p, n) && advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY);
  const bool read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY;
  Sim().WaitForEvictions(call.lock);
  for (uint64_t at = p; at < p + n;) {
    Allocation* a = simgpu::FindAllocation(at);
    const simgpu::BlockPart part = Sim().memory().PartAt(a, at, p + n);
    simgpu::Block* b = part.block;
    at = part.address + part.block_bytes;
    if (read_mostly) {
      simgpu::ThisThread().now += ReadMostly(a, part, advice == CU_MEM_ADVISE_SET_READ_MOSTLY);
      continue;
    }
    const auto bit = static_cast<uint16_t>(target >= 0 ? 1u << target : 0);
    if (target < 0 && (advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY))
      b->accessed_by_host = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
    switch (advice) {
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        b->preferred = static_cast<int16_t>(target);
        break;
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        b->preferred = -2;
        break;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
        b->accessed_by |= bit;
        break;
      default:
        b->accessed_by &= static_cast<uint16_t>(~bit);
    }
    simgpu::ThisThread().now += Sim().profile().advise_ns_per_block;
  }
  return CUDA_SUCCESS;
}

CUmemLocation Old(CUdevice device) {
  CUmemLocation l{};
  l.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  l.id = device == CU_DEVICE_CPU ? 0 : device;
  return l;
}

// Read-mostly advice and the end of a preference need no location that exists, but a type that does.
CUresult AdviseAt(simgpu::Call& call, CUdeviceptr p, size_t n, CUmem_advise advice, const CUmemLocation& location) {
  NEED_ARG(location.type >= CU_MEM_LOCATION_TYPE_DEVICE && location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
  const bool is_placeless = advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
                            advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
    // Of nodes of the host the range is not looked at, and no access is advised: H100, driver 580.
    NEED_ARG(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
    if (is_placeless && IsNoNode(location)) return CUDA_SUCCESS;
    if (!IsNoNode(location) && !ManagedRange(p, n)) return CUDA_SUCCESS;
  }
  int32_t target = simgpu::kHostCard;
  NEED_ARG(Target(location, &target) == CUDA_SUCCESS || is_placeless);
  return Advise(call, p, n, advice, target);
}

}  // namespace

ENTRY(cuMemPrefetchAsync, _ptsz, (CUdeviceptr p, size_t n, CUdevice device, CUstream s), (p, n, device, s)) {
  BEGIN(0);
  NEED_STREAM(s);
  return PrefetchOne(call, stream, p, n, Old(device), 0);
}

ENTRY(cuMemPrefetchAsync_v2, _ptsz, (CUdeviceptr p, size_t n, CUmemLocation location, unsigned int flags, CUstream s),
      (p, n, location, flags, s)) {
  BEGIN(0);
  NEED_STREAM(s);
  return PrefetchOne(call, stream, p, n, location, flags);
}

ENTRY(cuMemPrefetchBatchAsync, _ptsz,
      (CUdeviceptr * ptrs, size_t* sizes, size_t count, CUmemLocation* locations, size_t* index, size_t location_count,
       unsigned long long flags, CUstream s),
      (ptrs, sizes, count, locations, index, location_count, flags, s)) {
  BEGIN(0);
  NEED(simgpu::HasSymbol("cuMemPrefetchBatchAsync"), CUDA_ERROR_NOT_SUPPORTED);
  NEED_STREAM(s);
  return PrefetchMany(call, stream, OpKind::kPrefetch, ptrs, sizes, count, locations, index, location_count, flags,
                      false);
}

int simgpu::EvictByThreads(void* begin, void* queue, const uint64_t* bases, const uint64_t* lengths, size_t count,
                           int threads) {
  constexpr bool kPerThread = false;
  BEGIN(4000);  // a host function and a wait for a value
  NEED(std::getenv("SIMGPU_REQUESTS") == nullptr, CUDA_ERROR_NOT_SUPPORTED);
  if (count == 0) return CUDA_SUCCESS;
  NEED_ARG(bases != nullptr && lengths != nullptr && threads > 0 && threads < 256);
  CUstream s = static_cast<CUstream>(begin);
  NEED_STREAM(s);
  CUstream behind = nullptr;
  if (const CUresult r = simgpu::ResolveStream(static_cast<CUstream>(queue), kPerThread, &behind); r != CUDA_SUCCESS)
    return r;
  std::vector<PrefetchRange> ranges;
  for (size_t i = 0; i < count; ++i) {
    NEED_ARG(ManagedRange(bases[i], lengths[i]));
    ranges.push_back({bases[i], lengths[i], simgpu::kHostCard});
  }
  Op* op = Sim().NewOp(OpKind::kPrefetch);
  op->ranges = std::move(ranges);
  op->eviction_threads = static_cast<uint8_t>(threads);
  op->fence = std::make_shared<simgpu::Fence>();
  const simgpu::FencePtr over = op->fence;
  ++stream->sim->pending_prefetches;
  Sim().Submit(call.lock, stream->sim, op);
  Sim().SubmitWait(call.lock, behind->sim, over);
  return CUDA_SUCCESS;
}

ENTRY(cuMemDiscardBatchAsync, _ptsz,
      (CUdeviceptr * ptrs, size_t* sizes, size_t count, unsigned long long flags, CUstream s),
      (ptrs, sizes, count, flags, s)) {
  BEGIN(0);
  NEED(simgpu::HasSymbol("cuMemDiscardBatchAsync"), CUDA_ERROR_NOT_SUPPORTED);
  NEED_STREAM(s);
  NEED_ARG(!stream->sim->legacy);
  return PrefetchMany(call, stream, OpKind::kDiscard, ptrs, sizes, count, nullptr, nullptr, 0, flags, true);
}

ENTRY(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
      (CUdeviceptr * ptrs, size_t* sizes, size_t count, CUmemLocation* locations, size_t* index, size_t location_count,
       unsigned long long flags, CUstream s),
      (ptrs, sizes, count, locations, index, location_count, flags, s)) {
  BEGIN(0);
  NEED(simgpu::HasSymbol("cuMemDiscardAndPrefetchBatchAsync"), CUDA_ERROR_NOT_SUPPORTED);
  NEED_STREAM(s);
  NEED_ARG(locations != nullptr);
  return PrefetchMany(call, stream, OpKind::kDiscard, ptrs, sizes, count, locations, index, location_count, flags,
                      true);
}

extern "C" {

CUresult cuMemAdvise(CUdeviceptr p, size_t n, CUmem_advise advice, CUdevice device) {
  BEGIN_UNSAFE(simgpu::TheProfile().advise_host_ns);
  return AdviseAt(call, p, n, advice, Old(device));
}

CUresult cuMemAdvise_v2(CUdeviceptr p, size_t n, CUmem_advise advice, CUmemLocation location) {
  BEGIN_UNSAFE(simgpu::TheProfile().advise_host_ns);
  return AdviseAt(call, p, n, advice, location);
}

}  // extern "C"
