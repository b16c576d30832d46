// Calls that the driver refuses, or does not wait in, whatever memory the engine has there.
#include <array>
#include <cstring>
#include <vector>

#include "test/engine/scenario.h"
#include "test/engine/vmm.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 3 * kMiB;

// The results of copies and fills that touch so many bytes from the address on.
void PrintCopies(const char* what, CUdeviceptr at, uint64_t bytes, CUdeviceptr other, CUstream s) {
  std::vector<char> host(bytes, 5);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = host.data();
  rows.srcPitch = bytes / 2;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = at;
  rows.dstPitch = bytes / 2;
  rows.WidthInBytes = bytes / 2;
  rows.Height = 2;
  const std::array<int, 13> results = {cuMemsetD8(at, 1, bytes),
                                       cuMemsetD32Async(at, 2, bytes / 4, s),
                                       cuMemsetD2D8(at, bytes / 2, 3, bytes / 2, 2),
                                       cuMemcpyHtoD(at, host.data(), bytes),
                                       cuMemcpyHtoDAsync(at, host.data(), bytes, s),
                                       cuMemcpyDtoH(host.data(), at, bytes),
                                       cuMemcpyDtoHAsync(host.data(), at, bytes, s),
                                       cuMemcpyDtoD(at, other, bytes),
                                       cuMemcpyDtoDAsync(other, at, bytes, s),
                                       cuMemcpy(other, at, bytes),
                                       cuMemcpyAsync(at, other, bytes, s),
                                       cuMemcpy2D(&rows),
                                       cuMemcpy2DAsync(&rows, s)};
  OK(cuStreamSynchronize(s));
  std::printf("%s:", what);
  for (const int result : results) std::printf(" %d", result);
  std::printf("\n");
}

}  // namespace

// The bytes behind a block are another one's here.
SCENARIO(copies_past_their_block) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr block = Alloc(kBlock), next = Alloc(kBlock), small = Alloc(1024), managed = card.Managed(kBlock);
  const CUdeviceptr other = Alloc(2 * kBlock);
  OK(cuMemsetD8(next, 7, kBlock));
  OK(cuMemsetD8(other, 7, 2 * kBlock));
  PrintCopies("whole", block, kBlock, other, s);
  PrintCopies("past its end", block, kBlock + 1024, other, s);
  PrintCopies("its last byte and more", block + kBlock - 1024, 2048, other, s);
  PrintCopies("small, whole", small, 1024, other, s);
  PrintCopies("small, past its end", small, 4096, other, s);
  PrintCopies("managed, whole", managed, kBlock, other, s);
  PrintCopies("managed, past its end", managed + kMiB, kBlock, other, s);
  // Nothing is copied where the width or the height is nothing.
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = other;
  rows.dstDevice = block;
  rows.srcPitch = rows.dstPitch = kMiB;
  rows.Height = 6;
  std::printf("no width %d, ", cuMemcpy2D(&rows));
  rows.WidthInBytes = 16;
  rows.Height = 3;
  std::printf("three rows %d, ", cuMemcpy2D(&rows));
  rows.Height = 4;
  std::printf("four rows %d\n", cuMemcpy2D(&rows));
  vmm::PrintBytes("the next block", next, kBlock);
  OK(cuMemFree(block));
  OK(cuMemFree(small));
  CUstreamBatchMemOpParams write{};
  write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = small;
  std::printf("values in freed blocks %d %d %d %d\n", cuStreamWriteValue32(s, block, 1, 0),
              cuStreamWriteValue32(s, small, 1, 0), cuStreamWaitValue32(s, small, 0, CU_STREAM_WAIT_VALUE_GEQ),
              cuStreamBatchMemOp(s, 1, &write, 0));
  PrintCopies("freed", block, kMiB, other, s);
  PrintCopies("small, freed", small, 512, other, s);
}

