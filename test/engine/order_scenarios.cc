// Order: launches beyond the budget, streams that the application did not order, threads.
#include <chrono>
#include <thread>

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

namespace {

// A consumer's stream waits for words that a producer's stream writes, in a block that is oversubscribed.
struct ValuesInLargeBlock {
  static constexpr uint64_t kBytes = 32 * kMiB, kOther = 800 * kMiB;
  Card card;
  CUstream consumer = card.Stream(), producer = card.Stream();
  CUdeviceptr words = Alloc(64 * kMiB) + 5 * kMiB, data = Alloc(kBytes), result = Alloc(kBytes), other = Alloc(kOther);

  ValuesInLargeBlock() {
    OK(cuMemsetD8(words, 0, kMiB));
    OK(cuMemsetD8(result, 0, kBytes));
    Crowd();
  }
  void Crowd() {
    card.Named(producer, {Write(other, kOther, 77)});
    OK(cuStreamSynchronize(producer));
  }
  void Consume(const char* what) {
    OK(cuMemcpyDtoDAsync(result, data, kBytes, consumer));
    OK(cuStreamSynchronize(consumer));
    PrintDigest(what, result, kBytes);
  }
  void Produce(uint64_t number) { card.Named(producer, {Write(data, kBytes, number)}, 5'000'000); }
};

}  // namespace

SCENARIO(waits_for_values_in_large_blocks) {
  ValuesInLargeBlock v;
  for (uint32_t round = 1; round <= 3; ++round) {
    OK(cuStreamWaitValue32(v.consumer, v.words, round, CU_STREAM_WAIT_VALUE_GEQ));
    v.Produce(round);
    OK(cuStreamWriteValue32(v.producer, v.words, round, 0));
    v.Consume("at least");
    v.Crowd();
  }
  OK(cuStreamWaitValue64(v.consumer, v.words + 64, (1ull << 40) + 1, CU_STREAM_WAIT_VALUE_EQ));
  v.Produce(4);
  OK(cuStreamWriteValue64(v.producer, v.words + 64, 1ull << 40, 0));
  OK(cuStreamWriteValue64(v.producer, v.words + 64, (1ull << 40) + 1, 0));
  v.Consume("equal");
  v.Crowd();
  OK(cuStreamWaitValue32(v.consumer, v.words + 128, 6, CU_STREAM_WAIT_VALUE_AND));
  v.Produce(5);
  OK(cuStreamWriteValue32(v.producer, v.words + 128, 9, 0));
  OK(cuStreamWriteValue32(v.producer, v.words + 128, 4, 0));
  v.Consume("and");
  OK(cuMemsetD32Async(v.words + 192, 0xFFFFFFFFu, 1, v.producer));
  OK(cuStreamSynchronize(v.producer));
  OK(cuStreamWaitValue32(v.consumer, v.words + 192, 0xF, CU_STREAM_WAIT_VALUE_NOR));
  v.Produce(6);
  OK(cuStreamWriteValue32(v.producer, v.words + 192, 0xF0, 0));
  v.Consume("nor");
}

// The word holds the awaited value until the stream itself has changed it.
SCENARIO(waits_see_no_earlier_value) {
  ValuesInLargeBlock v;
  OK(cuMemsetD32(v.words, 5, 1));
  v.Produce(1);
  OK(cuStreamSynchronize(v.producer));
  CUevent cleared = nullptr;
  OK(cuEventCreate(&cleared, CU_EVENT_DISABLE_TIMING));
  v.card.Named(v.consumer, {Update(v.result, ValuesInLargeBlock::kBytes, 1)}, 20'000'000);
  OK(cuMemsetD32Async(v.words, 0, 1, v.consumer));
  OK(cuEventRecord(cleared, v.consumer));
  OK(cuStreamWaitValue32(v.consumer, v.words, 5, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuMemcpyDtoDAsync(v.result, v.data, ValuesInLargeBlock::kBytes, v.consumer));
  OK(cuStreamWaitEvent(v.producer, cleared, 0));
  v.Produce(2);
  OK(cuStreamWriteValue32(v.producer, v.words, 5, 0));
  OK(cuStreamSynchronize(v.consumer));
  PrintDigest("behind the second value", v.result, ValuesInLargeBlock::kBytes);
  // By one call of both kinds, in both directions.
  CUstreamBatchMemOpParams ask[2]{}, answer[2]{};
  ask[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, v.words + 256, {1}, 0, 0};
  ask[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, v.words + 260, {1}, CU_STREAM_WAIT_VALUE_GEQ, 0};
  answer[0].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, v.words + 256, {1}, CU_STREAM_WAIT_VALUE_GEQ, 0};
  answer[1].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, v.words + 260, {1}, 0, 0};
  OK(cuStreamBatchMemOp(v.consumer, 2, ask, 0));
  v.Produce(3);
  OK(cuStreamBatchMemOp(v.producer, 2, answer, 0));
  v.Consume("asked and answered");
}

