// Stream-ordered allocation: pools.
#include <algorithm>

#include "graph_ops.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;
using simgpu::TheDriver;

namespace simgpu {

namespace {
CUmemoryPool PoolIn(std::vector<CUmemoryPool>& pools, int card) {
  auto& pool = pools[static_cast<size_t>(card)];
  if (pool == nullptr) {
    pool = new CUmemPoolHandle_st;
    pool->card = card;
    pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->props.location = {CU_MEM_LOCATION_TYPE_DEVICE, card};
  }
  return pool;
}
}  // namespace

CUmemoryPool DefaultPool(int card) { return PoolIn(TheDriver().default_pools, card); }
CUmemoryPool GraphPool(int card) { return PoolIn(TheDriver().graph_pools, card); }

}  // namespace simgpu

namespace {

CUmemoryPool CurrentPool(int card) {
  CUmemoryPool p = TheDriver().current_pools[static_cast<size_t>(card)];
  return p != nullptr ? p : simgpu::DefaultPool(card);
}

CUresult Take(CUmemoryPool pool, size_t bytes, CUdeviceptr* out) {
  const uint64_t size = (bytes + 511) / 512 * 512;
  constexpr uint64_t kUnit = 32 << 20;  // an H200, driver 580
  const uint64_t most = (pool->props.maxSize + kUnit - 1) / kUnit * kUnit;
  NEED(most == 0 || (pool->reserved <= most && size <= most - pool->reserved), CUDA_ERROR_OUT_OF_MEMORY);
  if (!Sim().TakeUnmanaged(pool->card, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t address = Sim().memory().Reserve(size, 512);
  if (address == 0) {
    Sim().GiveUnmanaged(pool->card, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation* a = Sim().memory().Add(address, size, MemoryKind::kPool, pool->card);
  a->requested = bytes;
  a->owner = pool;
  pool->used += size;
  pool->reserved += size;
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  *out = address;
  return CUDA_SUCCESS;
}

// Of a managed pool. A preferred location is not simulated.
CUresult TakeManaged(CUmemoryPool pool, size_t bytes, int card, CUdeviceptr* out) {
  const uint64_t size = (bytes + 511) / 512 * 512, address = Sim().memory().Reserve(size, simgpu::kGranuleBytes);
  NEED(address != 0, CUDA_ERROR_OUT_OF_MEMORY);
  Allocation* a = Sim().memory().Add(address, bytes, MemoryKind::kManaged, card);
  a->requested = bytes;
  a->pool = pool;
  Sim().memory().managed_requested += bytes;
  pool->used += size;
  pool->reserved += size;
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  *out = address;
  return CUDA_SUCCESS;
}

CUresult AllocFromPool(simgpu::Call& call, CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  NEED_ARG(out != nullptr && pool != nullptr && pool->magic == kPoolMagic && !pool->is_imported);
  if (bytes == 0) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  NEED(bytes >> 56 == 0, CUDA_ERROR_OUT_OF_MEMORY);
  if (simgpu::Capturing(stream)) pool = simgpu::GraphPool(pool->card);
  if (pool->props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
    return TakeManaged(pool, bytes, stream->context->card, out);
  if (const CUresult r = Take(pool, bytes, out); r != CUDA_SUCCESS) return r;
  if (simgpu::Capturing(stream)) {
    // Simplification: the graph's memory exists from the capture on.
    CUgraphNode n =
        simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, stream->tail.data(), stream->tail.size());
    n->alloc.dptr = *out;
    n->alloc.bytesize = bytes;
    n->alloc.poolProps = pool->props;
    stream->tail = {n};
  }
  (void)call;
  return CUDA_SUCCESS;
}

void FreeAction(void*, uint64_t p) {
  if (const Allocation* a = simgpu::FindAllocation(p); a != nullptr)
    Sim().CheckIdle(p, a->size, Sim().worked_until(), "freed");
  simgpu::FreeNow(p);
}

bool ValidPool(CUmemoryPool p) { return p != nullptr && p->magic == kPoolMagic; }

}  // namespace

ENTRY(cuMemAllocAsync, _ptsz, (CUdeviceptr * out, size_t bytes, CUstream s), (out, bytes, s)) {
  BEGIN(Sim().profile().pool_malloc_host_ns);
  NEED_UNSAFE_QUEUE(s);
  return AllocFromPool(call, out, bytes, CurrentPool(stream->context->card), stream);
}

ENTRY(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream s),
      (out, bytes, pool, s)) {
  BEGIN(Sim().profile().pool_malloc_host_ns);
  NEED_UNSAFE_QUEUE(s);
  return AllocFromPool(call, out, bytes, pool, stream);
}

ENTRY(cuMemFreeAsync, _ptsz, (CUdeviceptr p, CUstream s), (p, s)) {
  BEGIN(Sim().profile().pool_malloc_host_ns);
  NEED_UNSAFE_QUEUE(s);
  if (p == 0) return CUDA_SUCCESS;  // these two: H100, driver 580
  Allocation* a = simgpu::FindAllocation(p);
  NEED_ARG(a != nullptr && a->base == p && a->kind != MemoryKind::kMapped && !a->is_freed);
  NEED(a->kind != MemoryKind::kManaged || a->pool != nullptr, CUDA_ERROR_NOT_SUPPORTED);
  if (simgpu::Capturing(stream)) {
    NEED_ARG(a->owner == simgpu::GraphPool(a->card));  // a graph frees memory of graphs alone
    CUgraphNode n =
        simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_MEM_FREE, stream->tail.data(), stream->tail.size());
    n->free_pointer = p;
    stream->tail = {n};
    return CUDA_SUCCESS;
  }
  a->is_freed = true;
  // At once (an H100), not in the stream's order.
  if (const CUmemoryPool pool = simgpu::PoolOf(*a); pool != nullptr && a->counted)
    pool->used -= (a->size + 511) / 512 * 512;
  Op* op = Sim().NewOp(OpKind::kAction);
  op->action = FreeAction;
  op->action_b = p;
  return simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_MEM_FREE);
}

extern "C" {

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void* value) {
  BEGIN(100);
  NEED_CARD(dev);
  NEED_ARG(value != nullptr);
  const CUmemoryPool pool = simgpu::GraphPool(card);
  *static_cast<cuuint64_t*>(value) = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT       ? pool->used
                                     : attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH        ? pool->used_high
                                     : attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
                                                                                           : pool->reserved_high;
  return CUDA_SUCCESS;
}

// Freed memory is not kept, so nothing is trimmed.
CUresult cuDeviceGraphMemTrim(CUdevice dev) {
  BEGIN(1000);
  NEED_CARD(dev);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice dev) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED_CARD(dev);
  *out = simgpu::DefaultPool(card);
  return CUDA_SUCCESS;
}

