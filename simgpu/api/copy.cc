// Copies and memsets, in all their flavours.
#include <algorithm>
#include <array>
#include <cstring>

#include "array.h"

using simgpu::CopyWork;
using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;

namespace {

uint64_t Address(const void* p) { return reinterpret_cast<uint64_t>(p); }

// The kind of an address as the call gives it: device, host, or unknown.
enum Side { kDevice, kHost, kAny };

bool SideOk(Side side, uint64_t p, uint64_t length) {
  if (length == 0) return true;
  if (Sim().memory().InArena(p)) return Sim().Mapped(p, length) && simgpu::IsAccessible(p, length);
  if (side == kDevice) return simgpu::IsPinned(p);
  return p != 0;
}

uint64_t Span(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
  return (depth - 1) * slice + (height - 1) * pitch + width;
}

void AddTouch(Op* op, uint64_t p, uint64_t length, uint32_t access) {
  if (Sim().memory().InArena(p) && length != 0) op->touches.push_back({p, length, access, 0});
}

// Whether synchronous memsets and copies inside device memory wait for their end (CUDA driver API, "API synchronization
// behavior", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS). An H200's driver 580 waits with both for managed memory.
bool MakesCallsWait(uint64_t p) {
  const simgpu::Allocation* const a = Sim().memory().Find(p);
  return a != nullptr && (a->kind == simgpu::MemoryKind::kManaged || a->sync_memops);
}

// `wait`: the call is synchronous. Copies inside other device memory return at once even then.
CUresult Copy(simgpu::Call& call, CUstream stream, CopyWork c, Side to, Side from, bool wait,
              const CUDA_MEMCPY3D* as_node) {
  if (c.width == 0 || c.height == 0 || c.depth == 0) return CUDA_SUCCESS;
  if (c.height == 1 && c.depth == 1) c.dst_pitch = c.src_pitch = c.dst_slice = c.src_slice = c.width;
  if (c.dst_pitch == c.width && c.src_pitch == c.width && c.height > 1 &&
      (c.depth == 1 || (c.dst_slice == c.width * c.height && c.src_slice == c.dst_slice))) {
    c.width *= c.height * c.depth;
    c.height = c.depth = 1;
  }
  const uint64_t to_span = Span(c.width, c.height, c.depth, c.dst_pitch, c.dst_slice);
  const uint64_t from_span = Span(c.width, c.height, c.depth, c.src_pitch, c.src_slice);
  NEED_ARG(SideOk(to, c.dst, to_span) && SideOk(from, c.src, from_span));
  const bool capturing = simgpu::Capturing(stream);
  const bool to_device = Sim().memory().InArena(c.dst), from_device = Sim().memory().InArena(c.src);
  const bool is_inside = to_device && from_device;
  if (wait && !is_inside && capturing)
    return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (is_inside) wait = wait && !capturing && (MakesCallsWait(c.dst) || MakesCallsWait(c.src));
  const uint64_t host = to_device ? c.src : c.dst;
  c.pinned = (to_device && from_device) || simgpu::IsPinned(host);
  Op* op = Sim().NewOp(OpKind::kCopy);
  AddTouch(op, c.dst, to_span, 2);
  AddTouch(op, c.src, from_span, 1);
  const uint64_t bytes = c.width * c.height * c.depth;
  if (!c.pinned && to_device && !from_device && !capturing && bytes <= 65536) {
    // The driver copies small pageable sources during the call.
    c.staged = std::make_shared<simgpu::Bytes>(bytes);
    for (uint64_t z = 0; z < c.depth; ++z) {
      for (uint64_t y = 0; y < c.height; ++y) {
        std::memcpy(c.staged->data.get() + (z * c.height + y) * c.width,
                    reinterpret_cast<const void*>(c.src + z * c.src_slice + y * c.src_pitch), c.width);
      }
    }
  } else if (!c.pinned && !capturing) {
    wait = true;
  }
  op->copy = c;
  CUgraphNode node = nullptr;
  simgpu::FencePtr fence;
  const auto holders =
      capturing ? std::vector<CUcontext>{} : simgpu::OtherContextsOf(simgpu::OwnerOf(stream->context), c.dst, c.src);
  if (wait || !holders.empty()) op->fence = fence = std::make_shared<simgpu::Fence>();
  const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_MEMCPY, &node);
  if (r != CUDA_SUCCESS) return r;
  if (node != nullptr) {
    if (as_node != nullptr) {
      node->copy = *as_node;
    } else {
      node->copy.WidthInBytes = c.width;
      node->copy.Height = c.height;
      node->copy.Depth = c.depth;
      node->copy.srcPitch = c.src_pitch;
      node->copy.dstPitch = c.dst_pitch;
      node->copy.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      node->copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      node->copy.srcDevice = c.src;
      node->copy.dstDevice = c.dst;
      node->copy.srcHost = reinterpret_cast<void*>(c.src);
      node->copy.dstHost = reinterpret_cast<void*>(c.dst);
    }
    return CUDA_SUCCESS;
  }
  for (const CUcontext holder : holders) {
    std::erase_if(holder->peer_copies, [](const simgpu::FencePtr& one) { return one->done; });
    holder->peer_copies.push_back(fence);
  }
  if (wait) Sim().WaitFence(call.lock, fence, "a copy");
  return CUDA_SUCCESS;
}

