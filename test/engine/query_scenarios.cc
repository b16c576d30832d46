// Queries about memory: the attributes that a program set, and the pool that it came from.
#include <cstring>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

CUmemoryPool PoolAt(CUdeviceptr at) {
  CUmemoryPool pool = nullptr;
  OK(cuPointerGetAttribute(static_cast<void*>(&pool), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
  return pool;
}

void PrintUse(const char* what, CUmemoryPool pool) {
  cuuint64_t current = 0, high = 0, reserved = 0;
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &current));
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high));
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  EXPECT(reserved >= current);
  std::printf("%s: %llu used, %llu at most\n", what, static_cast<unsigned long long>(current),
              static_cast<unsigned long long>(high));
}

int SyncMemops(CUdeviceptr at) {
  int value = -1;
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
  return value;
}

void PrintRange(const char* what, CUdeviceptr at, size_t bytes) {
  int read_mostly = 7, preferred = 7, prefetched = 7, preferred_type = 7, preferred_id = 7, users[3] = {7, 7, 7};
  void* values[] = {&read_mostly, &preferred, &prefetched, &preferred_type, &preferred_id, users};
  size_t sizes[] = {4, 4, 4, 4, 4, sizeof users};
  CUmem_range_attribute names[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                   CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                   CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                   CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE,
                                   CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID,
                                   CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};
  OK(cuMemRangeGetAttributes(values, sizes, names, 6, at, bytes));
  int alone = 7;
  OK(cuMemRangeGetAttribute(&alone, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, bytes));
  EXPECT(alone == prefetched);
  std::printf("%s: read-mostly %d, prefers %d (%d, %d), prefetched to %d, used by %d %d %d\n", what, read_mostly,
              preferred, preferred_type, preferred_id, prefetched, users[0], users[1], users[2]);
}

constexpr CUmemLocation kHost{CU_MEM_LOCATION_TYPE_HOST, 0};
constexpr CUmemLocation kFirst{CU_MEM_LOCATION_TYPE_DEVICE, 0};

}  // namespace

SCENARIO(pools_know_their_memory) {
  Card card;
  CUstream s = card.Stream();
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool own = nullptr, ordinary = nullptr, exported = nullptr;
  OK(cuMemPoolCreate(&own, &props));
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  OK(cuMemPoolCreate(&exported, &props));
  OK(cuDeviceGetDefaultMemPool(&ordinary, 0));
  CUdeviceptr of_own = 0, of_ordinary = 0, of_exported = 0, of_current = 0;
  OK(cuMemAllocFromPoolAsync(&of_own, 64 * kMiB + 100, own, s));
  OK(cuMemAllocFromPoolAsync(&of_exported, 16 * kMiB, exported, s));
  OK(cuMemAllocAsync(&of_ordinary, 32 * kMiB, s));
  OK(cuDeviceSetMemPool(0, own));
  OK(cuMemAllocAsync(&of_current, kMiB, s));
  const CUdeviceptr plain = Alloc(kMiB), managed = card.Managed(kMiB);
  OK(cuStreamSynchronize(s));
  EXPECT(PoolAt(of_own) == own && PoolAt(of_own + kMiB) == own && PoolAt(of_current) == own);
  EXPECT(PoolAt(of_ordinary) == ordinary && PoolAt(of_exported) == exported);
  EXPECT(PoolAt(plain) == nullptr && PoolAt(managed) == nullptr);
  PrintUse("own", own);
  PrintUse("ordinary", ordinary);
  PrintUse("exported", exported);
  OK(cuMemFreeAsync(of_own, s));
  OK(cuMemFree(of_ordinary));
  OK(cuStreamSynchronize(s));
  PrintUse("own", own);
  PrintUse("ordinary", ordinary);
  cuuint64_t zero = 0;
  OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  PrintUse("own", own);
  OK(cuMemPoolDestroy(own));  // it ends with its last block
  OK(cuMemFreeAsync(of_current, s));
  OK(cuMemFreeAsync(of_exported, s));
  OK(cuStreamSynchronize(s));
  PrintUse("exported", exported);
}

SCENARIO(sync_memops_are_remembered) {
  Card card;
  const CUdeviceptr one = Alloc(8 * kMiB), other = Alloc(8 * kMiB), small = Alloc(512);
  for (const CUdeviceptr at : {one, other, small}) EXPECT(SyncMemops(at) == 0);
  const unsigned yes = 1, no = 0;
  OK(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one));
  OK(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, small));
  EXPECT(SyncMemops(one) == 1 && SyncMemops(one + kMiB) == 1 && SyncMemops(small) == 1 && SyncMemops(other) == 0);
  EXPECT(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_BUFFER_ID, one) == CUDA_ERROR_INVALID_VALUE);
  OK(cuPointerSetAttribute(&no, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, small));
  EXPECT(SyncMemops(small) == 0);
  OK(cuMemFree(one));
  EXPECT(SyncMemops(Alloc(8 * kMiB)) == 0);
}

