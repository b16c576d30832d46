// The policy alone, compared with the offline optimum: plays a trace's launches through policy::Residency with a clock
// of its own, and prints bytes moved a step beside those of Belady's rule with the future known, at the same capacity.
// Prints on stderr the time of Residency::Prepare in the calling thread, without the driver's calls.
//   residency_bench TRACE BUDGET_MIB [off|launch|predict [LAUNCHES_PER_STEP]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "hooklib/memory/arena_allocator.h"
#include "hooklib/memory/live_map.h"
#include "hooklib/policy/residency.h"
#include "trace/reader.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): a program of one file

// Work is done as soon as it is queued.
class Instant final : public memory::Timeline {
 public:
  bool Done(memory::Mark) override { return true; }
  bool MarkAll(std::vector<memory::Mark>*) override { return true; }
  bool InDone(memory::StreamId, uint64_t) override { return true; }
  bool OutDone(memory::StreamId, uint64_t) override { return true; }
};

// Belady's rule over the same chunk sets.
struct Use {
  std::vector<memory::Va> chunks;
};

uint64_t Belady(const std::vector<Use>& uses, size_t from, uint64_t capacity_chunks, size_t* at_from) {
  std::map<memory::Va, std::vector<size_t>> when;
  for (size_t i = 0; i < uses.size(); ++i) {
    for (memory::Va va : uses[i].chunks) when[va].push_back(i);
  }
  std::map<memory::Va, size_t> index;
  std::map<memory::Va, size_t> resident;  // chunk -> next use
  uint64_t out = 0;
  *at_from = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (i == from) *at_from = out;
    for (memory::Va va : uses[i].chunks) {
      auto& k = index[va];
      const auto& list = when[va];
      while (k < list.size() && list[k] <= i) ++k;
      resident[va] = k < list.size() ? list[k] : SIZE_MAX;
    }
    while (resident.size() > capacity_chunks) {
      auto worst = resident.end();
      for (auto it = resident.begin(); it != resident.end(); ++it) {
        if (worst == resident.end() || it->second > worst->second) worst = it;
      }
      resident.erase(worst);
      ++out;
    }
  }
  return out;
}