CopyWork Linear(uint64_t dst, uint64_t src, uint64_t n) {
  CopyWork c;
  c.dst = dst;
  c.src = src;
  c.width = n;
  return c;
}

CUresult Sync(simgpu::Call& call, CUstream stream, uint64_t dst, uint64_t src, uint64_t n, Side to, Side from) {
  return Copy(call, stream, Linear(dst, src, n), to, from, true, nullptr);
}

// One side of a 2D or 3D copy: its address, and the distances of its rows and slices.
struct Place {
  Side side = kAny;
  uint64_t at = 0, pitch = 0, slice = 0;
};

CUresult PlaceOf(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, uint64_t pitch, uint64_t rows,
                 const std::array<uint64_t, 3>& offset, const CopyWork& c, Place* out) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    simgpu::ArrayRows found;
    if (const CUresult r = simgpu::FindArray(array, &found); r != CUDA_SUCCESS) return r;
    const uint64_t depth = found.bytes / found.slice, height = found.slice / found.pitch;
    NEED_ARG(offset[0] + c.width <= found.pitch && offset[1] + c.height <= height && offset[2] + c.depth <= depth);
    *out = {kDevice, found.base, found.pitch, found.slice};
  } else {
    out->side = type == CU_MEMORYTYPE_HOST ? kHost : type == CU_MEMORYTYPE_DEVICE ? kDevice : kAny;
    out->at = type == CU_MEMORYTYPE_HOST ? Address(host) : device;
    out->pitch = pitch != 0 ? pitch : c.width;
    out->slice = out->pitch * (rows != 0 ? rows : c.height);
  }
  out->at += offset[0] + offset[1] * out->pitch + offset[2] * out->slice;
  return CUDA_SUCCESS;
}

template <class Params>
CUresult FromParams(const Params& p, CopyWork* c, Side* to, Side* from) {
  c->width = p.WidthInBytes;
  c->height = p.Height;
  std::array<uint64_t, 3> to_offset{p.dstXInBytes, p.dstY, 0}, from_offset{p.srcXInBytes, p.srcY, 0};
  uint64_t to_rows = 0, from_rows = 0;
  if constexpr (requires { p.Depth; }) {
    c->depth = p.Depth;
    to_offset[2] = p.dstZ;
    from_offset[2] = p.srcZ;
    to_rows = p.dstHeight;
    from_rows = p.srcHeight;
  }
  Place at;
  CUresult r =
      PlaceOf(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, p.srcPitch, from_rows, from_offset, *c, &at);
  if (r != CUDA_SUCCESS) return r;
  *from = at.side;
  c->src = at.at;
  c->src_pitch = at.pitch;
  c->src_slice = at.slice;
  r = PlaceOf(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, p.dstPitch, to_rows, to_offset, *c, &at);
  *to = at.side;
  c->dst = at.at;
  c->dst_pitch = at.pitch;
  c->dst_slice = at.slice;
  return r;
}

