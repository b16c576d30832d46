// Order: launches beyond the budget, streams that the application did not order, threads.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

// A stream waits until the flag is written.
struct Gate {
  explicit Gate(CUstream s) {
    OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&flag, host, 0));
    OK(cuMemsetD32(flag, 0, 1));
    OK(cuStreamWaitValue32(s, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  }
  void Open(CUstream by) { OK(cuStreamWriteValue32(by, flag, 1, 0)); }
  void* host = nullptr;
  CUdeviceptr flag = 0;
};

void OversizedLaunches(uint64_t bytes) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr p = Alloc(bytes), small = Alloc(16 * kMiB);
  for (int i = 0; i < 4; ++i) card.Named(s, {Update(p, bytes, 1)}, 1'000'000);
  card.Named(s, {Write(small, 16 * kMiB, 2)});
  OK(cuStreamSynchronize(s));
  card.Named(s, {Update(small, 16 * kMiB, 2)});
  OK(cuCtxSynchronize());
  // The excess is evicted right after.
  if (Budget() != 0) EXPECT(card.Stats().resident_bytes <= Budget() + 64 * kMiB);
  PrintDigest("big", p, bytes);
  PrintDigest("small", small, 16 * kMiB);
}

}  // namespace

// Each launch begins when the excess of the one before has been evicted.
SCENARIO(oversized_launches_apart) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr p = Alloc(kGiB);
  for (int i = 0; i < 6; ++i) {
    card.Named(s, {Update(p, kGiB, 1)}, 1'000'000);
    OK(cuStreamSynchronize(s));
    simgpu_advance_host(200'000'000);
  }
  PrintDigest("big", p, kGiB);
}

SCENARIO(launch_half_over_budget) { OversizedLaunches(768 * kMiB); }  // 1.5 times a budget of 512 MiB
SCENARIO(launch_three_times_the_budget) { OversizedLaunches(1536 * kMiB); }

// b's launches need room that only a's unfinished work takes: they run all the same, and a is not touched.
SCENARIO(streams_stay_independent) {
  Card card;
  CUstream a = card.Stream(), b = card.Stream(), c = card.Stream();
  const CUdeviceptr p = Alloc(400 * kMiB), q = Alloc(400 * kMiB);
  card.Named(a, {Write(p, 400 * kMiB, 1)});
  OK(cuStreamSynchronize(a));
  Gate gate(a);
  card.Named(a, {Update(p, 400 * kMiB, 1)});
  for (int i = 0; i < 8; ++i) card.Named(b, {Update(q, 400 * kMiB, 2)});
  OK(cuStreamSynchronize(b));  // a is blocked: if b waited for it, this would never return
  gate.Open(c);
  PrintDigest("p", p, 400 * kMiB);
  PrintDigest("q", q, 400 * kMiB);
}

// The launching thread itself opens the gate, after it has queued far more than any queue of the driver holds.
SCENARIO(launching_thread_opens_the_gate) {
  Card card;
  CUstream a = card.Stream(), c = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  Gate gate(a);
  for (uint32_t i = 0; i < 320; ++i) card.Named(a, {Update(p[i % 16], 64 * kMiB, i % 16 + 1)});
  gate.Open(c);
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

SCENARIO(threads_with_own_streams) {
  Card card;
  constexpr int kThreads = 6;
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < kThreads * 3; ++i) p.push_back(Alloc(48 * kMiB));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      OK(cuCtxSetCurrent(card.context));
      CUstream s = card.Stream();
      for (int i = 0; i < 60; ++i) {
        const int n = t * 3 + i % 3;
        // Every second thread uses its per-thread default stream.
        if (t % 2) {
          OK(card.TryNamed(nullptr, {Update(p[static_cast<size_t>(n)], 48 * kMiB, static_cast<uint32_t>(n + 1))}, 20000,
                           true));
        } else {
          card.Named(s, {Update(p[static_cast<size_t>(n)], 48 * kMiB, static_cast<uint32_t>(n + 1))});
        }
        CUdeviceptr extra = Alloc(static_cast<uint64_t>(i % 5 + 1) * kMiB);
        if (!(t % 2)) card.Named(s, {Write(extra, kMiB, static_cast<uint32_t>(1000 + t))});
        OK(cuMemFree(extra));
      }
      if (!(t % 2)) OK(cuStreamDestroy(s));
    });
  }
  for (auto& thread : threads) thread.join();
  for (CUdeviceptr at : p) PrintDigest("block", at, 48 * kMiB);
}

