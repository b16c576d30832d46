// Memory pools: by whichever handle, and their largest sizes.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "test/engine/host_flag.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

uint64_t FreeBytes() {
  size_t left = 0, total = 0;
  OK(cuMemGetInfo(&left, &total));
  return left;
}

// On the first GPU. `max_bytes`: its largest size; 0: none.
CUmemoryPool MakePool(CUmemAllocationType type, size_t max_bytes = 0) {
  CUmemPoolProps props{};
  props.allocType = type;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  props.maxSize = max_bytes;
  CUmemoryPool pool = nullptr;
  OK(cuMemPoolCreate(&pool, &props));
  return pool;
}

}  // namespace

// A pool is the same one, whichever call gave its handle out: its memory counts.
SCENARIO(pools_by_any_handle_count) {
  Card card;
  CUstream s = card.Stream();
  const auto pool_at = [](CUdeviceptr at) {
    CUmemoryPool pool = nullptr;
    OK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    return pool;
  };
  const auto allocate = [&](const char* what, CUmemoryPool pool) {
    const uint64_t before = FreeBytes();
    CUdeviceptr block = 0;
    OK(cuMemAllocFromPoolAsync(&block, 64 * kMiB, pool, s));
    if (Budget() != 0) EXPECT(before - FreeBytes() == 64 * kMiB);
    card.Named(s, {Write(block, 64 * kMiB, 1)});
    PrintDigest(what, block, 64 * kMiB);
    std::printf("of that pool %d\n", pool_at(block) == pool);
    OK(cuMemFreeAsync(block, s));
    OK(cuStreamSynchronize(s));
    if (Budget() != 0) EXPECT(before == FreeBytes());
  };
  CUdeviceptr first = 0, captured = 0;
  OK(cuMemAllocAsync(&first, kMiB, s));
  allocate("by a pointer", pool_at(first));
  // The pool of graphs' memory is no call's to give out.
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemAllocAsync(&captured, kMiB, s));
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, s));
  OK(cuStreamSynchronize(s));
  const CUmemoryPool unseen = pool_at(captured);
  allocate("of graphs", unseen);
  std::vector<CUdeviceptr> blocks;
  CUresult result = CUDA_SUCCESS;
  while (Budget() != 0 && blocks.size() < 512 && result == CUDA_SUCCESS) {
    CUdeviceptr block = 0;
    result = cuMemAllocFromPoolAsync(&block, 64 * kMiB, unseen, s);
    if (result == CUDA_SUCCESS) blocks.push_back(block);
  }
  if (Budget() != 0) EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY && blocks.size() * 64 * kMiB <= Budget());
  CUmemoryPool standard = nullptr, current = nullptr;
  OK(cuDeviceGetDefaultMemPool(&standard, 0));
  OK(cuDeviceGetMemPool(&current, 0));
  std::printf("the default pool %d %d\n", standard == pool_at(first), current == standard);
}

SCENARIO(pools_have_a_largest_size) {
  Card card;
  CUstream s = card.Stream();
  const CUmemoryPool pool = MakePool(CU_MEM_ALLOCATION_TYPE_PINNED, 64 * kMiB);
  const CUmemoryPool unbounded = MakePool(CU_MEM_ALLOCATION_TYPE_PINNED);
  std::vector<CUdeviceptr> blocks;
  const auto ask = [&](const char* what, size_t bytes, CUmemoryPool from) {
    CUdeviceptr block = 0;
    const CUresult result = from ? cuMemAllocFromPoolAsync(&block, bytes, from, s) : cuMemAllocAsync(&block, bytes, s);
    if (result == CUDA_SUCCESS) blocks.push_back(block);
    std::printf("%s: %d\n", what, result);
  };
  ask("more than the whole", 72 * kMiB, pool);
  ask("the first", 48 * kMiB, pool);
  ask("the second", 48 * kMiB, pool);
  ask("the rest", 16 * kMiB, pool);
  ask("one more byte", 1, pool);
  ask("of another", 96 * kMiB, unbounded);
  OK(cuMemFreeAsync(blocks[0], s));
  OK(cuStreamSynchronize(s));
  ask("after a free", 40 * kMiB, pool);
  OK(cuDeviceSetMemPool(0, pool));
  ask("as the current pool", 40 * kMiB, nullptr);
  ask("as the current pool, small", 4 * kMiB, nullptr);
  for (size_t i = 1; i < blocks.size(); ++i) card.Launch(s, {Write(blocks[i], 4 * kMiB)});
  OK(cuStreamSynchronize(s));
}

// Its memory stays where it is when another GPU reads it, as memory beside cuCtxEnablePeerAccess does.
SCENARIO(pool_memory_stays_beside_another_gpu) {
  Card first(0), second(1);
  constexpr uint64_t kBytes = 128 * kMiB;
  const CUstream reading = second.Stream();
  OK(cuCtxSetCurrent(first.context));
  const CUstream writing = first.Stream();
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {1}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  CUdeviceptr block = 0;
  OK(cuMemAllocAsync(&block, kBytes, writing));
  first.Named(writing, {Write(block, kBytes, 1)});
  OK(cuStreamSynchronize(writing));
  OK(cuCtxSetCurrent(second.context));
  second.Named(reading, {Read(block, kBytes, 1)});
  OK(cuStreamSynchronize(reading));
  Print("moved", second.Stats(1).resident_bytes);
  PrintDigest("block", block, kBytes);
}

