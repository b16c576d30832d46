// Work that another context than the current one owns, captures that end early, threads with default streams of their
// own: memory is not reused before such work is done.
#include <algorithm>
#include <functional>
#include <thread>

#include "test/engine/green.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

// Copies a block to the host, frees it while the copies are under way, and fills a new block of the same size. The
// host must have the old contents. `copy` runs the copies that it is given, on whatever stream it likes.
void FreeUnderCopies(Card& card, const std::function<void(std::function<void(CUstream)>)>& copy) {
  constexpr uint64_t kBytes = 16 * kMiB;
  CUstream other = card.Stream();
  const CUdeviceptr block = Alloc(kBytes);
  OK(cuMemsetD8Async(block, 0xAA, kBytes, other));
  OK(cuStreamSynchronize(other));
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kBytes, 0));
  copy([&](CUstream stream) {
    for (int i = 0; i < 16; ++i) OK(cuMemcpyDtoHAsync(host, block, kBytes, stream));
  });
  OK(cuMemFree(block));
  const CUdeviceptr next = Alloc(kBytes);
  OK(cuMemsetD8Async(next, 0x55, kBytes, other));
  OK(cuStreamSynchronize(other));
  OK(cuCtxSynchronize());
  uint64_t wrong = 0;
  const auto* const bytes = static_cast<const unsigned char*>(host);
  for (uint64_t i = 0; i < kBytes; i += 4096) wrong += bytes[i] != 0xAA;
  Print("wrong pages", wrong);
}

// Allocates, uses and frees blocks one at a time, without a call that waits for the GPU. The memory that is held must
// stay near one block.
void ExpectReuse(Card& card, CUstream stream, uint64_t max_held) {
  uint64_t held = 0;
  const CUdeviceptr busy = Alloc(64 * kMiB);
  for (int i = 0; i < 60; ++i) {
    const CUdeviceptr block = Alloc(128 * kMiB);
    card.Named(stream, {Update(block, 128 * kMiB, 2)});
    OK(cuMemFree(block));
    card.Named(stream, {Update(busy, 64 * kMiB, 1)});
    simgpu_advance_host(100'000'000);
    const auto stats = card.Stats(0);
    held = std::max(held, stats.managed_requested_bytes + stats.unmanaged_bytes);
  }
  std::fprintf(stderr, "held %" PRIu64 " MiB\n", held / kMiB);
  if (Budget() != 0) EXPECT(held <= max_held);
}

}  // namespace

SCENARIO(copies_on_a_stream_of_another_gpu) {
  Card first(0);
  CUstream stream = first.Stream();
  Card second(1);
  OK(cuCtxSetCurrent(first.context));
  FreeUnderCopies(first, [&](const std::function<void(CUstream)>& run) {
    OK(cuCtxSetCurrent(second.context));
    run(stream);
    OK(cuCtxSetCurrent(first.context));
  });
}

// The fence of a block is closed while another context of the same GPU is current, whose legacy stream is idle.
SCENARIO(legacy_streams_of_two_contexts) {
  Card card(0);
  CUcontext second = nullptr;
  OK(CreateContext(&second, 0));
  const CUdeviceptr in_second = Alloc(64 * kMiB), kept = Alloc(64 * kMiB);
  (void)kept;
  OK(cuCtxSetCurrent(card.context));
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) { run(CU_STREAM_LEGACY); });
  OK(cuCtxSetCurrent(second));
  OK(cuMemFree(in_second));
  Alloc(64 * kMiB);
  OK(cuCtxSetCurrent(card.context));
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) {
    run(CU_STREAM_LEGACY);
    OK(cuCtxSetCurrent(second));
    OK(cuMemFree(Alloc(64 * kMiB)));
    Alloc(64 * kMiB);
    OK(cuCtxSetCurrent(card.context));
  });
}

// PyTorch's empty_cache frees the memory of every GPU with one of them current.
SCENARIO(memory_freed_beside_another_gpu) {
  Card first(0);
  CUstream stream = first.Stream();
  const CUdeviceptr large = Alloc(kGiB), used = Alloc(64 * kMiB);
  first.Named(stream, {Update(used, 64 * kMiB, 1)});
  Card second(1);
  OK(cuCtxSetCurrent(second.context));
  OK(cuMemFree(large));
  OK(cuCtxSetCurrent(first.context));
  ExpectReuse(first, stream, kGiB);
  PrintDigest("used", used, 64 * kMiB);
}