// The legacy stream orders itself with blocking streams, and programs rely on it.
SCENARIO(legacy_stream_orders) {
  Card card;
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
  for (uint32_t i = 0; i < 96; ++i) {
    CUstream s = i % 2 ? blocking : nullptr;
    card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1), Read(p[(i + 11) % 12], 8 * kMiB, (i + 11) % 12 + 1)});
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

SCENARIO(producers_and_consumers) {
  Card card;
  CUstream s[3] = {card.Stream(), card.Stream(), card.Stream()};
  CUevent e[3];
  for (auto& event : e) OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  for (uint32_t i = 0; i < 192; ++i) {
    const uint32_t at = i % 3, n = i % 16;
    OK(cuStreamWaitEvent(s[at], e[(at + 2) % 3], 0));
    card.Named(s[at], {Update(p[n], 64 * kMiB, n + 1), Read(p[(n + 15) % 16], 4 * kMiB, (n + 15) % 16 + 1)});
    OK(cuEventRecord(e[at], s[at]));
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// Streams end with work queued on them; their memory is neither lost nor kept for ever.
SCENARIO(streams_created_and_destroyed) {
  Card card;
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
  for (uint32_t i = 0; i < 120; ++i) {
    CUstream s = card.Stream();
    card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
    if (i % 12 == 11) OK(cuCtxSynchronize());
    OK(cuStreamDestroy(s));
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// While everything fits no launch is planned. Memory that is written then has contents later all the same.
SCENARIO(written_before_pressure) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (uint32_t i = 0; i < 16; ++i) {
    p.push_back(Alloc(64 * kMiB));
    if (i < 6) card.Named(s, {Write(p[i], 64 * kMiB, i + 1)});
  }
  for (uint32_t i = 6; i < 22; ++i) card.Named(s, {Update(p[i % 16], 64 * kMiB, i % 16 + 1)});
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// Memory that no parameter shows is faulted in, and right.
SCENARIO(access_that_no_parameter_shows) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
  for (uint32_t i = 0; i < 96; ++i) {
    if (i % 3) {
      card.Named(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
    } else {
      card.Launch(s, {Update(p[i % 12], 64 * kMiB, i % 12 + 1)});
    }
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// A stream itself writes a value into a block that is freed meanwhile, once another thread opens its gate. The driver's
// free waits for the write, so the range must not be reused before.
SCENARIO(values_written_by_a_stream) {
  Card card;
  CUstream waits = card.Stream(), other = card.Stream();
  void* flag = nullptr;
  OK(cuMemHostAlloc(&flag, 8, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr at_flag = 0;
  OK(cuMemHostGetDevicePointer(&at_flag, flag, 0));
  for (int batch = 0; batch < 2; ++batch) {
    const auto goes = static_cast<cuuint32_t>(batch + 1);
    const CUdeviceptr block = Alloc(64 * kMiB);
    OK(cuStreamWaitValue32(waits, at_flag, goes, CU_STREAM_WAIT_VALUE_EQ));
    if (batch) {
      CUstreamBatchMemOpParams op{};
      op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      op.writeValue.address = block + 4096;
      op.writeValue.value = 7;
      OK(cuStreamBatchMemOp(waits, 1, &op, 0));
    } else {
      OK(cuStreamWriteValue32(waits, block + 4096, 7, 0));
    }
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      OK(cuCtxSetCurrent(card.context));
      OK(cuStreamWriteValue32(other, at_flag, goes, 0));
      OK(cuStreamSynchronize(waits));
    });
    OK(cuMemFree(block));
    CUstream third = card.Stream();
    const CUdeviceptr next = Alloc(64 * kMiB);
    card.Named(third, {Write(next, 64 * kMiB, 5)});
    OK(cuStreamSynchronize(third));
    late.join();
    PrintDigest("next", next, 64 * kMiB);
    card.Named(third, {Read(next, 64 * kMiB, 5)});
    OK(cuCtxSynchronize());
    OK(cuMemFree(next));
  }
}

// Copies to the host wait in the legacy stream for a host function. It ends once another thread has queued in that
// stream, which no waiting copy may prevent.
SCENARIO(others_queue_beside_a_copy_that_waits) {
  constexpr uint64_t kBytes = 300 * kMiB;
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr block = Alloc(kBytes), other = Alloc(kBytes);
  card.Named(s, {Write(block, kBytes, 1)});
  card.Named(s, {Write(other, kBytes, 2)});
  OK(cuStreamSynchronize(s));
  const auto beside = [&](auto copy) {
    std::atomic<bool> goes_on = false;
    const auto wait = [](void* flag) {
      while (!static_cast<std::atomic<bool>*>(flag)->load())
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
    OK(cuLaunchHostFunc(nullptr, wait, &goes_on));
    std::thread waiting([&] {
      OK(cuCtxSetCurrent(card.context));
      copy();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    card.Named(nullptr, {Update(other, kBytes, 2)});
    goes_on = true;
    waiting.join();
  };
  std::vector<char> host(kMiB, 3);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = block;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.dstHost = host.data();
  rows.srcPitch = rows.dstPitch = rows.WidthInBytes = rows.Height = 1024;
  beside([&] { OK(cuMemcpyDtoH(host.data(), block, kMiB)); });
  beside([&] { OK(cuMemcpyHtoD(block, host.data(), kMiB)); });
  beside([&] { OK(cuMemcpy2D(&rows)); });
  beside([&] { OK(cuMemcpy(reinterpret_cast<uintptr_t>(host.data()), block, kMiB)); });
  PrintDigest("block", block, kBytes);
  PrintDigest("other", other, kBytes);
}

// Synchronous memsets and copies inside device memory return beside earlier work, which the program releases behind
// them. Of managed memory, and for a block that is to be synchronous (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), they wait.
SCENARIO(calls_inside_device_memory_return_early) {
  constexpr uint64_t kBytes = 300 * kMiB;
  Card card;
  const CUdeviceptr block = Alloc(kBytes), other = Alloc(kBytes), synchronous = Alloc(kMiB);
  CUdeviceptr managed = 0;
  OK(cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL));
  int yes = 1;
  OK(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, synchronous));
  for (const CUdeviceptr p : {block, other}) OK(cuMemsetD8(p, 1, kBytes));
  for (const CUdeviceptr p : {synchronous, managed}) OK(cuMemsetD8(p, 1, kMiB));
  OK(cuCtxSynchronize());
  const auto returns = [&](auto call) {
    std::atomic<bool> goes_on = false, returned = false;
    const auto wait = [](void* flag) {
      while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    OK(cuLaunchHostFunc(nullptr, wait, &goes_on));
    std::thread calling([&] {
      OK(cuCtxSetCurrent(card.context));
      OK(call());
      returned = true;
    });
    for (int i = 0; i < 100 && !returned; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const bool is_early = returned;
    goes_on = true;
    calling.join();
    OK(cuStreamSynchronize(nullptr));  // the host function reads the flag until it ends
    return is_early;
  };
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = block;
  rows.dstDevice = other;
  rows.srcPitch = rows.dstPitch = rows.WidthInBytes = rows.Height = 1024;
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = block;
  box.dstDevice = other;
  box.srcPitch = box.dstPitch = box.WidthInBytes = box.Height = box.srcHeight = box.dstHeight = 1024;
  box.Depth = 1;
  EXPECT(returns([&] { return cuMemsetD8(block, 2, 64); }));
  EXPECT(returns([&] { return cuMemsetD32(block, 3, kBytes / 4); }));
  EXPECT(returns([&] { return cuMemsetD2D16(block, 4096, 4, 512, 1024); }));
  EXPECT(returns([&] { return cuMemcpyDtoD(other, block, kBytes); }));
  EXPECT(returns([&] { return cuMemcpy(other + kMiB, block, 4096); }));
  EXPECT(returns([&] { return cuMemcpy2D(&rows); }));
  EXPECT(returns([&] { return cuMemcpy3D(&box); }));
  EXPECT(returns([&] { return cuMemcpyPeer(other, card.context, block + kMiB, card.context, 4096); }));
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR words{1024, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  OK(cuArrayCreate(&array, &words));
  EXPECT(returns([&] { return cuMemcpyDtoA(array, 256, block + 5, 1024); }));
  EXPECT(returns([&] { return cuMemcpyAtoD(other + 2 * kMiB + 3, array, 256, 1024); }));
  rows.srcXInBytes = 7;
  rows.srcPitch = 1031;
  EXPECT(returns([&] { return cuMemcpy2DUnaligned(&rows); }));
  for (const CUdeviceptr p : {synchronous, managed}) {
    EXPECT(!returns([&] { return cuMemsetD8(p, 5, 64); }));
    EXPECT(!returns([&] { return cuMemcpyDtoD(other, p, 64); }));
    EXPECT(!returns([&] { return cuMemcpyDtoA(array, 0, p, 64); }));
  }
  OK(cuArrayDestroy(array));
  PrintDigest("block", block, kBytes);
  PrintDigest("other", other, kBytes);
}
