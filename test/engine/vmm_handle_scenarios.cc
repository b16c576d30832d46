// VMM memory: the answers of handles, mappings and reservations.
#include <chrono>
#include <thread>
#include <vector>

#include "test/engine/host_flag.h"
#include "test/engine/scenario.h"
#include "test/engine/vmm.h"

using namespace scenario;       // NOLINT(google-build-using-namespace)
using namespace scenario::vmm;  // NOLINT(google-build-using-namespace)

// Contents belong to the handle: they move with it, and stay while it is mapped nowhere.
SCENARIO(vmm_contents_move_with_their_handle) {
  Card card;
  constexpr uint64_t kBytes = 8 * kMiB;
  const CUdeviceptr first = Reserve(2 * kBytes), second = Reserve(kBytes);
  const Handle a = Create(kBytes), b = Create(kBytes);
  Map(first, kBytes, a);
  card.Named(nullptr, {Write(first, kBytes, 1)});
  PrintBytes("written", first, kBytes);
  OK(cuMemUnmap(first, kBytes));
  // Memory in between uses the whole budget.
  const CUdeviceptr other = Alloc(700 * kMiB);
  for (int i = 0; i < 7; ++i) card.Named(nullptr, {Write(other + i * 100 * kMiB, 100 * kMiB, 2)});
  Synchronize();
  Map(first, kBytes, a);
  PrintBytes("the same place", first, kBytes);
  OK(cuMemUnmap(first, kBytes));
  Map(second, kBytes, a);
  PrintBytes("another place", second, kBytes);
  card.Named(nullptr, {Update(second, kBytes, 1)});
  Synchronize();
  OK(cuMemUnmap(second, kBytes));
  Map(second, kBytes, b);  // where a's contents are
  card.Named(nullptr, {Write(second, kBytes, 4)});
  Map(first + kBytes, kBytes, a);
  PrintBytes("a", first + kBytes, kBytes);
  PrintBytes("b", second, kBytes);
  // The reservation ends before the handle that has contents in it.
  Synchronize();
  OK(cuMemUnmap(first + kBytes, kBytes));
  OK(cuMemAddressFree(first, 2 * kBytes));
  const CUdeviceptr third = Reserve(kBytes);
  Map(third, kBytes, a);
  PrintBytes("beyond its reservation", third, kBytes);
  OK(cuMemUnmap(third, kBytes));
  OK(cuMemRelease(a));
  OK(cuMemUnmap(second, kBytes));
  OK(cuMemRelease(b));
  OK(cuMemAddressFree(second, kBytes));
  OK(cuMemAddressFree(third, kBytes));
  OK(cuMemFree(other));
}