SCENARIO(ranges_are_as_the_program_said) {
  Card card;
  CUstream s = card.Stream();
  constexpr uint64_t kBytes = 64 * kMiB, kHalf = kBytes / 2;
  const CUdeviceptr device = Alloc(kBytes), managed = card.Managed(kBytes), other = Alloc(512 * kMiB);
  int value = 0;
  std::printf("device memory: %d\n",
              cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, device, kBytes));
  PrintRange("at first", managed, kBytes);
  card.Named(s, {Write(managed, kBytes, 1)});
  OK(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kFirst));
  OK(cuMemAdvise(managed, kHalf, CU_MEM_ADVISE_SET_READ_MOSTLY, kFirst));
  OK(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, kHost));
  OK(cuMemAdvise(managed + kHalf, kHalf, CU_MEM_ADVISE_SET_ACCESSED_BY, kFirst));
  OK(cuMemAdvise(managed, kHalf, CU_MEM_ADVISE_UNSET_READ_MOSTLY, kFirst));
  OK(cuMemAdvise(managed + kHalf, kHalf, CU_MEM_ADVISE_SET_READ_MOSTLY, kFirst));
  PrintRange("advised", managed, kBytes);
  PrintRange("advised, first half", managed, kHalf);
  PrintRange("advised, second half", managed + kHalf, kHalf);
  OK(cuMemPrefetchAsync(managed, kBytes, kFirst, 0, s));
  OK(cuStreamSynchronize(s));
  // The engine's own transfers are no prefetches of the program's.
  for (int i = 0; i < 4; ++i) {
    card.Named(s, {Update(other, 512 * kMiB, 2)});
    card.Named(s, {Read(managed, kBytes, 1)});
  }
  card.Named(s, {Update(other, 512 * kMiB, 2)});
  OK(cuStreamSynchronize(s));
  PrintRange("prefetched", managed, kBytes);
  OK(cuMemPrefetchAsync(managed + kHalf, kHalf, kHost, 0, s));
  OK(cuStreamSynchronize(s));
  PrintRange("in two places", managed, kBytes);
  PrintRange("on the host", managed + kHalf, kHalf);
  OK(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, kFirst));
  OK(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_UNSET_ACCESSED_BY, kHost));
  PrintRange("withdrawn", managed, kBytes);
  OK(cuMemFree(managed));
  PrintRange("another", card.Managed(kBytes), kBytes);
  EXPECT(cuMemRangeGetAttribute(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, other, kMiB) ==
         CUDA_ERROR_INVALID_VALUE);
}

// Peers map each other's memory: the engine's advice for that is none of the program's.
SCENARIO(ranges_beside_a_peer) {
  Card first(0), second(1);
  OK(cuCtxSetCurrent(second.context));
  OK(cuCtxEnablePeerAccess(first.context, 0));
  OK(cuCtxSetCurrent(first.context));
  const CUdeviceptr managed = first.Managed(8 * kMiB);
  PrintRange("at first", managed, 8 * kMiB);
  OK(cuMemAdvise(managed, 8 * kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, {CU_MEM_LOCATION_TYPE_DEVICE, 1}));
  PrintRange("advised", managed, 8 * kMiB);
}

// No query knows a freed address, whoever owns the memory around it.
SCENARIO(freed_pointers_are_unknown) {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr ordered = 0;
  const CUdeviceptr neighbours[] = {Alloc(8 * kMiB), Alloc(512), card.Managed(8 * kMiB)};
  const CUdeviceptr large = Alloc(8 * kMiB), small = Alloc(512), managed = card.Managed(8 * kMiB);
  OK(cuMemAllocAsync(&ordered, 8 * kMiB, s));
  for (const CUdeviceptr at : {large, small, managed, ordered}) OK(cuMemFree(at));
  for (const CUdeviceptr at : {large, large + 4096, small, managed, ordered}) {
    unsigned type = 9, managed_bytes = 9;
    int ordinal = 9;
    CUdeviceptr start = 9;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    void* values[] = {&type, &ordinal, &managed_bytes, &start};
    const int one = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
    const int all = cuPointerGetAttributes(4, names, values, at);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    const int range = cuMemGetAddressRange(&base, &bytes, at);
    int advice = 0;
    const int asked = cuMemRangeGetAttribute(&advice, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, 256);
    std::printf("one %d, all %d: %u %d %u %llu, range %d, advice %d\n", one, all, type, ordinal, managed_bytes,
                static_cast<unsigned long long>(start), range, asked);
  }
  for (const CUdeviceptr at : neighbours) {
    CUdeviceptr start = 0;
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 100));
    EXPECT(start == at);
  }
}

