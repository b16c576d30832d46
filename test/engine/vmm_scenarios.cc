// VMM memory: reservations, handles and mappings as PyTorch's expandable segments, XLA and sleep modes use them.
#include <array>
#include <vector>

#include "test/engine/report.h"
#include "test/engine/scenario.h"

using namespace scenario;

namespace {

using Handle = CUmemGenericAllocationHandle;

CUmemAllocationProp Properties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // as PyTorch and XLA ask for
  return prop;
}
Handle Create(uint64_t bytes) {
  const CUmemAllocationProp prop = Properties();
  Handle handle = 0;
  OK(cuMemCreate(&handle, bytes, &prop, 0));
  return handle;
}
CUdeviceptr Reserve(uint64_t bytes) {
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  return at;
}
void Allow(CUdeviceptr at, uint64_t bytes) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(at, bytes, &access, 1));
}
void Map(CUdeviceptr at, uint64_t bytes, Handle handle) {
  OK(cuMemMap(at, bytes, 0, handle, 0));
  Allow(at, bytes);
}
void Synchronize() { OK(cuCtxSynchronize()); }
// Of the bytes themselves: the simulated driver's digests differ for a copy that went over the host.
void PrintBytes(const char* what, CUdeviceptr at, uint64_t bytes) {
  Synchronize();
  std::vector<unsigned char> copy(bytes);
  OK(cuMemcpyDtoH(copy.data(), at, bytes));
  uint64_t hash = 14695981039346656037U;
  for (const unsigned char byte : copy) hash = (hash ^ byte) * 1099511628211U;
  Print(what, hash);
}

// PyTorch's expandable segment: one reservation that is larger than the budget, and handles of 20 MiB.
class Segment {
 public:
  static constexpr uint64_t kPart = 20 * kMiB;
  explicit Segment(uint64_t bytes) : base(Reserve(bytes)), bytes_(bytes), handles_(bytes / kPart) {}
  void Grow(size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) handles_.at(i) = Create(kPart);
    for (size_t i = from; i < to; ++i) OK(cuMemMap(base + i * kPart, kPart, 0, handles_.at(i), 0));
    Allow(base + from * kPart, (to - from) * kPart);
  }
  void Shrink(size_t from, size_t to) {
    Synchronize();
    for (size_t i = from; i < to; ++i) {
      OK(cuMemUnmap(base + i * kPart, kPart));
      OK(cuMemRelease(handles_.at(i)));
      handles_.at(i) = 0;
    }
  }
  void Free() {
    for (size_t i = 0; i < handles_.size(); ++i) {
      if (handles_[i] != 0) Shrink(i, i + 1);
    }
    OK(cuMemAddressFree(base, bytes_));
  }
  // Touches of a block part by part: the simulated driver's digests depend on where its allocations end. Only the
  // block's first byte is named.
  void Use(Card* card, CUdeviceptr block, uint64_t bytes, unsigned access, uint32_t object) const {
    std::vector<simgpu_touch> touches;
    for (CUdeviceptr at = block; at < block + bytes;) {
      const CUdeviceptr end = std::min(block + bytes, base + ((at - base) / kPart + 1) * kPart);
      touches.push_back({at, end - at, access, object});
      at = end;
    }
    simgpu_next_launch(touches.data(), touches.size(), 50'000, 0);
    std::array<uint64_t, 8> words{block};
    std::array<void*, 8> params{};
    for (size_t i = 0; i < 8; ++i) params.at(i) = &words.at(i);
    OK(cuLaunchKernel(card->eight, 1, 1, 1, 1, 1, 1, 0, nullptr, params.data(), nullptr));
  }
  void Print(CUdeviceptr block, uint64_t bytes) const {
    for (CUdeviceptr at = block; at < block + bytes; at += kPart / 2) PrintDigest("part", at, kPart / 2);
  }
  const CUdeviceptr base;

 private:
  const uint64_t bytes_;
  std::vector<Handle> handles_;
};

}  // namespace