// A mapping that copies contents waits for a stream, and that stream waits for another thread's copy to VMM memory.
SCENARIO(vmm_contents_move_beside_a_copy_that_the_gpu_waits_for) {
  Card card;
  constexpr uint64_t kBytes = 8 * kMiB;
  const CUdeviceptr from = Reserve(kBytes), to = Reserve(kBytes), copied = Reserve(kBytes);
  const Handle a = Create(kBytes), b = Create(kBytes);
  Map(from, kBytes, a);
  Map(copied, kBytes, b);
  card.Named(nullptr, {Write(from, kBytes, 1), Write(copied, kBytes, 2)});
  Synchronize();
  OK(cuMemUnmap(from, kBytes));
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  void* host = nullptr;
  CUdeviceptr flag = 0;
  OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&flag, host, 0));
  *static_cast<uint32_t*>(host) = 0;
  OK(cuStreamWaitValue32(blocking, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  const CUstream other = card.Stream();
  std::thread copier([&] {
    OK(cuCtxSetCurrent(context));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the mapping waits
    OK(cuMemcpyDtoDAsync(copied, copied + kBytes / 2, kBytes / 2, other));
    OK(cuStreamWriteValue32(other, flag, 1, 0));
  });
  Map(to, kBytes, a);
  copier.join();
  Synchronize();
  PrintBytes("moved", to, kBytes);
  PrintBytes("copied", copied, kBytes);
}

SCENARIO(vmm_references) {
  Card card;
  constexpr uint64_t kBytes = 64 * kMiB;
  size_t before = 0, now = 0, total = 0;
  const auto used = [&](const char* when) {
    OK(cuMemGetInfo(&now, &total));
    Print(when, before - now);
  };
  OK(cuMemGetInfo(&before, &total));
  const Handle handle = Create(kBytes);
  used("created");
  const CUdeviceptr at = Reserve(3 * kBytes);
  used("reserved");
  Map(at + kBytes, kBytes, handle);
  card.Named(nullptr, {Write(at + kBytes, kBytes, 1)});
  OK(cuMemRelease(handle));  // the mapping keeps it
  used("released while mapped");
  PrintDigest("mapped", at + kBytes, kBytes);
  Handle again = 0;
  OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + kBytes + 4096)));
  Print("the same handle", again == handle);
  CUmemAllocationProp properties{};
  OK(cuMemGetAllocationPropertiesFromHandle(&properties, again));
  Print("location", properties.location.type * 16U + properties.location.id);
  Print("handle types", properties.requestedHandleTypes);
  Synchronize();
  OK(cuMemUnmap(at + kBytes, kBytes));
  used("unmapped while retained");
  Map(at, kBytes, again);
  PrintDigest("elsewhere", at, kBytes);
  Print("overlapping", cuMemMap(at, kBytes, 0, again, 0));
  Print("outside", cuMemMap(at + 3 * kBytes, kBytes, 0, again, 0));
  Print("unaligned", cuMemMap(at + kBytes + 4096, kBytes, 0, again, 0));
  Print("unmapped in part", cuMemUnmap(at, kBytes / 2));
  Print("unmapped beyond the reservation", cuMemUnmap(at, 4 * kBytes));
  Print("freed as another size", cuMemAddressFree(at, kBytes));
  Print("unmapped with the addresses behind", cuMemUnmap(at, 2 * kBytes));
  Print("nothing unmapped", cuMemUnmap(at, kBytes));
  OK(cuMemRelease(again));
  used("gone");
  Print("released again", cuMemRelease(again));
  OK(cuMemAddressFree(at, 3 * kBytes));
  Print("freed again", cuMemAddressFree(at, 3 * kBytes));
  const CUdeviceptr empty = Reserve(kBytes / 4);
  Print("an empty one freed as memory", cuMemFree(empty));
  OK(cuMemAddressFree(empty, kBytes / 4));
}