// What reaches past an allocation, or lies in one that was freed, the driver refuses, whatever lies there in the arena.
SCENARIO(calls_past_an_allocation) {
  Card card;
  CUstream s = card.Stream();
  constexpr uint64_t kBytes = 64 * kMiB;
  CUdeviceptr blocks[4] = {card.Managed(kBytes), Alloc(kBytes), card.Managed(kBytes), Alloc(kBytes)};
  for (const CUdeviceptr block : blocks) OK(cuMemsetD8Async(block, 3, kBytes, s));
  OK(cuStreamSynchronize(s));
  for (const CUdeviceptr block : blocks) {
    size_t size = 8 * kMiB, none = 0;
    CUdeviceptr at = block + kBytes - 4 * kMiB;
    CUmemLocation to = kFirst;
    std::printf("advice %d %d", cuMemAdvise(block, 2 * kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, kFirst),
                cuMemAdvise(at, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
    std::printf(" prefetch %d %d", cuMemPrefetchAsync(at, size, kFirst, 0, s),
                cuMemPrefetchAsync(at, size, kHost, 0, s));
    std::printf(" batch %d", cuMemPrefetchBatchAsync(&at, &size, 1, &to, &none, 1, 0, s));
    std::printf(" discard %d\n", cuMemDiscardBatchAsync(&at, &size, 1, 0, s));
  }
  OK(cuMemFree(blocks[2]));
  const int on = 1;
  for (const CUdeviceptr block : blocks)
    std::printf("sync %d\n", cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block + kMiB));
  // Only whole allocations of managed memory are attached.
  for (const CUdeviceptr block : blocks)
    std::printf("attach %d %d %d %d\n", cuStreamAttachMemAsync(s, block, 0, CU_MEM_ATTACH_SINGLE),
                cuStreamAttachMemAsync(s, block, kBytes, CU_MEM_ATTACH_GLOBAL),
                cuStreamAttachMemAsync(s, block, kBytes / 2, CU_MEM_ATTACH_GLOBAL),
                cuStreamAttachMemAsync(s, block + kMiB, 0, CU_MEM_ATTACH_GLOBAL));
  CUdeviceptr ordered = 0;
  OK(cuMemAllocAsync(&ordered, kBytes, s));
  OK(cuMemFreeAsync(ordered, s));
  std::printf("freed %d %d\n", cuMemFreeAsync(ordered, s), cuMemFree(ordered));
  PrintDigest("next", blocks[3], kBytes);
}

// Mappings, contexts and ranges of each kind of memory, at its begin, in its middle and at its last byte.
SCENARIO(attributes_of_each_memory) {
  Card card;
  CUstream s = card.Stream();
  struct Memory {
    const char* name;
    CUdeviceptr at;
    uint64_t bytes;
  };
  std::vector<Memory> all = {{"small", Alloc(1000), 1000}, {"large", Alloc(5 * kMiB + 100), 5 * kMiB + 100}};
  all.push_back({"managed", card.Managed(3 * kMiB + 10), 3 * kMiB + 10});
  CUdeviceptr ordered = 0;
  for (const uint64_t bytes : {uint64_t{300}, 4 * kMiB + 5}) {
    OK(cuMemAllocAsync(&ordered, bytes, s));
    all.push_back({"ordered", ordered, bytes});
  }
  OK(cuStreamSynchronize(s));
  for (const Memory& one : all) {
    for (const uint64_t offset : {uint64_t{0}, one.bytes / 2, one.bytes - 1}) {
      const CUdeviceptr at = one.at + offset;
      CUdeviceptr mapping = 0;
      size_t size = 0;
      CUcontext context = nullptr;
      const int results[] = {cuPointerGetAttribute(&mapping, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at),
                             cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at),
                             cuPointerGetAttribute(static_cast<void*>(&context), CU_POINTER_ATTRIBUTE_CONTEXT, at)};
      std::printf("%s %d %d %d: begins at it %d, %zu bytes, this context %d\n", one.name, results[0], results[1],
                  results[2], mapping == one.at, size, context == card.context);
      int value = 0;
      std::printf("range %d, past its end %d\n",
                  cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, one.bytes - offset),
                  cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, one.bytes + 1));
    }
  }
  // A stream that is gone.
  const CUdeviceptr managed = all[2].at;
  CUstream gone = card.Stream();
  OK(cuStreamDestroy(gone));
  CUdeviceptr pointer = managed;
  size_t bytes = kMiB;
  std::printf("gone: attach %d, discard %d\n", cuStreamAttachMemAsync(gone, managed, 0, CU_MEM_ATTACH_GLOBAL),
              cuMemDiscardBatchAsync(&pointer, &bytes, 1, 0, gone));
}
