// Traces made of raw recordings.
#include "trace/tools/settle.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "folder.h"
#include "trace/tools/merge.h"

namespace sluice::trace {
namespace {

// A raw recording of undisturbed steps and a measured last one. Each step allocates `y` at another address, runs one
// kernel on x and y, and frees y. Steps from `light` on have no durations; earlier ones take three times as long.
Trace RawTrace(int steps = 3, int light = 0) {
  constexpr uint64_t kMi = 1 << 20;
  constexpr uint64_t kBase = 64 * kMi;
  Trace trace;
  trace.meta.emplace("slow-from", std::to_string(steps - 1));
  if (light != 0) trace.meta.emplace("light-from", std::to_string(light));
  trace.functions = {{"k", {{0, 8}, {8, 8}}}, {"other", {}}};
  uint64_t time = 0, each = light == 0 ? 10 : 30;
  const auto event = [&](Type type, uint64_t a, uint64_t b, uint64_t c = 0) {
    trace.events.push_back({type, time += each, a, b, c});
  };
  event(Type::kAlloc, kBase, 256 * kMi);
  event(Type::kReport, kBase, kMi);            // x: half of the driver's first block ...
  event(Type::kReport, kBase + kMi, kMi / 2);  // ... its neighbour: half of the rest
  for (int step = 0; step < steps; ++step) {
    if (step == light) each = 10;
    const uint64_t y = kBase + (4 + 8 * static_cast<uint64_t>(step)) * kMi;
    trace.step_names.push_back("step");
    event(Type::kStep, static_cast<uint64_t>(step), 0);
    event(Type::kReport, y, 4 * kMi);
    const bool measured = step == steps - 1;
    if (measured) time += 1000000;
    Launch launch;
    launch.words = {kBase + 128, y};
    launch.duration_ns = measured || (light != 0 && step >= light) ? 0 : 700;
    if (measured) {
      launch.has_truth = true;
      launch.truth = {{kBase + 4096, 4096}, {y + 8192, 4096}, {y + 2 * kMi + 4096, 4096}};
      launch.guessed = {{kBase, 4096}, {kBase + 8192, 2 * kMi - 8192}, {y, 8192}, {y + 12288, 2 * kMi - 12288}};
    }
    event(Type::kLaunch, trace.launches.size(), 0);
    trace.launches.push_back(launch);
    event(Type::kReport, y, static_cast<uint64_t>(-static_cast<int64_t>(4 * kMi)));
    event(Type::kStreamSync, 0, 0);
  }
  event(Type::kReport, kBase, static_cast<uint64_t>(-static_cast<int64_t>(kMi)));  // the program's end
  return trace;
}

TEST_CASE("settle: guesses count only in the tensor of a fault, and truth follows the parameters") {
  constexpr uint64_t kMi = 1 << 20, kBase = 64 * kMi;
  const auto settled = Settle(RawTrace());
  REQUIRE(settled.ok());
  const auto& launches = settled->trace.launches;
  for (uint64_t step = 0; step < 3; ++step) {
    const uint64_t y = kBase + (4 + 8 * step) * kMi;
    // All of x, y's first 2 MiB, and the faulted page of its second 2 MiB, where nothing was guessed.
    const std::vector<Range> expected = {{kBase, kMi}, {y, 2 * kMi}, {y + 2 * kMi + 4096, 4096}};
    CHECK(launches[step].has_truth);
    CHECK(launches[step].truth == expected);
    CHECK(launches[step].duration_ns == 700);
  }
  CHECK(settled->measured == 1);
  CHECK(settled->carried_over == 2);
  CHECK(settled->refused_bytes == kMi);  // the neighbour's bytes, and bytes outside all tensors
  const auto& events = settled->trace.events;
  CHECK(events.back().type == Type::kStreamSync);
  CHECK(std::is_sorted(events.begin(), events.end(),
                       [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; }));
  CHECK(events.back().time_ns < 1000);  // the measured step's own time is gone

  const Folder folder;
  REQUIRE(Write(settled->trace, folder / "t", nullptr).ok());
  const auto back = Load(folder / "t");
  REQUIRE(back.ok());
  CHECK(back->launches[1].truth == launches[1].truth);
}

TEST_CASE("settle: changed bytes were written, overwritten fillings were not read, other bytes were only read") {
  constexpr uint64_t kMi = 1 << 20, kBase = 64 * kMi;
  Trace raw = RawTrace();
  const uint64_t measured_y = kBase + 20 * kMi;
  raw.launches[2].has_changed = true;
  // A little of x, and most of y.
  raw.launches[2].changed = {{kBase + 8192, 512, Access::kReadWrite}, {measured_y, 2 * kMi, Access::kWrite}};
  const auto settled = Settle(raw);
  REQUIRE(settled.ok());
  for (uint64_t step = 0; step < 3; ++step) {
    const uint64_t y = kBase + (4 + 8 * step) * kMi;
    const std::vector<Range> expected = {{kBase, 8192, Access::kRead},
                                         {kBase + 8192, 512, Access::kReadWrite},
                                         {kBase + 8704, kMi - 8704, Access::kRead},
                                         {y, 2 * kMi, Access::kWrite},
                                         {y + 2 * kMi + 4096, 4096, Access::kWrite}};
    CHECK(settled->trace.launches[step].truth == expected);
  }
  CHECK(settled->read_bytes == kMi - 512);
  CHECK(settled->both_bytes == 512);
  CHECK(settled->written_bytes == 2 * kMi + 4096);
  // A guessed page that changed was touched, although no page of its tensor faulted.
  raw.launches[2].changed = {{kBase + kMi + 512, 512, Access::kReadWrite}};
  const auto neighbour = Settle(raw);
  REQUIRE(neighbour.ok());
  CHECK(neighbour->refused_bytes == kMi / 2);
  // A launch that was not compared has no directions.
  raw.launches[2].has_changed = false;
  const auto unknown = Settle(raw);
  REQUIRE(unknown.ok());
  CHECK(unknown->trace.launches[0].truth[0].access == Access::kUnknown);
}

TEST_CASE("settle: in a step unlike the measured one a launch takes the truth of its kernel and shape") {
  constexpr uint64_t kMi = 1 << 20, kBase = 64 * kMi;
  Trace raw = RawTrace();
  const auto step =
      std::find_if(raw.events.begin(), raw.events.end(), [](const Event& e) { return e.type == Type::kStep; });
  Launch other = raw.launches[0];
  other.function = 1;
  raw.events.insert(step + 1, {Type::kLaunch, step->time_ns, raw.launches.size()});
  raw.launches.push_back(other);
  const auto settled = Settle(raw);
  REQUIRE(settled.ok());
  CHECK(settled->carried_by_shape == 1);
  CHECK(settled->without == 1);
  CHECK_FALSE(settled->trace.launches[3].has_truth);
  REQUIRE(settled->trace.launches[0].has_truth);
  CHECK(settled->trace.launches[0].truth ==
        std::vector<Range>{{kBase, kMi}, {kBase + 4 * kMi, 2 * kMi}, {kBase + 6 * kMi + 4096, 4096}});
  // With a tensor of another size, that truth is about other bytes.
  raw.launches[0].words[1] = kBase;
  const auto smaller = Settle(raw);
  REQUIRE(smaller.ok());
  CHECK(smaller->without == 2);
}

TEST_CASE("settle: host times are those of a step without activity records, durations those of steps with them") {
  Trace raw = RawTrace(6, 3);
  const auto settled = Settle(raw);
  REQUIRE(settled.ok());
  std::vector<uint64_t> steps;
  for (const Event& e : settled->trace.events) {
    if (e.type == Type::kStep) steps.push_back(e.time_ns);
  }
  REQUIRE(steps.size() == 6);
  CHECK(steps[1] - steps[0] == 150);  // the first step keeps its own times
  for (size_t s = 1; s + 1 < steps.size(); ++s) CHECK(steps[s + 1] - steps[s] == 50);
  CHECK(settled->trace.events.back().time_ns - steps[5] <= 50);
  for (const Launch& launch : settled->trace.launches) CHECK(launch.duration_ns == 700);
}

TEST_CASE("settle refuses other traces than raw recordings, and steps that differ") {
  Trace unmarked = RawTrace();
  unmarked.meta.clear();
  CHECK(std::string(Settle(unmarked).status().message()).find("not a raw recording") != std::string::npos);
  Trace different = RawTrace();
  different.launches[1].function = 1;
  CHECK(std::string(Settle(different).status().message()).find("is another kernel") != std::string::npos);
  Trace early = RawTrace();
  early.meta["slow-from"] = std::string("7");
  CHECK(std::string(Settle(early).status().message()).find("slow from step 7") != std::string::npos);
}

}  // namespace
}  // namespace sluice::trace