// Batches are refused whole, and the first copy that the driver would refuse is named.
SCENARIO(batch_copies_past_their_block) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr block = Alloc(kBlock), next = Alloc(kBlock), small = Alloc(1024), freed = Alloc(kBlock);
  for (const CUdeviceptr each : {block, next}) OK(cuMemsetD8(each, 7, kBlock));
  OK(cuMemsetD8(small, 7, 1024));
  OK(cuCtxSynchronize());
  OK(cuMemFree(freed));
  // The form of CUDA 12.8, which says which copy failed.
  void* entry = nullptr;
  OK(cuGetProcAddress("cuMemcpyBatchAsync", &entry, 12080, 0, nullptr));
  const auto copies = reinterpret_cast<CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                                                    size_t*, size_t, size_t*, CUstream)>(entry);
  const auto copy = [&](const char* what, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CUdeviceptr tos[] = {next, to}, froms[] = {block, from};
    size_t sizes[] = {16, bytes}, index = 0, failed = 77;
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    const int first = copies(tos, froms, sizes, 2, &attributes, &index, 1, &failed, s);
    const int second = cuMemcpyBatchAsync(tos, froms, sizes, 2, &attributes, &index, 1, s);
    CUDA_MEMCPY3D_BATCH_OP op{};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = from;
    op.dst.op.ptr.ptr = to;
    op.extent = {bytes / 4, 2, 2};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    const int boxes = cuMemcpy3DBatchAsync(1, &op, 0, s);
    OK(cuStreamSynchronize(s));
    std::printf("%s: %d at %zd, %d, %d\n", what, first, static_cast<ssize_t>(failed), second, boxes);
  };
  copy("whole", next, block, kBlock);
  copy("from past its end", next, block + 512, kBlock);
  copy("to past its end", block + 4096, next, kBlock - 2048);
  copy("small, whole", small, block, 1024);
  copy("small, past its end", small, block, 2048);
  copy("freed", next, freed, 4096);
  copy("to freed", freed, block, 4096);
  vmm::PrintBytes("next", next, kBlock);
  vmm::PrintBytes("small", small, 1024);
  // Beside an array lengths count its elements, of eight bytes here.
  CUDA_ARRAY3D_DESCRIPTOR shape{512, 768, 0, CU_AD_FORMAT_UNSIGNED_INT32, 2, 0};
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  for (const size_t rows : {768, 769}) {
    CUDA_MEMCPY3D_BATCH_OP op{};
    op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = block + (rows == 768 ? 0 : 4096);
    op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op.dst.op.array.array = array;
    op.extent = {512, 768, 1};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::printf("to an array %d, ", cuMemcpy3DBatchAsync(1, &op, 0, s));
    std::swap(op.src, op.dst);
    op.dst.op.ptr.ptr = next + (rows == 768 ? 0 : 8);
    std::printf("from it %d\n", cuMemcpy3DBatchAsync(1, &op, 0, s));
    OK(cuStreamSynchronize(s));
  }
  vmm::PrintBytes("next", next, kBlock);
  OK(cuArrayDestroy(array));
}