// Of a device's pinned memory, or managed ones by their preferred location.
CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  BEGIN(100);
  NEED_ARG(out != nullptr && location != nullptr);
  const bool has_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  int card = 0;
  NEED(!has_device || simgpu::CardOf(location->id, &card), CUDA_ERROR_INVALID_DEVICE);
  if (type == CU_MEM_ALLOCATION_TYPE_PINNED) {
    NEED(has_device, CUDA_ERROR_NOT_SUPPORTED);
    *out = simgpu::DefaultPool(card);
    return CUDA_SUCCESS;
  }
  NEED_ARG(type == CU_MEM_ALLOCATION_TYPE_MANAGED);
  static auto& pools = *new std::map<int, CUmemoryPool>;
  CUmemoryPool& pool = pools[has_device ? card : -1];
  if (pool == nullptr) {
    pool = new CUmemPoolHandle_st;
    pool->card = card;
    pool->props.allocType = type;
    pool->props.location = *location;
  }
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice dev) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED_CARD(dev);
  *out = CurrentPool(card);
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  BEGIN(100);
  NEED_CARD(dev);
  NEED_ARG(ValidPool(pool));
  // Allocations without a pool take pinned memory: a managed one changes nothing (H200, driver 580).
  if (pool->props.allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
    TheDriver().current_pools[static_cast<size_t>(card)] = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  BEGIN_UNSAFE(5000);
  NEED_ARG(out != nullptr && props != nullptr);
  const bool is_managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  const bool has_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  NEED(is_managed || (props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && has_device), CUDA_ERROR_NOT_SUPPORTED);
  NEED_ARG(!is_managed || (props->handleTypes == CU_MEM_HANDLE_TYPE_NONE && props->usage == 0 && props->maxSize == 0));
  int card = 0;
  NEED(!has_device || simgpu::CardOf(props->location.id, &card), CUDA_ERROR_INVALID_DEVICE);
  auto* p = new CUmemPoolHandle_st;
  p->card = card;
  p->props = *props;
  *out = p;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  BEGIN_UNSAFE(5000);
  NEED_ARG(ValidPool(pool) && pool != TheDriver().default_pools[static_cast<size_t>(pool->card)]);
  if (TheDriver().current_pools[static_cast<size_t>(pool->card)] == pool)
    TheDriver().current_pools[static_cast<size_t>(pool->card)] = nullptr;
  return CUDA_SUCCESS;  // live allocations keep the object
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  BEGIN_UNSAFE(1000);
  NEED_ARG(ValidPool(pool));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc*, size_t) {
  BEGIN(100);
  NEED_ARG(ValidPool(pool));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  BEGIN(100);
  NEED_ARG(flags != nullptr && location != nullptr && ValidPool(pool));
  *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == simgpu::DeviceOf(pool->card)
               ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  BEGIN(100);
  NEED_ARG(ValidPool(pool) && value != nullptr);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = pool->threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = pool->reserved_high;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = pool->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = pool->used_high;
      return CUDA_SUCCESS;
    default:
      NEED_ARG(attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
               attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
      *static_cast<int*>(value) = pool->reuse[attribute - 1];
      return CUDA_SUCCESS;
  }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  BEGIN(100);
  NEED_ARG(ValidPool(pool) && value != nullptr);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->threshold = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      pool->reserved_high = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      NEED_ARG(attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
               attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
      pool->reuse[attribute - 1] = *static_cast<int*>(value);
      return CUDA_SUCCESS;
  }
}

// Nodes as captures make them.
CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  BEGIN(2000);
  NEED_ARG(out != nullptr && simgpu::ValidGraph(g) && p != nullptr && p->bytesize != 0);
  NEED_ARG(p->poolProps.handleTypes == CU_MEM_HANDLE_TYPE_NONE);
  NEED_CARD(p->poolProps.location.id);
  if (const CUresult r = Take(simgpu::GraphPool(card), p->bytesize, &p->dptr); r != CUDA_SUCCESS) return r;
  *out = simgpu::AddNode(g, CU_GRAPH_NODE_TYPE_MEM_ALLOC, after, count);
  (*out)->alloc = *p;
  return CUDA_SUCCESS;
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t count, CUdeviceptr p) {
  BEGIN(2000);
  NEED_ARG(out != nullptr && simgpu::ValidGraph(g));
  const Allocation* a = simgpu::FindAllocation(p);
  NEED_ARG(a != nullptr && a->base == p && a->kind == MemoryKind::kPool);
  *out = simgpu::AddNode(g, CU_GRAPH_NODE_TYPE_MEM_FREE, after, count);
  (*out)->free_pointer = p;
  return CUDA_SUCCESS;
}

}  // extern "C"
