// Arrays and textures of generated programs, 3D copies, and values that streams write.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "machine.h"

namespace differential {

CUarray arr[kMaxBlocks];
CUtexObject tex[kMaxBlocks];
CUsurfObject surf[kMaxBlocks];

namespace {

uint64_t g_texture_width[kMaxBlocks], g_surface_width[kMaxBlocks];

// One side of a copy.
void SetFrom(CUDA_MEMCPY3D* c, CUarray array, CUdeviceptr memory, size_t pitch) {
  c->srcMemoryType = array != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  c->srcArray = array;
  c->srcDevice = memory;
  c->srcPitch = pitch;
}
void SetTo(CUDA_MEMCPY3D* c, CUarray array, CUdeviceptr memory, size_t pitch) {
  c->dstMemoryType = array != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  c->dstArray = array;
  c->dstDevice = memory;
  c->dstPitch = pitch;
}

CUDA_MEMCPY2D InTwoDimensions(const CUDA_MEMCPY3D& c) {
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = c.srcMemoryType;
  flat.srcArray = c.srcArray;
  flat.srcDevice = c.srcDevice;
  flat.srcPitch = c.srcPitch;
  flat.dstMemoryType = c.dstMemoryType;
  flat.dstArray = c.dstArray;
  flat.dstDevice = c.dstDevice;
  flat.dstPitch = c.dstPitch;
  flat.WidthInBytes = c.WidthInBytes;
  flat.Height = c.Height;
  return flat;
}

uint64_t RowOf(CUarray array) {
  CUDA_ARRAY_DESCRIPTOR got{};
  return cuArrayGetDescriptor(&got, array) == CUDA_SUCCESS ? got.Width : 1;
}

CUresult CopyAs(const CUDA_MEMCPY3D& c, ImageForm form, CUstream stream) {
  if (form == kThreeDimensions) return cuMemcpy3DAsync(&c, stream);
  const CUDA_MEMCPY2D flat = InTwoDimensions(c);
  return form == kTwoDimensionsNow ? cuMemcpy2D(&flat) : cuMemcpy2DAsync(&flat, stream);
}

}  // namespace

CUresult MakeArray(CUarray* out, size_t width, size_t rows) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = width / 4;
  shape.Height = rows;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  // A card has surfaces of arrays alone that say so.
  CUDA_ARRAY3D_DESCRIPTOR stored{};
  stored.Width = shape.Width;
  stored.Height = rows;
  stored.Format = shape.Format;
  stored.NumChannels = 1;
  stored.Flags = CUDA_ARRAY3D_SURFACE_LDST;
  const CUresult made = Simulated() ? cuArrayCreate(out, &shape) : cuArray3DCreate(out, &stored);
  if (made != CUDA_SUCCESS) return made;
  CUDA_ARRAY_DESCRIPTOR got{};
  const CUresult asked = cuArrayGetDescriptor(&got, *out);
  Record("array: %zu x %zu", got.Width, got.Height);
  return asked;
}

CUresult ToArray(CUarray to, CUdeviceptr from, size_t width, size_t rows, CUstream stream, ImageForm form) {
  CUDA_MEMCPY3D c{};
  SetTo(&c, to, 0, 0);
  SetFrom(&c, nullptr, from, width);
  c.WidthInBytes = width;
  c.Height = rows;
  c.Depth = 1;
  return CopyAs(c, form, stream);
}
CUresult FromArray(CUdeviceptr to, CUarray from, size_t width, size_t rows, CUstream stream, ImageForm form) {
  CUDA_MEMCPY3D c{};
  SetTo(&c, nullptr, to, width);
  SetFrom(&c, from, 0, 0);
  c.WidthInBytes = width;
  c.Height = rows;
  c.Depth = 1;
  return CopyAs(c, form, stream);
}
CUresult BetweenArrays(CUarray to, CUarray from, size_t width, size_t rows, CUstream stream, ImageForm form) {
  CUDA_MEMCPY3D c{};
  SetTo(&c, to, 0, 0);
  SetFrom(&c, from, 0, 0);
  c.WidthInBytes = width;
  c.Height = rows;
  c.Depth = 1;
  return CopyAs(c, form, stream);
}
CUresult CheckArray(int block, size_t width, size_t rows) {
  std::vector<char> copy(width * rows);
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  c.srcArray = arr[block];
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  c.dstHost = copy.data();
  c.dstPitch = c.WidthInBytes = width;
  c.Height = rows;
  const CUresult result = cuMemcpy2D(&c);
  uint64_t hash = 1;
  for (size_t i = 0; i + 8 <= copy.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, copy.data() + i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  }
  Record("array %d: %016llx", block, static_cast<unsigned long long>(hash));
  return result;
}