// The same for a graph's node.
CUDA_MEMCPY3D AsNode(const CUDA_MEMCPY2D& p) {
  CUDA_MEMCPY3D node{};
  node.srcXInBytes = p.srcXInBytes;
  node.srcY = p.srcY;
  node.srcMemoryType = p.srcMemoryType;
  node.srcHost = p.srcHost;
  node.srcDevice = p.srcDevice;
  node.srcArray = p.srcArray;
  node.srcPitch = p.srcPitch;
  node.dstXInBytes = p.dstXInBytes;
  node.dstY = p.dstY;
  node.dstMemoryType = p.dstMemoryType;
  node.dstHost = p.dstHost;
  node.dstDevice = p.dstDevice;
  node.dstArray = p.dstArray;
  node.dstPitch = p.dstPitch;
  node.WidthInBytes = p.WidthInBytes;
  node.Height = p.Height;
  node.Depth = 1;
  return node;
}

CUresult Copy2D(simgpu::Call& call, CUstream stream, const CUDA_MEMCPY2D* p, bool wait) {
  NEED_ARG(p != nullptr);
  CopyWork c;
  Side to, from;
  if (const CUresult r = FromParams(*p, &c, &to, &from); r != CUDA_SUCCESS) return r;
  NEED_ARG(c.src_pitch >= c.width && c.dst_pitch >= c.width);
  const CUDA_MEMCPY3D node = AsNode(*p);
  return Copy(call, stream, c, to, from, wait, &node);
}

CUresult Copy3D(simgpu::Call& call, CUstream stream, const CUDA_MEMCPY3D* p, bool wait) {
  NEED_ARG(p != nullptr);
  CopyWork c;
  Side to, from;
  if (const CUresult r = FromParams(*p, &c, &to, &from); r != CUDA_SUCCESS) return r;
  return Copy(call, stream, c, to, from, wait, p);
}

// Whether the driver would take the copy.
CUresult CheckCopy(const CopyWork& c, Side to, Side from) {
  if (c.width == 0 || c.height == 0 || c.depth == 0) return CUDA_SUCCESS;
  NEED_ARG(SideOk(to, c.dst, Span(c.width, c.height, c.depth, c.dst_pitch, c.dst_slice)) &&
           SideOk(from, c.src, Span(c.width, c.height, c.depth, c.src_pitch, c.src_slice)));
  return CUDA_SUCCESS;
}

CUresult CopyPeer3D(simgpu::Call& call, CUstream stream, const CUDA_MEMCPY3D_PEER* p, bool wait) {
  NEED_ARG(p != nullptr);
  CopyWork c;
  Side to, from;
  if (const CUresult r = FromParams(*p, &c, &to, &from); r != CUDA_SUCCESS) return r;
  return Copy(call, stream, c, to, from, wait, nullptr);
}

CUresult Set(simgpu::Call& call, CUstream stream, CUdeviceptr dst, size_t pitch, uint64_t value, unsigned size,
             size_t width, size_t height, bool wait) {
  NEED_ARG(dst % size == 0);
  const uint64_t bytes = width * size;
  if (bytes == 0 || height == 0) return CUDA_SUCCESS;
  if (height == 1) pitch = bytes;
  NEED_ARG(pitch >= bytes && SideOk(kDevice, dst, (height - 1) * pitch + bytes));
  if (wait && simgpu::Capturing(stream))
    return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (!Sim().memory().InArena(dst)) {
    // Pinned host memory.
    for (size_t y = 0; y < height; ++y) {
      for (size_t x = 0; x < bytes; ++x)
        reinterpret_cast<uint8_t*>(dst + y * pitch)[x] = static_cast<uint8_t>(value >> (8 * (x % size)));
    }
    return CUDA_SUCCESS;
  }
  Op* op = Sim().NewOp(OpKind::kMemset);
  uint64_t pattern = 0;
  for (unsigned i = 0; i < 8; i += size)
    pattern |= (size == 4 ? value & 0xFFFFFFFFu : size == 2 ? value & 0xFFFFu : value & 0xFFu) << (8 * i);
  op->set = {dst, pitch, bytes, height, pattern};
  AddTouch(op, dst, (height - 1) * pitch + bytes, 2);
  CUgraphNode node = nullptr;
  simgpu::FencePtr fence;
  if (wait && MakesCallsWait(dst)) op->fence = fence = std::make_shared<simgpu::Fence>();
  const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_MEMSET, &node);
  if (r == CUDA_SUCCESS && node == nullptr && fence) Sim().WaitFence(call.lock, fence, "a memset");
  if (node != nullptr) node->set = {dst, pitch, static_cast<unsigned>(value), size, width, height};
  return r;
}

}  // namespace

