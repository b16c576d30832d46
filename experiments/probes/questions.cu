// Asks the driver for answers that its manual leaves open: the end of blocks, attributes by kind of memory, the order
// of checks, wrong frees, calls beside a capture, IPC. It prints one line a question, with the result code. The
// simulated driver must answer the same.
//
//   nvcc -arch=sm_90 -std=c++17 -o q experiments/probes/questions.cu -lcuda && timeout -k 2 500 ./q [FIRST LETTERS]
//   g++ -x c++ -std=c++17 -I CUDA/include -o q experiments/probes/questions.cu -lcuda -lpthread
//   SIMGPU_CAPTURE=error SIMGPU_MISUSE=report LD_LIBRARY_PATH=build/lib/simgpu ./q
#include "questions.h"
#include "questions_barriers.h"
#include "questions_ipc.h"
#include "questions_order.h"
#include "questions_pools.h"

namespace {

constexpr size_t kBlock = 512 * kKiB, kOver = 64 * kKiB;

void Attributes() {
  CUmemGenericAllocationHandle handle = 0;
  void *pinned = nullptr, *registered = std::aligned_alloc(4 * kKiB, kMiB);
  NEED(cuMemHostAlloc(&pinned, kMiB, 0));
  NEED(cuMemHostRegister(registered, kMiB, 0));
  CUmemPoolProps managed{};
  managed.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  managed.location = OnCard();
  CUmemoryPool managed_pool = nullptr;
  const CUresult has_managed = cuMemPoolCreate(&managed_pool, &managed);
  const std::pair<const char*, CUdeviceptr> kinds[] = {
      {"alloc", Allocate(kMiB)},
      {"managed", Managed(kMiB)},
      {"default_pool", OfPool(nullptr, kMiB)},
      {"made_pool", OfPool(MadePool(), kMiB)},
      {"vmm", Mapped(2 * kMiB, 4 * kMiB, &handle)},
      {"pinned", reinterpret_cast<CUdeviceptr>(pinned)},
      {"registered", reinterpret_cast<CUdeviceptr>(registered)},
      {"managed_pool", has_managed == CUDA_SUCCESS ? OfPool(managed_pool, kMiB) : 0},
      {"malloc", reinterpret_cast<CUdeviceptr>(std::malloc(kMiB))},
      {"nothing", 0x10000},
  };
  for (const auto& [kind, p] : kinds) {
    const auto show = [p = p](uint64_t value) {
      char text[64];
      if (value == reinterpret_cast<uint64_t>(context)) return std::string("context");
      if (value == 0xabababababababab) return std::string("untouched");
      if (value >> 32 == 0xabababab) value &= 0xffffffff;
      if (value >= p && value < p + 4 * kMiB && p != 0x10000) {
        std::snprintf(text, sizeof text, "p+%#lx", static_cast<unsigned long>(value - p));
        return std::string(text);
      }
      if (value > 0x100000000) return std::string(value < p && p - value < 64 * kMiB ? "below p" : "a large number");
      return std::to_string(value);
    };
    std::vector<CUpointer_attribute> list;
    std::vector<uint64_t> values(32, 0xabababababababab);
    std::vector<void*> to;
    for (int i = 1; i <= 22; ++i) {
      if (i == 5) continue;  // P2P tokens have a structure of their own
      uint64_t value[4] = {0xabababababababab, 0, 0, 0};
      const auto attribute = static_cast<CUpointer_attribute>(i);
      const CUresult code = cuPointerGetAttribute(value, attribute, p);
      const std::string shown = i == 7 || i == 20 ? (value[0] == 0 ? "0" : "an id") : show(value[0]);
      Say(std::to_string(i) + "." + kind, "%d %s", code, shown.c_str());
      if (i <= 17) list.push_back(attribute), to.push_back(&values[static_cast<size_t>(i)]);
    }
    const CUresult code = cuPointerGetAttributes(static_cast<unsigned>(list.size()), list.data(), to.data(), p);
    std::string shown;
    for (const size_t i : {1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17})
      shown += " " + std::to_string(i) + "=" + show(values[i]);
    Say(std::string("list.") + kind, "%d%s", code, shown.c_str());
  }
}

// A call on `bytes` of p; q is of the same size or larger, and nothing else uses it.
struct Call {
  const char* name;
  std::function<CUresult(CUdeviceptr p, CUdeviceptr q, void* host, size_t bytes)> make;
};

CUDA_MEMCPY3D Rows(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to, copy.srcDevice = from;
  copy.dstPitch = copy.srcPitch = copy.WidthInBytes = 4 * kKiB;
  copy.dstHeight = copy.srcHeight = copy.Height = bytes / (4 * kKiB);
  copy.Depth = 1;
  return copy;
}
CUresult Plane(CUdeviceptr to, CUdeviceptr from, size_t bytes, bool async) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to, copy.srcDevice = from;
  copy.dstPitch = copy.srcPitch = copy.WidthInBytes = 4 * kKiB;
  copy.Height = bytes / (4 * kKiB);
  return async ? cuMemcpy2DAsync(&copy, stream) : cuMemcpy2D(&copy);
}
CUresult Batch(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUmemcpyAttributes how{};
  how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  return cuMemcpyBatchAsync(&to, &from, &bytes, 1, &how, &first, 1, stream);
}
CUresult RunGraph(CUgraph graph, CUresult added) {
  CUgraphExec program = nullptr;
  Say("graph_add", added);
  if (added != CUDA_SUCCESS) return added;
  const CUresult made = cuGraphInstantiate(&program, graph, 0);
  Say("graph_instantiate", made);
  return made != CUDA_SUCCESS ? made : cuGraphLaunch(program, stream);
}
CUresult CopyNode(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  NEED(cuGraphCreate(&graph, 0));
  const CUDA_MEMCPY3D copy = Rows(to, from, bytes);
  return RunGraph(graph, cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, context));
}
CUresult SetNode(CUdeviceptr to, size_t bytes) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  NEED(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = to, set.elementSize = 1, set.width = bytes, set.height = 1, set.value = 7;
  return RunGraph(graph, cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, context));
}

