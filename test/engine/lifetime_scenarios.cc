// Order that only counted work has, blocking calls, and the ends of streams, advice, pools and threads.
#include <thread>

#include "test/engine/growth.h"
#include "test/engine/host_flag.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

// The application's own discard is queued behind a wait when its memory is freed: the next owner must not lose bytes.
SCENARIO(own_discard_of_freed_memory) {
  Card card;
  CUstream waiting = card.Stream(), other = card.Stream();
  const uint64_t bytes = 64 * kMiB;
  const CUdeviceptr block = card.Managed(bytes);
  OK(cuMemsetD8Async(block, 1, bytes, waiting));
  OK(cuStreamSynchronize(waiting));
  const HostFlag flag;
  flag.MakeWait(waiting);
  card.Discard(waiting, block, bytes);
  flag.Set(1);  // cuMemFree waits for the stream
  OK(cuMemFree(block));
  const CUdeviceptr next = Alloc(bytes);
  OK(cuMemsetD8Async(next, 0x77, bytes, other));
  OK(cuStreamSynchronize(other));
  unsigned char first = 0;
  OK(cuMemcpyDtoH(&first, next, 1));
  Print("first byte", first);
}

// Stream-ordered frees return at once, also where a GiB could go back to the driver and the GPU waits for the host.
SCENARIO(stream_ordered_free_does_not_wait) {
  Card card;
  CUstream user = card.Stream(), blocked = card.Stream(), freeing = card.Stream();
  CUdeviceptr large = 0, small = 0;
  OK(cuMemAllocAsync(&large, kGiB, user));
  OK(cuMemAllocAsync(&small, 64 * kMiB, user));
  card.Named(user, {Update(large, kGiB, 1)}, 1'000'000);
  OK(cuMemFreeAsync(large, user));
  OK(cuStreamSynchronize(user));
  const HostFlag flag;
  flag.MakeWait(blocked);
  card.Named(blocked, {});
  OK(cuMemFreeAsync(small, freeing));
  flag.Set(1);
  OK(cuCtxSynchronize());
  Print("done", 1);
}

// A thread waits in cuMemFree; another allocates before it lets the GPU go on.
SCENARIO(free_waits_without_a_lock) {
  Card card;
  CUstream user = card.Stream(), blocked = card.Stream();
  const CUdeviceptr large = Alloc(kGiB), small = Alloc(64 * kMiB);
  card.Named(user, {Update(large, kGiB, 1), Update(small, 64 * kMiB, 2)});
  OK(cuStreamSynchronize(user));
  const HostFlag flag;
  flag.MakeWait(blocked);
  std::thread other([&] {
    OK(cuCtxSetCurrent(card.context));
    const timespec pause{0, 200'000'000};
    nanosleep(&pause, nullptr);
    CUdeviceptr block = 0;
    OK(cuMemAllocAsync(&block, 64 * kMiB, user));
    flag.Set(1);
  });
  OK(cuMemFree(large));
  other.join();
  Print("done", 1);
}

// A stream-ordered free beside another thread's capture in global mode leaves the capture whole.
SCENARIO(stream_ordered_free_beside_a_capture) {
  Card card;
  CUstream user = card.Stream(), captured = card.Stream();
  CUdeviceptr large = 0, small = 0;
  OK(cuMemAllocAsync(&large, kGiB, user));
  OK(cuMemAllocAsync(&small, 64 * kMiB, user));
  card.Named(user, {Update(large, kGiB, 1)}, 5'000'000);
  OK(cuMemFreeAsync(large, user));
  OK(cuStreamSynchronize(user));
  std::thread([&] {
    OK(cuCtxSetCurrent(card.context));
    OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  }).join();
  Print("free", static_cast<uint64_t>(cuMemFreeAsync(small, user)));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  OK(cuStreamIsCapturing(captured, &status));
  Print("capture", static_cast<uint64_t>(status));
}

// Advice ends with the memory that it was given for.
SCENARIO(advice_ends_with_its_memory) {
  Card card;
  CUstream stream = card.Stream();
  const uint64_t bytes = 64 * kMiB;
  for (const auto& [type, advice] : {std::pair{CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ADVISE_SET_READ_MOSTLY},
                                     std::pair{CU_MEM_LOCATION_TYPE_HOST, CU_MEM_ADVISE_SET_PREFERRED_LOCATION}}) {
    const CUdeviceptr block = card.Managed(bytes);
    CUmemLocation location{};
    location.type = type;
    OK(cuMemAdvise(block, bytes, advice, location));
    card.Named(stream, {Write(block, bytes)});
    OK(cuStreamSynchronize(stream));
    card.Prefetch(stream, block, bytes, false);
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(block));
    const auto before = card.Stats(0);
    const CUdeviceptr next = Alloc(bytes);
    for (int i = 0; i < 10; ++i) card.Named(stream, {Write(next, bytes)});
    OK(cuStreamSynchronize(stream));
    const auto after = card.Stats(0);
    Print("duplicate writes", after.duplicate_write_bytes - before.duplicate_write_bytes);
    Print("remote", after.remote_bytes - before.remote_bytes);
    OK(cuMemFree(next));
  }
}

