// The contract of any CUDA driver: streams, events, host functions, graphs, threads. See contract_test.cc.
#include <atomic>
#include <thread>
#include <vector>

#include "contract.h"

using simgpu_test::Context;

TEST_CASE("events order streams and measure time") {
  Context c;
  CUstream a, b;
  CUevent e, f;
  YES(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  YES(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  YES(cuEventCreate(&e, CU_EVENT_DEFAULT));
  YES(cuEventCreate(&f, CU_EVENT_DEFAULT));
  CHECK(cuEventQuery(e) == CUDA_SUCCESS);
  CUdeviceptr p, q;
  YES(cuMemAlloc(&p, 64 << 20));
  YES(cuMemAlloc(&q, 64 << 20));
  YES(cuEventRecord(e, a));
  YES(cuMemsetD8Async(p, 1, 64 << 20, a));
  YES(cuMemcpyDtoDAsync(q, p, 64 << 20, a));
  YES(cuEventRecord(f, a));
  YES(cuStreamWaitEvent(b, f, 0));
  uint8_t out[4] = {};
  YES(cuMemcpyDtoHAsync(out, q, 4, b));
  YES(cuStreamSynchronize(b));
  CHECK(out[3] == 1);
  CHECK(cuEventQuery(f) == CUDA_SUCCESS);
  float ms = -1;
  YES(cuEventElapsedTime(&ms, e, f));
  CHECK(ms > 0);
  YES(cuEventDestroy(e));
  CHECK(cuEventDestroy(f) == CUDA_SUCCESS);
  YES(cuStreamDestroy(a));
  YES(cuStreamDestroy(b));
  YES(cuMemFree(p));
  YES(cuMemFree(q));
}

TEST_CASE("host functions run in stream order and may not call the driver") {
  Context c;
  CUstream s;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  struct CallbackLog {
    std::atomic<int> order{0};
    int first = 0, second = 0;
    CUresult inside = CUDA_SUCCESS;
  } seen;
  YES(cuLaunchHostFunc(
      s,
      [](void* p) {
        auto* v = static_cast<CallbackLog*>(p);
        CUdeviceptr d;
        v->inside = cuMemAlloc(&d, 16);
        v->first = ++v->order;
      },
      &seen));
  YES(cuLaunchHostFunc(
      s,
      [](void* p) {
        auto* v = static_cast<CallbackLog*>(p);
        v->second = ++v->order;
      },
      &seen));
  YES(cuStreamSynchronize(s));
  CHECK(seen.first == 1);
  CHECK(seen.second == 2);
  CHECK(seen.inside == CUDA_ERROR_NOT_PERMITTED);
  YES(cuStreamDestroy(s));
}

TEST_CASE("a stream waits for a value that another writes") {
  Context c;
  CUstream a, b;
  YES(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  YES(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  CUdeviceptr flag;
  YES(cuMemAlloc(&flag, 512));
  YES(cuMemsetD32(flag, 0, 1));
  YES(cuStreamWaitValue32(a, flag, 7, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK(cuStreamQuery(a) == CUDA_ERROR_NOT_READY);
  YES(cuStreamWriteValue32(b, flag, 8, 0));
  YES(cuStreamSynchronize(a));
  YES(cuStreamDestroy(a));
  YES(cuStreamDestroy(b));
  YES(cuMemFree(flag));
}

TEST_CASE("a node of a graph writes values") {
  Context c;
  CUdeviceptr words = 0;
  YES(cuMemAlloc(&words, 4096));
  YES(cuMemsetD8(words, 0, 4096));
  CUstreamBatchMemOpParams list[2]{};
  list[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, words, {5}, 0, 0};
  list[1].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, words + 8, {}, 0, 0};
  list[1].writeValue.value64 = 0x600000007;
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{c.context, 2, list, 0};
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  YES(cuGraphCreate(&graph, 0));
  YES(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  YES(cuGraphInstantiate(&exec, graph, 0));
  YES(cuGraphLaunch(exec, nullptr));
  uint32_t read[4]{};
  YES(cuMemcpyDtoH(read, words, sizeof read));
  CHECK((read[0] == 5 && read[1] == 0 && read[2] == 7 && read[3] == 6));
  CUDA_BATCH_MEM_OP_NODE_PARAMS said{};
  YES(cuGraphBatchMemOpNodeGetParams(node, &said));
  CHECK((said.count == 2 && said.paramArray[1].writeValue.address == words + 8));
  YES(cuGraphExecDestroy(exec));
  YES(cuGraphDestroy(graph));
  YES(cuMemFree(words));
}

TEST_CASE("a captured batch of values is one node") {
  Context c;
  CUstream s = nullptr;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  void* host = nullptr;
  YES(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  const auto at = static_cast<cuuint32_t*>(host);
  CUdeviceptr words = 0;
  YES(cuMemHostGetDevicePointer(&words, host, 0));
  CUstreamBatchMemOpParams values[3]{};
  for (cuuint32_t i = 0; i < 3; ++i) {
    values[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    values[i].writeValue.address = words + 4 * i;
    values[i].writeValue.value = 7 + i;
  }
  YES(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  YES(cuStreamBatchMemOp(s, 3, values, 0));
  CUgraph graph = nullptr;
  YES(cuStreamEndCapture(s, &graph));
  CUgraphNode nodes[4]{};
  size_t count = 4;
  YES(cuGraphGetNodes(graph, nodes, &count));
  CHECK(count == 1);
  CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{};
  YES(cuGraphBatchMemOpNodeGetParams(nodes[0], &parameters));
  CHECK(parameters.count == 3);
  CUgraphExec exec = nullptr;
  YES(cuGraphInstantiate(&exec, graph, 0));
  for (auto& value : values) value.writeValue.value += 100;
  parameters.paramArray = values;
  YES(cuGraphExecBatchMemOpNodeSetParams(exec, nodes[0], &parameters));
  YES(cuGraphLaunch(exec, s));
  YES(cuStreamSynchronize(s));
  CHECK(at[0] == 107);
  CHECK(at[2] == 109);
  YES(cuGraphExecDestroy(exec));
  YES(cuGraphDestroy(graph));
  YES(cuMemFreeHost(host));
  YES(cuStreamDestroy(s));
}

TEST_CASE("frees and attachments of other addresses than an allocation's are refused") {
  Context c;
  CUstream s = nullptr;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr ordered = 0, managed = 0;
  YES(cuMemAllocAsync(&ordered, 1 << 20, s));
  YES(cuMemFreeAsync(ordered, s));
  CHECK(cuMemFreeAsync(ordered, s) == CUDA_ERROR_INVALID_VALUE);
  YES(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  YES(cuStreamAttachMemAsync(s, managed, 0, CU_MEM_ATTACH_SINGLE));
  CHECK(cuStreamAttachMemAsync(s, managed, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamAttachMemAsync(s, managed + 4096, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  YES(cuMemFree(managed));
  YES(cuStreamDestroy(s));
}

TEST_CASE("a captured graph repeats its work and child graphs nest") {
  Context c;
  CUstream s;
  YES(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p;
  YES(cuMemAlloc(&p, 4096));
  YES(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status;
  YES(cuStreamIsCapturing(s, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  YES(cuMemsetD8Async(p, 3, 4096, s));
  YES(cuMemcpyDtoDAsync(p + 2048, p, 1024, s));
  CUgraph g;
  YES(cuStreamEndCapture(s, &g));
  size_t count = 0;
  YES(cuGraphGetNodes(g, nullptr, &count));
  CHECK(count == 2);
  std::vector<CUgraphNode> nodes(count);
  YES(cuGraphGetNodes(g, nodes.data(), &count));
  CUgraphNodeType type;
  YES(cuGraphNodeGetType(nodes[0], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMSET);
  CUDA_MEMSET_NODE_PARAMS m{};
  YES(cuGraphMemsetNodeGetParams(nodes[0], &m));
  CHECK(m.dst == p);
  CUgraph outer;
  CUgraphNode child;
  YES(cuGraphCreate(&outer, 0));
  YES(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, g));
  CUgraphExec exec;
  YES(cuGraphInstantiate(&exec, outer, 0));
  for (int i = 0; i < 3; ++i) {
    YES(cuMemsetD8(p, 0, 4096));
    YES(cuGraphLaunch(exec, s));
    YES(cuStreamSynchronize(s));
    uint8_t out[4096];
    YES(cuMemcpyDtoH(out, p, sizeof out));
    CHECK(out[0] == 3);
    CHECK(out[2048 + 1023] == 3);
  }
  YES(cuGraphExecDestroy(exec));
  YES(cuGraphDestroy(outer));
  YES(cuGraphDestroy(g));
  YES(cuStreamDestroy(s));
  YES(cuMemFree(p));
}

TEST_CASE("threads use their own default streams") {
  Context c;
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      if (cuCtxSetCurrent(c.context) != CUDA_SUCCESS) return;
      CUdeviceptr p;
      if (cuMemAlloc(&p, 1 << 20) != CUDA_SUCCESS) return;
      bool right = true;
      for (int i = 0; i < 200; ++i) {
        uint8_t out = 0;
        const auto v = static_cast<uint8_t>(t * 50 + i % 50);
        right &= cuMemsetD8Async(p, v, 1 << 20, CU_STREAM_PER_THREAD) == CUDA_SUCCESS;
        right &= cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS;
        right &= cuMemcpyDtoH(&out, p + 77, 1) == CUDA_SUCCESS && out == v;
      }
      right &= cuMemFree(p) == CUDA_SUCCESS;
      good += right;
    });
  }
  for (auto& t : threads) t.join();
  CHECK(good == 4);
}
