// The working set that an engine recorded, compared with the chunks that were truly touched.
#include "trace/tools/working_set.h"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "folder.h"
#include "trace/recorder.h"
#include "trace/tools/merge.h"

namespace sluice::trace {
namespace {

constexpr uint64_t kMi = 1 << 20, kSecond = 1'000'000'000;
constexpr uint64_t kSource = 0x10000000, kReplay = 0x90000000;

// A block of 64 MiB and a small one; launches of which each touches some ranges, a second apart.
std::pair<Trace, Trace> Recordings(const std::vector<std::vector<Range>>& truths) {
  std::pair<Trace, Trace> both;
  for (Trace* t : {&both.first, &both.second}) {
    const uint64_t base = t == &both.first ? kSource : kReplay;
    t->functions.push_back({"gemm", {}});
    t->events = {{Type::kAlloc, 0, base, 64 * kMi}, {Type::kAlloc, 0, base + 64 * kMi, 2 * kMi}};
    for (size_t i = 0; i < truths.size(); ++i) {
      Launch launch;
      launch.has_truth = t == &both.first;
      if (launch.has_truth) launch.truth = truths[i];
      t->events.push_back({Type::kLaunch, (i + 1) * kSecond, i});
      t->launches.push_back(launch);
    }
  }
  return both;
}

TEST_CASE("the truth of a working set is the chunks of the touched pages, as the replay has them") {
  // Two pages of chunk 0, the border of chunks 1 and 2, and the small block.
  auto [source, replayed] = Recordings({{{kSource, kPageBytes}, {kSource + kMi, kPageBytes}},
                                        {{kSource + 4 * kMi - kPageBytes, 2 * kPageBytes}},
                                        {{kSource + 64 * kMi, kPageBytes}}});
  CHECK_FALSE(CheckWorkingSet(source, replayed).is_known);
  CHECK(WorkingSetText(CheckWorkingSet(source, replayed)).empty());
  replayed.events.push_back({Type::kWorkingSet, 3 * kSecond, 0, 100 * kMi, kMi});
  replayed.events.push_back({Type::kWorkingSet, 4 * kSecond, 0, 8 * kMi, kMi});
  replayed.events.push_back({Type::kWorkingSet, 4 * kSecond, 1, 2 * kMi, 0});
  const WorkingSetCheck check = CheckWorkingSet(source, replayed);
  CHECK(check.is_known);
  CHECK(check.estimated_bytes == 10 * kMi);  // the newest of each device
  CHECK(check.touched_bytes == 6 * kMi);
  CHECK(check.launches == 3);
  CHECK(check.without_truth == 0);
  CHECK(WorkingSetText(check) ==
        "working set of the last minute: estimated 10.0 MiB, truly touched 6.0 MiB (3 launches, 0 without truth)\n");
}

TEST_CASE("launches before the last minute, and behind the estimate, do not count") {
  auto [source, replayed] =
      Recordings({{{kSource, kPageBytes}}, {{kSource + 2 * kMi, kPageBytes}}, {{kSource + 4 * kMi, kPageBytes}}});
  replayed.events[3].time_ns = 70 * kSecond;
  replayed.events[4].time_ns = 90 * kSecond;
  replayed.events.insert(replayed.events.begin() + 4, {Type::kWorkingSet, 80 * kSecond, 0, 2 * kMi, 0});
  const WorkingSetCheck check = CheckWorkingSet(source, replayed);
  CHECK(check.launches == 1);
  CHECK(check.touched_bytes == 2 * kMi);
}

TEST_CASE("copies, and the captured launches of a graph, are touches") {
  auto [source, replayed] = Recordings({{{kSource, kPageBytes}}});
  for (Trace* t : {&source, &replayed}) {
    const uint64_t base = t == &source ? kSource : kReplay;
    t->launches[0].flags = kLaunchCaptured;
    t->launches[0].stream = 7;
    t->events = {{Type::kAlloc, 0, base, 64 * kMi},
                 {Type::kCopy, 0, 7, base + 32 * kMi, 0x7000, kMi, kCopyToDevice},
                 {Type::kSet, 0, 7, base + 34 * kMi, kMi, 0},
                 {Type::kCaptureBegin, 0, 7, 0},
                 {Type::kLaunch, kSecond, 0},
                 {Type::kSet, kSecond, 7, base + 40 * kMi, kMi, 0},
                 {Type::kCaptureEnd, kSecond, 7, 21},
                 {Type::kGraphInstantiate, kSecond, 21, 22},
                 {Type::kGraphLaunch, 2 * kSecond, 22, 7, 0}};
    t->graph_launches.resize(1);
  }
  replayed.events.push_back({Type::kWorkingSet, 3 * kSecond, 0, 8 * kMi, 0});
  CHECK(CheckWorkingSet(source, replayed).touched_bytes == 8 * kMi);
}

TEST_CASE("a recorded working set is read back, and kept by the tools") {
  const Folder folder;
  {
    Recorder recorder(folder / "t");
    recorder.WorkingSet(1, 5 * kMi, 3);
    recorder.Finish();
  }
  const auto recorded = Load(folder / "t");
  REQUIRE(recorded.ok());
  REQUIRE(Write(*recorded, folder / "copy", nullptr).ok());
  const auto trace = Load(folder / "copy");
  REQUIRE(trace.ok());
  REQUIRE(trace->events.size() == 1);
  CHECK(trace->events[0].type == Type::kWorkingSet);
  CHECK(trace->events[0].a == 1);
  CHECK(trace->events[0].b == 5 * kMi);
  CHECK(trace->events[0].c == 3);
  CHECK(std::string(TypeName(Type::kWorkingSet)) == "working-set");
}

}  // namespace
}  // namespace sluice::trace
