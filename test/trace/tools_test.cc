// Synthetic traces, cutting, intervals, and records that only some recordings have.
#include <catch2/catch_test_macros.hpp>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "folder.h"
#include "trace/recorder.h"
#include "trace/tools/interval.h"
#include "trace/tools/merge.h"
#include "trace/tools/synthetic.h"

namespace sluice::trace {
namespace {

ModelShape Small() {
  ModelShape shape;
  shape.layers = 2;
  shape.width = 256;
  shape.tokens = 512;
  shape.vocabulary = 1000;
  shape.steps = 3;
  return shape;
}

TEST_CASE("synthetic traces touch only live tensors, and all their steps are alike") {
  const Folder folder;
  for (const bool decode : {false, true}) {
    const std::string path = folder / "t";
    REQUIRE((decode ? WriteDecode(path, Small()) : WriteTransformer(path, Small())).ok());
    const auto trace = Load(path);
    REQUIRE(trace.ok());
    CHECK(trace->flags == kFlagSynthetic);
    std::map<uint64_t, uint64_t> live;
    std::vector<size_t> launches;
    bool inside = true;
    for (const Event& e : trace->events) {
      if (e.type == Type::kReport) {
        const auto bytes = static_cast<int64_t>(e.b);
        if (bytes > 0) {
          const auto next = live.lower_bound(e.a);
          inside = inside && (next == live.end() || e.a + e.b <= next->first);
          inside = inside && (next == live.begin() || std::prev(next)->first + std::prev(next)->second <= e.a);
          live[e.a] = e.b;
        } else {
          inside = inside && live.erase(e.a) == 1;
        }
      }
      if (e.type == Type::kStep) launches.push_back(0);
      if (e.type != Type::kLaunch) continue;
      if (!launches.empty()) ++launches.back();
      for (const AccessRange& a : trace->launches[e.a].accesses) {
        const auto it = live.find(a.address);
        inside = inside && it != live.end() && a.bytes <= it->second;
      }
    }
    CHECK(inside);
    REQUIRE(launches.size() == 3);
    CHECK(launches[0] == launches[1]);
    CHECK(launches[1] == launches[2]);
  }
}

TEST_CASE("intervals: from a kernel to its next launch with another between, never across a wait or a step") {
  Trace trace;
  trace.functions = {{"a_norm_b", {}}, {"silu", {}}, {"other", {}}};
  uint64_t time = 0;
  const auto launch = [&](uint32_t function, uint64_t after) {
    trace.events.push_back({Type::kLaunch, time += after, trace.launches.size()});
    trace.launches.emplace_back().function = function;
  };
  const auto mark = [&](Type type, uint64_t e = 0) { trace.events.push_back({type, time += 7, 0, 0, 0, 0, e}); };
  const auto three = [&](uint64_t after) {
    launch(0, after);
    launch(1, after);
    launch(0, after);
  };
  mark(Type::kStep);
  three(1000);  // the first step warms up
  mark(Type::kStep);
  three(10);     // 20
  launch(2, 3);  // after the counted pair
  launch(0, 4);
  launch(1, 5);
  mark(Type::kCopy);
  launch(0, 6);  // 5 + 7 + 6
  for (const Type wait : {Type::kStreamSync, Type::kEventSync, Type::kDeviceSync, Type::kCopy, Type::kStep}) {
    launch(1, 1);
    mark(wait, kCopySync);
    launch(0, 1);
  }
  CHECK(Intervals(trace, "norm", "silu") == std::vector<uint64_t>{20, 18});
  CHECK(Intervals(trace, "norm", "absent").empty());
}

TEST_CASE("the recorder writes and the reader reads a raw recording's guesses") {
  const Folder folder;
  {
    Recorder recorder(folder / "t");
    recorder.Function(1, "k", {});
    recorder.Launch({});
    const AccessRange guess = {8192, 4096, Access::kUnknown, AccessSource::kParameters};
    recorder.Truth(0, {});
    recorder.Guessed(0, std::span(&guess, 1));
  }
  const auto trace = Load(folder / "t");
  REQUIRE(trace.ok());
  CHECK(trace->launches[0].guessed == std::vector<Range>{{8192, 4096}});
}

TEST_CASE("cut keeps whole steps") {
  const Folder folder;
  REQUIRE(WriteTransformer(folder / "t", Small()).ok());
  REQUIRE(Cut(folder / "t", folder / "cut", 2).ok());
  const auto cut = Load(folder / "cut");
  REQUIRE(cut.ok());
  CHECK(cut->step_names.size() == 2);
  CHECK(Cut(folder / "t", folder / "cut", 9).message() == (folder / "t") + ": has 3 steps, fewer than 9");
}

TEST_CASE("steps begin behind the synchronizations that have launches behind them") {
  const Folder folder;
  Trace trace;
  trace.functions = {{"k", {}}};
  const auto launch = [&](int count) {
    for (int i = 0; i < count; ++i) {
      trace.events.push_back({Type::kLaunch, 1000 * (trace.events.size() + 1), trace.launches.size()});
      trace.launches.emplace_back().function = 0;
    }
  };
  const auto wait = [&] { trace.events.push_back({Type::kDeviceSync, 1000 * (trace.events.size() + 1)}); };
  launch(9);  // before any wait: no step
  wait();
  wait();  // the step begins here
  launch(5);
  wait();
  launch(2);  // too few
  wait();
  launch(6);
  REQUIRE(Write(trace, folder / "t", nullptr).ok());
  REQUIRE(MarkSteps(folder / "t", folder / "marked", 5, 0.5).ok());
  const auto marked = Load(folder / "marked");
  REQUIRE(marked.ok());
  std::string order;
  for (const Event& event : marked->events)
    order += event.type == Type::kStep ? '|' : event.type == Type::kLaunch ? '.' : 'w';
  CHECK(order == ".........ww|.....w..w|......");
  CHECK(marked->step_names == std::vector<std::string>{"step 0", "step 1"});
  CHECK(marked->events.back().time_ns - marked->events.front().time_ns == 25 * 500);
  CHECK(MarkSteps(folder / "marked", folder / "u", 5, 1).message() == (folder / "marked") + ": has 2 steps already");
  CHECK(MarkSteps(folder / "t", folder / "u", 6, 1).message() ==
        (folder / "t") + ": 1 synchronizations with 6 launches behind them, fewer than 2");

  trace.functions.push_back({"beginning", {}});
  for (const size_t at : {3, 12, 15}) trace.launches[at].function = 1;
  REQUIRE(Write(trace, folder / "k", nullptr).ok());
  REQUIRE(MarkSteps(folder / "k", folder / "by kernel", 5, 1, "begin").ok());
  const auto by_kernel = Load(folder / "by kernel");
  REQUIRE(by_kernel.ok());
  order.clear();
  for (const Event& event : by_kernel->events)
    order += event.type == Type::kStep ? '|' : event.type == Type::kLaunch ? '.' : 'w';
  CHECK(order == "...|......ww.....w.|.w......");
}

TEST_CASE("a trace keeps the access sets of a graph's nodes") {
  const Folder folder;
  const std::string path = folder / "graph";
  {
    Recorder recorder(path);
    recorder.GraphLaunch(22, 7);
    const std::vector<std::vector<AccessRange>> nodes = {{{0x90000000, 512, Access::kRead, AccessSource::kStruct},
                                                          {0x91000000, 1, Access::kUnknown, AccessSource::kCopy}},
                                                         {}};
    recorder.GraphLaunch(23, 8, &nodes);
    recorder.Finish();
  }
  const std::string copy = folder / "graph-copy";
  REQUIRE(Write(*Load(path), copy, nullptr).ok());
  for (const std::string& at : {path, copy}) {
    const auto trace = Load(at);
    REQUIRE(trace.ok());
    REQUIRE(trace->events.size() == 2);
    CHECK_FALSE(trace->graph_launches.at(trace->events[0].c).has_nodes);
    CHECK(trace->events[1].a == 23);
    CHECK(trace->events[1].b == 8);
    const GraphLaunch& launch = trace->graph_launches.at(trace->events[1].c);
    CHECK(launch.has_nodes);
    REQUIRE(launch.nodes.size() == 2);
    REQUIRE(launch.nodes[0].size() == 2);
    CHECK(launch.nodes[0][0].source == AccessSource::kStruct);
    CHECK(launch.nodes[0][0].access == Access::kRead);
    CHECK(launch.nodes[0][1].address == 0x91000000);
    CHECK(launch.nodes[1].empty());
  }
}

}  // namespace
}  // namespace sluice::trace