// Blocks that reach over several handles, a segment that shrinks in the middle and grows again, and reports of its
// blocks as PyTorch makes them.
SCENARIO(vmm_expandable_segment) {
  constexpr unsigned kWrite = SIMGPU_WRITE, kUpdate = SIMGPU_READ | SIMGPU_WRITE;
  Card card;
  constexpr uint64_t kBlock = 50 * kMiB;
  for (const bool reports : {false, true}) {
    Segment segment(9000 * kMiB);
    segment.Grow(0, 40);
    const auto block = [&](size_t i) { return segment.base + i * kBlock; };
    const auto use = [&](size_t i, unsigned access, uint32_t object) {
      segment.Use(&card, block(i), kBlock, access, object);
    };
    for (size_t i = 0; i < 16; ++i) {
      if (reports) Report(block(i), kBlock);
      use(i, kWrite, i + 1);
    }
    for (int round = 0; round < 4; ++round) {
      for (size_t i = 0; i < 16; ++i) use(i, kUpdate, i + 1);
    }
    // Blocks 6 to 9 end: handles 15 to 24 are given back, and come again.
    for (size_t i = 6; reports && i < 10; ++i) Report(block(i), -static_cast<long>(kBlock));
    segment.Shrink(15, 25);
    for (size_t i = 0; i < 16; ++i) {
      if (i < 6 || i >= 10) use(i, kUpdate, i + 1);
    }
    segment.Grow(15, 25);
    for (size_t i = 6; i < 10; ++i) {
      if (reports) Report(block(i), kBlock);
      use(i, kWrite, 100 + i);
    }
    for (size_t i = 0; i < 16; ++i) segment.Print(block(i), kBlock);
    for (size_t i = 0; reports && i < 16; ++i) Report(block(i), -static_cast<long>(kBlock));
    segment.Free();
  }
}

// XLA: memory is created before its address is reserved, and everything is freed in one go.
SCENARIO(vmm_created_before_reserved) {
  Card card;
  constexpr uint64_t kBytes = 64 * kMiB;
  struct Block {
    Handle handle;
    CUdeviceptr at;
    uint64_t object;
  };
  uint64_t objects = 0;
  std::vector<Block> blocks;
  const auto add = [&] {
    Block block{};
    block.handle = Create(kBytes);
    block.at = Reserve(kBytes);
    Map(block.at, kBytes, block.handle);
    block.object = ++objects;
    card.Named(nullptr, {Write(block.at, kBytes, block.object)});
    blocks.push_back(block);
  };
  const auto remove = [&] {
    Synchronize();
    OK(cuMemUnmap(blocks.back().at, kBytes));
    OK(cuMemRelease(blocks.back().handle));
    OK(cuMemAddressFree(blocks.back().at, kBytes));
    blocks.pop_back();
  };
  for (int i = 0; i < 12; ++i) add();
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i + 1 < blocks.size(); ++i)
      card.Named(nullptr, {Read(blocks[i].at, kBytes), Update(blocks[i + 1].at, kBytes, blocks[i + 1].object)}, 200'000);
    remove();
    remove();
    add();
  }
  for (const Block& block : blocks) PrintDigest("block", block.at, kBytes);
  while (!blocks.empty()) remove();
}

// A sleep mode below an allocator that reports its blocks: contents go to the host by copies, the memory is unmapped and
// released, and the same addresses get new memory. The blocks stay.
SCENARIO(vmm_sleep_and_wake) {
  Card card;
  constexpr uint64_t kBytes = 12 * kMiB;
  constexpr size_t kCount = 20;
  std::vector<CUdeviceptr> at(kCount);
  std::vector<Handle> handles(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    at[i] = Reserve(kBytes);
    handles[i] = Create(kBytes);
    Map(at[i], kBytes, handles[i]);
    Report(at[i], 8 * kMiB);
    Report(at[i] + 8 * kMiB, 4 * kMiB);
    card.Named(nullptr, {Write(at[i], 8 * kMiB, i + 1), Write(at[i] + 8 * kMiB, 4 * kMiB, i + 50)});
  }
  std::vector<std::vector<char>> saved(kCount, std::vector<char>(kBytes));
  for (int round = 0; round < 2; ++round) {
    Synchronize();
    for (size_t i = 0; i < kCount; ++i) {
      OK(cuMemcpyDtoH(saved[i].data(), at[i], kBytes));
      OK(cuMemUnmap(at[i], kBytes));
      OK(cuMemRelease(handles[i]));
    }
    CUdeviceptr other = Alloc(300 * kMiB);
    card.Named(nullptr, {Write(other, 300 * kMiB, 9)});
    Synchronize();
    OK(cuMemFree(other));
    for (size_t i = 0; i < kCount; ++i) {
      handles[i] = Create(kBytes);
      Map(at[i], kBytes, handles[i]);
      OK(cuMemcpyHtoD(at[i], saved[i].data(), kBytes));
    }
    // Other memory takes the budget: a woken block that is held to be free would be discarded.
    other = Alloc(240 * kMiB);
    for (int pass = 0; pass < 3; ++pass) {
      card.Named(nullptr, {Update(other, 240 * kMiB, 9)}, 400'000);
      for (size_t i = 0; i < kCount; ++i) card.Named(nullptr, {Update(at[i], 8 * kMiB, i + 1)}, 100'000);
    }
    Synchronize();
    OK(cuMemFree(other));
  }
  for (size_t i = 0; i < kCount; ++i) {
    PrintDigest("first", at[i], 8 * kMiB);
    PrintDigest("second", at[i] + 8 * kMiB, 4 * kMiB);
  }
}

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
  Print("unmapped beyond", cuMemUnmap(at, 2 * kBytes));
  Print("freed as another size", cuMemAddressFree(at, kBytes));
  OK(cuMemUnmap(at, kBytes));
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
  Print("advised", cuMemAdvise(at, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}));
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
  Print("start of nothing", value(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR));
  for (const Handle handle : {a, b}) OK(cuMemRelease(handle));
  OK(cuMemAddressFree(at, 4 * kBytes));
}