// A block that is freed twice, and an address inside one, are refused; the other blocks stay.
SCENARIO(frees_that_the_driver_refuses) {
  Card card;
  CUstream stream = card.Stream();
  const CUdeviceptr first = Alloc(4 * kMiB), second = Alloc(4 * kMiB), small = Alloc(4096), kept = Alloc(4096);
  card.Named(stream, {Write(second, 4 * kMiB, 3), Write(kept, 4096, 4)});
  OK(cuStreamSynchronize(stream));
  OK(cuMemFree(first));
  OK(cuMemFree(small));
  for (const CUdeviceptr address : {first, small, second + 4096, kept + 512})
    Print("refused", static_cast<uint64_t>(cuMemFree(address)));
  PrintDigest("second", second, 4 * kMiB);
  PrintDigest("kept", kept, 4096);
}

SCENARIO(memory_info_with_one_output) {
  Card card;
  size_t free_bytes = 0, total = 0, only = 0;
  OK(cuMemGetInfo(&free_bytes, &total));
  OK(cuMemGetInfo(&only, nullptr));
  EXPECT(only == free_bytes);
  OK(cuMemGetInfo(nullptr, &only));
  EXPECT(only == total);
  if (Budget() != 0) EXPECT(total == Budget());
}

// Memory of pools that are shared, or another GPU's, is the driver's own.
SCENARIO(pools_keep_their_memory) {
  Card first(0), second(1);
  OK(cuCtxSetCurrent(first.context));
  CUstream stream = first.Stream();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool shared = nullptr, far = nullptr;
  OK(cuMemPoolCreate(&shared, &properties));
  OK(cuDeviceSetMemPool(0, shared));
  CUdeviceptr block = 0;
  OK(cuMemAllocAsync(&block, 64 * kMiB, stream));
  OK(cuStreamSynchronize(stream));
  uint64_t used = 0;
  OK(cuMemPoolGetAttribute(shared, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  Print("used", used);
  properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  properties.location.id = 1;
  OK(cuMemPoolCreate(&far, &properties));
  OK(cuMemAllocFromPoolAsync(&block, 64 * kMiB, far, stream));
  int ordinal = -1;
  OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
  Print("gpu", static_cast<uint64_t>(ordinal));
}

// Streams are created and destroyed under pressure: neither host memory nor the driver's streams grow with their
// number.
SCENARIO(ten_thousand_streams) {
  Card card;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(Alloc(64 * kMiB));
  const auto round = [&](int i) {
    CUstream stream = nullptr;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (i % 20 == 0)
      card.Named(stream,
                 {Update(blocks[static_cast<size_t>(i / 20 % 16)], 64 * kMiB, static_cast<uint64_t>(i / 20 % 16 + 1))});
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
  };
  PrintGrowth(10000, round);
}

// Modules are loaded and unloaded beside kernels that stay in use.
SCENARIO(ten_thousand_modules) {
  Card card;
  CUstream stream = card.Stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(Alloc(64 * kMiB));
  std::string text = "simgpu-module 1\n";
  for (int i = 0; i < 50; ++i)
    text += "kernel " + std::string(100, 'k') + std::to_string(i) + " params 8,8,8,8,8,8,8,8 ns 1000\n";
  CUmodule kept = nullptr;
  OK(cuModuleLoadData(&kept, text.c_str()));
  std::vector<CUfunction> functions(50);
  for (size_t i = 0; i < functions.size(); ++i)
    OK(cuModuleGetFunction(&functions[i], kept, (std::string(100, 'k') + std::to_string(i)).c_str()));
  const auto launch = [&](CUfunction function) {
    const simgpu_touch touch = Read(blocks[0], 4096, 1);
    simgpu_next_launch(&touch, 1, 1000, 0);
    std::array<uint64_t, 8> words{};
    words[0] = blocks[0];
    std::array<void*, 8> params{};
    for (size_t i = 0; i < 8; ++i) params.at(i) = &words.at(i);
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params.data(), nullptr));
  };
  const auto round = [&](int i) {
    CUmodule module = nullptr;
    CUfunction once = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel once params 8,8,8,8,8,8,8,8 ns 1000\n"));
    OK(cuModuleGetFunction(&once, module, "once"));
    launch(once);
    launch(functions[static_cast<size_t>(i) % functions.size()]);
    OK(cuStreamSynchronize(stream));
    OK(cuModuleUnload(module));
  };
  PrintGrowth(10000, round);
}

// Threads with default streams of their own are created and ended.
SCENARIO(a_thousand_threads) {
  Card card;
  const CUdeviceptr block = Alloc(64 * kMiB);
  const auto round = [&](int) {
    std::thread([&] {
      OK(cuCtxSetCurrent(card.context));
      OK(card.TryNamed(nullptr, {Read(block, 64 * kMiB, 1)}, 1000, true));
      OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    }).join();
  };
  PrintGrowth(1000, round);
}