// Memory is no longer in use when its free is queued (an H100).
SCENARIO(pool_memory_is_free_when_its_free_is_queued) {
  Card card;
  const CUstream s = card.Stream();
  const CUmemoryPool pool = MakePool(CU_MEM_ALLOCATION_TYPE_PINNED);
  const auto used = [&] {
    cuuint64_t bytes = 0;
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
  };
  CUdeviceptr block = 0;
  const HostFlag flag;
  flag.MakeWait(s);
  OK(cuMemAllocFromPoolAsync(&block, 4 * kMiB, pool, s));
  Print("allocated", used());
  OK(cuMemFreeAsync(block, s));
  Print("free queued", used());
  flag.Set(1);
  OK(cuStreamSynchronize(s));
  Print("freed", used());
}

namespace {

// In the driver's call that takes advice back, another thread allocates.
struct Allocating {
  CUcontext context;
  bool is_done = false, is_served = false;
  static void OnCall(const char* call, void* data) {
    auto* const self = static_cast<Allocating*>(data);
    if (std::string(call).rfind("cuMemAdvise", 0) != 0 || self->is_done) return;
    self->is_done = true;
    auto served = std::make_shared<std::promise<void>>();
    std::thread([context = self->context, served] {
      OK(cuCtxSetCurrent(context));
      OK(cuMemFree(Alloc(64 * kMiB)));
      served->set_value();
    }).detach();
    self->is_served = served->get_future().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  }
};

}  // namespace

SCENARIO(advice_of_pool_memory_ends_without_a_lock) {
  Card card;
  const CUstream s = card.Stream();
  const CUmemoryPool pool = MakePool(CU_MEM_ALLOCATION_TYPE_MANAGED);
  CUdeviceptr block = 0;
  OK(cuMemAllocFromPoolAsync(&block, 64 * kMiB, pool, s));
  OK(cuMemAdvise(block, 64 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, {CU_MEM_LOCATION_TYPE_DEVICE, {0}}));
  OK(cuStreamSynchronize(s));
  Allocating other{card.context};
  simgpu_on_call(&Allocating::OnCall, &other);
  OK(cuMemFreeAsync(block, s));
  simgpu_on_call(nullptr, nullptr);
  if (Budget() != 0) EXPECT(other.is_done && other.is_served);
}

// The driver refuses to destroy a default pool: the figures of it stay.
SCENARIO(refused_ends_of_pools_change_nothing) {
  Card card;
  const CUstream s = card.Stream();
  CUmemoryPool pool = nullptr;
  CUdeviceptr block = 0;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemAllocAsync(&block, kMiB, s));
  OK(cuMemFreeAsync(block, s));
  EXPECT(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  // As the current pool a managed one is taken, and changes nothing.
  OK(cuDeviceSetMemPool(0, MakePool(CU_MEM_ALLOCATION_TYPE_MANAGED)));
  OK(cuMemAllocAsync(&block, kMiB, s));
  CUmemoryPool of_block = nullptr;
  OK(cuPointerGetAttribute(&of_block, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
  EXPECT(of_block == pool);
  for (const auto attribute : {CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH}) {
    cuuint64_t bytes = 0;
    OK(cuMemPoolGetAttribute(pool, attribute, &bytes));
    EXPECT(bytes >= kMiB);
  }
}

// A pool with a release threshold keeps its freed memory, until it is trimmed, its threshold falls, or it is destroyed.
// (simgpu's own pool keeps all.)
SCENARIO(pool_keeps_memory) {
  Card card;
  CUstream s = card.Stream();
  CUmemoryPool pool, own = MakePool(CU_MEM_ALLOCATION_TYPE_PINNED);
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  const auto say = [&](const char* after) {
    std::fprintf(stderr, "%s: %llu MiB\n", after,
                 static_cast<unsigned long long>(card.Stats().managed_requested_bytes >> 20));
  };
  const auto step = [&](const char* name, CUmemoryPool from) {
    CUdeviceptr blocks[4];
    for (CUdeviceptr& block : blocks) {
      OK(cuMemAllocFromPoolAsync(&block, 256 * kMiB, from, s));
      card.Launch(s, {Write(block, 256 * kMiB)});
    }
    for (const CUdeviceptr block : blocks) OK(cuMemFreeAsync(block, s));
    OK(cuStreamSynchronize(s));
    say(name);
  };
  const auto threshold = [](CUmemoryPool of, cuuint64_t bytes) {
    OK(cuMemPoolSetAttribute(of, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
  };
  step("none", pool);
  for (const uint64_t bytes : {512 * kMiB, uint64_t{UINT64_MAX}}) {
    threshold(pool, bytes);
    step("first", pool);
    step("second", pool);
  }
  OK(cuMemPoolTrimTo(pool, 0));
  say("trimmed");
  step("again", pool);
  threshold(pool, 0);
  OK(cuStreamSynchronize(s));
  say("lowered");
  threshold(own, UINT64_MAX);
  step("own", own);
  OK(cuMemPoolDestroy(own));
  say("destroyed");
}

// Kept memory of other sizes neither takes a program over its budget that fits, nor makes an allocation fail.
SCENARIO(kept_memory_makes_room) {
  Card card;
  CUstream s = card.Stream();
  CUmemoryPool pool;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  cuuint64_t threshold = UINT64_MAX;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  for (const size_t bytes : {192 * kMiB, 448 * kMiB, 640 * kMiB}) {
    CUdeviceptr blocks[3];
    for (CUdeviceptr& block : blocks) {
      OK(cuMemAllocAsync(&block, bytes, s));
      card.Launch(s, {Write(block, bytes)});
    }
    for (const CUdeviceptr block : blocks) OK(cuMemFreeAsync(block, s));
    OK(cuStreamSynchronize(s));
  }
  std::printf("done\n");
}
