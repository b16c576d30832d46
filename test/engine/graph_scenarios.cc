// Capture and graphs, under pressure.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "test/engine/report.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

CUgraphExec Capture(Card& card, CUstream s, const std::vector<std::vector<simgpu_touch>>& launches) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (const auto& touches : launches) card.Named(s, touches);
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  return executable;
}

// A conditional node with `size` bodies; its condition is `value` when a launch begins.
std::vector<CUgraph> AddConditional(Card& card, CUgraph graph, CUgraphConditionalNodeType type, unsigned size,
                                    unsigned value, CUgraphConditionalHandle* handle = nullptr) {
  CUgraphNodeParams params{};
  CUgraphNode node = nullptr;
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.type = type;
  params.conditional.size = size;
  params.conditional.ctx = card.context;
  OK(cuGraphConditionalHandleCreate(&params.conditional.handle, graph, card.context, value,
                                    CU_GRAPH_COND_ASSIGN_DEFAULT));
  OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  if (handle != nullptr) *handle = params.conditional.handle;
  return {params.conditional.phGraph_out, params.conditional.phGraph_out + size};
}

template <typename Work>
void Fill(CUstream s, CUgraph body, Work work) {
  CUgraph filled = nullptr;
  OK(cuStreamBeginCaptureToGraph(s, body, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
  work();
  OK(cuStreamEndCapture(s, &filled));
  EXPECT(filled == body);
}

bool Prefetches() {
  const char* const mode = std::getenv("SLUICE_PREFETCH");
  return Budget() != 0 && Budget() < 768 * kMiB && (mode == nullptr || std::string(mode) != "off");
}

}  // namespace

// All blocks are used for four seconds of real time, then the first one alone: by launches, by graphs, or not at all.
// By itself it ends at once.
SCENARIO(one_of_four_blocks_is_used) {
  constexpr uint64_t kBytes = 256 * kMiB;
  const char* const seconds = std::getenv("SCENARIO_SECONDS");
  const char* const use = std::getenv("SCENARIO_USE");
  const std::string how = use != nullptr ? use : "launches";
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 4; ++i) p.push_back(Alloc(kBytes));
  for (uint32_t i = 0; i < 4; ++i) card.Named(s, {Write(p[i], kBytes, i + 1)});
  CUgraphExec graph = Capture(card, s, {{Read(p[0], kBytes, 1)}});
  const auto run = [&](double until, const std::vector<uint32_t>& blocks) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < until) {
      for (const uint32_t i : blocks) {
        how == "graphs" && blocks.size() == 1 ? OK(cuGraphLaunch(graph, s))
                                              : card.Named(s, {Read(p[i], kBytes, i + 1)});
      }
      OK(cuStreamSynchronize(s));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  const double all = seconds != nullptr ? std::atof(seconds) : 0;
  run(std::min(all, 4.0), {0, 1, 2, 3});
  run(all - 4, how == "nothing" ? std::vector<uint32_t>{} : std::vector<uint32_t>{0});
  for (CUdeviceptr at : p) PrintDigest("block", at, kBytes);
  OK(cuGraphExecDestroy(graph));
}

SCENARIO(graphs_under_pressure) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  std::vector<std::vector<simgpu_touch>> launches[2];
  for (uint32_t i = 0; i < 6; ++i) launches[0].push_back({Update(p[i], 64 * kMiB, i + 1)});
  for (uint32_t i = 6; i < 12; ++i) launches[1].push_back({Update(p[i], 64 * kMiB, i + 1), Read(p[0], 4 * kMiB, 1)});
  CUgraphExec a = Capture(card, s, launches[0]), b = Capture(card, s, launches[1]);
  for (uint32_t round = 0; round < 8; ++round) {
    OK(cuGraphLaunch(a, s));
    for (uint32_t i = 12; i < 16; ++i) card.Named(s, {Update(p[i], 64 * kMiB, i + 1)});
    OK(cuGraphLaunch(b, s));
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
  OK(cuGraphExecDestroy(a));
  OK(cuGraphExecDestroy(b));
}

