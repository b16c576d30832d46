// Access sets compared with the truth.
#include "trace/tools/explain.h"

#include <catch2/catch_test_macros.hpp>
#include <string>

namespace sluice::trace {
namespace {

TEST_CASE("an explanation counts touched bytes that were predicted, and predicted bytes that were not touched") {
  Trace source, replayed;
  for (Trace* t : {&source, &replayed}) t->functions.push_back({"gemm", {}});
  // The second block is small: the engine keeps it resident as a whole, and it is not counted.
  source.events = {{Type::kAlloc, 0, 0x10000000, 64 * kPageBytes},
                   {Type::kAlloc, 0, 0x20000000, 32 * kPageBytes},
                   {Type::kLaunch, 0, 0}};
  replayed.events = {{Type::kAlloc, 0, 0x90000000, 64 * kPageBytes},
                     {Type::kAlloc, 0, 0xa0000000, 32 * kPageBytes},
                     {Type::kLaunch, 0, 0}};
  Launch truth, predicted;
  truth.has_truth = true;
  truth.truth = {{0x10000000, 4 * kPageBytes}, {0x20000000 + 8 * kPageBytes, kPageBytes}};
  // Predicted to the byte, touched by pages: predicted ranges are rounded to pages.
  predicted.accesses = {{0x90000000 + kPageBytes + 512, 4 * kPageBytes - 768, Access::kRead, AccessSource::kLibrary},
                        {0xa0000000, 8 * kPageBytes, Access::kRead, AccessSource::kLibrary}};
  source.launches = {truth};
  replayed.launches = {predicted};
  const auto explained = Explain(source, replayed);
  REQUIRE(explained.ok());
  REQUIRE(explained->size() == 1);
  CHECK(explained->at(0).touched_bytes == 4 * kPageBytes);
  CHECK(explained->at(0).covered_bytes == 3 * kPageBytes);
  CHECK(explained->at(0).untouched_bytes() == kPageBytes);
  CHECK(ExplanationText(*explained)
            .find("#0 gemm: library 0.2 MiB; touched 0.2 MiB, predicted 75.0 %, untouched 0.1 MiB") == 0);
  CHECK(ExplanationText(*explained)
            .find("\n  0.1 MiB predicted, not touched: gemm\n  0.1 MiB touched, not predicted: gemm\n") !=
        std::string::npos);
  replayed.events[0].b = kPageBytes;
  CHECK_FALSE(Explain(source, replayed).ok());
}

TEST_CASE("a graph's launch is explained by its nodes, and by the truth of its captured launches") {
  Trace source, replayed;
  for (Trace* t : {&source, &replayed}) {
    t->functions.push_back({"gemm", {}});
    const uint64_t base = t == &source ? 0x10000000 : 0x90000000;
    t->events = {{Type::kAlloc, 0, base, 64 * kPageBytes},
                 {Type::kCaptureBegin, 0, 7, 0},
                 {Type::kLaunch, 0, 0},
                 {Type::kLaunch, 0, 1},
                 {Type::kCopy, 0, 7, base + 32 * kPageBytes, 0x7000, 2 * kPageBytes, kCopyToDevice},
                 {Type::kCaptureEnd, 0, 7, 21},
                 {Type::kGraphInstantiate, 0, 21, 22},
                 {Type::kGraphLaunch, 0, 22, 7, 0},
                 {Type::kGraphLaunch, 0, 22, 7, 1},
                 {Type::kLaunch, 0, 2}};
    t->launches.resize(3);
    for (Launch& launch : t->launches) launch.stream = 7;
    t->launches[0].flags = t->launches[1].flags = kLaunchCaptured;
    t->graph_launches.resize(2);
  }
  for (size_t i = 0; i < 2; ++i) {
    source.launches[i].has_truth = true;
    source.launches[i].truth = {{0x10000000 + i * 8 * kPageBytes, 4 * kPageBytes}};
  }
  replayed.graph_launches[0] = {
      true,
      {{{0x90000000, 4 * kPageBytes, Access::kRead, AccessSource::kLibrary},
        {0x90000000, kPageBytes, Access::kUnknown, AccessSource::kParameters}},
       {{0x90000000 + 8 * kPageBytes, 2 * kPageBytes, Access::kRead, AccessSource::kStruct}},
       {{0x90000000 + 32 * kPageBytes, 4 * kPageBytes, Access::kUnknown, AccessSource::kCopy}},
       {}}};
  // A launch of a graph that the source does not describe: no player launches it, and no replay has it.
  source.events.insert(source.events.begin() + 7, {Type::kGraphLaunch, 0, 99, 7, 0});
  auto explained = Explain(source, replayed);
  REQUIRE(explained.ok());
  REQUIRE(explained->size() == 6);
  CHECK(explained->at(0).captured);
  CHECK_FALSE(explained->at(0).has_truth);
  CHECK(explained->at(2).missing == "built by calls that traces do not hold, and not played");
  const LaunchExplanation& graph = explained->at(3);
  CHECK(graph.graph);
  CHECK(graph.nodes == 4);
  CHECK(graph.has_truth);
  CHECK(graph.touched_bytes == 10 * kPageBytes);
  CHECK(graph.covered_bytes == 8 * kPageBytes);
  CHECK(graph.untouched_bytes() == 2 * kPageBytes);
  CHECK(explained->at(4).covered_bytes == 0);
  const std::string text = ExplanationText(*explained);
  CHECK(text.find(
            "\n#3 graph, 4 nodes (1 by parameters, 1 by library, 1 by copy, 1 by struct): parameters 0.1 MiB, "
            "library 0.2 MiB, copy 0.2 MiB, struct 0.1 MiB; touched 0.6 MiB, predicted 80.0 %, untouched 0.1 MiB\n") !=
        std::string::npos);
  CHECK(text.find("#0 gemm (captured): ") == 0);
  source.launches[1].has_truth = false;
  explained = Explain(source, replayed);
  REQUIRE(explained.ok());
  CHECK_FALSE(explained->at(3).has_truth);
  CHECK(ExplanationText(*explained).find("; the trace has no truth for 1 of its 2 kernels\n") != std::string::npos);
  // A graph in one recording and a kernel in the other do not match.
  replayed.events[8] = {Type::kLaunch, 0, 2};
  CHECK_FALSE(Explain(source, replayed).ok());
}

}  // namespace
}  // namespace sluice::trace
