// Synthetic traces, settling and cutting, the Belady bound against brute force, explanations.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "trace/tools/bound.h"
#include "trace/tools/explain.h"
#include "trace/tools/interval.h"
#include "trace/tools/merge.h"
#include "trace/tools/settle.h"
#include "trace/tools/synthetic.h"

namespace sluice::trace {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/sluice-trace-test.XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

ModelShape Small() {
  ModelShape shape;
  shape.layers = 2;
  shape.width = 256;
  shape.tokens = 512;
  shape.vocabulary = 1000;
  shape.steps = 3;
  return shape;
}

TEST_CASE("synthetic traces touch only what lives, and every step is alike") {
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

// A raw recording: undisturbed steps, the last one measured; a step allocates `y`, runs one kernel on x and y, frees y.
// Its y lies elsewhere in each step. Those from `light` on have no durations; those before take three times as long.
Trace RawTrace(int steps = 3, int light = 0) {
  constexpr uint64_t kMi = 1 << 20;
  constexpr uint64_t base = 64 * kMi;
  Trace trace;
  trace.meta.emplace("slow-from", std::to_string(steps - 1));
  if (light != 0) trace.meta.emplace("light-from", std::to_string(light));
  trace.functions = {{"k", {{0, 8}, {8, 8}}}, {"other", {}}};
  uint64_t time = 0, each = light == 0 ? 10 : 30;
  const auto event = [&](Type type, uint64_t a, uint64_t b, uint64_t c = 0) {
    trace.events.push_back({type, time += each, a, b, c});
  };
  event(Type::kAlloc, base, 256 * kMi);
  event(Type::kReport, base, kMi);            // x: half of the driver's first block ...
  event(Type::kReport, base + kMi, kMi / 2);  // ... its neighbour: half of the rest
  for (int step = 0; step < steps; ++step) {
    if (step == light) each = 10;
    const uint64_t y = base + (4 + 8 * static_cast<uint64_t>(step)) * kMi;
    trace.step_names.push_back("step");
    event(Type::kStep, static_cast<uint64_t>(step), 0);
    event(Type::kReport, y, 4 * kMi);
    const bool measured = step == steps - 1;
    if (measured) time += 1000000;
    Launch launch;
    launch.words = {base + 128, y};
    launch.duration_ns = measured || (light != 0 && step >= light) ? 0 : 700;
    if (measured) {
      launch.has_truth = true;
      launch.truth = {{base + 4096, 4096}, {y + 8192, 4096}, {y + 2 * kMi + 4096, 4096}};
      launch.guessed = {{base, 4096}, {base + 8192, 2 * kMi - 8192}, {y, 8192}, {y + 12288, 2 * kMi - 12288}};
    }
    event(Type::kLaunch, trace.launches.size(), 0);
    trace.launches.push_back(launch);
    event(Type::kReport, y, static_cast<uint64_t>(-static_cast<int64_t>(4 * kMi)));
    event(Type::kStreamSync, 0, 0);
  }
  event(Type::kReport, base, static_cast<uint64_t>(-static_cast<int64_t>(kMi)));  // the program's end
  return trace;
}

TEST_CASE("intervals: from a kernel to its next launch where another lies between, never over a wait or a step") {
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
  launch(2, 3);  // not between the two that count
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
  CHECK(Intervals(trace, "norm", "nobody").empty());
}

TEST_CASE("settle: guesses beside a fault count in the same tensor only, and truth follows the parameters") {
  constexpr uint64_t kMi = 1 << 20, base = 64 * kMi;
  const auto settled = Settle(RawTrace());
  REQUIRE(settled.ok());
  const auto& launches = settled->trace.launches;
  for (uint64_t step = 0; step < 3; ++step) {
    const uint64_t y = base + (4 + 8 * step) * kMi;
    // All of x; y's first 2 MiB, and of its second only the page that faulted: nothing was guessed there.
    const std::vector<Range> expected = {{base, kMi}, {y, 2 * kMi}, {y + 2 * kMi + 4096, 4096}};
    CHECK(launches[step].has_truth);
    CHECK(launches[step].truth == expected);
    CHECK(launches[step].duration_ns == 700);
  }
  CHECK(settled->measured == 1);
  CHECK(settled->carried_over == 2);
  CHECK(settled->refused_bytes == kMi);  // the neighbour's, and what nothing lives in
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

TEST_CASE("settle: what changed was written, what was filled before was not read, the rest was read only") {
  constexpr uint64_t kMi = 1 << 20, base = 64 * kMi;
  Trace raw = RawTrace();
  const uint64_t measured_y = base + 20 * kMi;
  raw.launches[2].has_changed = true;
  // A little of x; of y all but what was written as it was.
  raw.launches[2].changed = {{base + 8192, 512, Access::kReadWrite}, {measured_y, 2 * kMi, Access::kWrite}};
  const auto settled = Settle(raw);
  REQUIRE(settled.ok());
  for (uint64_t step = 0; step < 3; ++step) {
    const uint64_t y = base + (4 + 8 * step) * kMi;
    const std::vector<Range> expected = {{base, 8192, Access::kRead},
                                         {base + 8192, 512, Access::kReadWrite},
                                         {base + 8704, kMi - 8704, Access::kRead},
                                         {y, 2 * kMi, Access::kWrite},
                                         {y + 2 * kMi + 4096, 4096, Access::kWrite}};
    CHECK(settled->trace.launches[step].truth == expected);
  }
  CHECK(settled->read_bytes == kMi - 512);
  CHECK(settled->both_bytes == 512);
  CHECK(settled->written_bytes == 2 * kMi + 4096);
  // A page that came along in a tensor of which no page faulted, and changed, was touched.
  raw.launches[2].changed = {{base + kMi + 512, 512, Access::kReadWrite}};
  const auto neighbour = Settle(raw);
  REQUIRE(neighbour.ok());
  CHECK(neighbour->refused_bytes == kMi / 2);
  // A launch that was not looked at has none.
  raw.launches[2].has_changed = false;
  const auto unknown = Settle(raw);
  REQUIRE(unknown.ok());
  CHECK(unknown->trace.launches[0].truth[0].access == Access::kUnknown);
}

TEST_CASE("settle: a launch of a step that is unlike the measured one takes the truth of its kernel and shape") {
  constexpr uint64_t kMi = 1 << 20, base = 64 * kMi;
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
        std::vector<Range>{{base, kMi}, {base + 4 * kMi, 2 * kMi}, {base + 6 * kMi + 4096, 4096}});
  // On a tensor of another size it is about other bytes.
  raw.launches[0].words[1] = base;
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
  CHECK(steps[1] - steps[0] == 150);  // the first step is like no other
  for (size_t s = 1; s + 1 < steps.size(); ++s) CHECK(steps[s + 1] - steps[s] == 50);
  CHECK(settled->trace.events.back().time_ns - steps[5] <= 50);
  for (const Launch& launch : settled->trace.launches) CHECK(launch.duration_ns == 700);
}

TEST_CASE("settle refuses what is no raw recording, and steps that are not alike") {
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

TEST_CASE("a raw recording's guesses are kept by the recorder and the reader") {
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

// A trace of launches over pages of one block: `uses[i]` are the pages of launch i, all read (after one launch that
// wrote all).
Trace PageTrace(const std::vector<std::vector<uint64_t>>& uses, uint64_t pages, bool write_first) {
  Trace trace;
  trace.functions.push_back({"k", {}});
  const uint64_t base = 0x100000000;
  trace.events.push_back({Type::kAlloc, 0, base, pages * kPageBytes});
  const auto launch = [&](const std::vector<uint64_t>& touched, Access access) {
    Launch l;
    for (const uint64_t page : touched) {
      l.accesses.push_back({base + page * kPageBytes, kPageBytes, access, AccessSource::kParameters});
    }
    trace.events.push_back({Type::kLaunch, 0, trace.launches.size()});
    trace.launches.push_back(l);
  };
  if (write_first) {
    for (uint64_t page = 0; page < pages; ++page) launch({page}, Access::kWrite);
  }
  trace.step_names.emplace_back("s");
  trace.events.push_back({Type::kStep, 0, 0});
  for (const auto& touched : uses) launch(touched, Access::kRead);
  return trace;
}

// Fewest fetches for single-page launches: exhaustive search over victims.
int FewestFetches(const std::vector<std::vector<uint64_t>>& uses, size_t at, std::set<uint64_t> resident,
                  size_t capacity) {
  for (; at < uses.size(); ++at) {
    const uint64_t page = uses[at][0];
    if (resident.contains(page)) continue;
    if (resident.size() < capacity) {
      resident.insert(page);
      return 1 + FewestFetches(uses, at + 1, resident, capacity);
    }
    int best = INT32_MAX;
    for (const uint64_t victim : resident) {
      std::set<uint64_t> next = resident;
      next.erase(victim);
      next.insert(page);
      best = std::min(best, 1 + FewestFetches(uses, at + 1, next, capacity));
    }
    return best;
  }
  return 0;
}

TEST_CASE("no policy fetches less than Belady, and Belady is what brute force finds") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::vector<uint64_t>> uses;
    for (int i = 0; i < 11; ++i) uses.push_back({random() % 5});
    // Written one after the other with room for two: those of the last two launches are resident when the step begins.
    const Trace trace = PageTrace(uses, 5, true);
    const uint64_t budget = 2 * kPageBytes;
    const auto in = [&](Policy policy) { return Traffic(trace, budget, policy).back().in_bytes / kPageBytes; };
    int best = INT32_MAX;
    // Which two of the five stay after the writes is part of the choice.
    for (uint64_t a = 0; a < 5; ++a) {
      for (uint64_t b = a; b < 5; ++b) {
        if (a != 4 && b != 4) continue;  // the page written last is there
        best = std::min(best, FewestFetches(uses, 0, {a, b}, 2));
      }
    }
    REQUIRE(static_cast<int>(in(Policy::kBelady)) == best);
    REQUIRE(in(Policy::kLru) >= in(Policy::kBelady));
    REQUIRE(in(Policy::kFifo) >= in(Policy::kBelady));
  }
}

TEST_CASE("fresh and dead pages cost nothing, what fits costs nothing") {
  const std::vector<std::vector<uint64_t>> uses = {{0}, {1}, {2}, {0}, {1}, {2}};
  const StepTraffic fresh = Traffic(PageTrace(uses, 3, false), 3 * kPageBytes, Policy::kLru).back();
  CHECK(fresh.in_bytes == 0);
  CHECK(fresh.touched_bytes == 6 * kPageBytes);
  const StepTraffic tight = Traffic(PageTrace(uses, 3, false), 2 * kPageBytes, Policy::kLru).back();
  CHECK(tight.in_bytes == 3 * kPageBytes);  // LRU misses each of the second round
  CHECK(tight.out_bytes == 0);              // only read: nothing to bring out
  CHECK(tight.clean_out_bytes == 4 * kPageBytes);
  // What nobody needs again leaves for nothing: page 1.
  const StepTraffic read = Traffic(PageTrace({{0}, {1}, {0}}, 2, false), kPageBytes, Policy::kBelady).back();
  CHECK(read.out_bytes == 0);
  CHECK(read.clean_out_bytes == kPageBytes);
  // So does what was written and lives on, but is freed before anybody needs it; that is told.
  Trace freed = PageTrace({{1}, {0}}, 3, true);
  CHECK(Traffic(freed, 2 * kPageBytes, Policy::kBelady).back().dropped_bytes == 0);  // nobody knows what comes behind
  freed.events.push_back({Type::kFree, 0, 0x100000000});
  const StepTraffic dropped = Traffic(freed, 2 * kPageBytes, Policy::kBelady).back();
  CHECK(dropped.dropped_bytes == kPageBytes);
  const std::string text = std::filesystem::temp_directory_path() / ("uses." + std::to_string(getpid()));
  REQUIRE(WriteUses(freed, text).ok());
  std::ifstream told(text);
  CHECK(std::string(std::istreambuf_iterator<char>(told), {}) == "L 0w\nL 1w\nL 2w\nS\nL 1r\nL 0r\nD 0\nD 1\nD 2\n");
  std::filesystem::remove(text);
  CHECK_FALSE(WriteUses(freed, text + "/none").ok());
  CHECK(dropped.in_bytes == kPageBytes);
  CHECK(dropped.out_bytes == 0);
  CHECK(Traffic(freed, 2 * kPageBytes, Policy::kLru).back().dropped_bytes == 0);
  // The same by what was truly touched; of unknown direction, it counts as written, and leaves with a copy.
  Trace touched = PageTrace(uses, 3, true);
  for (const Access access : {Access::kRead, Access::kUnknown}) {
    for (Launch& launch : touched.launches) {
      const AccessRange& a = launch.accesses[0];
      launch.truth = {{a.address, a.bytes, a.access == Access::kRead ? access : a.access}};
      launch.has_truth = true;
    }
    for (Launch& launch : touched.launches) launch.accesses.clear();
    const StepTraffic step = Traffic(touched, 2 * kPageBytes, Policy::kLru).back();
    CHECK(step.out_bytes == (access == Access::kRead ? 2 : 6) * kPageBytes);
    touched = PageTrace(uses, 3, true);
  }
  // Written, then read with room for one: each comes back. Freed and allocated again in between: what was written is
  // dead.
  Trace kept = PageTrace({{0}, {1}, {2}}, 3, true), dead = kept;
  const auto step =
      std::find_if(dead.events.begin(), dead.events.end(), [](const Event& e) { return e.type == Type::kStep; });
  const Event alloc = dead.events[0];
  dead.events.insert(step + 1, {{Type::kFree, 0, alloc.a}, alloc});
  CHECK(Traffic(kept, kPageBytes, Policy::kBelady).back().in_bytes == 3 * kPageBytes);
  CHECK(Traffic(dead, kPageBytes, Policy::kBelady).back().in_bytes == 0);
  CHECK(LinkLimitMs({51'000'000, 10, 2'000'000, 0}, 51e9) == 2.0);
  CHECK(LinkLimitMs({510'000'000, 10, 2'000'000, 0}, 51e9) == 10.0);
  // Managed memory: out alone is the slower way, and both together have less than twice the one.
  CHECK(ManagedLimitMs({0, 100'000'000, 0, 0, 50'000'000}, 15e9, 28e9) == 10.0);
  CHECK(ManagedLimitMs({270'000'000, 5'000'000, 0, 0, 5'000'000}, 15e9, 28e9) == 10.0);
  CHECK(ManagedLimitMs({270'000'000, 5'000'000, 20'000'000, 0, 5'000'000}, 15e9, 28e9) == 20.0);
}

TEST_CASE("an explanation counts what was known and what was too much") {
  Trace source, replayed;
  for (Trace* t : {&source, &replayed}) t->functions.push_back({"gemm", {}});
  // The second block is a small one: the engine keeps it on the card as a whole, and it counts nowhere.
  source.events = {{Type::kAlloc, 0, 0x10000000, 64 * kPageBytes},
                   {Type::kAlloc, 0, 0x20000000, 32 * kPageBytes},
                   {Type::kLaunch, 0, 0}};
  replayed.events = {{Type::kAlloc, 0, 0x90000000, 64 * kPageBytes},
                     {Type::kAlloc, 0, 0xa0000000, 32 * kPageBytes},
                     {Type::kLaunch, 0, 0}};
  Launch truth, belief;
  truth.has_truth = true;
  truth.truth = {{0x10000000, 4 * kPageBytes}, {0x20000000 + 8 * kPageBytes, kPageBytes}};
  // Believed to the byte, touched by pages: a byte of a page stands for it.
  belief.accesses = {{0x90000000 + kPageBytes + 512, 4 * kPageBytes - 768, Access::kRead, AccessSource::kLibrary},
                     {0xa0000000, 8 * kPageBytes, Access::kRead, AccessSource::kLibrary}};
  source.launches = {truth};
  replayed.launches = {belief};
  const auto explained = Explain(source, replayed);
  REQUIRE(explained.ok());
  REQUIRE(explained->size() == 1);
  CHECK(explained->at(0).touched_bytes == 4 * kPageBytes);
  CHECK(explained->at(0).covered_bytes == 3 * kPageBytes);
  CHECK(explained->at(0).untouched_bytes() == kPageBytes);
  CHECK(
      ExplanationText(*explained).find("#0 gemm: library 0.2 MiB; touched 0.2 MiB, known 75.0 %, untouched 0.1 MiB") ==
      0);
  CHECK(ExplanationText(*explained)
            .find("\n  0.1 MiB believed, not touched: gemm\n  0.1 MiB touched, not known: gemm\n") !=
        std::string::npos);
  replayed.events[0].b = kPageBytes;
  CHECK_FALSE(Explain(source, replayed).ok());
}

TEST_CASE("a graph's launch is explained by its nodes, and by what its captured launches touch") {
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
  // One in the source alone, which no player makes, and so no replay has.
  source.events.insert(source.events.begin() + 7, {Type::kGraphLaunch, 0, 99, 7, 0});
  auto explained = Explain(source, replayed);
  REQUIRE(explained.ok());
  REQUIRE(explained->size() == 6);
  CHECK(explained->at(0).captured);
  CHECK_FALSE(explained->at(0).has_truth);
  CHECK(explained->at(2).missing == "made by calls that traces do not hold, and not played");
  const LaunchExplanation& graph = explained->at(3);
  CHECK(graph.graph);
  CHECK(graph.nodes == 4);
  CHECK(graph.has_truth);
  CHECK(graph.touched_bytes == 10 * kPageBytes);
  CHECK(graph.covered_bytes == 8 * kPageBytes);
  CHECK(graph.untouched_bytes() == 2 * kPageBytes);
  CHECK(explained->at(4).covered_bytes == 0);
  const std::string text = ExplanationText(*explained);
  CHECK(
      text.find("\n#3 graph, 4 nodes (1 by parameters, 1 by library, 1 by copy, 1 by struct): parameters 0.1 MiB, "
                "library 0.2 MiB, copy 0.2 MiB, struct 0.1 MiB; touched 0.6 MiB, known 80.0 %, untouched 0.1 MiB\n") !=
      std::string::npos);
  CHECK(text.find("#0 gemm (captured): ") == 0);
  source.launches[1].has_truth = false;
  explained = Explain(source, replayed);
  REQUIRE(explained.ok());
  CHECK_FALSE(explained->at(3).has_truth);
  CHECK(ExplanationText(*explained).find("; what 1 of its 2 kernels touch is not in the trace\n") != std::string::npos);
  // Captured before, a graph is a graph in both.
  replayed.events[8] = {Type::kLaunch, 0, 2};
  CHECK_FALSE(Explain(source, replayed).ok());
}

TEST_CASE("what an engine knew of a graph's nodes is kept in a trace") {
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
    CHECK_FALSE(trace->graph_launches.at(trace->events[0].c).told);
    CHECK(trace->events[1].a == 23);
    CHECK(trace->events[1].b == 8);
    const GraphLaunch& told = trace->graph_launches.at(trace->events[1].c);
    CHECK(told.told);
    REQUIRE(told.nodes.size() == 2);
    REQUIRE(told.nodes[0].size() == 2);
    CHECK(told.nodes[0][0].source == AccessSource::kStruct);
    CHECK(told.nodes[0][0].access == Access::kRead);
    CHECK(told.nodes[0][1].address == 0x91000000);
    CHECK(told.nodes[1].empty());
  }
}

}  // namespace
}  // namespace sluice::trace