#define MAKE(expression) \
  [](CUdeviceptr p, CUdeviceptr q, void* host, size_t n) { return (void)host, (void)q, expression; }
const Call kCalls[] = {
    {"dtod_to", MAKE(cuMemcpyDtoD(p, q, n))},
    {"dtod_from", MAKE(cuMemcpyDtoD(q, p, n))},
    {"dtod_async_to", MAKE(cuMemcpyDtoDAsync(p, q, n, stream))},
    {"dtod_async_from", MAKE(cuMemcpyDtoDAsync(q, p, n, stream))},
    {"htod", MAKE(cuMemcpyHtoD(p, host, n))},
    {"htod_async", MAKE(cuMemcpyHtoDAsync(p, host, n, stream))},
    {"dtoh", MAKE(cuMemcpyDtoH(host, p, n))},
    {"dtoh_async", MAKE(cuMemcpyDtoHAsync(host, p, n, stream))},
    {"memcpy_to", MAKE(cuMemcpy(p, q, n))},
    {"memcpy_async_to", MAKE(cuMemcpyAsync(p, q, n, stream))},
    {"set8", MAKE(cuMemsetD8(p, 7, n))},
    {"set32_async", MAKE(cuMemsetD32Async(p, 7, n / 4, stream))},
    {"set2d", MAKE(cuMemsetD2D8(p, 4 * kKiB, 7, 4 * kKiB, n / (4 * kKiB)))},
    {"copy2d_to", MAKE(Plane(p, q, n, false))},
    {"copy2d_async_from", MAKE(Plane(q, p, n, true))},
    {"copy3d_to",
     [](CUdeviceptr p, CUdeviceptr q, void*, size_t n) {
       const CUDA_MEMCPY3D copy = Rows(p, q, n);
       return cuMemcpy3D(&copy);
     }},
    {"batch_to", MAKE(Batch(p, q, n))},
    {"batch_from", MAKE(Batch(q, p, n))},
    {"copy_node_to", MAKE(CopyNode(p, q, n))},
    {"copy_node_from", MAKE(CopyNode(q, p, n))},
    {"set_node", MAKE(SetNode(p, n))},
};