SCENARIO(stream_destroyed_beside_another_gpu) {
  Card first(0);
  CUstream old = first.Stream();
  const CUdeviceptr used = Alloc(64 * kMiB);
  for (int i = 0; i < 8; ++i) first.Named(old, {Update(used, 64 * kMiB, 1)}, 2'000'000);
  Card second(1);
  OK(cuCtxSetCurrent(second.context));
  OK(cuStreamDestroy(old));
  OK(cuCtxSetCurrent(first.context));
  ExpectReuse(first, first.Stream(), kGiB);
  PrintDigest("used", used, 64 * kMiB);
}

// Stream-ordered allocations belong to the stream's GPU, whatever GPU is current, and count there.
SCENARIO(allocations_on_a_stream_of_another_gpu) {
  Card first(0);
  CUstream stream = first.Stream();
  Card second(1);
  OK(cuCtxSetCurrent(second.context));
  std::vector<CUdeviceptr> blocks(8);
  for (CUdeviceptr& block : blocks) {
    OK(cuMemAllocAsync(&block, 128 * kMiB, stream));
    int ordinal = -1;
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
    EXPECT(ordinal == 0);
  }
  OK(cuCtxSetCurrent(first.context));
  size_t free_bytes = 0, total = 0;
  OK(cuMemGetInfo(&free_bytes, &total));
  EXPECT(free_bytes <= total - std::min<size_t>(total, 8 * 128 * kMiB));
  for (const CUdeviceptr block : blocks) {
    first.Named(stream, {Write(block, 128 * kMiB, 3)});
    PrintDigest("block", block, 128 * kMiB);
  }
  // Memory of cuMemAllocManaged is freed in no stream's order, not in that of another GPU's stream either.
  CUdeviceptr managed = 0;
  OK(cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL));
  OK(cuCtxSetCurrent(second.context));
  const CUstream of_second = second.Stream();
  Print("freed in another GPU's order", static_cast<uint64_t>(cuMemFreeAsync(managed, of_second)));
  Print("freed", static_cast<uint64_t>(cuMemFree(managed)));
}

SCENARIO(legacy_stream_beside_a_capture) {
  Card card(0);
  CUstream captured = card.Stream();
  std::thread([&] {
    OK(cuCtxSetCurrent(card.context));
    OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  }).join();
  CUgraph graph = nullptr;
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) {
    run(CU_STREAM_LEGACY);
    OK(cuStreamEndCapture(captured, &graph));
  });
}

// A capture that ends with its stream, and one that ends with its context.
SCENARIO(captures_that_are_dropped) {
  OK(cuInit(0));
  {
    Card card(0);
    OK(cuStreamBeginCapture(card.Stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
    card.Reset();
  }
  Card card(0);
  CUstream dropped = card.Stream();
  OK(cuStreamBeginCapture(dropped, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamDestroy(dropped));
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) { run(CU_STREAM_LEGACY); });
}

// The threads have default streams of their own, and end while these have work.
SCENARIO(threads_end_with_default_streams) {
  Card card(0);
  const CUdeviceptr used = Alloc(64 * kMiB);
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      OK(cuCtxSetCurrent(card.context));
      OK(card.TryNamed(nullptr, {Update(used, 64 * kMiB, 1)}, 1'000'000, true));
    }).join();
  }
  simgpu_advance_host(1'000'000'000);
  ExpectReuse(card, card.Stream(), kGiB);
  // A thread that comes later may have the place of an ended one in memory, and is another stream all the same.
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) {
    std::thread([&] {
      OK(cuCtxSetCurrent(card.context));
      run(CU_STREAM_PER_THREAD);
    }).join();
    std::thread([&] {
      OK(cuCtxSetCurrent(card.context));
      OK(card.TryNamed(nullptr, {Read(used, 64 * kMiB, 1)}, 1000, true));
    }).join();
  });
}

