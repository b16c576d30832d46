// The contract of any CUDA driver: memory, copies, contexts, entry points. The tests run against the simulated driver,
// or against a real one if LD_LIBRARY_PATH names its libcuda.so.1: they do not use the side channel.
#include "contract.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <vector>

using simgpu_test::Context;

TEST_CASE("bytes come back through copies of every direction") {
  Context c;
  CUdeviceptr a, b;
  YES(cuMemAlloc(&a, 1 << 20));
  YES(cuMemAllocManaged(&b, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  std::vector<uint8_t> in(100000), out(100000);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 7 + i / 256);
  YES(cuMemcpyHtoD(a + 13, in.data(), in.size()));
  YES(cuMemcpyDtoD(b + 5, a + 13, in.size()));
  YES(cuMemcpyDtoD(b + 200001, b + 6, 1000));
  YES(cuMemcpyDtoH(out.data(), b + 5, out.size()));
  CHECK(in == out);
  YES(cuMemcpyDtoH(out.data(), b + 200001, 1000));
  CHECK(std::memcmp(out.data(), in.data() + 1, 1000) == 0);
  YES(cuMemcpy(reinterpret_cast<CUdeviceptr>(out.data()), b + 105, 50));
  CHECK(std::memcmp(out.data(), in.data() + 100, 50) == 0);
  YES(cuMemFree(a));
  YES(cuMemFree(b));
}

TEST_CASE("memsets write 8, 16 and 32 bits, also strided") {
  Context c;
  CUdeviceptr p;
  YES(cuMemAlloc(&p, 65536));
  YES(cuMemsetD8(p, 0xAB, 65536));
  YES(cuMemsetD32(p + 4, 0x01020304, 3));
  YES(cuMemsetD16(p + 2, 0x1122, 1));
  YES(cuMemsetD2D8(p + 1024, 256, 0x55, 16, 4));
  std::vector<uint8_t> out(65536);
  YES(cuMemcpyDtoH(out.data(), p, out.size()));
  const uint8_t first[] = {0xAB, 0xAB, 0x22, 0x11, 4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 0xAB};
  CHECK(std::memcmp(out.data(), first, sizeof first) == 0);
  for (int row = 0; row < 4; ++row) {
    CHECK(out[1024 + row * 256] == 0x55);
    CHECK(out[1024 + row * 256 + 15] == 0x55);
    CHECK(out[1024 + row * 256 + 16] == 0xAB);
  }
  YES(cuMemFree(p));
}

TEST_CASE("a strided copy moves rows only") {
  Context c;
  CUdeviceptr p;
  size_t pitch;
  YES(cuMemAllocPitch(&p, &pitch, 100, 8, 4));
  CHECK(pitch >= 100);
  YES(cuMemsetD8(p, 0, pitch * 8));
  std::vector<uint8_t> in(800);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i + 1);
  CUDA_MEMCPY2D d{};
  d.srcMemoryType = CU_MEMORYTYPE_HOST;
  d.srcHost = in.data();
  d.srcPitch = 100;
  d.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  d.dstDevice = p;
  d.dstPitch = pitch;
  d.WidthInBytes = 100;
  d.Height = 8;
  YES(cuMemcpy2D(&d));
  std::vector<uint8_t> out(pitch * 8);
  YES(cuMemcpyDtoH(out.data(), p, out.size()));
  for (size_t row = 0; row < 8; ++row) {
    CHECK(std::memcmp(out.data() + row * pitch, in.data() + row * 100, 100) == 0);
    CHECK(out[row * pitch + 100] == 0);
  }
  YES(cuMemFree(p));
}

