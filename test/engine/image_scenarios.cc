// Arrays, textures and surfaces: memory that kernels and copies reach by handles instead of pointers.
#include <cstdlib>
#include <cstring>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kWidth = 4096, kRows = 2048, kImage = kWidth * kRows;  // bytes; 8 MiB

CUarray MakeArray(size_t rows, size_t depth = 0) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = kWidth / 4;
  shape.Height = rows;
  shape.Depth = depth;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  shape.Flags = CUDA_ARRAY3D_SURFACE_LDST;
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  return array;
}

// A whole image, in rows without a gap.
CUDA_MEMCPY2D Rows(CUarray to, CUdeviceptr to_memory, CUarray from, CUdeviceptr from_memory) {
  CUDA_MEMCPY2D c{};
  c.dstMemoryType = to != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  c.dstArray = to;
  c.dstDevice = to_memory;
  c.srcMemoryType = from != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  c.srcArray = from;
  c.srcDevice = from_memory;
  c.dstPitch = c.srcPitch = c.WidthInBytes = kWidth;
  c.Height = kRows;
  return c;
}

// Memory that is used before and after, so that a small budget evicts the memory used between.
struct Crowd {
  explicit Crowd(Card* card, CUstream s) : card(card), stream(s) {
    for (int i = 0; i < 12; ++i) blocks.push_back(Alloc(64 * kMiB));
  }
  void Use() {
    for (size_t i = 0; i < blocks.size(); ++i) card->Named(stream, {Write(blocks[i], 64 * kMiB, 100 + i)});
  }
  Card* card;
  CUstream stream;
  std::vector<CUdeviceptr> blocks;
};

CUtexObject Texture(const CUDA_RESOURCE_DESC& resource) {
  CUDA_TEXTURE_DESC texture{};
  CUtexObject object = 0;
  OK(cuTexObjectCreate(&object, &resource, &texture, nullptr));
  return object;
}

// "sample" reads a texture, "store" writes a surface.
struct Kernels {
  Kernels() {
    CUmodule module = nullptr;
    OK(cuModuleLoadData(&module,
                        "simgpu-module 1\nkernel sample params 8,8,8 ns 20000\nread t0 0 p2\nwrite p1 0 p2\n"
                        "kernel store params 8,8,8 ns 20000\nwrite t0 0 p2\nread p1 0 p2\n"));
    OK(cuModuleGetFunction(&sample, module, "sample"));
    OK(cuModuleGetFunction(&store, module, "store"));
  }
  static void Run(CUfunction f, uint64_t object, CUdeviceptr memory, uint64_t bytes, CUstream s) {
    void* parameters[] = {&object, &memory, &bytes};
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, parameters, nullptr));
  }
  CUfunction sample = nullptr, store = nullptr;
};

}  // namespace

SCENARIO(arrays_and_memory) {
  Card card;
  CUstream s = card.Stream();
  Crowd crowd(&card, s);
  const CUdeviceptr from = Alloc(kImage), to = Alloc(kImage), deep = Alloc(4 * kImage);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kImage, 0));
  const CUarray one = MakeArray(kRows), two = MakeArray(kRows), row = MakeArray(0), box = MakeArray(512, 4);
  card.Named(s, {Write(from, kImage, 1)});
  CUDA_MEMCPY2D c = Rows(one, 0, nullptr, from);
  OK(cuMemcpy2DAsync(&c, s));
  crowd.Use();
  c = Rows(two, 0, one, 0);
  OK(cuMemcpy2DAsync(&c, s));
  c = Rows(nullptr, to, two, 0);
  OK(cuMemcpy2DAsync(&c, s));
  PrintDigest("through two arrays", to, kImage);
  EXPECT(simgpu_digest(to, kImage) == simgpu_digest(from, kImage));
  crowd.Use();
  // A row at a time.
  OK(cuMemcpyDtoA(row, 0, from + kWidth, kWidth));
  OK(cuMemcpyAtoD(to + 4096, row, 1024, 2048));
  OK(cuMemcpyAtoHAsync(host, row, 0, kWidth, s));
  OK(cuStreamSynchronize(s));
  OK(cuMemcpyHtoAAsync(row, 512, host, 1024, s));
  OK(cuStreamSynchronize(s));
  OK(cuMemcpyHtoA(row, 0, host, 64));
  OK(cuMemcpyAtoA(row, 2048, row, 0, 1024));
  OK(cuMemcpyAtoD(to, row, 0, kWidth));
  PrintDigest("rows", to, kImage);
  // Four slices of 512 rows, out of memory whose slices are 600 rows apart.
  crowd.Use();
  card.Named(s, {Write(deep, 4 * kImage, 3)});
  CUDA_MEMCPY3D slices{};
  slices.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  slices.srcDevice = deep;
  slices.srcPitch = slices.WidthInBytes = kWidth;
  slices.srcHeight = 600;
  slices.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  slices.dstArray = box;
  slices.Height = 512;
  slices.Depth = 4;
  OK(cuMemcpy3DAsync(&slices, s));
  CUDA_MEMCPY3D back = slices;
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = box;
  back.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  back.dstDevice = to;
  back.dstPitch = kWidth;
  OK(cuMemcpy3DAsync(&back, s));
  PrintDigest("slices", to, kImage);
  // The same by the nodes of a graph, whose memory was evicted.
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddMemcpyNode(&first, graph, nullptr, 0, &slices, card.context));
  OK(cuGraphAddMemcpyNode(&second, graph, &first, 1, &back, card.context));
  OK(cuGraphInstantiate(&executable, graph, 0));
  card.Named(s, {Write(deep, 4 * kImage, 4)});
  crowd.Use();
  OK(cuGraphLaunch(executable, s));
  PrintDigest("slices of a graph", to, kImage);
  for (const CUarray array : {one, two, row, box}) OK(cuArrayDestroy(array));
  OK(cuMemFree(from));
}

