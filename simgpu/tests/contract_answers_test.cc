// The driver's answers to calls that are wrong, or that its manual leaves open. An H100 with driver 580 gave them
// (experiments/probes/questions.cu).
#include <thread>
#include <vector>

#include "contract.h"

using simgpu_test::Context;

namespace {

constexpr size_t kMiB = 1 << 20;

CUmemLocation At(CUmemLocationType type, int id) {
  CUmemLocation place{};
  place.type = type;
  place.id = id;
  return place;
}
CUmemAllocationProp OfCard() {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = At(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  return kind;
}
CUresult Advise(CUdeviceptr p, size_t bytes, int advice, CUmemLocation place) {
  return cuMemAdvise(p, bytes, static_cast<CUmem_advise>(advice), place);
}

// A stream that captures, until the end of the test.
struct Capture {
  CUstream stream = nullptr;
  explicit Capture(CUstreamCaptureMode mode) {
    YES(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    YES(cuStreamBeginCapture(stream, mode));
  }
  CUresult End() {
    CUgraph graph = nullptr;
    const CUresult ended = cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) cuGraphDestroy(graph);
    cuStreamDestroy(stream);
    return ended;
  }
};

}  // namespace

TEST_CASE("memory of pools and mappings has no context, and asking for it succeeds") {
  Context c;
  CUdeviceptr p = 0;
  YES(cuMemAllocAsync(&p, kMiB, nullptr));
  CUcontext context = c.context;
  YES(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p));
  CHECK(context == nullptr);
  void* host = &host;
  CHECK(cuPointerGetAttribute(static_cast<void*>(&host), CU_POINTER_ATTRIBUTE_HOST_POINTER, p) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(host == nullptr);
  YES(cuMemFree(p));
}

TEST_CASE("the range of pinned memory and of odd sizes is known") {
  Context c;
  void* pinned = nullptr;
  YES(cuMemHostAlloc(&pinned, kMiB, 0));
  CUdeviceptr base = 0, p = 0;
  size_t size = 0;
  YES(cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(pinned) + 100));
  CHECK(base == reinterpret_cast<CUdeviceptr>(pinned));
  CHECK(size == kMiB);
  YES(cuMemAlloc(&p, 1000));
  YES(cuMemGetAddressRange(&base, &size, p + 999));
  CHECK(cuMemGetAddressRange(&base, &size, p + 1000) == CUDA_ERROR_NOT_FOUND);
  YES(cuMemFree(p));
  YES(cuMemFreeHost(pinned));
}