TEST_CASE("wrong arguments get the driver's codes") {
  Context c;
  CUdeviceptr p;
  char byte = 0;
  CHECK(cuMemAlloc(&p, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc(&p, 1ull << 50) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemFree(0x1234500) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(0) == CUDA_SUCCESS);
  CHECK(cuDeviceGet(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CUdevice d;
  CHECK(cuDeviceGet(&d, 99) == CUDA_ERROR_INVALID_DEVICE);
  YES(cuMemAlloc(&p, 4096));
  YES(cuMemFree(p));
  CHECK(cuMemFree(p) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD(p, &byte, 1) == CUDA_ERROR_INVALID_VALUE);
  CUcontext old = nullptr;
  YES(cuCtxPopCurrent(&old));
  CHECK(cuMemAlloc(&p, 4096) == CUDA_ERROR_INVALID_CONTEXT);
  YES(cuCtxPushCurrent(old));
}

TEST_CASE("a tensor's descriptor is aligned to 64 bytes") {
  Context c;
  alignas(128) char room[384];
  CUdeviceptr p;
  YES(cuMemAlloc(&p, 1 << 20));
  const cuuint64_t dims[] = {512, 256}, strides[] = {2048};
  const cuuint32_t box[] = {64, 16}, steps[] = {1, 1};
  for (const size_t at : {0, 32, 64, 128}) {
    const auto map = reinterpret_cast<CUtensorMap*>(room + at);
    CHECK(cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, reinterpret_cast<void*>(p), dims, strides,
                                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) ==
          (at % 64 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
  }
  YES(cuMemFree(p));
}

TEST_CASE("pointer attributes describe the allocation") {
  Context c;
  CUdeviceptr p, base;
  size_t size;
  YES(cuMemAllocManaged(&p, 5 << 20, CU_MEM_ATTACH_GLOBAL));
  YES(cuMemGetAddressRange(&base, &size, p + 12345));
  CHECK(base == p);
  CHECK(size == 5 << 20);
  unsigned type = 0;
  YES(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  unsigned managed = 0;
  YES(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
  CHECK(managed == 1);
  CUipcMemHandle handle;
  CHECK(cuIpcGetMemHandle(&handle, p) == CUDA_ERROR_INVALID_VALUE);
  int x = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&x)) ==
        CUDA_ERROR_INVALID_VALUE);
  YES(cuMemFree(p));
}

TEST_CASE("cuGetProcAddress honours version, flavour and status") {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  REQUIRE(library != nullptr);
  const auto elf = [&](const char* name) { return dlsym(library, name); };
  const auto ask = [](const char* name, int version, uint64_t flags, CUdriverProcAddressQueryResult* status) {
    void* p = nullptr;
    const CUresult r = cuGetProcAddress(name, &p, version, flags, status);
    return r == CUDA_SUCCESS ? p : nullptr;
  };
  CUdriverProcAddressQueryResult status;
  CHECK(ask("cuMemAlloc", 12000, 0, &status) == elf("cuMemAlloc_v2"));
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  CHECK(ask("cuMemAlloc", 2000, 0, nullptr) == elf("cuMemAlloc"));
  CHECK(ask("cuStreamWaitValue32", 12000, 0, nullptr) == elf("cuStreamWaitValue32_v2"));
  CHECK(ask("cuLaunchKernel", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr) ==
        elf("cuLaunchKernel_ptsz"));
  CHECK(ask("cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr) ==
        elf("cuMemcpyHtoD_v2_ptds"));
  CHECK(ask("cuMemFree", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr) == elf("cuMemFree_v2"));
  CHECK(ask("cuGetProcAddress", 13000, 0, nullptr) == elf("cuGetProcAddress_v2"));
  CHECK(ask("cuGetProcAddress", 11030, 0, nullptr) == elf("cuGetProcAddress"));
  CHECK(ask("cuNoSuchThing", 13000, 0, &status) == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(ask("cuMemDiscardBatchAsync", 12000, 0, &status) == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST_CASE("mapped memory keeps its bytes when it moves to another address") {
  Context c;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t granularity;
  YES(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr a, b;
  YES(cuMemAddressReserve(&a, granularity, 0, 0, 0));
  YES(cuMemAddressReserve(&b, granularity, 0, 0, 0));
  CUmemGenericAllocationHandle h;
  YES(cuMemCreate(&h, granularity, &prop, 0));
  char byte = 0;
  CHECK(cuMemcpyHtoD(a, &byte, 1) == CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  YES(cuMemMap(a, granularity, 0, h, 0));
  YES(cuMemSetAccess(a, granularity, &access, 1));
  YES(cuMemsetD8(a, 9, 100));
  YES(cuCtxSynchronize());
  YES(cuMemUnmap(a, granularity));
  CHECK(cuMemcpyHtoD(a, &byte, 1) == CUDA_ERROR_INVALID_VALUE);
  YES(cuMemMap(b, granularity, 0, h, 0));
  YES(cuMemSetAccess(b, granularity, &access, 1));
  YES(cuMemcpyDtoH(&byte, b + 99, 1));
  CHECK(byte == 9);
  YES(cuMemUnmap(b, granularity));
  YES(cuMemRelease(h));
  YES(cuMemAddressFree(a, granularity));
  YES(cuMemAddressFree(b, granularity));
}

TEST_CASE("two mappings of one handle hold the same contents, also those written later") {
  Context c;
  constexpr size_t kBytes = 2 << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle h;
  YES(cuMemCreate(&h, kBytes, &prop, 0));
  CUdeviceptr p;
  YES(cuMemAddressReserve(&p, 2 * kBytes, 0, 0, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  YES(cuMemMap(p, kBytes, 0, h, 0));
  YES(cuMemMap(p + kBytes, kBytes, 0, h, 0));
  YES(cuMemSetAccess(p, 2 * kBytes, &access, 1));
  const auto byte = [](CUdeviceptr at) {
    uint8_t read = 0;
    YES(cuMemcpyDtoH(&read, at, 1));
    return read;
  };
  YES(cuMemsetD8(p, 5, 16));
  CHECK(byte(p + kBytes) == 5);
  YES(cuMemsetD8(p + kBytes + 1, 6, 1));
  CHECK(byte(p + 1) == 6);
  YES(cuMemUnmap(p, kBytes));
  YES(cuMemsetD8(p + kBytes, 7, 1));
  CHECK(byte(p + kBytes + 1) == 6);
  YES(cuMemMap(p, kBytes, 0, h, 0));
  YES(cuMemSetAccess(p, kBytes, &access, 1));
  CHECK(byte(p) == 7);
  YES(cuMemUnmap(p, 2 * kBytes));
  YES(cuMemAddressFree(p, 2 * kBytes));
  YES(cuMemRelease(h));
}

TEST_CASE("pools allocate and free in stream order, and count bytes") {
  Context c;
  CUmemoryPool pool;
  YES(cuDeviceGetDefaultMemPool(&pool, 0));
  CUstream s;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p;
  YES(cuMemAllocAsync(&p, 1 << 20, s));
  YES(cuMemsetD8Async(p, 1, 1 << 20, s));
  cuuint64_t used = 0;
  YES(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  CHECK(used >= 1 << 20);
  YES(cuMemFreeAsync(p, s));
  YES(cuStreamSynchronize(s));
  YES(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  CHECK(used == 0);
  YES(cuStreamDestroy(s));
}

TEST_CASE("a pool has a largest size") {
  Context c;
  CUstream s = nullptr;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUmemPoolProps kind{};
  kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  kind.maxSize = 64 << 20;
  CUmemoryPool pool = nullptr;
  YES(cuMemPoolCreate(&pool, &kind));
  CUdeviceptr first = 0, second = 0;
  YES(cuMemAllocFromPoolAsync(&first, 48 << 20, pool, s));
  CHECK(cuMemAllocFromPoolAsync(&second, 48 << 20, pool, s) == CUDA_ERROR_OUT_OF_MEMORY);
  YES(cuMemFreeAsync(first, s));
  YES(cuStreamSynchronize(s));
  YES(cuMemAllocFromPoolAsync(&second, 48 << 20, pool, s));
  YES(cuMemFreeAsync(second, s));
  YES(cuStreamSynchronize(s));
  YES(cuMemPoolDestroy(pool));
}

TEST_CASE("a user object ends with the last graph that has it") {
  Context c;
  CUstream s = nullptr;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  static int ended;
  ended = 0;
  CUuserObject object = nullptr;
  CUgraph graph = nullptr, outer = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  YES(cuUserObjectCreate(&object, nullptr, [](void*) { ++ended; }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  YES(cuGraphCreate(&graph, 0));
  YES(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  YES(cuGraphCreate(&outer, 0));
  YES(cuGraphAddChildGraphNode(&node, outer, nullptr, 0, graph));
  YES(cuGraphDestroy(graph));
  YES(cuGraphInstantiate(&exec, outer, 0));
  YES(cuGraphDestroy(outer));
  CHECK(ended == 0);
  YES(cuGraphLaunch(exec, s));
  YES(cuGraphExecDestroy(exec));
  YES(cuStreamSynchronize(s));
  for (int i = 0; i < 1000 && ended == 0; ++i) usleep(1000);  // a real driver ends it on a thread of its own
  CHECK(ended == 1);
}

TEST_CASE("a thousand contexts release all their objects") {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  for (int i = 0; i < 1000; ++i) {
    CUcontext c;
    YES(cuCtxCreate(&c, nullptr, 0, 0));
    CUdeviceptr p;
    YES(cuMemAlloc(&p, 256 << 20));
    CUstream s;
    YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    YES(cuMemsetD8Async(p, 0, 4096, s));
    YES(cuCtxDestroy(c));
    CHECK(cuStreamQuery(s) != CUDA_SUCCESS);
  }
}
