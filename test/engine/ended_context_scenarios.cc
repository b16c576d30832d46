// Contexts that end, and what outlives them.
#include <thread>

#include "test/engine/green.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

// Memory of a pool belongs to the device: the context whose stream asked for it may end first.
SCENARIO(pool_memory_outlives_its_context) {
  Card card;
  CUstream s = card.Stream();
  constexpr uint64_t kBytes = 64 * kMiB;
  CUcontext second = nullptr;
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  CUstream t = card.Stream();
  CUdeviceptr kept = 0, small = 0, gone = 0;
  OK(cuMemAllocAsync(&kept, kBytes, t));
  OK(cuMemAllocAsync(&small, 1000, t));
  OK(cuMemAllocAsync(&gone, kBytes, t));
  OK(cuMemsetD8Async(kept, 7, kBytes, t));
  OK(cuMemsetD8Async(small, 8, 1000, t));
  OK(cuMemFreeAsync(gone, t));
  const CUdeviceptr own = Alloc(kBytes);
  OK(cuMemsetD8Async(own, 9, kBytes, t));
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(card.context));
  CUdeviceptr base = 0;
  EXPECT(cuMemGetAddressRange(&base, nullptr, own) != CUDA_SUCCESS);
  PrintDigest("kept", kept, kBytes);
  PrintDigest("small", small, 1000);
  card.Named(s, {Update(kept, kBytes, 1)});
  const CUdeviceptr other = Alloc(640 * kMiB);
  card.Named(s, {Write(other, 640 * kMiB, 2)});
  card.Named(s, {Update(kept, kBytes, 1)});
  PrintDigest("used", kept, kBytes);
  OK(cuMemFreeAsync(kept, s));
  OK(cuMemFree(small));
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&again, kBytes, s));
  card.Named(s, {Write(again, kBytes, 4)});
  PrintDigest("again", again, kBytes);
}

// The same, of the primary context.
SCENARIO(pool_memory_outlives_the_primary_context) {
  OK(cuInit(0));
  CUcontext primary = nullptr, second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  CUstream t = nullptr;
  OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  constexpr uint64_t kBytes = 64 * kMiB;
  CUdeviceptr kept = 0, small = 0;
  OK(cuMemAllocAsync(&kept, kBytes, t));
  OK(cuMemAllocAsync(&small, 1000, t));
  OK(cuMemsetD8Async(kept, 7, kBytes, t));
  OK(cuMemsetD8Async(small, 8, 1000, t));
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxRelease(0));
  PrintDigest("kept", kept, kBytes);
  PrintDigest("small", small, 1000);
  const CUdeviceptr other = Alloc(768 * kMiB);
  OK(cuMemsetD8Async(other, 9, 768 * kMiB, t));
  OK(cuMemsetD8Async(kept, 10, kBytes / 2, t));
  PrintDigest("used", kept, kBytes);
  // The last memory of the pool is freed, and the primary context ends with its next release.
  OK(cuMemFree(kept));
  OK(cuMemFree(small));
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int is_active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  EXPECT(!is_active);
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&again, kBytes, t));
  OK(cuMemsetD8Async(again, 11, kBytes, t));
  PrintDigest("again", again, kBytes);
}

// The same, without a primary context: none shows itself, and a reset of none ends no memory.
SCENARIO(pool_memory_outlives_a_created_context) {
  OK(cuInit(0));
  CUcontext first = nullptr, second = nullptr;
  OK(CreateContext(&second, 0));
  OK(CreateContext(&first, 0));
  CUstream t = nullptr, s = nullptr;
  OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  constexpr uint64_t kBytes = 64 * kMiB;
  CUdeviceptr kept = 0, small = 0;
  OK(cuMemAllocAsync(&kept, kBytes, t));
  OK(cuMemAllocAsync(&small, 1000, t));
  OK(cuMemsetD8Async(kept, 7, kBytes, t));
  OK(cuMemsetD8Async(small, 8, 1000, t));
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(first));
  OK(cuCtxSetCurrent(second));
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  PrintDigest("kept", kept, kBytes);
  PrintDigest("small", small, 1000);
  unsigned flags = 0;
  int is_active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  EXPECT(!is_active);
  EXPECT(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
  OK(cuDevicePrimaryCtxReset(0));
  const CUdeviceptr other = Alloc(768 * kMiB);
  OK(cuMemsetD8Async(other, 9, 768 * kMiB, s));
  OK(cuMemsetD8Async(kept, 10, kBytes / 2, s));
  PrintDigest("used", kept, kBytes);
  OK(cuMemFreeAsync(kept, s));
  OK(cuMemFree(small));
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&again, kBytes, s));
  OK(cuMemsetD8Async(again, 11, kBytes, s));
  PrintDigest("again", again, kBytes);
}