TEST_CASE("a prefetch and an advice stay in one allocation") {
  Context c;
  CUstream stream = nullptr;
  YES(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<CUdeviceptr> blocks(8);
  for (CUdeviceptr& p : blocks) YES(cuMemAllocManaged(&p, 2 * kMiB, CU_MEM_ATTACH_GLOBAL));
  const CUmemLocation card = At(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  for (CUdeviceptr p : blocks) {
    CHECK(cuMemPrefetchAsync(p, 3 * kMiB, card, 0, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(Advise(p, 3 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, card) == CUDA_ERROR_INVALID_VALUE);
  }
  for (CUdeviceptr p : blocks) YES(cuMemFree(p));
  YES(cuStreamDestroy(stream));
}

TEST_CASE("the checks of advice and prefetches have an order") {
  Context c;
  CUstream stream = nullptr;
  YES(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = 0;
  YES(cuMemAllocManaged(&p, 2 * kMiB, CU_MEM_ATTACH_GLOBAL));
  const CUmemLocation no_card = At(CU_MEM_LOCATION_TYPE_DEVICE, 99), no_type = At(CU_MEM_LOCATION_TYPE_INVALID, 0),
                      no_node = At(CU_MEM_LOCATION_TYPE_HOST_NUMA, 99);
  CHECK(cuMemPrefetchAsync(p, kMiB, no_card, 0, stream) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuMemPrefetchAsync(0x10000, kMiB, no_card, 0, stream) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuMemPrefetchAsync(0, kMiB, no_card, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync(p, kMiB, no_card, 1, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync(p, kMiB, no_node, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  for (const int advice :
       {CU_MEM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION}) {
    CHECK(Advise(p, kMiB, advice, no_card) == CUDA_SUCCESS);
    CHECK(Advise(p, kMiB, advice, no_type) == CUDA_ERROR_INVALID_VALUE);
    CHECK(Advise(0, kMiB, advice, no_card) == CUDA_ERROR_INVALID_VALUE);
    CHECK(Advise(0, kMiB, advice, no_node) == CUDA_SUCCESS);
  }
  for (const int advice :
       {CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY}) {
    CHECK(Advise(p, kMiB, advice, no_card) == CUDA_ERROR_INVALID_VALUE);
    CHECK(Advise(p, kMiB, advice, no_node) == CUDA_ERROR_INVALID_VALUE);
  }
  const CUmemLocation node = At(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
                      this_node = At(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
  CUdeviceptr device = 0;
  YES(cuMemAlloc(&device, kMiB));
  for (const CUmemLocation& place : {node, this_node}) {
    for (const CUdeviceptr at : {p, device, CUdeviceptr{0}}) {
      for (int advice = CU_MEM_ADVISE_SET_READ_MOSTLY; advice <= CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION; ++advice)
        CHECK(Advise(at, kMiB, advice, place) == CUDA_SUCCESS);
      CHECK(Advise(at, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, place) == CUDA_ERROR_INVALID_VALUE);
      CHECK(Advise(at, kMiB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, place) == CUDA_ERROR_INVALID_VALUE);
    }
  }
  YES(cuMemFree(device));
  YES(cuMemFree(p));
  YES(cuStreamDestroy(stream));
}

TEST_CASE("the memory of a handle is reached with rights only") {
  Context c;
  constexpr size_t kPage = 2 * kMiB;
  const CUmemAllocationProp kind = OfCard();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr p = 0;
  YES(cuMemAddressReserve(&p, 8 * kPage, 0, 0, 0));
  YES(cuMemCreate(&handle, 2 * kPage, &kind, 0));
  YES(cuMemMap(p, 2 * kPage, 0, handle, 0));
  CHECK(cuMemsetD8(p, 1, 16) == CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access{};
  access.location = kind.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  YES(cuMemSetAccess(p, 2 * kPage, &access, 1));
  YES(cuMemsetD8(p, 1, 16));
  YES(cuCtxSynchronize());
  CHECK(cuMemUnmap(p, kPage) == CUDA_ERROR_INVALID_VALUE);
  YES(cuMemUnmap(p, 2 * kPage));
  YES(cuMemRelease(handle));
  YES(cuMemAddressFree(p, 8 * kPage));
}

TEST_CASE("a graph's copy or memset past a block is refused when its node is added") {
  Context c;
  CUdeviceptr p = 0, q = 0;
  YES(cuMemAlloc(&p, kMiB));
  YES(cuMemAlloc(&q, 4 * kMiB));
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  YES(cuGraphCreate(&graph, 0));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = p;
  copy.srcDevice = q;
  copy.WidthInBytes = 2 * kMiB;
  copy.Height = copy.Depth = 1;
  CHECK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, c.context) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = p;
  set.elementSize = 1;
  set.width = 2 * kMiB;
  set.height = 1;
  CHECK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, c.context) == CUDA_ERROR_INVALID_VALUE);
  YES(cuGraphDestroy(graph));
  YES(cuMemFree(p));
  YES(cuMemFree(q));
}

TEST_CASE("memory of handles, and memsets and copies inside the card, are legal beside any capture") {
  Context c;
  CUdeviceptr p = 0;
  YES(cuMemAlloc(&p, kMiB));
  Capture capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
  const CUmemAllocationProp kind = OfCard();
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemCreate(&handle, 2 * kMiB, &kind, 0) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(p, 1, 16) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoD(p, p + 4096, 16) == CUDA_SUCCESS);
  CHECK(capture.End() == CUDA_SUCCESS);
  YES(cuMemFree(p));
}

TEST_CASE("a capture refuses batches of copies and frees of other memory, and goes on") {
  Context c;
  CUdeviceptr p = 0, q = 0;
  YES(cuMemAlloc(&p, kMiB));
  YES(cuMemAllocAsync(&q, kMiB, nullptr));
  YES(cuCtxSynchronize());
  Capture capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUmemcpyAttributes how{};
  how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0, bytes = 16;
  CUdeviceptr to = p, from = p + 4096;
  CHECK(cuMemcpyBatchAsync(&to, &from, &bytes, 1, &how, &first, 1, capture.stream) ==
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuMemFreeAsync(q, capture.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(capture.End() == CUDA_SUCCESS);
  YES(cuMemFree(p));
  YES(cuMemFree(q));
}

TEST_CASE("a thread sees the end of work that was waited for before it began") {
  Context c;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr p = 0;
  YES(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  YES(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  YES(cuMemAlloc(&p, 64 * kMiB));
  YES(cuMemsetD8Async(p, 1, 64 * kMiB, stream));
  YES(cuEventRecord(event, stream));
  YES(cuStreamSynchronize(stream));
  CUresult seen = CUDA_ERROR_UNKNOWN;
  std::thread([&] { seen = cuEventQuery(event); }).join();
  CHECK(seen == CUDA_SUCCESS);
  CUdeviceptr pooled = 0;
  YES(cuMemAllocAsync(&pooled, 64 * kMiB, stream));
  YES(cuMemsetD8Async(pooled, 1, 64 * kMiB, stream));
  YES(cuStreamSynchronize(stream));
  std::thread([&] {
    cuCtxSetCurrent(c.context);
    seen = cuMemFree(pooled);  // takes the memory for idle, which it is
  }).join();
  CHECK(seen == CUDA_SUCCESS);
  YES(cuMemFree(p));
  YES(cuEventDestroy(event));
  YES(cuStreamDestroy(stream));
}

TEST_CASE("an event for other processes has no times, and others have no handle") {
  Context c;
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS) == CUDA_ERROR_INVALID_VALUE);
  YES(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUipcEventHandle handle;
  CHECK(cuIpcGetEventHandle(&handle, event) == CUDA_ERROR_INVALID_HANDLE);
  YES(cuEventDestroy(event));
}