// A reservation has a range, by cuda.h. Where nothing is mapped, there is no memory.
SCENARIO(reserved_addresses_hold_nothing) {
  using namespace scenario::vmm;  // NOLINT(google-build-using-namespace)
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr at = Reserve(8 * kBlock - 4 * kMiB), other = Alloc(4 * kBlock);
  const uint64_t bytes = 8 * kBlock - 4 * kMiB;
  OK(cuMemsetD8(other, 7, 4 * kBlock));
  const auto ask = [&](const char* when, CUdeviceptr where) {
    std::printf("%s\n", when);
    PrintCopies("copies", where, 4096, other, s);
    unsigned type = 9, mapped = 9;
    CUdeviceptr start = 9;
    size_t size = 9;
    const int one[] = {cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, where),
                       cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, where),
                       cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, where),
                       cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, where)};
    std::printf("one by one %d %d %d %d: %u %d %zu %u\n", one[0], one[1], one[2], one[3], type, start == at, size,
                mapped);
    type = mapped = 9;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED};
    void* values[] = {&type, &start, &size, &mapped};
    const int all = cuPointerGetAttributes(4, names, values, where);
    std::printf("all %d: %u %d %zu %u\n", all, type, start == at, size, mapped);
    const CUmemLocation gpu{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const unsigned on = 1;
    int value = 0;
    size_t page = 4096;
    CUdeviceptr base = 0;
    std::printf("refused %d %d %d %d %d %d %d\n", cuMemAdvise(where, page, CU_MEM_ADVISE_SET_READ_MOSTLY, gpu),
                cuMemPrefetchAsync(where, page, gpu, 0, s), cuStreamAttachMemAsync(s, where, 0, CU_MEM_ATTACH_GLOBAL),
                cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, where, page),
                cuMemDiscardBatchAsync(&where, &page, 1, 0, s), cuMemGetAddressRange(&base, nullptr, where),
                cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, where));
  };
  ask("never mapped", at + kMiB);
  const Handle handle = Create(8 * kMiB);
  Map(at + 4 * kMiB, 8 * kMiB, handle);
  ask("beside a mapping", at + kMiB);
  PrintCopies("from the mapping on", at + 4 * kMiB, 9 * kMiB, other, s);
  PrintCopies("to the mapping", at + 3 * kMiB, 2 * kMiB, other, s);
  OK(cuMemUnmap(at + 4 * kMiB, 8 * kMiB));
  ask("mapped once", at + 5 * kMiB);
  OK(cuMemRelease(handle));
  OK(cuMemAddressFree(at, bytes));
  unsigned type = 9;
  std::printf("given back %d %d\n", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
              cuMemsetD8(at, 1, 4096));
}

SCENARIO(pool_marks_are_reset_alone) {
  Card card;
  CUstream s = card.Stream();
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  OK(cuMemPoolCreate(&pool, &props));
  const auto print = [&](const char* when) {
    cuuint64_t used = 0, reserved = 0;
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &reserved));
    std::printf("%s: %llu used, %llu reserved\n", when, static_cast<unsigned long long>(used),
                static_cast<unsigned long long>(reserved));
  };
  CUdeviceptr large = 0, small = 0;
  OK(cuMemAllocFromPoolAsync(&large, 10 * kMiB, pool, s));
  OK(cuMemAllocFromPoolAsync(&small, 6 * kMiB, pool, s));
  OK(cuMemFreeAsync(large, s));
  OK(cuStreamSynchronize(s));
  print("freed");
  cuuint64_t zero = 0;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  print("one reset");
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
  print("both reset");
  OK(cuMemAllocFromPoolAsync(&large, 4 * kMiB, pool, s));
  print("used again");
}

