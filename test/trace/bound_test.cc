// The bound on moved bytes, compared with exhaustive search.
#include "trace/tools/bound.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace sluice::trace {
namespace {

// A trace of launches over pages of one block: launch i reads the pages uses[i]. With `write_first` every page is
// written before the step.
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

// The minimum of fetches for single-page launches, by exhaustive search over victims.
int MinFetches(const std::vector<std::vector<uint64_t>>& uses, size_t at, std::set<uint64_t> resident,
               size_t capacity) {
  for (; at < uses.size(); ++at) {
    const uint64_t page = uses[at][0];
    if (resident.contains(page)) continue;
    if (resident.size() < capacity) {
      resident.insert(page);
      return 1 + MinFetches(uses, at + 1, resident, capacity);
    }
    int best = INT32_MAX;
    for (const uint64_t victim : resident) {
      std::set<uint64_t> next = resident;
      next.erase(victim);
      next.insert(page);
      best = std::min(best, 1 + MinFetches(uses, at + 1, next, capacity));
    }
    return best;
  }
  return 0;
}

TEST_CASE("no policy fetches less than Belady, which matches exhaustive search") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::vector<uint64_t>> uses;
    for (int i = 0; i < 11; ++i) uses.push_back({random() % 5});
    // Written one by one with room for two: two pages are resident when the step begins.
    const Trace trace = PageTrace(uses, 5, true);
    const uint64_t budget = 2 * kPageBytes;
    const auto in = [&](Policy policy) { return Traffic(trace, budget, policy).back().in_bytes / kPageBytes; };
    int best = INT32_MAX;
    // Which two of the five remain after the writes is part of the search.
    for (uint64_t a = 0; a < 5; ++a) {
      for (uint64_t b = a; b < 5; ++b) {
        if (a != 4 && b != 4) continue;  // the page written last is resident
        best = std::min(best, MinFetches(uses, 0, {a, b}, 2));
      }
    }
    REQUIRE(static_cast<int>(in(Policy::kBelady)) == best);
    REQUIRE(in(Policy::kLru) >= in(Policy::kBelady));
    REQUIRE(in(Policy::kFifo) >= in(Policy::kBelady));
  }
}

TEST_CASE("fresh pages, freed pages and pages within the budget move no bytes") {
  const std::vector<std::vector<uint64_t>> uses = {{0}, {1}, {2}, {0}, {1}, {2}};
  const StepTraffic fresh = Traffic(PageTrace(uses, 3, false), 3 * kPageBytes, Policy::kLru).back();
  CHECK(fresh.in_bytes == 0);
  CHECK(fresh.touched_bytes == 6 * kPageBytes);
  const StepTraffic tight = Traffic(PageTrace(uses, 3, false), 2 * kPageBytes, Policy::kLru).back();
  CHECK(tight.in_bytes == 3 * kPageBytes);  // LRU misses each page of the second iteration
  CHECK(tight.out_bytes == 0);              // only read: nothing to write back
  CHECK(tight.clean_out_bytes == 4 * kPageBytes);
  // A page without a further use is dropped at no cost: page 1.
  const StepTraffic read = Traffic(PageTrace({{0}, {1}, {0}}, 2, false), kPageBytes, Policy::kBelady).back();
  CHECK(read.out_bytes == 0);
  CHECK(read.clean_out_bytes == kPageBytes);
  // So is a dirty, live page that is freed before its next use; it is counted.
  Trace freed = PageTrace({{1}, {0}}, 3, true);
  CHECK(Traffic(freed, 2 * kPageBytes, Policy::kBelady).back().dropped_bytes == 0);  // the trace ends before a free
  freed.events.push_back({Type::kFree, 0, 0x100000000});
  const StepTraffic dropped = Traffic(freed, 2 * kPageBytes, Policy::kBelady).back();
  CHECK(dropped.dropped_bytes == kPageBytes);
  const std::string text = std::filesystem::temp_directory_path() / ("uses." + std::to_string(getpid()));
  REQUIRE(WriteUses(freed, text).ok());
  std::ifstream uses_file(text);
  CHECK(std::string(std::istreambuf_iterator<char>(uses_file), {}) ==
        "L 0w\nL 1w\nL 2w\nS\nL 1r\nL 0r\nD 0\nD 1\nD 2\n");
  std::filesystem::remove(text);
  CHECK_FALSE(WriteUses(freed, text + "/none").ok());
  CHECK(dropped.in_bytes == kPageBytes);
  CHECK(dropped.out_bytes == 0);
  CHECK(Traffic(freed, 2 * kPageBytes, Policy::kLru).back().dropped_bytes == 0);
  // The same by the truth column; a page of unknown direction counts as written, and is written back.
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
  // Written, then read with room for one: each page is fetched. Freed and allocated again in between: its contents are
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
  // Managed memory: out is slower than in, and both directions together have less than twice the rate of one.
  CHECK(ManagedLimitMs({0, 100'000'000, 0, 0, 50'000'000}, 15e9, 28e9) == 10.0);
  CHECK(ManagedLimitMs({270'000'000, 5'000'000, 0, 0, 5'000'000}, 15e9, 28e9) == 10.0);
  CHECK(ManagedLimitMs({270'000'000, 5'000'000, 20'000'000, 0, 5'000'000}, 15e9, 28e9) == 20.0);
}

}  // namespace
}  // namespace sluice::trace