SCENARIO(graph_larger_than_the_budget) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  std::vector<std::vector<simgpu_touch>> launches;
  for (uint32_t i = 0; i < 12; ++i) {
    p.push_back(Alloc(64 * kMiB));
    launches.push_back({Update(p[i], 64 * kMiB, i + 1)});
  }
  CUgraphExec g = Capture(card, s, launches);
  for (int round = 0; round < 6; ++round) OK(cuGraphLaunch(g, s));
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// Chunks that most nodes use stay resident, whatever was resident when the graph was first launched.
SCENARIO(graph_keeps_its_hot_part) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr hot = Alloc(64 * kMiB);
  card.Named(s, {Write(hot, 64 * kMiB, 99)});
  std::vector<CUdeviceptr> p;
  std::vector<std::vector<simgpu_touch>> launches;
  for (uint32_t i = 0; i < 12; ++i) {
    p.push_back(Alloc(64 * kMiB));
    card.Named(s, {Write(p[i], 64 * kMiB, i + 1)});
    launches.push_back({Read(p[i], 64 * kMiB, i + 1), Update(hot, 64 * kMiB, 99)});
  }
  CUgraphExec g = Capture(card, s, launches);
  uint64_t out = 0;
  for (int round = 0; round < 24; ++round) {
    if (round == 20) out = card.Stats().prefetch_out_bytes;
    OK(cuGraphLaunch(g, s));
    OK(cuStreamSynchronize(s));
  }
  if (Prefetches()) {
    EXPECT(simgpu_resident_bytes(hot, 64 * kMiB) == 64 * kMiB);
    out = card.Stats().prefetch_out_bytes - out;
    std::fprintf(stderr, "evicted_mib=%" PRIu64 " in four replays\n", out / kMiB);
    EXPECT(out <= 4 * 448 * kMiB);  // the bytes that do not fit, at most
  }
  PrintDigest("hot", hot, 64 * kMiB);
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

SCENARIO(graph_with_new_parameters) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 12; ++i) p.push_back(Alloc(64 * kMiB));
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(p[0], 3, 64 * kMiB, s));
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  size_t count = 1;
  CUgraphNode node = nullptr;
  OK(cuGraphGetNodes(graph, &node, &count));
  for (uint32_t i = 0; i < 24; ++i) {
    CUDA_MEMSET_NODE_PARAMS params{};
    params.dst = p[i % 12];
    params.value = i;
    params.elementSize = 1;
    params.width = 64 * kMiB;
    params.height = 1;
    OK(cuGraphExecMemsetNodeSetParams(executable, node, &params, card.context));
    OK(cuGraphLaunch(executable, s));
    card.Named(s, {Update(p[(i + 5) % 12], 64 * kMiB)});
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// Bodies of conditions: which of them run is not known when the graph is launched, so the memory of all bodies is
// fetched, also of a loop inside a branch.
SCENARIO(graph_with_conditions) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 14; ++i) p.push_back(Alloc(64 * kMiB));
  const auto update = [&](uint32_t i) { card.Named(s, {Update(p[i], 64 * kMiB, i + 1)}); };
  std::vector<CUgraphExec> executables;
  for (unsigned value = 0; value < 2; ++value) {
    CUgraph graph = nullptr;
    OK(cuGraphCreate(&graph, 0));
    const auto branches = AddConditional(card, graph, CU_GRAPH_COND_TYPE_IF, 2, value);
    Fill(s, branches[1], [&] { update(0); });
    CUgraphConditionalHandle goes_on = 0;
    const auto loop = AddConditional(card, branches[0], CU_GRAPH_COND_TYPE_WHILE, 1, 1, &goes_on);
    Fill(s, loop[0], [&] {
      const unsigned values[] = {1, 1, 0};
      simgpu_next_sets(goes_on, values, 3);
      update(1);
      update(2);
    });
    const auto cases = AddConditional(card, graph, CU_GRAPH_COND_TYPE_SWITCH, 3, value + 1);
    Fill(s, cases[1], [&] { update(3); });
    Fill(s, cases[2], [&] { OK(cuMemsetD8Async(p[4], 5, 64 * kMiB, s)); });
    CUgraphExec executable = nullptr;
    OK(cuGraphInstantiate(&executable, graph, 0));
    OK(cuGraphDestroy(graph));
    executables.push_back(executable);
  }
  for (uint32_t round = 0; round < 12; ++round) {
    for (uint32_t i = 5; i < 14; ++i) update(i);
    OK(cuStreamSynchronize(s));
    const uint64_t faults = card.Stats().fault_bytes;
    OK(cuGraphLaunch(executables[round / 2 % 2], s));
    OK(cuStreamSynchronize(s));
    if (Prefetches()) EXPECT(card.Stats().fault_bytes == faults);
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// A second thread under pressure while this one captures in global mode, which forbids most calls to every thread.
SCENARIO(pressure_beside_a_capture) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  CUstream other = card.Stream();
  for (uint32_t i = 4; i < 16; ++i) card.Named(other, {Write(p[i], 64 * kMiB, i + 1)});
  OK(cuStreamSynchronize(other));
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  std::thread thread([&] {
    OK(cuCtxSetCurrent(card.context));
    for (uint32_t i = 0; i < 120; ++i) card.Named(other, {Update(p[4 + i % 12], 64 * kMiB, 5 + i % 12)});
  });
  for (uint32_t i = 0; i < 40; ++i) card.Named(s, {Update(p[i % 4], 64 * kMiB, i % 4 + 1)});
  thread.join();
  OK(cuStreamEndCapture(s, &graph));
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, s));
  OK(cuGraphLaunch(executable, s));
  OK(cuCtxSynchronize());
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