// `kind`: where the block lies; the call reaches kOver bytes past its end.
CUdeviceptr Block(const std::string& kind, size_t* bytes) {
  CUmemGenericAllocationHandle handle = 0;
  *bytes = kBlock;
  if (kind == "neighbour") return Placed(true, kBlock, Allocate);
  if (kind == "gap") return Placed(false, kBlock, Allocate);
  if (kind == "managed_neighbour") return Placed(true, kBlock, Managed);
  if (kind == "managed_gap") return Placed(false, kBlock, Managed);
  const auto of_pool = [](size_t n) { return OfPool(nullptr, n); };
  if (kind == "pool_neighbour") return Placed(true, kBlock, of_pool);
  if (kind == "pool_gap") return Placed(false, kBlock, of_pool);
  *bytes = 2 * kMiB;
  if (kind == "vmm_end") return Mapped(*bytes, 8 * kMiB, &handle);
  *bytes = 32 * kMiB;
  return Placed(false, *bytes, Allocate);  // "end": nothing is mapped behind it
}

void PastTheEnd(const std::string& kind, const Call& call) {
  const CUdeviceptr q = Allocate(64 * kMiB);
  void* host = nullptr;
  NEED(cuMemHostAlloc(&host, 64 * kMiB, 0));
  size_t bytes = 0;
  const CUdeviceptr p = Block(kind, &bytes);
  Say("call", call.make(p, q, host, bytes + kOver));
  Say("wait", cuStreamSynchronize(stream));
  Say("later", cuMemsetD8(q, 0, 16));
}

void AdviceAndPrefetch() {
  const CUdeviceptr p = Placed(true, 2 * kMiB, Managed), lone = Placed(false, 2 * kMiB, Managed),
                    d = Allocate(2 * kMiB);
  void* pageable = std::aligned_alloc(4 * kKiB, 2 * kMiB);
  void* pinned = nullptr;
  NEED(cuMemHostAlloc(&pinned, 2 * kMiB, 0));
  const CUdeviceptr host = reinterpret_cast<CUdeviceptr>(pageable), nothing = 0x100000;
  const struct {
    const char* name;
    CUdeviceptr at;
    size_t bytes;
  } ranges[] = {
      {"whole", p, 2 * kMiB},
      {"null", 0, 2 * kMiB},
      {"size0", p, 0},
      {"null_size0", 0, 0},
      {"into_neighbour", p, 3 * kMiB},
      {"into_gap", lone, 3 * kMiB},
      {"device", d, 2 * kMiB},
      {"nothing", nothing, kMiB},
      {"from_inside", p + 5, kMiB},
      {"pageable", host, kMiB},
      {"pinned", reinterpret_cast<CUdeviceptr>(pinned), kMiB},
      {"wraps", p, ~size_t{0}},
  };
  const std::pair<const char*, CUmemLocation> places[] = {
      {"card", OnCard()},
      {"host", At(CU_MEM_LOCATION_TYPE_HOST, 0)},
      {"card99", OnCard(99)},
      {"card-5", OnCard(-5)},
      {"type0", At(CU_MEM_LOCATION_TYPE_INVALID, 0)},
      {"type77", At(static_cast<CUmemLocationType>(77), 0)},
      {"node0", At(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)},
      {"current_node", At(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0)},
      {"host7", At(CU_MEM_LOCATION_TYPE_HOST, 7)},
      {"node99", At(CU_MEM_LOCATION_TYPE_HOST_NUMA, 99)}};
  for (const auto& range : ranges) {
    for (const auto& [place, location] : places) {
      const std::string at = std::string(range.name) + "." + place;
      std::string advice;
      for (const int kind : {1, 2, 3, 4, 5, 6, 0, 99})
        advice += " " + std::to_string(cuMemAdvise(range.at, range.bytes, static_cast<CUmem_advise>(kind), location));
      Say("advise_1_2_3_4_5_6_0_99." + at, "%s", advice.c_str());
      size_t first = 0;
      CUdeviceptr start = range.at;
      size_t bytes = range.bytes;
      CUmemLocation to = location;
      Say("prefetch." + at, "%d flags1 %d batch %d", cuMemPrefetchAsync(range.at, range.bytes, location, 0, stream),
          cuMemPrefetchAsync(range.at, range.bytes, location, 1, stream),
          cuMemPrefetchBatchAsync(&start, &bytes, 1, &to, &first, 1, 0, stream));
    }
    CUdeviceptr start = range.at;
    size_t bytes = range.bytes;
    Say(std::string("discard.") + range.name, "%d flags1 %d", cuMemDiscardBatchAsync(&start, &bytes, 1, 0, stream),
        cuMemDiscardBatchAsync(&start, &bytes, 1, 1, stream));
  }
  Say("wait", cuStreamSynchronize(stream));
}