// Work on a green context's stream, while the primary context is current or the green one.
SCENARIO(green_contexts) {
  Card card(0);
  const CUgreenCtx green = MakeGreen(0);
  CUstream stream = GreenStream(green);
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) { run(stream); });
  CUcontext converted = nullptr;
  OK(cuCtxFromGreenCtx(&converted, green));
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) {
    OK(cuCtxSetCurrent(converted));
    run(CU_STREAM_LEGACY);
    OK(cuCtxSetCurrent(card.context));
  });
  // Its end waits for nothing.
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) {
    const CUgreenCtx ending = MakeGreen(0);
    CUstream last = GreenStream(ending);
    run(last);
    OK(cuStreamDestroy(last));
    OK(cuGreenCtxDestroy(ending));
  });
  const CUdeviceptr used = Alloc(64 * kMiB);
  card.Named(stream, {Update(used, 64 * kMiB, 1)});
  ExpectReuse(card, stream, kGiB);
  PrintDigest("used", used, 64 * kMiB);
  OK(cuStreamDestroy(stream));
  OK(cuGreenCtxDestroy(green));
  FreeUnderCopies(card, [&](const std::function<void(CUstream)>& run) { run(card.Stream()); });
}

// Memory that is allocated in the order of a green context's stream, or while the green context is current, counts, and
// moves under pressure.
SCENARIO(green_contexts_count) {
  Card card(0);
  const CUgreenCtx green = MakeGreen(0);
  CUstream stream = GreenStream(green);
  CUcontext converted = nullptr;
  OK(cuCtxFromGreenCtx(&converted, green));
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  std::vector<CUdeviceptr> blocks(20);
  for (size_t i = 0; i < blocks.size(); ++i) {
    OK(cuCtxSetCurrent(i % 2 ? converted : card.context));
    if (i % 3 == 0) {
      OK(cuMemAlloc(&blocks[i], 128 * kMiB));
    } else {
      OK(cuMemAllocAsync(&blocks[i], 128 * kMiB, stream));
    }
    card.Named(stream, {Write(blocks[i], 128 * kMiB, static_cast<uint32_t>(i) + 1)});
  }
  OK(cuCtxSetCurrent(card.context));
  OK(cuMemGetInfo(&after, &total));
  const size_t taken = 20 * 128 * kMiB;
  EXPECT(after <= (before > taken ? before - taken : 0) + 64 * kMiB);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < blocks.size(); ++i)
      card.Named(stream, {Update(blocks[i], 128 * kMiB, static_cast<uint32_t>(i) + 1)});
  }
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuGreenCtxRecordEvent(green, event));
  OK(cuStreamDestroy(stream));
  OK(cuGreenCtxDestroy(green));
  OK(cuEventSynchronize(event));  // it outlives the green context
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, 128 * kMiB);
}

// A context that is named instead of current: its work is known to be done, and freed memory is given back.
SCENARIO(synchronize_a_named_context) {
  Card first(0);
  CUstream stream = first.Stream();
  const CUdeviceptr used = Alloc(64 * kMiB);
  Card second(1);
  for (int i = 0; i < 8; ++i) {
    OK(cuCtxSetCurrent(first.context));
    const CUdeviceptr block = Alloc(kGiB);
    first.Named(stream, {Update(block, 64 * kMiB, 2), Update(used, 64 * kMiB, 1)});
    OK(cuMemFreeAsync(block, stream));
    OK(cuCtxSetCurrent(second.context));
    OK(cuCtxSynchronize_v2(first.context));
    EXPECT(cuStreamQuery(stream) == CUDA_SUCCESS);
    const auto stats = first.Stats(0);
    const uint64_t held = stats.managed_requested_bytes + stats.unmanaged_bytes;
    std::fprintf(stderr, "held %" PRIu64 " MiB\n", held / kMiB);
    if (Budget() != 0) EXPECT(held <= 512 * kMiB);
  }
  EXPECT(cuCtxSynchronize_v2(reinterpret_cast<CUcontext>(&first)) == CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(first.context));
  PrintDigest("used", used, 64 * kMiB);
}

// Green contexts alone hold the primary contexts of two GPUs, and end in two threads at once.
SCENARIO(green_contexts_of_two_gpus_end_at_once) {
  OK(cuInit(0));
  std::vector<std::thread> threads;
  for (int gpu = 0; gpu < 2; ++gpu) {
    threads.emplace_back([gpu] {
      for (int round = 0; round < 400; ++round) {
        CUgreenCtx const green = MakeGreen(gpu);
        CUcontext context = nullptr;
        OK(cuCtxFromGreenCtx(&context, green));
        OK(cuCtxSetCurrent(context));
        const CUdeviceptr block = Alloc(kMiB);
        int ordinal = -1;
        OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
        EXPECT(ordinal == gpu);
        OK(cuMemFree(block));
        OK(cuCtxSetCurrent(nullptr));
        OK(cuGreenCtxDestroy(green));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}
