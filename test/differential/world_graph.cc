// Captures and graphs.
#include <algorithm>

#include "world.h"

namespace differential {

bool World::DoGraph(const Op& op) {
  Random random(op.r);
  switch (op.kind) {
    case OpKind::kBeginCapture:
      return BeginCapture(op, random);
    case OpKind::kEndCapture: {
      Capture& capture = captures[op.a];
      if (!capture.open) return false;
      Stream& stream = streams[capture.stream];
      const int thread = capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED ? op.thread : capture.thread;
      Use(thread, stream.context);
      Emit(kEndCapture, thread, {stream.number, op.a});
      stream.capture = -1;
      capture.open = false;
      graphs[op.a].live = true;
      return true;
    }
    case OpKind::kBuildGraph: {
      // a: the graph, b and c: blocks of the context `stream` (as -1 - context)
      const int context = -1 - op.stream;
      if (context < 0 || context >= kMaxContexts || !contexts[context].live || graphs[op.a].live) return false;
      if (captures[op.a].stream >= 0 || !Live(op.b) || !Live(op.c) || op.b == op.c) return false;
      for (const int block : {op.b, op.c}) {
        if (!Reaches(context, block) || blocks[block].table || blocks[block].kind == kGlobalOfModule) return false;
      }
      if (!Unsafe(op.thread)) return false;
      const int64_t bytes = std::min(blocks[op.b].bytes, blocks[op.c].bytes) / 4 * 4;
      if (bytes < 16) return false;
      Graph& graph = graphs[op.a];
      graph = Graph{};
      graph.live = true;
      graph.context = context;
      graph.writes = {op.b, op.c};
      graph.needs = {op.b};
      if (bytes != blocks[op.c].bytes) graph.needs.insert(op.c);
      graph.defines = {op.b, op.c};
      const int shape = contexts[context].green ? kByCalls : random.Below(kGraphShapes);
      graph.has_condition = shape == kInConditional;
      // The driver sets the parameters of nodes of the graph itself alone.
      graph.node_block = shape == kInConditional || shape == kInChild ? -1 : op.b;
      graph.node_bytes = bytes;
      Use(op.thread, context);
      const int k = random.Below(1 << 20);
      // The driver refuses values in managed memory and in that of pools.
      const bool has_values = blocks[op.b].kind == kAllocated && !graph.has_condition && random.OneIn(2);
      const int values = has_values ? 1 + random.Below(4) : 0;
      Emit(kBuildGraph, op.thread, {op.a, shape, op.b, op.c, bytes, k, values, context});
      return true;
    }
    case OpKind::kMakeExec:
      if (!graphs[op.a].live || graphs[op.a].has_exec || !Unsafe(op.thread)) return false;
      // The driver refuses nodes of memory that was freed (H100, driver 580).
      for (const std::set<int>* const blocks_of : {&graphs[op.a].reads, &graphs[op.a].writes}) {
        if (!std::all_of(blocks_of->begin(), blocks_of->end(), [this](int block) { return Live(block); })) return false;
      }
      Use(op.thread, graphs[op.a].context);
      Emit(kInstantiate, op.thread, {op.a});
      graphs[op.a].has_exec = true;
      return true;
    case OpKind::kScratch:
      return Scratch(op, random);
    case OpKind::kSetNode: {
      const Graph& graph = graphs[op.a];
      if (!graph.live || !graph.has_exec || graph.node_block < 0 || !Live(graph.node_block) || !Unsafe(op.thread))
        return false;
      Use(op.thread, graph.context);
      Emit(kSetNode, op.thread, {op.a, graph.context, graph.node_block, graph.node_bytes, random.Below(1 << 20)});
      return true;
    }
    case OpKind::kLaunchExec:
      return LaunchExec(op, random);
    case OpKind::kEndGraph: {
      Graph& graph = graphs[op.a];
      if (!graph.live || !Unsafe(op.thread)) return false;
      Use(op.thread, graph.context);
      if (graph.has_exec) {
        if (!OrderHost(graph.last, op.thread, random)) return false;
        Emit(kDestroyExec, op.thread, {op.a});
        graph.has_exec = false;
        if (random.OneIn(2)) return true;
      }
      Emit(kDestroyGraph, op.thread, {op.a});
      captures[op.a] = {};
      captures[op.a].stream = 0;  // the number is not used again
      graph = Graph{};
      return true;
    }
    default:
      return false;
  }
}

// a: the graph's number, b: the stream, c: a graph that the work may be added to.
bool World::BeginCapture(const Op& op, Random& random) {
  if (!LiveStream(op.b) || streams[op.b].capture >= 0 || streams[op.b].number < 3) return false;
  if (graphs[op.a].live || captures[op.a].open || captures[op.a].stream >= 0) return false;
  Stream& stream = streams[op.b];
  const int mode = random.Below(3);
  const bool to_graph = target_.appends && random.OneIn(3);
  const bool is_added = to_graph && op.c >= 0 && graphs[op.c].live && !graphs[op.c].has_exec &&
                        graphs[op.c].context == stream.context && random.OneIn(2) && Unsafe(op.thread);
  const int graph = is_added ? op.c : op.a;
  if (!is_added) {
    graphs[graph] = Graph{};
    graphs[graph].context = stream.context;
  }
  graphs[graph].live = false;  // until the capture ends
  stream.capture = graph;
  captures[graph] = {true, op.b, op.thread, mode};
  Use(op.thread, stream.context);
  if (to_graph) {
    Emit(kCaptureTo, op.thread, {stream.number, graph, mode, !is_added});
  } else {
    Emit(kBeginCapture, op.thread, {stream.number, mode});
  }
  return true;
}

// Memory that a graph allocates, uses and frees itself.
bool World::Scratch(const Op& op, Random& random) {
  // a: the new block, b: a defined block of the capture's context
  if (!LiveStream(op.stream) || streams[op.stream].capture < 0 || blocks[op.a].bytes != 0) return false;
  const int context = streams[op.stream].context;
  if (contexts[context].green || !Live(op.b) || !Reaches(context, op.b)) return false;
  const int64_t bytes = blocks[op.b].bytes;
  if (bytes > (4 << 20) || !Begin(op, op.stream, {{op.b, true, false}}, random)) return false;
  blocks[op.a].bytes = bytes;  // the number is taken
  Emit(kAllocAsync, op.thread, {op.a, bytes, streams[op.stream].number});
  Emit(kCopy, op.thread, {op.a, 0, op.b, 0, bytes, streams[op.stream].number});
  Emit(kUpdate, op.thread, {context, streams[op.stream].number, kPlain, op.a, 0, bytes / 4 * 4, random.Below(1 << 20)});
  Emit(kCopy, op.thread, {op.b, 0, op.a, 0, bytes, streams[op.stream].number});
  Emit(kFreeAsync, op.thread, {op.a, streams[op.stream].number});
  return true;
}

bool World::LaunchExec(const Op& op, Random& random) {
  if (!graphs[op.a].live || !graphs[op.a].has_exec) return false;
  const Graph graph = graphs[op.a];
  const int stream = StreamOf(op, random);
  if (stream < 0 || streams[stream].capture >= 0) return false;
  if (contexts[streams[stream].context].family != contexts[graph.context].family) return false;
  if (streams[stream].number == 0 && !LegacyFree(streams[stream].context)) return false;
  const int thread = ThreadFor(stream, op.thread);
  for (const auto* set : {&graph.reads, &graph.writes}) {
    for (const int block : *set) {
      if (!Live(block) || blocks[block].table) return false;
    }
  }
  for (const int block : graph.needs) {
    if (!blocks[block].defined) return false;
  }
  // A graph without work is no part of the barrier (experiments/probes/questions_barriers.h).
  const bool runs = !graph.reads.empty() || !graph.writes.empty();
  if (target_.execs && runs && graph.last.line >= 0 && random.OneIn(2)) {
    lines_[streams[stream].line].clock.Join(graph.done);
  } else if (!Order(stream, graph.last, thread, random)) {
    return false;
  }
  for (const int block : graph.writes) {
    if (!OrderBlock(stream, block, true, thread, random)) return false;
  }
  for (const int block : graph.reads) {
    if (!OrderBlock(stream, block, false, thread, random)) return false;
  }
  Use(thread, streams[stream].context);
  if (random.OneIn(4)) Emit(kUpload, thread, {op.a, streams[stream].number});
  if (!graph.has_condition && random.OneIn(6) && Unsafe(thread)) Emit(kUpdateExec, thread, {op.a});
  const int times = 1 + random.Below(3);
  for (int i = 0; i < times; ++i) Emit(kLaunchGraph, thread, {op.a, streams[stream].number});
  const Stamp stamp = Submit(stream, runs || !target_.waits);
  graphs[op.a].last = stamp;
  graphs[op.a].done = lines_[streams[stream].line].clock;
  for (const int block : graph.writes) {
    blocks[block].write = stamp;
    blocks[block].reads.clear();
    blocks[block].defined = blocks[block].defined || graph.defines.count(block) != 0;
  }
  for (const int block : graph.reads) blocks[block].reads.push_back(stamp);
  return true;
}

}  // namespace differential