// The stream comes to its wait after an hour of work. Nothing asks the driver about that meanwhile.
SCENARIO(wait_behind_an_hour_of_work) {
  ValuesInLargeBlock v;
  constexpr uint64_t kHour = 3'600'000'000'000;
  v.card.Named(v.consumer, {Update(v.result, ValuesInLargeBlock::kBytes, 1)}, kHour);
  OK(cuStreamWaitValue32(v.consumer, v.words, 1, CU_STREAM_WAIT_VALUE_GEQ));
  v.Produce(1);
  OK(cuStreamWriteValue32(v.producer, v.words, 1, 0));
  v.Consume("behind an hour");
}

// Words in oversubscribed and in small memory, by one node.
SCENARIO(graphs_that_write_values) {
  ValuesInLargeBlock v;
  const CUdeviceptr small = Alloc(64);
  OK(cuMemsetD8(small, 0, 64));
  for (const bool is_general : {false, true}) {
    CUstreamBatchMemOpParams list[4]{};
    for (unsigned i = 0; i < 4; ++i) {
      list[i].writeValue.operation = i == 1 ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
      list[i].writeValue.address = (i == 2 ? small : v.words + 4096 * i) + (is_general ? 16 : 0);
      list[i].writeValue.value64 = 0x500000000 + i + 1;
    }
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr, copy = nullptr;
    OK(cuGraphCreate(&graph, 0));
    if (is_general) {
      CUgraphNodeParams params{};
      params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
      params.memOp = {v.card.context, 4, list, 0};
      OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    } else {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS params{v.card.context, 4, list, 0};
      OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
    }
    CUDA_MEMCPY3D moved{};
    moved.srcMemoryType = moved.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    moved.srcDevice = v.words;
    moved.dstDevice = v.result;
    moved.WidthInBytes = kMiB;
    moved.Height = moved.Depth = 1;
    OK(cuGraphAddMemcpyNode(&copy, graph, &node, 1, &moved, v.card.context));
    CUgraphExec exec = nullptr;
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) {
      OK(cuMemsetD8Async(v.words, 0, kMiB, v.consumer));
      OK(cuGraphLaunch(exec, v.consumer));
      OK(cuStreamSynchronize(v.consumer));
      PrintDigest("result", v.result, kMiB);
      PrintDigest("small", small, 64);
      v.Crowd();
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
  }
}

// Many waits at a time, of streams of two threads; the words lie in one page.
SCENARIO(many_waits_for_values) {
  ValuesInLargeBlock v;
  constexpr uint32_t kWaits = 700;  // more than one page of cells
  std::vector<CUstream> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(v.card.Stream());
  for (uint32_t i = 0; i < kWaits; ++i)
    OK(cuStreamWaitValue32(streams[i % 8], v.words + 4 * i, i + 1, CU_STREAM_WAIT_VALUE_EQ));
  std::thread other([&] {
    OK(cuCtxSetCurrent(v.card.context));
    for (uint32_t i = 0; i < kWaits; ++i) OK(cuStreamWriteValue32(v.producer, v.words + 4 * i, i + 1, 0));
  });
  other.join();
  for (const CUstream one : streams) {
    OK(cuStreamSynchronize(one));
    OK(cuStreamDestroy(one));
  }
  std::puts("all over");
}
