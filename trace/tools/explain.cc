#include "explain.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "ranges.h"

namespace sluice::trace {
namespace {

constexpr const char* kSourceNames[] = {"parameters", "library", "graph", "learnt", "copy", "struct"};
static_assert(std::size(kSourceNames) == kAccessSources);

bool IsDeviceAlloc(const Event& e) { return e.type == Type::kAlloc && e.c != static_cast<uint64_t>(AllocKind::kHost); }

// What a capture took.
struct Captured {
  std::vector<const Launch*> launches;
  std::vector<Range> copies;  // what they touch, known without asking
};

// Walks the events of a trace up to its launches, so that two traces can be walked side by side.
class Walker {
 public:
  explicit Walker(const Trace& trace) : trace_(trace) {}

  // Passes events up to and including the next launch of a kernel or a graph; null at the end. Allocations seen on the
  // way are appended to `allocated`.
  const Event* Next(std::vector<Event>& allocated, std::vector<uint64_t>& freed) {
    while (at_ < trace_.events.size()) {
      const Event& e = trace_.events[at_++];
      if (IsDeviceAlloc(e)) allocated.push_back(e);
      if (e.type == Type::kFree) freed.push_back(e.a);
      Follow(e);
      if (e.type == Type::kLaunch || e.type == Type::kGraphLaunch) return &e;
    }
    return nullptr;
  }
  // What the graph is made of that a launch runs; null where it was made by calls that traces do not hold: a player
  // leaves its launches out.
  const Captured* Played(const Event& graph_launch) const {
    const auto it = executables_.find(graph_launch.a);
    return it == executables_.end() ? nullptr : &it->second;
  }

 private:
  // Work on another stream than the one that is captured has joined the newest capture.
  Captured* Capturing(uint64_t stream) {
    const auto it = std::find_if(open_.rbegin(), open_.rend(), [&](const auto& c) { return c.first == stream; });
    return it != open_.rend() ? &it->second : open_.empty() ? nullptr : &open_.back().second;
  }
  void Follow(const Event& e) {
    if (e.type == Type::kCaptureBegin) open_.push_back({e.a, {}});
    if (e.type == Type::kLaunch && (trace_.launches[e.a].flags & kLaunchCaptured) != 0) {
      const Launch& launch = trace_.launches[e.a];
      if (Captured* const to = Capturing(launch.stream)) to->launches.push_back(&launch);
    }
    const bool open = std::any_of(open_.begin(), open_.end(), [&](const auto& c) { return c.first == e.a; });
    if (open && (e.type == Type::kCopy || e.type == Type::kSet)) {
      std::vector<Range>& copies = Capturing(e.a)->copies;
      if (e.type == Type::kSet || (e.e & kCopyToDevice) != 0) copies.push_back({e.b, e.type == Type::kSet ? e.c : e.d});
      if (e.type == Type::kCopy && (e.e & kCopyFromDevice) != 0) copies.push_back({e.c, e.d});
    }
    if (e.type == Type::kCaptureEnd && open) {
      const auto it = std::find_if(open_.begin(), open_.end(), [&](const auto& c) { return c.first == e.a; });
      graphs_[e.b] = std::move(it->second);
      open_.erase(it);
    }
    if (e.type == Type::kGraphInstantiate) {
      executables_.erase(e.b);
      if (const auto it = graphs_.find(e.a); it != graphs_.end()) executables_[e.b] = it->second;
    }
  }

  const Trace& trace_;
  size_t at_ = 0;
  std::vector<std::pair<uint64_t, Captured>> open_;  // by stream
  std::map<uint64_t, Captured> graphs_, executables_;
};

struct Block {
  uint64_t bytes, other;
};

// The engine keeps allocations of up to that size in memory that never leaves the card (docs/design/residency.md), and
// does not ask what lives inside: what is believed or touched there moves nothing.
constexpr uint64_t kSmallBlock = uint64_t{2} << 20;

}  // namespace

namespace {

// The blocks that live, as both traces' launches see them.
struct Blocks {
  std::map<uint64_t, Block> by_source;  // by the source's address
  std::map<uint64_t, uint64_t> small;   // the small ones, by the replay's