CUresult simgpu::CheckCopy3D(const CUDA_MEMCPY3D& p) {
  CopyWork c;
  Side to, from;
  const CUresult r = FromParams(p, &c, &to, &from);
  return r == CUDA_SUCCESS ? CheckCopy(c, to, from) : r;
}

#define COST Sim().profile().copy_host_ns
// A capture bars copies to or from the host, since it waits for them.
#define SYNC_COPY(name, suffix, params, arguments, dst, src, n, to, from) \
  ENTRY(name, suffix, params, arguments) {                                \
    BEGIN(COST);                                                          \
    NEED_STREAM(nullptr);                                                 \
    return Sync(call, stream, (dst), (src), (n), to, from);               \
  }
#define ASYNC_COPY(name, params, arguments, dst, src, n, to, from)                  \
  ENTRY(name, _ptsz, params, arguments) {                                           \
    BEGIN(COST);                                                                    \
    NEED_STREAM(s);                                                                 \
    return Copy(call, stream, Linear((dst), (src), (n)), to, from, false, nullptr); \
  }

SYNC_COPY(cuMemcpy, _ptds, (CUdeviceptr d, CUdeviceptr p, size_t n), (d, p, n), d, p, n, kAny, kAny)
SYNC_COPY(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr d, const void* p, size_t n), (d, p, n), d, Address(p), n, kDevice, kHost)
SYNC_COPY(cuMemcpyDtoH_v2, _ptds, (void* d, CUdeviceptr p, size_t n), (d, p, n), Address(d), p, n, kHost, kDevice)
SYNC_COPY(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr d, CUdeviceptr p, size_t n), (d, p, n), d, p, n, kDevice, kDevice)
SYNC_COPY(cuMemcpyPeer, _ptds, (CUdeviceptr d, CUcontext dc, CUdeviceptr p, CUcontext pc, size_t n), (d, dc, p, pc, n),
          d, ((void)dc, (void)pc, p), n, kDevice, kDevice)
ASYNC_COPY(cuMemcpyAsync, (CUdeviceptr d, CUdeviceptr p, size_t n, CUstream s), (d, p, n, s), d, p, n, kAny, kAny)
ASYNC_COPY(cuMemcpyHtoDAsync_v2, (CUdeviceptr d, const void* p, size_t n, CUstream s), (d, p, n, s), d, Address(p), n,
           kDevice, kHost)
ASYNC_COPY(cuMemcpyDtoHAsync_v2, (void* d, CUdeviceptr p, size_t n, CUstream s), (d, p, n, s), Address(d), p, n, kHost,
           kDevice)
ASYNC_COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr d, CUdeviceptr p, size_t n, CUstream s), (d, p, n, s), d, p, n, kDevice,
           kDevice)
ASYNC_COPY(cuMemcpyPeerAsync, (CUdeviceptr d, CUcontext dc, CUdeviceptr p, CUcontext pc, size_t n, CUstream s),
           (d, dc, p, pc, n, s), d, ((void)dc, (void)pc, p), n, kDevice, kDevice)

#define PARAM_COPY(name, suffix, type, function) \
  ENTRY(name, suffix, (const type* p), (p)) {    \
    BEGIN_UNSAFE(COST);                          \
    NEED_STREAM(nullptr);                        \
    return function(call, stream, p, true);      \
  }
#define PARAM_COPY_ASYNC(name, type, function)              \
  ENTRY(name, _ptsz, (const type* p, CUstream s), (p, s)) { \
    BEGIN(COST);                                            \
    NEED_STREAM(s);                                         \
    return function(call, stream, p, false);                \
  }
PARAM_COPY(cuMemcpy2D_v2, _ptds, CUDA_MEMCPY2D, Copy2D)
PARAM_COPY(cuMemcpy2DUnaligned_v2, _ptds, CUDA_MEMCPY2D, Copy2D)
PARAM_COPY(cuMemcpy3D_v2, _ptds, CUDA_MEMCPY3D, Copy3D)
PARAM_COPY(cuMemcpy3DPeer, _ptds, CUDA_MEMCPY3D_PEER, CopyPeer3D)
PARAM_COPY_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, Copy2D)
PARAM_COPY_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, Copy3D)
PARAM_COPY_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, CopyPeer3D)