SCENARIO(host_sides_in_managed_memory) {
  Card card;
  CUstream s = card.Stream();
  Crowd crowd(&card, s);
  const CUdeviceptr managed = card.Managed(kImage), memory = Alloc(kImage);
  const CUarray array = MakeArray(kRows);
  card.Named(s, {Write(memory, kImage, 1)});
  // The program's managed memory is host memory too.
  CUDA_MEMCPY2D c = Rows(nullptr, 0, nullptr, memory);
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  c.dstHost = reinterpret_cast<void*>(managed);
  OK(cuMemcpy2DAsync(&c, s));
  crowd.Use();
  c = Rows(array, 0, nullptr, 0);
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = reinterpret_cast<void*>(managed);
  OK(cuMemcpy2DAsync(&c, s));
  card.Named(s, {Write(managed, kImage, 2)});
  c = Rows(nullptr, memory, array, 0);
  OK(cuMemcpy2DAsync(&c, s));
  PrintDigest("through managed memory", memory, kImage);
  PrintDigest("managed", managed, kImage);
}

SCENARIO(textures_and_surfaces) {
  Card card;
  CUstream s = card.Stream(), t = card.Stream();
  Crowd crowd(&card, s);
  const Kernels kernels;
  const CUdeviceptr from = Alloc(kImage), to = Alloc(kImage);
  const CUarray array = MakeArray(kRows);
  CUmipmappedArray levels = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = kWidth / 4;
  shape.Height = kRows;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  OK(cuMipmappedArrayCreate(&levels, &shape, 3));
  CUarray base = nullptr;
  OK(cuMipmappedArrayGetLevel(&base, levels, 0));
  CUDA_RESOURCE_DESC linear{}, rows{}, of_array{}, of_levels{};
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear = {from, CU_AD_FORMAT_UNSIGNED_INT32, 1, kImage};
  rows.resType = CU_RESOURCE_TYPE_PITCH2D;
  rows.res.pitch2D = {from, CU_AD_FORMAT_UNSIGNED_INT32, 1, kWidth / 4, kRows, kWidth};
  of_array.resType = CU_RESOURCE_TYPE_ARRAY;
  of_array.res.array.hArray = array;
  of_levels.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  of_levels.res.mipmap.hMipmappedArray = levels;
  const CUtexObject line = Texture(linear), plane = Texture(rows), image = Texture(of_array), mips = Texture(of_levels);
  CUsurfObject surface = 0;
  OK(cuSurfObjectCreate(&surface, &of_array));
  card.Named(s, {Write(from, kImage, 1)});
  for (const CUtexObject object : {line, plane}) {
    crowd.Use();
    Kernels::Run(kernels.sample, object, to, kImage, s);
    PrintDigest("sampled", to, kImage);
  }
  // The texture's memory is written by the next kernel of another stream, behind the reader.
  CUevent read = nullptr;
  OK(cuEventCreate(&read, CU_EVENT_DISABLE_TIMING));
  crowd.Use();
  Kernels::Run(kernels.sample, line, to, kImage, s);
  OK(cuEventRecord(read, s));
  OK(cuStreamWaitEvent(t, read, 0));
  OK(cuMemsetD8Async(from, 5, kImage, t));
  PrintDigest("before the fill", to, kImage);
  crowd.Use();
  Kernels::Run(kernels.sample, plane, to, kImage, s);
  PrintDigest("behind the fill", to, kImage);
  // Arrays never move.
  crowd.Use();
  Kernels::Run(kernels.store, surface, from, kImage, s);
  Kernels::Run(kernels.sample, image, to, kImage, s);
  PrintDigest("through a surface", to, kImage);
  const CUDA_MEMCPY2D c = Rows(base, 0, nullptr, to);
  OK(cuMemcpy2DAsync(&c, s));
  Kernels::Run(kernels.sample, mips, from, kImage, s);
  PrintDigest("of a level", from, kImage);
  // Freed right behind its last reader: the memory is not given out before that is done.
  crowd.Use();
  Kernels::Run(kernels.sample, line, to, kImage, s);
  OK(cuTexObjectDestroy(line));
  OK(cuTexObjectDestroy(plane));
  OK(cuMemFree(from));
  const CUdeviceptr next = Alloc(kImage);
  card.Named(t, {Write(next, kImage, 9)});
  PrintDigest("read before the free", to, kImage);
  CUDA_RESOURCE_DESC asked{};
  OK(cuTexObjectGetResourceDesc(&asked, image));
  EXPECT(asked.resType == CU_RESOURCE_TYPE_ARRAY && asked.res.array.hArray == array);
  OK(cuTexObjectDestroy(image));
  OK(cuTexObjectDestroy(mips));
  OK(cuSurfObjectDestroy(surface));
  OK(cuMipmappedArrayDestroy(levels));
  OK(cuArrayDestroy(array));
}