CUresult Copy3D(CUdeviceptr to, size_t to_rows, CUdeviceptr from, size_t from_rows, size_t width, size_t rows,
                size_t slices, CUstream stream) {
  CUDA_MEMCPY3D c{};
  SetTo(&c, nullptr, to, width);
  SetFrom(&c, nullptr, from, width);
  c.dstHeight = to_rows;
  c.srcHeight = from_rows;
  c.WidthInBytes = width;
  c.Height = rows;
  c.Depth = slices;
  return cuMemcpy3DAsync(&c, stream);
}

CUresult Copy3DBatch(CUdeviceptr to, size_t to_rows, CUdeviceptr from, size_t from_rows, size_t width, size_t rows,
                     size_t slices, CUstream stream) {
#if CUDA_VERSION >= 13000
  CUDA_MEMCPY3D_BATCH_OP list[2]{};
  const size_t first = slices / 2;
  size_t count = 0;
  for (const auto& [begin, depth] : {std::pair{size_t{0}, first}, std::pair{first, slices - first}}) {
    if (depth == 0) continue;
    CUDA_MEMCPY3D_BATCH_OP& one = list[count++];
    one.src.type = one.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    one.src.op.ptr = {from + begin * width * from_rows, width, from_rows, {}};
    one.dst.op.ptr = {to + begin * width * to_rows, width, to_rows, {}};
    one.extent = {width, rows, depth};
    one.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  }
  return cuMemcpy3DBatchAsync(count, list, 0, stream);
#else
  return Copy3D(to, to_rows, from, from_rows, width, rows, slices, stream);
#endif
}

CUresult MakeTexture(CUtexObject* out, CUarray array, CUdeviceptr memory, size_t bytes) {
  CUDA_RESOURCE_DESC resource{};
  g_texture_width[out - tex] = array == nullptr ? 0 : RowOf(array);
  if (array != nullptr) {
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
  } else {
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear.devPtr = memory;
    resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = bytes;
  }
  CUDA_TEXTURE_DESC texture{};
  return cuTexObjectCreate(out, &resource, &texture, nullptr);
}
CUresult MakeRowsTexture(CUtexObject* out, CUdeviceptr memory, size_t pitch, size_t rows) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D.devPtr = memory;
  resource.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT32;
  resource.res.pitch2D.numChannels = 1;
  resource.res.pitch2D.width = pitch / 4;
  resource.res.pitch2D.height = rows;
  resource.res.pitch2D.pitchInBytes = pitch;
  g_texture_width[out - tex] = pitch / 4;
  CUDA_TEXTURE_DESC texture{};
  return cuTexObjectCreate(out, &resource, &texture, nullptr);
}
CUresult MakeSurface(CUsurfObject* out, CUarray array) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  g_surface_width[out - surf] = RowOf(array);
  return cuSurfObjectCreate(out, &resource);
}
uint64_t TextureWidth(int texture) { return g_texture_width[texture]; }
uint64_t SurfaceWidth(int surface) { return g_surface_width[surface]; }

CUresult WriteValues(CUdeviceptr at, uint32_t value, CUstream stream, bool batch) {
  if (!batch) return cuStreamWriteValue32(stream, at, value, 0);
  CUstreamBatchMemOpParams list[2]{};
  for (int i = 0; i < 2; ++i) {
    list[i].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    list[i].writeValue.address = at + 4 * static_cast<CUdeviceptr>(i);
    list[i].writeValue.value = value + static_cast<uint32_t>(i);
  }
  return cuStreamBatchMemOp(stream, 2, list, 0);
}

CUresult AskManaged(CUdeviceptr block, size_t bytes, int gpus) {
  // Small blocks share pages, and advice covers whole ones: the other block's shows as well (H200, seed 61000).
  constexpr size_t kPage = 65536;
  if (bytes < 2 * kPage) return CUDA_SUCCESS;
  const CUdeviceptr end = (block + bytes) & ~CUdeviceptr{kPage - 1};
  block = (block + kPage - 1) & ~CUdeviceptr{kPage - 1};
  bytes = end - block;
  int read_mostly = 7, preferred = 7, prefetched = 7, users[4] = {7, 7, 7, 7};
  void* values[] = {&read_mostly, &preferred, &prefetched, users};
  size_t sizes[] = {4, 4, 4, sizeof users};
  CUmem_range_attribute names[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                   CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};
  const CUresult result = cuMemRangeGetAttributes(values, sizes, names, 4, block, bytes);
  if (result != CUDA_SUCCESS) return result;
  const auto uses = [&](int device) { return std::find(users, users + 4, device) != users + 4; };
  Record("range: read-mostly %d, prefers %d, prefetched to %d, used by the host %d", read_mostly, preferred, prefetched,
         uses(CU_DEVICE_CPU));
  for (int device = 0; device < gpus; ++device) Record("used by GPU %d: %d", device, uses(device));
  return CUDA_SUCCESS;
}
CUresult AskPoolOf(CUdeviceptr at, CUmemoryPool expected) {
  CUmemoryPool pool = nullptr;
  const CUresult result = cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
  Record("pool: as expected %d, none %d", pool == expected, pool == nullptr);
  return result;
}

}  // namespace differential