// A green context ends while its stream waits for a value in memory that moves. The work behind the wait goes on.
SCENARIO(value_waits_outlive_green_contexts) {
  Card card;
  const CUstream writer = card.Stream();
  const CUdeviceptr words = Alloc(16 * kMiB), block = Alloc(64 * kMiB);
  OK(cuMemsetD8Async(words, 0, 16 * kMiB, writer));
  OK(cuMemsetD8Async(block, 0, 64 * kMiB, writer));
  OK(cuStreamSynchronize(writer));
  for (uint32_t i = 1; i <= 4; ++i) {
    const CUgreenCtx green = MakeGreen(0);
    const CUstream stream = GreenStream(green);
    CUevent behind = nullptr;
    OK(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamWaitValue32(stream, words, i, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(block, static_cast<unsigned char>(i), 64 * kMiB, stream));
    OK(cuEventRecord(behind, stream));
    OK(cuStreamDestroy(stream));
    OK(cuGreenCtxDestroy(green));
    EXPECT(cuEventQuery(behind) == CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(writer, words, i, CU_STREAM_WRITE_VALUE_DEFAULT));
    OK(cuEventSynchronize(behind));
    OK(cuEventDestroy(behind));
    Print("block", simgpu_digest(block, 64 * kMiB));
  }
}

// A primary context that no caller retains ends with its last green context. The next one begins anew.
SCENARIO(primary_context_ends_with_its_last_green_context) {
  OK(cuInit(0));
  for (int i = 0; i < 3; ++i) {
    const CUgreenCtx green = MakeGreen(0);
    CUcontext context = nullptr;
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuCtxSetCurrent(context));
    const CUstream stream = GreenStream(green);
    std::vector<CUdeviceptr> blocks;
    for (unsigned char k = 0; k < 12; ++k) {
      blocks.push_back(Alloc(64 * kMiB));
      OK(cuMemsetD8Async(blocks.back(), k, 64 * kMiB, stream));
    }
    OK(cuStreamSynchronize(stream));
    for (const CUdeviceptr block : blocks) {
      Print("block", simgpu_digest(block, 64 * kMiB));
      OK(cuMemFree(block));
    }
    OK(cuCtxSetCurrent(nullptr));
    OK(cuStreamDestroy(stream));
    OK(cuGreenCtxDestroy(green));
    unsigned flags = 0;
    int is_active = 0;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
    EXPECT(!is_active);
  }
}

// Memory of a pool stays behind the last release, and behind one more, which the driver refuses.
SCENARIO(releases_beyond_the_last_are_refused) {
  OK(cuInit(0));
  CUcontext primary = nullptr;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  CUstream s = nullptr;
  CUdeviceptr block = 0;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(cuMemAllocAsync(&block, 8 * kMiB, s));
  OK(cuMemsetD32Async(block, 0x77, 2 * kMiB, s));
  OK(cuStreamSynchronize(s));
  OK(cuDevicePrimaryCtxRelease(0));
  for (int i = 0; i < 2; ++i) EXPECT(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  uint32_t word = 0;
  OK(cuMemcpyDtoH(&word, block, 4));
  EXPECT(word == 0x77);
  OK(cuMemFree(block));
  OK(cuDevicePrimaryCtxRelease(0));
}

namespace {

void PrintActive(const char* what) {
  unsigned flags = 0;
  int is_active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  Print(what, static_cast<uint64_t>(is_active));
}

// VMM memory of one handle, with a reservation.
CUdeviceptr Map(size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  OK(cuMemCreate(&handle, bytes, &properties, 0));
  OK(cuMemMap(at, bytes, 0, handle, 0));
  OK(cuMemSetAccess(at, bytes, &access, 1));
  OK(cuMemRelease(handle));
  return at;
}

}  // namespace

// The primary context is active while the program retains it, or has a green one, whatever memory outlives it.
SCENARIO(primary_context_is_active_while_the_program_holds_it) {
  OK(cuInit(0));
  PrintActive("before");
  for (const bool is_mapped : {false, true}) {
    CUcontext primary = nullptr;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    CUdeviceptr block = 0;
    if (is_mapped) {
      block = Map(8 * kMiB);
    } else {
      OK(cuMemAllocAsync(&block, 8 * kMiB, nullptr));
    }
    OK(cuMemsetD32(block, 0x77, 2 * kMiB));
    OK(cuCtxSynchronize());
    PrintActive("retained");
    OK(cuDevicePrimaryCtxRelease(0));
    PrintActive("released");
    Print("another release", static_cast<uint64_t>(cuDevicePrimaryCtxRelease(0)));
    OK(cuCtxSetCurrent(nullptr));
    const CUgreenCtx green = MakeGreen(0);
    PrintActive("green");
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuDevicePrimaryCtxRelease(0));
    PrintActive("green still");
    OK(cuGreenCtxDestroy(green));
    PrintActive("none");
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    PrintActive("again");
    uint32_t word = 0;
    OK(cuMemcpyDtoH(&word, block, 4));
    Print("word", word);
    if (is_mapped) {
      OK(cuMemUnmap(block, 8 * kMiB));
      OK(cuMemAddressFree(block, 8 * kMiB));
    } else {
      OK(cuMemFree(block));
    }
    PrintActive("freed");
    OK(cuDevicePrimaryCtxRelease(0));
    PrintActive("over");
  }
}