// A batch writes a block in the place of one whose pages were discarded for room.
SCENARIO(batch_copies_to_discarded_memory) {
  Card card;
  CUstream working = card.Stream(), copying = card.Stream();
  constexpr uint64_t kFreed = 672 << 10, kBytes = 512 << 10;
  const CUdeviceptr freed = Alloc(kFreed);
  CUdeviceptr from = 0, to = 0;
  OK(cuMemsetD8Async(freed, 1, kFreed, CU_STREAM_PER_THREAD));
  OK(cuMemFree(freed));
  OK(cuMemAllocAsync(&from, 8 * kMiB, CU_STREAM_PER_THREAD));
  const CUdeviceptr large = Alloc(40 * kMiB + 512);
  OK(cuMemsetD8(large, 0, 40 * kMiB + 512));
  OK(cuCtxSynchronize());
  cuStreamQuery(CU_STREAM_PER_THREAD);
  OK(cuMemsetD32Async(from, 48683, 2 * kMiB, working));
  const CUdeviceptr other = Alloc(23 * kMiB);
  OK(cuStreamSynchronize(working));
  card.Managed(128 << 10);
  OK(cuMemsetD8Async(other, 3, 23 * kMiB, working));
  OK(cuMemAllocAsync(&to, kBytes, copying));
  size_t size = kBytes, index = 0;
  CUdeviceptr source = from + 12345;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  OK(cuMemcpyBatchAsync(&to, &source, &size, 1, &attributes, &index, 1, copying));
  PrintDigest("to", to, kBytes);
  PrintDigest("other", other, 23 * kMiB);
}

// ROUNDS: so many copies to an array, and as many back.
SCENARIO(copies_beside_an_array) {
  Card card;
  const char* const rounds = std::getenv("ROUNDS");
  const CUdeviceptr block = Alloc(4 * kMiB);
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR words{1024, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  OK(cuArrayCreate(&array, &words));
  OK(cuMemsetD8(block, 1, 4 * kMiB));
  for (int i = 0; i < (rounds != nullptr ? std::atoi(rounds) : 1); ++i) {
    OK(cuMemcpyDtoA(array, 0, block, 4096));
    OK(cuMemcpyAtoD(block + kMiB, array, 0, 4096));
  }
  OK(cuArrayDestroy(array));
}