// Nothing is copied where one of the copies is refused; it is named by its number.
ENTRY(cuMemcpyBatchAsync, _ptsz,
      (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attributes,
       size_t* index, size_t attribute_count, size_t* fail, CUstream s),
      (dsts, srcs, sizes, count, attributes, index, attribute_count, fail, s)) {
  BEGIN(COST);
  (void)attributes;
  (void)index;
  if (fail != nullptr) *fail = SIZE_MAX;
  NEED_ARG(dsts != nullptr && srcs != nullptr && sizes != nullptr && count != 0 && attribute_count <= count &&
           s != nullptr);
  NEED_STREAM(s);
  NEED(!simgpu::Capturing(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);  // the capture goes on: H100, driver 580
  for (size_t i = 0; i < count; ++i) {
    const CUresult r = CheckCopy(Linear(dsts[i], srcs[i], sizes[i]), kAny, kAny);
    if (r == CUDA_SUCCESS) continue;
    if (fail != nullptr) *fail = i;
    return r;
  }
  for (size_t i = 0; i < count; ++i) {
    const CUresult r = Copy(call, stream, Linear(dsts[i], srcs[i], sizes[i]), kAny, kAny, false, nullptr);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

ENTRY(cuMemcpyBatchAsync_v2, _ptsz,
      (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attributes,
       size_t* index, size_t attribute_count, CUstream s),
      (dsts, srcs, sizes, count, attributes, index, attribute_count, s)) {
  return kPerThread ? cuMemcpyBatchAsync_ptsz(dsts, srcs, sizes, count, attributes, index, attribute_count, nullptr, s)
                    : cuMemcpyBatchAsync(dsts, srcs, sizes, count, attributes, index, attribute_count, nullptr, s);
}

#define SET_1D(name, suffix, type, size)                              \
  ENTRY(name, suffix, (CUdeviceptr d, type v, size_t n), (d, v, n)) { \
    BEGIN(COST);                                                      \
    NEED_STREAM(nullptr);                                             \
    return Set(call, stream, d, 0, v, size, n, 1, true);              \
  }
#define SET_1D_ASYNC(name, type, size)                                              \
  ENTRY(name, _ptsz, (CUdeviceptr d, type v, size_t n, CUstream s), (d, v, n, s)) { \
    BEGIN(COST);                                                                    \
    NEED_STREAM(s);                                                                 \
    return Set(call, stream, d, 0, v, size, n, 1, false);                           \
  }
#define SET_2D(name, type, size)                                                                       \
  ENTRY(name, _ptds, (CUdeviceptr d, size_t pitch, type v, size_t w, size_t h), (d, pitch, v, w, h)) { \
    BEGIN(COST);                                                                                       \
    NEED_STREAM(nullptr);                                                                              \
    return Set(call, stream, d, pitch, v, size, w, h, true);                                           \
  }
#define SET_2D_ASYNC(name, type, size)                                                                                \
  ENTRY(name, _ptsz, (CUdeviceptr d, size_t pitch, type v, size_t w, size_t h, CUstream s), (d, pitch, v, w, h, s)) { \
    BEGIN(COST);                                                                                                      \
    NEED_STREAM(s);                                                                                                   \
    return Set(call, stream, d, pitch, v, size, w, h, false);                                                         \
  }
SET_1D(cuMemsetD8_v2, _ptds, unsigned char, 1)
SET_1D(cuMemsetD16_v2, _ptds, unsigned short, 2)
SET_1D(cuMemsetD32_v2, _ptds, unsigned int, 4)
SET_1D_ASYNC(cuMemsetD8Async, unsigned char, 1)
SET_1D_ASYNC(cuMemsetD16Async, unsigned short, 2)
SET_1D_ASYNC(cuMemsetD32Async, unsigned int, 4)
SET_2D(cuMemsetD2D8_v2, unsigned char, 1)
SET_2D(cuMemsetD2D16_v2, unsigned short, 2)
SET_2D(cuMemsetD2D32_v2, unsigned int, 4)
SET_2D_ASYNC(cuMemsetD2D8Async, unsigned char, 1)
SET_2D_ASYNC(cuMemsetD2D16Async, unsigned short, 2)
SET_2D_ASYNC(cuMemsetD2D32Async, unsigned int, 4)