// What managed memory cannot do is refused, and nothing is lost by it.
SCENARIO(vmm_refusals) {
  Card card;
  constexpr uint64_t kBytes = 6 * kMiB;
  const CUdeviceptr at = Reserve(2 * kBytes);
  const Handle handle = Create(kBytes);
  Map(at, kBytes, handle);
  card.Named(nullptr, {Write(at, kBytes, 1)});
  int descriptor = -1;
  const bool is_managed = Budget() != 0 && std::getenv("SLUICE_VMM") == nullptr;
  if (is_managed) {
    EXPECT(cuMemMap(at + kBytes, kBytes, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
           CUDA_ERROR_NOT_SUPPORTED);
  }
  PrintDigest("kept", at, kBytes);
  // A handle that is exported before it is mapped is the driver's own. Its reservation, still empty, becomes so too.
  const Handle exported = Create(kBytes);
  cuMemExportToShareableHandle(&descriptor, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  const CUdeviceptr own = Reserve(5 * kBytes);
  Map(own, kBytes, exported);
  card.Named(nullptr, {Write(own, kBytes, 2)});
  PrintDigest("exported", own, kBytes);
  if (Budget() != 0) {
    EXPECT(card.Stats().unmanaged_bytes >= kBytes);
    EXPECT(is_managed == (simgpu_resident_bytes(at, kBytes) == 0 || card.Stats().managed_requested_bytes >= kBytes));
  }
  if (is_managed) {
    // Contents that are managed memory do not become the driver's.
    Synchronize();
    OK(cuMemUnmap(at, kBytes));
    EXPECT(cuMemMap(own + kBytes, kBytes, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
    Map(at, kBytes, handle);
  }
  PrintDigest("still kept", at, kBytes);
  // A handle that was never mapped takes the form of its reservation.
  const Handle fresh = Create(kBytes);
  Map(own + 2 * kBytes, kBytes, fresh);
  card.Named(nullptr, {Write(own + 2 * kBytes, kBytes, 3)});
  PrintDigest("fresh", own + 2 * kBytes, kBytes);
  Synchronize();
  OK(cuMemUnmap(own, kBytes));
  OK(cuMemUnmap(own + 2 * kBytes, kBytes));
  OK(cuMemUnmap(at, kBytes));
  for (const Handle each : {handle, exported, fresh}) OK(cuMemRelease(each));
  OK(cuMemAddressFree(at, 2 * kBytes));
  OK(cuMemAddressFree(own, 5 * kBytes));
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
    OK(cuDevicePrimaryCtxReset(0));
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

// Memory that is freed is used again: nothing grows with the number of segments.
SCENARIO(vmm_churn) {
  Card card;
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  uint64_t requested_early = 0;
  std::mt19937_64 random(5);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bytes = (1 + random() % 24) * 2 * kMiB;
    const CUdeviceptr at = Reserve(bytes);
    const Handle handle = Create(bytes);
    Map(at, bytes, handle);
    card.Named(nullptr, {Write(at, bytes, i)});
    Synchronize();
    if (i % 100 == 0) Print("digest", simgpu_digest(at, bytes));
    OK(cuMemUnmap(at, bytes));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(at, bytes));
    if (i == 200) requested_early = card.Stats().managed_requested_bytes;
  }
  OK(cuMemGetInfo(&after, &total));
  EXPECT(before == after);
  EXPECT(card.Stats().managed_requested_bytes <= requested_early + 64 * kMiB);
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

// What a graph captured stays, whatever its allocator reports.
SCENARIO(vmm_captured) {
  Card card;
  constexpr uint64_t kBytes = 20 * kMiB;
  Segment segment(1000 * kMiB);
  segment.Grow(0, 30);
  const CUstream stream = card.Stream();
  const auto block = [&](size_t i) { return segment.base + i * kBytes; };
  for (size_t i = 0; i < 30; ++i) {
    Report(block(i), kBytes);
    card.Named(stream, {Write(block(i), kBytes, i + 1)});
  }
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  card.Named(stream, {Read(block(0), kBytes), Update(block(1), kBytes, 2)});
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (size_t i = 0; i < 2; ++i) Report(block(i), -static_cast<long>(kBytes));
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 2; i < 30; ++i) card.Named(stream, {Update(block(i), kBytes, i + 1)}, 100'000);
    OK(cuGraphLaunch(executable, stream));
  }
  OK(cuStreamSynchronize(stream));
  for (size_t i = 0; i < 30; ++i) PrintDigest("block", block(i), kBytes);
}