void Vmm() {
  const CUmemAllocationProp kind = OfCard();
  CUmemAccessDesc access{};
  access.location = OnCard();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemGenericAllocationHandle handle = 0, small = 0, found = 0;
  CUdeviceptr p = 0;
  constexpr size_t kPage = 2 * kMiB;
  NEED(cuMemAddressReserve(&p, 16 * kPage, 0, 0, 0));
  Say("create_odd_size", cuMemCreate(&small, kMiB, &kind, 0));
  NEED(cuMemCreate(&handle, 4 * kPage, &kind, 0));
  Say("map_part", cuMemMap(p, kPage, 0, handle, 0));
  if (cuMemUnmap(p, kPage) != CUDA_SUCCESS) Say("unmap_after_map_part", "not mapped");
  Say("map_offset", cuMemMap(p, 3 * kPage, kPage, handle, 0));
  if (cuMemUnmap(p, 3 * kPage) != CUDA_SUCCESS) Say("unmap_after_map_offset", "not mapped");
  Say("map_odd_size", cuMemMap(p, kMiB, 0, handle, 0));
  Say("map_odd_address", cuMemMap(p + kMiB, 4 * kPage, 0, handle, 0));
  Say("map_beyond_handle", cuMemMap(p, 5 * kPage, 0, handle, 0));
  Say("map", cuMemMap(p, 4 * kPage, 0, handle, 0));
  Say("read_without_access", cuMemsetD8(p, 0, 16));
  Say("map_over_mapped", cuMemMap(p, 4 * kPage, 0, handle, 0));
  Say("map_twice", cuMemMap(p + 4 * kPage, 4 * kPage, 0, handle, 0));
  Say("access_of_part", cuMemSetAccess(p, kPage, &access, 1));
  Say("set_in_part", cuMemsetD8(p, 1, kPage));
  Say("access_of_two_mappings", cuMemSetAccess(p, 8 * kPage, &access, 1));
  Say("access_past_mapped", cuMemSetAccess(p, 9 * kPage, &access, 1));
  Say("access_of_odd_range", cuMemSetAccess(p + kMiB, kPage, &access, 1));
  Say("set_over_two_mappings", cuMemsetD8(p, 1, 8 * kPage));
  uint8_t byte = 0;
  NEED(cuMemsetD8(p, 5, 16));
  const CUresult read = cuMemcpyDtoH(&byte, p + 4 * kPage, 1);
  Say("second_mapping_reads", "%d %d", read, byte);
  Say("retain_inside", cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(p + kPage + 12)));
  Say("retained_is_same", "%d", found == handle);
  Say("retain_unmapped", cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(p + 12 * kPage)));
  Say("retain_of_alloc", cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(Allocate(kPage))));
  Say("retain_of_pool", cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(OfPool(nullptr, kPage))));
  Say("unmap_part", cuMemUnmap(p, kPage));
  Say("unmap_two_mappings_and_more", cuMemUnmap(p, 9 * kPage));
  Say("free_of_mapped", cuMemFree(p));
  Say("address_free_of_mapped", cuMemAddressFree(p, 16 * kPage));
  Say("release_while_mapped", cuMemRelease(handle));
  Say("release_again", cuMemRelease(handle));
  Say("release_a_third_time", cuMemRelease(handle));
  Say("set_after_release", cuMemsetD8(p, 1, kPage));
  Say("unmap_two_mappings", cuMemUnmap(p, 8 * kPage));
  Say("unmap_first", cuMemUnmap(p, 4 * kPage));
  Say("unmap_second", cuMemUnmap(p + 4 * kPage, 4 * kPage));
  Say("unmap_again", cuMemUnmap(p, 4 * kPage));
  Say("address_free_of_part", cuMemAddressFree(p, 8 * kPage));
  Say("address_free", cuMemAddressFree(p, 16 * kPage));
  Say("address_free_again", cuMemAddressFree(p, 16 * kPage));
  NEED(cuMemAddressReserve(&p, 16 * kPage, 0, 0, 0));
  NEED(cuMemCreate(&handle, 4 * kPage, &kind, 0));
  Say("map_beyond_reservation", cuMemMap(p + 14 * kPage, 4 * kPage, 0, handle, 0));
  NEED(cuMemAddressReserve(&p, 16 * kPage, 0, 0, 0));
  Say("map_behind_reservation", cuMemMap(p + 1024 * kPage, 4 * kPage, 0, handle, 0));
  Say("unmap_never_mapped", cuMemUnmap(p, 4 * kPage));
  Say("unmap_no_reservation", cuMemUnmap(0x100000000, 4 * kPage));
}