// cuMemFree of a pool's memory takes the GPU's work for done: a stream may wait for a later call of the thread.
SCENARIO(pool_memory_is_freed_without_a_wait) {
  Card card;
  CUstream s = card.Stream(), waiting = card.Stream();
  std::vector<CUdeviceptr> blocks(8);
  for (CUdeviceptr& block : blocks) OK(cuMemAllocAsync(&block, 80 * kMiB, s));
  for (const CUdeviceptr block : blocks) card.Named(s, {Write(block, 80 * kMiB)});
  OK(cuStreamSynchronize(s));
  void* page = nullptr;
  CUdeviceptr word = 0;
  OK(cuMemHostAlloc(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&word, page, 0));
  const CUdeviceptr out = Alloc(64);
  OK(cuStreamWaitValue32(waiting, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuMemsetD8Async(out, 1, 64, waiting));
  for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
  *static_cast<volatile unsigned*>(page) = 1;
  OK(cuStreamSynchronize(waiting));
  PrintDigest("out", out, 64);
}

// Each call answers the error that ended the context, the engine's own calls too, and none waits for it to go.
SCENARIO(calls_after_a_lasting_error) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr block = Alloc(20 * kMiB), freed = Alloc(20 * kMiB), small = Alloc(64), managed = card.Managed(kMiB);
  CUdeviceptr ordered = 0, at = 0;
  OK(cuMemAllocAsync(&ordered, 8 * kMiB, s));
  card.Named(s, {Write(block, 20 * kMiB), Write(freed, 20 * kMiB)});
  OK(cuMemFree(freed));
  const simgpu_touch touch = Update(block, 4096);
  simgpu_next_launch(&touch, 1, 100'000, SIMGPU_ILLEGAL_ADDRESS);
  uint64_t nothing = 0;
  void* params[] = {&nothing};
  OK(cuLaunchKernel(card.empty, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr));
  std::printf("seen %d %d\n", cuStreamSynchronize(s), cuCtxSynchronize());
  size_t pitch = 0, page = 4096;
  std::printf("allocated %d %d %d %d %d\n", cuMemAlloc(&at, 20 * kMiB), cuMemAlloc(&at, 64),
              cuMemAllocManaged(&at, kMiB, CU_MEM_ATTACH_GLOBAL), cuMemAllocAsync(&at, kMiB, s),
              cuMemAllocPitch(&at, &pitch, 100, 100, 4));
  std::printf("freed %d %d %d\n", cuMemFree(block), cuMemFree(small), cuMemFreeAsync(ordered, s));
  const CUmemLocation gpu{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUdeviceptr discarded = managed;
  std::printf("told %d %d %d %d\n", cuMemAdvise(managed, page, CU_MEM_ADVISE_SET_READ_MOSTLY, gpu),
              cuMemPrefetchAsync(managed, page, gpu, 0, s), cuStreamAttachMemAsync(s, managed, 0, CU_MEM_ATTACH_GLOBAL),
              cuMemDiscardBatchAsync(&discarded, &page, 1, 0, s));
  const uint64_t from = simgpu_now_ns();
  int others = 0;
  for (int i = 0; i < 300; ++i) {
    others += cuMemAlloc(&at, 20 * kMiB) != CUDA_ERROR_ILLEGAL_ADDRESS;
    others += cuLaunchKernel(card.empty, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr) != CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  std::printf("%d other answers\n", others);
  EXPECT(simgpu_now_ns() - from < 100'000'000);
}

// A capture whose stream is gone bars allocation, and the driver says so.
SCENARIO(allocations_answer_as_the_driver) {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr at = 0;
  const CUdeviceptr block = Alloc(8 * kMiB);
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(block, 1, 4096, s));
  OK(cuStreamDestroy(s));
  std::printf("%d %d\n", cuMemAlloc(&at, 300 * kMiB), cuMemAllocManaged(&at, 300 * kMiB, CU_MEM_ATTACH_GLOBAL));
}

// A free in the order of a stream that there is not, or that captures other memory, frees nothing.
SCENARIO(frees_name_their_stream) {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr block = 0;
  OK(cuMemAllocAsync(&block, 4 * kMiB, s));
  card.Named(s, {Write(block, 4 * kMiB, 1)});
  OK(cuStreamSynchronize(s));
  OK(cuCtxSetCurrent(nullptr));
  std::printf("without a context %d\n", cuMemFreeAsync(block, nullptr));
  OK(cuCtxSetCurrent(card.context));
  PrintDigest("kept", block, 4 * kMiB);
  OK(cuMemFreeAsync(block, s));
  std::printf("again %d\n", cuMemFreeAsync(block, s));
}

// As the manual asks: the first range has the first location, and each location begins at a later range.
SCENARIO(locations_of_a_batch_are_in_order) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr managed = card.Managed(12 * kMiB);
  CUdeviceptr at[] = {managed, managed + 4 * kMiB, managed + 8 * kMiB};
  size_t sizes[] = {4 * kMiB, 4 * kMiB, 4 * kMiB};
  CUmemLocation to[] = {{CU_MEM_LOCATION_TYPE_HOST, 0}, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  size_t right[] = {0, 2}, late[] = {1, 2};
  std::printf("%d %d\n", cuMemPrefetchBatchAsync(at, sizes, 3, to, right, 2, 0, s),
              cuMemPrefetchBatchAsync(at, sizes, 3, to, late, 2, 0, s));
}

// Arrays whose bytes fit the budget, though a full element for each channel would not.
SCENARIO(arrays_take_the_bytes_of_their_format) {
  const Card card;
  struct {
    CUarray_format format;
    unsigned channels, mib;
  } const formats[] = {{CU_AD_FORMAT_BC1_UNORM, 4, 8},     {CU_AD_FORMAT_BC7_UNORM, 4, 16},
                       {CU_AD_FORMAT_BC5_SNORM, 2, 16},    {CU_AD_FORMAT_UNORM_INT8X1, 1, 16},
                       {CU_AD_FORMAT_UNORM_INT8X4, 4, 64}, {CU_AD_FORMAT_SNORM_INT16X2, 2, 64},
                       {CU_AD_FORMAT_HALF, 2, 64},         {CU_AD_FORMAT_UNSIGNED_INT8, 4, 64}};
  for (const auto& f : formats) {
    CUDA_ARRAY3D_DESCRIPTOR shape{4096, 4096, 0, f.format, f.channels, 0};
    size_t before = 0, after = 0;
    CUarray array = nullptr;
    OK(cuMemGetInfo(&before, nullptr));
    OK(cuArray3DCreate(&array, &shape));
    OK(cuMemGetInfo(&after, nullptr));
    if (Budget() != 0) EXPECT(before - after == f.mib * kMiB);
    OK(cuArrayDestroy(array));
    // Eight levels: 4/3 of the first one, less than a tenth of a percent.
    CUmipmappedArray levels = nullptr;
    OK(cuMipmappedArrayCreate(&levels, &shape, 8));
    OK(cuMemGetInfo(&after, nullptr));
    if (Budget() != 0)
      EXPECT((before - after) * 3 <= f.mib * kMiB * 4 && (before - after) * 3003 >= f.mib * kMiB * 4000);
    OK(cuMipmappedArrayDestroy(levels));
  }
}

// The driver takes 256 values in a batch, and queues none of a larger one.
SCENARIO(batches_of_values_are_refused_whole) {
  Card card;
  const CUstream s = card.Stream();
  const CUdeviceptr block = Alloc(300 * kMiB), other = Alloc(300 * kMiB);
  for (const CUdeviceptr p : {block, other}) OK(cuMemsetD8Async(p, 0, 300 * kMiB, s));
  for (const unsigned count : {256, 257}) {
    std::vector<CUstreamBatchMemOpParams> values(count);
    for (auto& one : values) {
      one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      one.writeValue.address = block;
      one.writeValue.value = count;
    }
    EXPECT(cuStreamBatchMemOp(s, count, values.data(), 0) == (count == 256 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
  }
  // The second operation is of no kind, has no aligned address, or one that the driver does not know.
  static uint32_t elsewhere = 0;
  for (const int wrong : {0, 1, 2}) {
    std::array<CUstreamBatchMemOpParams, 2> values{};
    for (auto& one : values) {
      one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      one.writeValue.address = block;
      one.writeValue.value = 99;
    }
    if (wrong == 0) values[1].operation = static_cast<CUstreamBatchMemOpType>(99);
    if (wrong == 1) values[1].writeValue.address += 2;
    if (wrong == 2) values[1].writeValue.address = reinterpret_cast<uintptr_t>(&elsewhere);
    EXPECT(cuStreamBatchMemOp(s, 2, values.data(), 0) == CUDA_ERROR_INVALID_VALUE);
  }
  uint32_t word = 0;
  OK(cuStreamSynchronize(s));
  OK(cuMemcpyDtoH(&word, block, 4));
  EXPECT(word == 256);
}