SCENARIO(vmm_attributes) {
  const Card card;
  constexpr uint64_t kBytes = 4 * kMiB;
  const CUdeviceptr at = Reserve(4 * kBytes);
  const Handle a = Create(kBytes), b = Create(2 * kBytes);
  Map(at, kBytes, a);
  Map(at + kBytes, 2 * kBytes, b);
  const CUdeviceptr inside = at + kBytes + 100;
  const auto value = [&](CUpointer_attribute attribute) {
    uint64_t data = 0;
    const CUresult result = cuPointerGetAttribute(&data, attribute, inside);
    return result == CUDA_SUCCESS ? data : uint64_t{0xbad0000} + result;
  };
  Print("memory type", value(CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
  Print("is managed", value(CU_POINTER_ATTRIBUTE_IS_MANAGED));
  Print("start", value(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) - at);
  Print("size", value(CU_POINTER_ATTRIBUTE_RANGE_SIZE));
  Print("mapping", value(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR) - at);
  Print("mapping size", value(CU_POINTER_ATTRIBUTE_MAPPING_SIZE));
  Print("mapped", value(CU_POINTER_ATTRIBUTE_MAPPED));
  Print("ordinal", value(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
  Print("host pointer", value(CU_POINTER_ATTRIBUTE_HOST_POINTER));
  Print("handle types", value(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES));
  Print("ipc", value(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
  Print("rdma", value(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE));
  Print("pool", value(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuMemGetAddressRange(&base, &bytes, inside));
  Print("range", base - at);
  Print("range size", bytes);
  Print("freed by cuMemFree", cuMemFree(at));
  Print("advised",
        cuMemAdvise(at, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}));
  const auto access = [&](CUdeviceptr where) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned long long flags = 99;
    return cuMemGetAccess(&flags, &location, where) == CUDA_SUCCESS ? flags : 100;
  };
  Print("access", access(inside));
  Print("access to nothing", access(at + 3 * kBytes));
  Print("access of what is not mapped", [&] {
    const CUmemAccessDesc wanted{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    return cuMemSetAccess(at, 4 * kBytes, &wanted, 1);
  }());
  const CUmemAccessDesc wanted{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
  OK(cuMemSetAccess(at + kBytes, 2 * kBytes, &wanted, 1));
  Print("read only", access(inside));
  Print("the other one", access(at));
  OK(cuMemUnmap(at, 3 * kBytes));
  Print("start of nothing", value(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) - at);
  Print("type of nothing", value(CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
  for (const Handle handle : {a, b}) OK(cuMemRelease(handle));
  OK(cuMemAddressFree(at, 4 * kBytes));
}

// Reservations outlive the last release of the primary context; a reset ends their memory, not their bookkeeping.
SCENARIO(vmm_outlives_its_context) {
  constexpr uint64_t kBytes = 8 * kMiB;
  Card card;
  const CUdeviceptr at = Reserve(kBytes);
  const Handle handle = Create(kBytes);
  Map(at, kBytes, handle);
  card.Named(nullptr, {Write(at, kBytes, 1)});
  Synchronize();
  OK(cuDevicePrimaryCtxRelease(0));
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  PrintDigest("after a release", at, kBytes);
  if (Budget() != 0) {
    card.Reset();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
  }
  OK(cuMemUnmap(at, kBytes));
  OK(cuMemRelease(handle));
  OK(cuMemAddressFree(at, kBytes));
  Card fresh;
  const CUdeviceptr again = Reserve(kBytes);
  const Handle other = Create(kBytes);
  Map(again, kBytes, other);
  fresh.Named(nullptr, {Write(again, kBytes, 2)});
  PrintDigest("a new one", again, kBytes);
  OK(cuMemUnmap(again, kBytes));
  OK(cuMemRelease(other));
  OK(cuMemAddressFree(again, kBytes));
}

// The limit counts handles, mapped or not, as it counts allocations.
SCENARIO(vmm_memory_ends_at_the_limit) {
  const Card card;
  const CUmemAllocationProp prop = Properties();
  std::vector<Handle> handles;
  Handle handle = 0;
  CUresult result = CUDA_SUCCESS;
  while (handles.size() < 400 && (result = cuMemCreate(&handle, 64 * kMiB, &prop, 0)) == CUDA_SUCCESS)
    handles.push_back(handle);
  EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
  std::fprintf(stderr, "handles %zu\n", handles.size());
  OK(cuMemRelease(handles.back()));
  OK(cuMemCreate(&handles.back(), 64 * kMiB, &prop, 0));
}

// A handle that ended is an error in each call, also where its memory went on as the driver's: mapped twice at once.
SCENARIO(vmm_handles_that_ended) {
  Card card;
  constexpr uint64_t kBytes = 2 * kMiB;
  const auto ask = [&](const char* when, Handle handle) {
    CUmemAllocationProp properties{};
    int file = -1;
    Print(when, cuMemRelease(handle));
    Print("properties", cuMemGetAllocationPropertiesFromHandle(&properties, handle));
    const CUdeviceptr place = Reserve(kBytes);
    Print("map", cuMemMap(place, kBytes, 0, handle, 0));
    Print("export", cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemAddressFree(place, kBytes));
  };
  const Handle unused = Create(kBytes), mapped = Create(kBytes), twice = Create(kBytes);
  OK(cuMemRelease(unused));
  ask("never mapped", unused);
  const CUdeviceptr p = Reserve(3 * kBytes);
  Map(p, kBytes, mapped);
  OK(cuMemUnmap(p, kBytes));
  OK(cuMemRelease(mapped));
  ask("mapped once", mapped);
  Map(p, kBytes, twice);
  Map(p + kBytes, kBytes, twice);
  OK(cuMemUnmap(p, kBytes));
  OK(cuMemUnmap(p + kBytes, kBytes));
  OK(cuMemRelease(twice));
  ask("mapped twice", twice);
  OK(cuMemAddressFree(p, 3 * kBytes));
}

// Handles move at once, whatever blocking streams wait for.
SCENARIO(vmm_contents_move_beside_a_waiting_stream) {
  Card card;
  constexpr uint64_t kBytes = 8 * kMiB;
  CUstream waiting = nullptr;
  OK(cuStreamCreate(&waiting, CU_STREAM_DEFAULT));
  const CUstream working = card.Stream();
  const CUdeviceptr first = Reserve(2 * kBytes), second = Reserve(kBytes);
  const Handle a = Create(kBytes), b = Create(kBytes);
  Map(first, kBytes, a);
  card.Named(working, {Write(first, kBytes, 1)});
  OK(cuStreamSynchronize(working));
  const HostFlag flag;
  flag.MakeWait(waiting);
  OK(cuMemUnmap(first, kBytes));
  Map(first + kBytes, kBytes, a);  // copied
  card.Named(working, {Update(first + kBytes, kBytes, 1)});
  OK(cuStreamSynchronize(working));
  OK(cuMemUnmap(first + kBytes, kBytes));
  Map(first + kBytes, kBytes, b);  // a's contents go to host memory
  card.Named(working, {Write(first + kBytes, kBytes, 2)});
  OK(cuStreamSynchronize(working));
  Map(second, kBytes, a);  // and come back
  Print("waits", cuStreamQuery(waiting));
  flag.Set(1);
  OK(cuStreamSynchronize(waiting));
  PrintBytes("a", second, kBytes);
  PrintBytes("b", first + kBytes, kBytes);
}

// VMM memory belongs to no context: a reset leaves it as it is (an H100).
SCENARIO(vmm_memory_outlives_a_reset) {
  constexpr uint64_t kBytes = 8 * kMiB;
  CUdeviceptr first = 0, second = 0;
  Handle mapped = 0, unmapped = 0;
  OK(cuInit(0));
  CUcontext before = nullptr;
  OK(cuDevicePrimaryCtxRetain(&before, 0));
  OK(cuCtxSetCurrent(before));
  {
    first = Reserve(2 * kBytes);
    second = Reserve(2 * kBytes);
    mapped = Create(kBytes);
    unmapped = Create(kBytes);
    Map(first, kBytes, mapped);
    Map(second, kBytes, unmapped);
    OK(cuMemsetD8(first, 7, kBytes));
    OK(cuMemsetD8(second, 8, kBytes));
    Synchronize();
    OK(cuMemUnmap(second, kBytes));
    OK(cuDevicePrimaryCtxReset(0));
  }
  Card card;
  PrintBytes("mapped", first, kBytes);
  Map(second + kBytes, kBytes, unmapped);
  PrintBytes("unmapped", second + kBytes, kBytes);
  card.Named(nullptr, {Update(first, kBytes, 1)});
  Map(first + kBytes, kBytes, Create(kBytes));
  card.Named(nullptr, {Write(first + kBytes, kBytes, 2)});
  PrintBytes("beside it", first + kBytes, kBytes);
  Synchronize();
  OK(cuMemUnmap(first, 2 * kBytes));
  OK(cuMemUnmap(second + kBytes, kBytes));
  OK(cuMemRelease(mapped));
  OK(cuMemRelease(unmapped));
  OK(cuMemAddressFree(first, 2 * kBytes));
  OK(cuMemAddressFree(second, 2 * kBytes));
}

// Mapped memory is bound by its address.
SCENARIO(vmm_bound_to_a_multicast_object) {
  Card card;
  constexpr uint64_t kBytes = 8 * kMiB;
  const CUdeviceptr at = Reserve(2 * kBytes);
  const Handle handle = Create(kBytes), other = Create(kBytes);
  Map(at, kBytes, handle);
  Map(at + kBytes, kBytes, other);
  card.Named(nullptr, {Write(at, kBytes, 1), Write(at + kBytes, kBytes, 2)});
  Synchronize();
  CUmulticastObjectProp prop{};
  prop.numDevices = 1;
  prop.size = kBytes;
  Handle object = 0;
  OK(cuMulticastCreate(&object, &prop));
  OK(cuMulticastAddDevice(object, 0));
  Print("cuMemAlloc's", cuMulticastBindAddr(object, 0, Alloc(kBytes), kBytes, 0));
  Print("mapped", cuMulticastBindAddr(object, 0, at, kBytes, 0));
  PrintBytes("bound", at, kBytes);
  PrintBytes("beside it", at + kBytes, kBytes);
  OK(cuMulticastUnbind(object, 0, 0, kBytes));
  OK(cuMemUnmap(at, 2 * kBytes));
  OK(cuMemRelease(handle));
  OK(cuMemRelease(other));
  OK(cuMemAddressFree(at, 2 * kBytes));
}