void Counted() {
  size_t before = 0, after = 0, total = 0;
  Allocate(4 * kKiB);
  for (const size_t bytes :
       {kMiB, kMiB, kMiB, 3 * kMiB, 3 * kMiB, 64 * kKiB, 64 * kKiB, 2 * kMiB, 5 * kMiB, kKiB * 1500}) {
    NEED(cuMemGetInfo(&before, &total));
    const CUdeviceptr p = Allocate(bytes);
    NEED(cuMemGetInfo(&after, &total));
    Say("alloc_of_" + std::to_string(bytes / kKiB) + "_KiB", "%zu KiB, at %zu KiB of 2 MiB", (before - after) / kKiB,
        static_cast<size_t>(p % (2 * kMiB)) / kKiB);
  }
}

void Ranges() {
  CUmemGenericAllocationHandle handle = 0;
  void* pinned = nullptr;
  NEED(cuMemHostAlloc(&pinned, kMiB, 0));
  const std::pair<const char*, CUdeviceptr> kinds[] = {
      {"alloc", Placed(false, kBlock, Allocate)},
      {"odd_alloc", Allocate(1000)},
      {"managed", Managed(kMiB)},
      {"odd_managed", Managed(1000)},
      {"pool", OfPool(nullptr, kMiB)},
      {"odd_pool", OfPool(nullptr, 1000)},
      {"vmm", Mapped(2 * kMiB, 8 * kMiB, &handle)},
      {"pinned", reinterpret_cast<CUdeviceptr>(pinned)},
      {"malloc", reinterpret_cast<CUdeviceptr>(std::malloc(kMiB))},
  };
  for (const auto& [kind, p] : kinds) {
    CUdeviceptr base = 0;
    size_t size = 0;
    const CUresult code = cuMemGetAddressRange(&base, &size, p);
    Say(kind, "%d base p%+ld size %zu", code, static_cast<long>(base - p), size);
    if (code != CUDA_SUCCESS) continue;
    const size_t whole = size;
    for (const size_t offset : {size_t{1}, whole - 1, whole, whole + 1}) {
      const CUresult answer = cuMemGetAddressRange(&base, &size, p + offset);
      Say(std::string(kind) + ".at_size" + std::to_string(static_cast<long>(offset - whole)), "%d base p%+ld", answer,
          answer == CUDA_SUCCESS ? static_cast<long>(base - p) : 0);
    }
    Say(std::string(kind) + ".base_only", cuMemGetAddressRange(&base, nullptr, p));
    Say(std::string(kind) + ".size_only", cuMemGetAddressRange(nullptr, &size, p));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  Ask("attribute", Attributes);
  Ask("advice", AdviceAndPrefetch);
  Ask("vmm", Vmm);
  Ask("counted", Counted);
  Ask("range", Ranges);
  AskOfOrder();
  AskOfBarriers();
  AskOfIpc();
  AskOfPools();
  for (const char* kind :
       {"neighbour", "gap", "end", "managed_neighbour", "managed_gap", "pool_neighbour", "pool_gap", "vmm_end"})
    for (const Call& call : kCalls) Ask(std::string("past.") + kind + "." + call.name, [&] { PastTheEnd(kind, call); });
}