// A reset ends the primary context that only memory of a pool keeps behind the program's last release.
SCENARIO(reset_behind_the_last_release) {
  constexpr uint64_t kBytes = 64 * kMiB;
  OK(cuInit(0));
  CUcontext context = nullptr;
  for (int round = 0; round < 3; ++round) {
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstream stream = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 12; ++i) {
      blocks.push_back(Alloc(kBytes));
      OK(cuMemsetD8Async(blocks.back(), static_cast<unsigned char>(16 * round + i + 1), kBytes, stream));
    }
    OK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < blocks.size(); ++i) PrintDigest("block", blocks[i], kBytes);
    for (int i = 0; i < 4; ++i) {
      OK(cuMemFree(blocks.back()));
      blocks.pop_back();
    }
    CUdeviceptr kept = 0;
    OK(cuMemAllocAsync(&kept, kBytes, stream));
    OK(cuMemsetD8Async(kept, 9, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxReset(0));
  }
}

// Memory of a pool keeps the primary context behind the program's last releases, but none of its other memory.
SCENARIO(released_memory_beside_memory_of_a_pool) {
  OK(cuInit(0));
  CUdeviceptr kept = 0;
  for (int round = 0; round < 16; ++round) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstream stream = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (round == 0) {
      OK(cuMemAllocAsync(&kept, 16 * kMiB, stream));
      OK(cuMemsetD8Async(kept, 9, 16 * kMiB, stream));
    }
    const CUdeviceptr block = Alloc(1024 * kMiB), small = Alloc(4096);
    OK(cuMemsetD8Async(block, static_cast<unsigned char>(round), 64 * kMiB, stream));
    OK(cuMemsetD8Async(small, static_cast<unsigned char>(round), 4096, stream));
    PrintDigest("block", block, 64 * kMiB);
    OK(cuStreamSynchronize(stream));
    OK(cuDevicePrimaryCtxRelease(0));
  }
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  PrintDigest("kept", kept, 16 * kMiB);
}

// Threads make contexts and end them, and are given each other's handles at once.
SCENARIO(threads_make_and_end_contexts) {
  OK(cuInit(0));
  std::vector<std::thread> threads;
  for (int id = 0; id < 8; ++id) {
    threads.emplace_back([id] {
      for (int round = 0; round < 300; ++round) {
        const bool is_primary = id % 2;
        CUcontext context = nullptr;
        if (is_primary) {
          OK(cuDevicePrimaryCtxRetain(&context, 0));
          OK(cuCtxSetCurrent(context));
        } else {
          OK(CreateContext(&context, 0));
        }
        const CUdeviceptr block = Alloc(4 * kMiB);
        OK(cuMemsetD8(block, static_cast<unsigned char>(id), kMiB));
        unsigned char byte = 99;
        OK(cuMemcpyDtoH(&byte, block, 1));
        EXPECT(byte == id);
        if (round % 2 || is_primary) OK(cuMemFree(block));
        OK(is_primary ? cuDevicePrimaryCtxRelease(0) : cuCtxDestroy(context));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The handle of a context that was only asked for its memory comes again, on another GPU.
SCENARIO(context_handles_come_again_on_another_gpu) {
  OK(cuInit(0));
  for (int round = 0; round < 6; ++round) {
    const CUdevice gpu = round % 2;
    CUcontext context = nullptr;
    OK(CreateContext(&context, gpu));
    size_t free = 0, total = 0;
    OK(cuMemGetInfo(&free, &total));
    OK(cuCtxDestroy(context));
    OK(CreateContext(&context, 1 - gpu));
    const CUdeviceptr block = Alloc(16 * kMiB);
    int ordinal = -1;
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
    EXPECT(ordinal == 1 - gpu);
    OK(cuMemsetD8(block, 7, 16 * kMiB));
    PrintDigest("block", block, 16 * kMiB);
    OK(cuCtxDestroy(context));
  }
}
