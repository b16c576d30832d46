#include "explain.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "ranges.h"

namespace sluice::trace {
namespace {

constexpr const char* kSourceNames[] = {"parameters", "library", "graph", "learnt", "copy"};

bool IsDeviceAlloc(const Event& e) { return e.type == Type::kAlloc && e.c != static_cast<uint64_t>(AllocKind::kHost); }

// Walks the events of a trace up to its launches, so that two traces can be walked side by side.
class Walker {
 public:
  explicit Walker(const Trace& trace) : trace_(trace) {}

  // Passes events up to and including the next launch; null at the end. Allocations seen on the way are appended to
  // `allocated`.
  const Launch* Next(std::vector<Event>& allocated, std::vector<uint64_t>& freed) {
    while (at_ < trace_.events.size()) {
      const Event& e = trace_.events[at_++];
      if (IsDeviceAlloc(e)) allocated.push_back(e);
      if (e.type == Type::kFree) freed.push_back(e.a);
      if (e.type == Type::kLaunch) return &trace_.launches[e.a];
    }
    return nullptr;
  }

 private:
  const Trace& trace_;
  size_t at_ = 0;
};

struct Block {
  uint64_t bytes, other;
};

// The engine keeps allocations of up to that size in memory that never leaves the card (docs/residency.md), and does
// not ask what lives inside: what is believed or touched there moves nothing.
constexpr uint64_t kSmallBlock = uint64_t{2} << 20;

}  // namespace

absl::StatusOr<std::vector<LaunchExplanation>> Explain(const Trace& source, const Trace& replayed) {
  Walker a(source), b(replayed);
  std::map<uint64_t, Block> blocks;    // by the source's address
  std::map<uint64_t, uint64_t> small;  // the small ones, by the replay's
  std::vector<Event> pending_a, pending_b;
  std::vector<LaunchExplanation> out;
  while (true) {
    std::vector<uint64_t> freed_a, freed_b;
    const Launch* of_source = a.Next(pending_a, freed_a);
    const Launch* of_replay = b.Next(pending_b, freed_b);
    if (of_source == nullptr || of_replay == nullptr) {
      if (of_source != of_replay && out.empty()) {
        return absl::InvalidArgumentError("one of the two recordings holds no launch: was the engine recording?");
      }
      return out;
    }
    for (const uint64_t address : freed_a) blocks.erase(address);
    for (const uint64_t address : freed_b) small.erase(address);
    const size_t n = std::min(pending_a.size(), pending_b.size());
    for (size_t i = 0; i < n; ++i) {
      if (pending_a[i].b != pending_b[i].b) {
        return absl::InvalidArgumentError(absl::StrCat("an allocation of ", pending_a[i].b,
                                                       " bytes in the trace is one of ", pending_b[i].b,
                                                       " bytes in its replay"));
      }
      blocks[pending_a[i].a] = {pending_a[i].b, pending_b[i].a};
      if (pending_b[i].b <= kSmallBlock) small[pending_b[i].a] = pending_b[i].b;
    }
    pending_a.erase(pending_a.begin(), pending_a.begin() + static_cast<std::ptrdiff_t>(n));
    pending_b.erase(pending_b.begin(), pending_b.begin() + static_cast<std::ptrdiff_t>(n));

    LaunchExplanation e;
    e.function = source.functions[of_source->function].name;
    std::vector<Range> believed, touched;
    for (const AccessRange& range : of_replay->accesses) {
      const auto block = small.upper_bound(range.address);
      if (block != small.begin() && range.address - std::prev(block)->first < std::prev(block)->second) continue;
      e.believed_by_source.at(static_cast<size_t>(range.source)) += range.bytes;
      // What was touched is told by pages, so a byte of one stands for it.
      const uint64_t first = range.address / kPageBytes * kPageBytes;
      const uint64_t end = (range.address + range.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
      believed.push_back({first, end - first});
    }
    e.has_truth = of_source->has_truth;
    for (const Range& range : of_source->truth) {
      // Every block that the range lies on.
      auto block = blocks.upper_bound(range.address);
      if (block != blocks.begin()) --block;
      for (; block != blocks.end() && block->first < range.address + range.bytes; ++block) {
        const uint64_t first = std::max(range.address, block->first);
        const uint64_t end = std::min(range.address + range.bytes, block->first + block->second.bytes);
        if (first < end && block->second.bytes > kSmallBlock)
          touched.push_back({block->second.other + (first - block->first), end - first});
      }
    }
    Merge(believed);
    Merge(touched);
    e.believed_bytes = Bytes(believed);
    e.touched_bytes = Bytes(touched);
    e.covered_bytes = Common(believed, touched);
    out.push_back(std::move(e));
  }
}

namespace {

// The kernels whose sets held most that was not touched, and those that touched most that their sets did not hold.
std::string ByKernel(const std::vector<LaunchExplanation>& launches) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> sums;  // untouched, not known
  for (const LaunchExplanation& e : launches) {
    if (!e.has_truth) continue;
    auto& [untouched, unknown] = sums[e.function];
    untouched += e.untouched_bytes();
    unknown += e.touched_bytes - e.covered_bytes;
  }
  std::vector<std::tuple<uint64_t, const char*, std::string>> most;
  for (const auto& [function, bytes] : sums) {
    most.emplace_back(bytes.first, "believed, not touched", function);
    most.emplace_back(bytes.second, "touched, not known", function);
  }
  std::stable_sort(most.begin(), most.end(),
                   [](const auto& a, const auto& b) { return std::get<0>(a) > std::get<0>(b); });
  std::string text;
  for (size_t i = 0; i < most.size() && i < 8; ++i) {
    const auto& [bytes, what, function] = most[i];
    if (bytes == 0) break;
    char line[256];
    snprintf(line, sizeof line, "  %.1f MiB %s: %.160s\n", static_cast<double>(bytes) / (1 << 20), what,
             function.c_str());
    text += line;
  }
  return text;
}

}  // namespace

std::string ExplanationText(const std::vector<LaunchExplanation>& launches) {
  constexpr double kMi = 1 << 20;
  std::string text;
  char line[512];
  LaunchExplanation total;
  size_t with_truth = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    const LaunchExplanation& e = launches[i];
    std::string sources;
    for (size_t s = 0; s < e.believed_by_source.size(); ++s) {
      if (e.believed_by_source.at(s) == 0) continue;
      snprintf(line, sizeof line, "%s%s %.1f MiB", sources.empty() ? "" : ", ", kSourceNames[s],
               static_cast<double>(e.believed_by_source.at(s)) / kMi);
      sources += line;
      total.believed_by_source.at(s) += e.believed_by_source.at(s);
    }
    if (sources.empty()) sources = "nothing known";
    snprintf(line, sizeof line, "#%zu %.60s: ", i, e.function.c_str());
    text += line + sources;
    if (e.has_truth) {
      snprintf(line, sizeof line, "; touched %.1f MiB, known %.1f %%, untouched %.1f MiB",
               static_cast<double>(e.touched_bytes) / kMi,
               e.touched_bytes != 0
                   ? 100.0 * static_cast<double>(e.covered_bytes) / static_cast<double>(e.touched_bytes)
                   : 100.0,
               static_cast<double>(e.untouched_bytes()) / kMi);
      text += line;
    }
    text += '\n';
    if (!e.has_truth) continue;  // nothing to hold the belief against
    ++with_truth;
    total.believed_bytes += e.believed_bytes;
    total.touched_bytes += e.touched_bytes;
    total.covered_bytes += e.covered_bytes;
  }
  snprintf(line, sizeof line,
           "%zu launches, %zu with truth: touched %.1f MiB, known %.2f %%; believed but untouched %.2f %% of what was "
           "believed\n",
           launches.size(), with_truth, static_cast<double>(total.touched_bytes) / kMi,
           total.touched_bytes != 0
               ? 100.0 * static_cast<double>(total.covered_bytes) / static_cast<double>(total.touched_bytes)
               : 100.0,
           total.believed_bytes != 0
               ? 100.0 * static_cast<double>(total.untouched_bytes()) / static_cast<double>(total.believed_bytes)
               : 0.0);
  return text + ByKernel(launches) + line;
}

}  // namespace sluice::trace