  void Believe(std::span<const AccessRange> accesses, LaunchExplanation& e, std::vector<Range>& believed) const {
    for (const AccessRange& range : accesses) {
      const auto block = small.upper_bound(range.address);
      if (block != small.begin() && range.address - std::prev(block)->first < std::prev(block)->second) continue;
      e.believed_by_source.at(static_cast<size_t>(range.source)) += range.bytes;
      // What was touched is told by pages, so a byte of one stands for it.
      const uint64_t first = range.address / kPageBytes * kPageBytes;
      const uint64_t end = (range.address + range.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
      believed.push_back({first, end - first});
    }
  }

  void Touch(std::span<const Range> truth, std::vector<Range>& touched) const {
    for (const Range& range : truth) {
      // Every block that the range lies on.
      auto block = by_source.upper_bound(range.address);
      if (block != by_source.begin()) --block;
      for (; block != by_source.end() && block->first < range.address + range.bytes; ++block) {
        const uint64_t first = std::max(range.address, block->first);
        const uint64_t end = std::min(range.address + range.bytes, block->first + block->second.bytes);
        if (first < end && block->second.bytes > kSmallBlock)
          touched.push_back({block->second.other + (first - block->first), end - first});
      }
    }
  }
};

void ExplainKernel(const Launch& source, const Launch& replayed, const Blocks& blocks, LaunchExplanation& e,
                   std::vector<Range>& believed, std::vector<Range>& touched) {
  e.captured = (source.flags & kLaunchCaptured) != 0;
  e.has_truth = source.has_truth && !e.captured;
  blocks.Believe(replayed.accesses, e, believed);
  if (e.has_truth) blocks.Touch(source.truth, touched);
}

void ExplainGraph(const Captured& source, const GraphLaunch& replayed, const Blocks& blocks, LaunchExplanation& e,
                  std::vector<Range>& believed, std::vector<Range>& touched) {
  e.nodes = replayed.nodes.size();
  for (const std::vector<AccessRange>& node : replayed.nodes) {
    std::array<bool, kAccessSources> by{};
    for (const AccessRange& range : node) by.at(static_cast<size_t>(range.source)) = true;
    for (size_t i = 0; i < by.size(); ++i) e.nodes_by_source.at(i) += by.at(i) ? 1 : 0;
    blocks.Believe(node, e, believed);
  }
  const auto told = static_cast<size_t>(std::count_if(source.launches.begin(), source.launches.end(),
                                                      [](const Launch* launch) { return launch->has_truth; }));
  e.has_truth = told == source.launches.size();
  if (!e.has_truth)
    e.missing = absl::StrCat("what ", source.launches.size() - told, " of its ", source.launches.size(),
                             " kernels touch is not in the trace");
  blocks.Touch(source.copies, touched);
  for (const Launch* launch : source.launches) blocks.Touch(launch->truth, touched);
}

}  // namespace

absl::StatusOr<std::vector<LaunchExplanation>> Explain(const Trace& source, const Trace& replayed) {
  Walker a(source), b(replayed);
  Blocks blocks;
  std::vector<Event> pending_a, pending_b;
  std::vector<LaunchExplanation> out;
  while (true) {
    std::vector<uint64_t> freed_a, freed_b;
    const Event* of_source = a.Next(pending_a, freed_a);
    while (of_source != nullptr && of_source->type == Type::kGraphLaunch && a.Played(*of_source) == nullptr) {
      LaunchExplanation& e = out.emplace_back();
      e.function = "graph";
      e.missing = "made by calls that traces do not hold, and not played";
      of_source = a.Next(pending_a, freed_a);
    }
    const Event* of_replay = b.Next(pending_b, freed_b);
    while (of_replay != nullptr && of_replay->type == Type::kGraphLaunch && b.Played(*of_replay) == nullptr)
      of_replay = b.Next(pending_b, freed_b);
    if (of_source == nullptr || of_replay == nullptr) {
      if (of_source != of_replay && out.empty()) {
        return absl::InvalidArgumentError("one of the two recordings holds no launch: was the engine recording?");
      }
      return out;
    }
    if (of_source->type != of_replay->type) {
      return absl::InvalidArgumentError(absl::StrCat("launch ", out.size(),
                                                     " is a kernel's in one of the two "
                                                     "recordings and a graph's in the other"));
    }
    for (const uint64_t address : freed_a) blocks.by_source.erase(address);
    for (const uint64_t address : freed_b) blocks.small.erase(address);
    const size_t n = std::min(pending_a.size(), pending_b.size());
    for (size_t i = 0; i < n; ++i) {
      if (pending_a[i].b != pending_b[i].b) {
        return absl::InvalidArgumentError(absl::StrCat("an allocation of ", pending_a[i].b,
                                                       " bytes in the trace is one of ", pending_b[i].b,
                                                       " bytes in its replay"));
      }
      blocks.by_source[pending_a[i].a] = {pending_a[i].b, pending_b[i].a};
      if (pending_b[i].b <= kSmallBlock) blocks.small[pending_b[i].a] = pending_b[i].b;
    }
    pending_a.erase(pending_a.begin(), pending_a.begin() + static_cast<std::ptrdiff_t>(n));
    pending_b.erase(pending_b.begin(), pending_b.begin() + static_cast<std::ptrdiff_t>(n));

    LaunchExplanation e;
    std::vector<Range> believed, touched;
    e.graph = of_source->type == Type::kGraphLaunch;
    if (e.graph) {
      e.function = "graph";
      ExplainGraph(*a.Played(*of_source), replayed.graph_launches[of_replay->c], blocks, e, believed, touched);
    } else {
      const Launch& launch = source.launches[of_source->a];
      e.function = source.functions[launch.function].name;
      ExplainKernel(launch, replayed.launches[of_replay->a], blocks, e, believed, touched);
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
    std::string nodes, sources;
    for (size_t s = 0; e.graph && s < e.nodes_by_source.size(); ++s) {
      if (e.nodes_by_source.at(s) == 0) continue;
      absl::StrAppend(&nodes, nodes.empty() ? "" : ", ", e.nodes_by_source.at(s), " by ", kSourceNames[s]);
    }
    if (e.graph)
      nodes = absl::StrCat(", ", e.nodes, " nodes", nodes.empty() ? "" : " (", nodes, nodes.empty() ? "" : ")");
    for (size_t s = 0; s < e.believed_by_source.size(); ++s) {
      if (e.believed_by_source.at(s) == 0) continue;
      snprintf(line, sizeof line, "%s%s %.1f MiB", sources.empty() ? "" : ", ", kSourceNames[s],
               static_cast<double>(e.believed_by_source.at(s)) / kMi);
      sources += line;
    }
    if (sources.empty()) sources = "nothing known";
    snprintf(line, sizeof line, "#%zu %.60s%s%s: ", i, e.function.c_str(), e.captured ? " (captured)" : "",
             nodes.c_str());
    text += line + sources;
    if (!e.missing.empty()) text += "; " + e.missing;
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