// A thread's destructor launches after the engine's data of the thread is gone.
SCENARIO(launches_of_a_late_destructor) {
  static Card card;
  struct Late {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    std::vector<CUdeviceptr> blocks;
    void Launch(int count) {
      for (int i = 0; i < count; ++i) {
        const size_t a = static_cast<size_t>(i) % 16, b = (a + 1) % 16;
        card.Named(stream, {Update(blocks[a], 64 * kMiB, a + 1), Read(blocks[b], 64 * kMiB, b + 1)});
      }
      OK(cuStreamSynchronize(stream));
    }
    ~Late() {
      if (stream == nullptr) return;
      OK(cuCtxSetCurrent(context));
      std::vector<std::vector<char>> filled;  // takes the places of buffers that were freed with the thread
      for (const size_t size : {64, 128, 256, 512, 1024}) filled.insert(filled.end(), 64, std::vector<char>(size, 'x'));
      Launch(64);
      for (const auto& block : filled) {
        for (const char c : block) EXPECT(c == 'x');
      }
      Print("late", 1);
    }
  };
  std::thread([] {
    OK(cuCtxSetCurrent(card.context));
    static thread_local Late late;
    OK(cuCtxSetCurrent(card.context));
    late.context = card.context;
    for (int i = 0; i < 16; ++i) late.blocks.push_back(Alloc(64 * kMiB));
    late.stream = card.Stream();
    late.Launch(48);
  }).join();
}

namespace {

// A profiler with callbacks inside the driver's calls, as CUPTI's are.
struct Profiler {
  Card* card;
  CUstream same, other;
  CUdeviceptr counters;
  CUevent event;
  void* host;
  uint64_t callbacks = 0;
  static void OnCall(const char* call, void* data) {
    auto* const self = static_cast<Profiler*>(data);
    const std::string name = call;
    if (name != "cuLaunchKernel" && name != "cuMemcpyDtoDAsync_v2" && name != "cuMemsetD8Async") return;
    ++self->callbacks;
    // On the stream of the call that it reports, and on another one.
    uint32_t number = 0;
    for (CUstream stream : {self->same, self->other}) {
      const CUdeviceptr counters = self->counters + number * 64 * 1024;
      self->card->Named(stream, {Update(counters, 4096, 100 + number)});
      OK(cuMemcpyDtoHAsync(static_cast<char*>(self->host) + number * 4096, counters, 4096, stream));
      OK(cuMemsetD8Async(counters + 8192, 1, 4096, stream));
      OK(cuEventRecord(self->event, stream));
      ++number;
    }
    OK(cuStreamSynchronize(self->other));
    CUdeviceptr block = 0;
    OK(cuMemAlloc(&block, 4 * kMiB));
    OK(cuMemsetD8Async(block, 2, 4 * kMiB, self->other));
    OK(cuMemFreeAsync(block, self->other));
  }
};

}  // namespace

// Launches, copies and allocations from inside a launch or a copy must not wait for the call that they are in.
SCENARIO(calls_from_a_profiler_inside_a_call) {
  Card card;
  Profiler profiler{&card, card.Stream(), card.Stream(), Alloc(kMiB), nullptr, nullptr};
  OK(cuEventCreate(&profiler.event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemHostAlloc(&profiler.host, 8192, 0));
  std::vector<CUdeviceptr> blocks(24);
  for (CUdeviceptr& block : blocks) block = Alloc(64 * kMiB);
  for (int round = 0; round < 6; ++round) {
    // If the profiler launches a kernel, that one receives the test's access set. So the blocks are moved by copies.
    simgpu_on_call(&Profiler::OnCall, &profiler);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (round == 0) {
        OK(cuMemsetD8Async(blocks[i], static_cast<unsigned char>(i), 64 * kMiB, profiler.same));
      } else {
        OK(cuMemcpyDtoDAsync(blocks[i], blocks[(i + 1) % blocks.size()], 64 * kMiB, profiler.same));
      }
      uint64_t nothing = 0;
      void* params[] = {&nothing};
      OK(cuLaunchKernel(card.empty, 1, 1, 1, 1, 1, 1, 0, profiler.same, params, nullptr));
    }
    simgpu_on_call(nullptr, nullptr);
  }
  EXPECT(profiler.callbacks >= 6 * 2 * blocks.size());
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, 64 * kMiB);
}

// cuMemFree asks which streams hold work. One that was destroyed with work in it cannot be asked.
SCENARIO(freed_beside_a_capture_and_a_destroyed_stream) {
  Card card;
  CUstream destroyed = card.Stream(), captured = card.Stream();
  const CUdeviceptr block = Alloc(64 * kMiB), other = Alloc(64 * kMiB);
  card.Named(destroyed, {Update(block, 64 * kMiB, 1)}, 1'000'000);
  OK(cuStreamDestroy(destroyed));
  OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemFree(other));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(captured, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuCtxSynchronize());
  PrintDigest("block", block, 64 * kMiB);
  OK(cuMemFree(block));
}