void PrintTimes(const char* which, std::vector<double> times) {
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  std::fprintf(stderr, "Prepare, %s: %zu, median %.2f us, p99 %.2f us\n", which, times.size(), times[times.size() / 2],
               times[times.size() * 99 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: residency_bench TRACE BUDGET_MIB [off|launch|predict [LAUNCHES_PER_STEP [REPEATS]]]\n");
    return 2;
  }
  auto trace = trace::Load(argv[1]);
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.status().ToString().c_str());
    return 2;
  }
  const uint64_t capacity = std::strtoull(argv[2], nullptr, 10) << 20;
  Instant timeline;
  memory::Fences fences(&timeline);
  policy::Residency residency(&timeline, &fences);
  memory::LiveMap live;
  memory::ArenaAllocator arenas(&fences);
  if (argc > 3) {
    residency.set_prefetch(!std::strcmp(argv[3], "off")      ? policy::Prefetch::kOff
                           : !std::strcmp(argv[3], "launch") ? policy::Prefetch::kLaunch
                                                             : policy::Prefetch::kPredict);
  }
  residency.set_capacity(capacity);
  residency.set_remote_access(false);    // launches are not timed here
  std::map<uint64_t, memory::Va> moved;  // trace address -> ours
  std::map<uint64_t, uint64_t> sizes;
  memory::Va next = uint64_t{1} << 40;
  std::vector<Use> uses;
  uint64_t last_out = 0, last_in = 0, step = 0, launches = 0;
  auto translate = [&](uint64_t address) -> memory::Va {
    auto it = moved.upper_bound(address);
    if (it == moved.begin()) return 0;
    --it;
    return address < it->first + sizes[it->first] ? it->second + (address - it->first) : 0;
  };
  // A trace without step marks is cut into pieces of this many launches.
  const uint64_t period = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  uint64_t ops = 0, evict_runs = 0, fetch_runs = 0;
  std::vector<double> moving_us, still_us;
  std::vector<size_t> step_start;
  std::vector<trace::Event> events = trace->events;
  if (argc > 5) {
    size_t seen = 0, begin = 0, end = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].type != trace::Type::kLaunch) continue;
      ++seen;
      if (seen == 2 * period) begin = i + 1;
      if (seen == 3 * period) end = i + 1;
    }
    const std::vector<trace::Event> step(events.begin() + static_cast<long>(begin),
                                         events.begin() + static_cast<long>(end));
    for (int i = 0; i < std::atoi(argv[5]); ++i)
      events.insert(events.begin() + static_cast<long>(end), step.begin(), step.end());
  }
  for (const auto& event : events) {
    if (event.type == trace::Type::kAlloc) {
      auto va = arenas.Allocate(event.b);
      if (!va) {
        const memory::Extent arena{next, arenas.GrowthFor(event.b)};
        next += arena.bytes + memory::kChunkBytes;
        arenas.AddArena(arena, event.b);
        residency.AddArena(arena, residency.resident_bytes() + arena.bytes <= capacity);
        va = arenas.Allocate(event.b);
      }
      moved[event.a] = va.value();
      sizes[event.a] = event.b;
      memory::Allocation allocation;
      allocation.bytes = event.b;
      live.Add(va.value(), allocation);
      residency.AddLive({va.value(), memory::ArenaAllocator::SizeFor(event.b)});
    } else if (event.type == trace::Type::kReport) {
      const auto bytes = static_cast<int64_t>(event.b);
      const memory::Va va = translate(event.a);
      memory::Va base = 0;
      memory::Allocation* allocation = va ? live.Find(va, &base) : nullptr;
      if (!allocation) continue;
      if (bytes > 0) {
        if (!allocation->reported) residency.RemoveLive({base, memory::ArenaAllocator::SizeFor(allocation->bytes)});
        if (live.Report({va, event.b})) residency.AddLive({va, event.b});
      } else if (auto range = live.Unreport(va)) {
        residency.RemoveLive(*range);
      }
    } else if (event.type == trace::Type::kLaunch) {
      const trace::Launch& launch = trace->launches[event.a];
      std::vector<memory::Extent> set;
      for (const auto& access : launch.accesses) {
        if (const auto extent = live.Resolve(translate(access.address))) set.push_back(*extent);
      }
      if (launch.accesses.empty()) {  // recorded without an engine: the blocks that the parameters name
        for (const uint64_t word : launch.words) {
          const memory::Va va = translate(word);
          if (!va) continue;
          if (const auto extent = live.Resolve(va)) set.push_back(*extent);
        }
      }
      uint64_t id = launch.function * uint64_t{1000003} + launch.grid[0] * 31 + launch.grid[1] * 17 + launch.grid[2] +
                    launch.block[0];
      const auto begin = std::chrono::steady_clock::now();
      const policy::Plan& plan = residency.Prepare(1, ++launches, set, id | 1);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      bool moves = false;
      for (const policy::PlanStep* part : {&plan.now, &plan.ahead}) {
        moves |= !part->empty();
        ops += !part->empty();
        evict_runs += part->evict.size();
        fetch_runs += part->fetch.size();
      }
      (moves ? moving_us : still_us).push_back(took.count());
      Use use;
      for (const auto& extent : set) {
        residency.chunks().ForEach(extent, [&](memory::Chunk& chunk) { use.chunks.push_back(chunk.base); });
      }
      uses.push_back(use);
    }
    if (event.type == trace::Type::kStep || (event.type == trace::Type::kLaunch && period && launches % period == 0)) {
      const auto& stats = residency.stats();
      if (stats.bytes_out + stats.bytes_in != last_out + last_in) {
        std::printf(
            "step %2llu: launches %6llu in %6.0f MiB out %6.0f MiB saved total %6.0f MiB wrong %llu resident %.0f "
            "MiB\n",
            static_cast<unsigned long long>(step), static_cast<unsigned long long>(launches),
            static_cast<double>(stats.bytes_in - last_in) / 0x1p20,
            static_cast<double>(stats.bytes_out - last_out) / 0x1p20, static_cast<double>(stats.bytes_saved) / 0x1p20,
            static_cast<unsigned long long>(residency.wrong_predictions()),
            static_cast<double>(residency.resident_bytes()) / 0x1p20);
      }
      last_out = stats.bytes_out;
      last_in = stats.bytes_in;
      step_start.push_back(uses.size());
      ++step;
    }
  }
  size_t at = 0;
  const size_t from = step_start.size() > 2 ? step_start[step_start.size() - 2] : 0;
  const uint64_t out = Belady(uses, from, capacity / memory::kChunkBytes, &at);
  std::printf(
      "transfers: %llu exchanges, %llu runs out (%.1f MiB each), %llu runs in (%.1f MiB each)\n",
      static_cast<unsigned long long>(ops), static_cast<unsigned long long>(evict_runs),
      static_cast<double>(residency.stats().bytes_out) / 0x1p20 / static_cast<double>(evict_runs ? evict_runs : 1),
      static_cast<unsigned long long>(fetch_runs),
      static_cast<double>(residency.stats().bytes_in + residency.stats().bytes_saved) / 0x1p20 /
          static_cast<double>(fetch_runs ? fetch_runs : 1));
  std::printf("Belady: %.0f MiB out in the last step\n",
              static_cast<double>((out - at) * memory::kChunkBytes) / 0x1p20);
  std::vector<double> all_us = moving_us;
  all_us.insert(all_us.end(), still_us.begin(), still_us.end());
  PrintTimes("all launches", std::move(all_us));
  PrintTimes("launches that move memory", std::move(moving_us));
  PrintTimes("launches that move none", std::move(still_us));
  return 0;
}