// Captures begin in global mode while another thread works under pressure: no call of the engine that was under way
// breaks them.
SCENARIO(captures_begin_under_pressure) {
  Card card;
  CUstream s = card.Stream(), other = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  std::atomic<bool> is_ended = false;
  std::thread thread([&] {
    OK(cuCtxSetCurrent(card.context));
    for (uint32_t i = 0; i < 6000; ++i) card.Named(other, {Update(p[4 + i % 12], 64 * kMiB, 5 + i % 12)});
    is_ended = true;
  });
  int captures = 0, broken = 0;
  for (; !is_ended; ++captures) {
    CUgraph graph = nullptr;
    std::this_thread::sleep_for(std::chrono::microseconds(captures % 50));
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    std::this_thread::sleep_for(std::chrono::microseconds(captures % 30));
    broken += cuStreamEndCapture(s, &graph) != CUDA_SUCCESS;
    if (graph != nullptr) OK(cuGraphDestroy(graph));
  }
  thread.join();
  std::fprintf(stderr, "captures: %d, of which broken: %d\n", captures, broken);
  EXPECT(broken == 0);
}

// A thread's default streams of two contexts are captured. One capture ends, and the other one goes on.
SCENARIO(captures_of_one_thread_in_two_contexts) {
  Card first(0), second(1);
  OK(cuCtxSetCurrent(first.context));
  const CUdeviceptr a = Alloc(400 * kMiB), b = Alloc(400 * kMiB);
  for (const CUdeviceptr block : {a, b, a, b}) first.Named(CU_STREAM_PER_THREAD, {Update(block, 400 * kMiB, 1)});
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuCtxSetCurrent(second.context));
  OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
  OK(cuCtxSetCurrent(first.context));
  for (const CUdeviceptr block : {a, b}) first.Named(CU_STREAM_PER_THREAD, {Update(block, 400 * kMiB, 1)});
  OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
  size_t nodes = 0;
  OK(cuGraphGetNodes(graph, nullptr, &nodes));
  Print("nodes", nodes);
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
  PrintDigest("a", a, 400 * kMiB);
  PrintDigest("b", b, 400 * kMiB);
}

// Memory that a framework reports as freed is dropped without a copy, and has no contents when it is reused.
SCENARIO(reported_frees_are_dropped) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr segment = Alloc(512 * kMiB), weights = Alloc(384 * kMiB);
  uint32_t object = 10;
  for (int step = 0; step < 12; ++step) {
    for (uint64_t at = 0; at < 512; at += 64) {
      Report(segment + at * kMiB, static_cast<long>(64 * kMiB));
      card.Named(s, {Write(segment + at * kMiB, 64 * kMiB, ++object), Read(weights + at / 64 * 48 * kMiB, 48 * kMiB)});
      card.Named(s, {Read(segment + at * kMiB, 64 * kMiB, object)});
      Report(segment + at * kMiB, -static_cast<long>(64 * kMiB));
    }
    card.Named(s, {Update(weights, 384 * kMiB)});
    OK(cuStreamSynchronize(s));
  }
  PrintDigest("weights", weights, 384 * kMiB);
}

// Memory of a graph's private pool is reported free after the capture, and is used again by each replay.
SCENARIO(reported_during_a_capture) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr segment = Alloc(128 * kMiB), big = Alloc(640 * kMiB);
  CUgraph graph[2];
  CUgraphExec forward = nullptr, backward = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  Report(segment, static_cast<long>(128 * kMiB));
  card.Named(s, {Write(segment, 128 * kMiB, 1)});
  OK(cuStreamEndCapture(s, &graph[0]));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  card.Named(s, {Read(segment, 128 * kMiB, 1), Update(big, 16 * kMiB)});
  Report(segment, -static_cast<long>(128 * kMiB));
  OK(cuStreamEndCapture(s, &graph[1]));
  OK(cuGraphInstantiate(&forward, graph[0], 0));
  OK(cuGraphInstantiate(&backward, graph[1], 0));
  for (int step = 0; step < 5; ++step) {
    OK(cuGraphLaunch(forward, s));
    for (uint64_t at = 0; at < 640; at += 64) card.Named(s, {Update(big + at * kMiB, 64 * kMiB)});
    OK(cuStreamSynchronize(s));
    OK(cuGraphLaunch(backward, s));
  }
  PrintDigest("segment", segment, 128 * kMiB);
  PrintDigest("big", big, 640 * kMiB);
}
