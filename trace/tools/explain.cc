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
#include "walker.h"

namespace sluice::trace {
namespace {

constexpr const char* kSourceNames[] = {"parameters", "library", "graph", "learned", "copy", "struct"};
static_assert(std::size(kSourceNames) == kAccessSources);

struct Block {
  uint64_t bytes, other;
};

// The live blocks, by both traces' addresses.
struct Blocks {
  std::map<uint64_t, Block> by_source;  // by the source's address
  std::map<uint64_t, uint64_t> small;   // the small ones, by the replay's address

  void AddPredicted(std::span<const AccessRange> accesses, LaunchExplanation& e, std::vector<Range>& predicted) const {
    for (const AccessRange& range : accesses) {
      const auto block = small.upper_bound(range.address);
      if (block != small.begin() && range.address - std::prev(block)->first < std::prev(block)->second) continue;
      e.predicted_by_source.at(static_cast<size_t>(range.source)) += range.bytes;
      // The truth is in whole pages, so predicted ranges are rounded to pages.
      const uint64_t first = range.address / kPageBytes * kPageBytes;
      const uint64_t end = (range.address + range.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
      predicted.push_back({first, end - first});
    }
  }

  void AddTouched(std::span<const Range> truth, std::vector<Range>& touched) const {
    for (const Range& range : truth) {
      // Every block that the range overlaps.
      auto block = by_source.upper_bound(range.address);
      if (block != by_source.begin()) --block;
      for (; block != by_source.end() && block->first < range.address + range.bytes; ++block) {
        const uint64_t first = std::max(range.address, block->first);
        const uint64_t end = std::min(range.address + range.bytes, block->first + block->second.bytes);
        if (first < end && block->second.bytes > kMaxSmallBlockBytes)
          touched.push_back({block->second.other + (first - block->first), end - first});
      }
    }
  }
};

void ExplainKernel(const Launch& source, const Launch& replayed, const Blocks& blocks, LaunchExplanation& e,
                   std::vector<Range>& predicted, std::vector<Range>& touched) {
  e.captured = (source.flags & kLaunchCaptured) != 0;
  e.has_truth = source.has_truth && !e.captured;
  blocks.AddPredicted(replayed.accesses, e, predicted);
  if (e.has_truth) blocks.AddTouched(source.truth, touched);
}

void ExplainGraph(const Captured& source, const GraphLaunch& replayed, const Blocks& blocks, LaunchExplanation& e,
                  std::vector<Range>& predicted, std::vector<Range>& touched) {
  e.nodes = replayed.nodes.size();
  for (const std::vector<AccessRange>& node : replayed.nodes) {
    std::array<bool, kAccessSources> by{};
    for (const AccessRange& range : node) by.at(static_cast<size_t>(range.source)) = true;
    for (size_t i = 0; i < by.size(); ++i) e.nodes_by_source.at(i) += by.at(i) ? 1 : 0;
    blocks.AddPredicted(node, e, predicted);
  }
  const auto with_truth = static_cast<size_t>(std::count_if(source.launches.begin(), source.launches.end(),
                                                            [](const Launch* launch) { return launch->has_truth; }));
  e.has_truth = with_truth == source.launches.size();
  if (!e.has_truth)
    e.missing = absl::StrCat("the trace has no truth for ", source.launches.size() - with_truth, " of its ",
                             source.launches.size(), " kernels");
  blocks.AddTouched(source.copies, touched);
  for (const Launch* launch : source.launches) blocks.AddTouched(launch->truth, touched);
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
      e.missing = "built by calls that traces do not hold, and not played";
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
      return absl::InvalidArgumentError(
          absl::StrCat("launch ", out.size(), " is a kernel in one of the two recordings and a graph in the other"));
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
      if (pending_b[i].b <= kMaxSmallBlockBytes) blocks.small[pending_b[i].a] = pending_b[i].b;
    }
    pending_a.erase(pending_a.begin(), pending_a.begin() + static_cast<std::ptrdiff_t>(n));
    pending_b.erase(pending_b.begin(), pending_b.begin() + static_cast<std::ptrdiff_t>(n));

    LaunchExplanation e;
    std::vector<Range> predicted, touched;
    e.graph = of_source->type == Type::kGraphLaunch;
    if (e.graph) {
      e.function = "graph";
      ExplainGraph(*a.Played(*of_source), replayed.graph_launches[of_replay->c], blocks, e, predicted, touched);
    } else {
      const Launch& launch = source.launches[of_source->a];
      e.function = source.functions[launch.function].name;
      ExplainKernel(launch, replayed.launches[of_replay->a], blocks, e, predicted, touched);
    }
    Merge(predicted);
    Merge(touched);
    e.predicted_bytes = Bytes(predicted);
    e.touched_bytes = Bytes(touched);
    e.covered_bytes = Common(predicted, touched);
    out.push_back(std::move(e));
  }
}

namespace {

// The kernels with the most predicted bytes that were not touched, and those with the most touched bytes that were not
// predicted.
std::string ByKernel(const std::vector<LaunchExplanation>& launches) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> sums;  // not touched, not predicted
  for (const LaunchExplanation& e : launches) {
    if (!e.has_truth) continue;
    auto& [untouched, unpredicted] = sums[e.function];
    untouched += e.untouched_bytes();
    unpredicted += e.touched_bytes - e.covered_bytes;
  }
  std::vector<std::tuple<uint64_t, const char*, std::string>> errors;
  for (const auto& [function, bytes] : sums) {
    errors.emplace_back(bytes.first, "predicted, not touched", function);
    errors.emplace_back(bytes.second, "touched, not predicted", function);
  }
  std::stable_sort(errors.begin(), errors.end(),
                   [](const auto& a, const auto& b) { return std::get<0>(a) > std::get<0>(b); });
  std::string text;
  for (size_t i = 0; i < errors.size() && i < 8; ++i) {
    const auto& [bytes, error, function] = errors[i];
    if (bytes == 0) break;
    char line[256];
    snprintf(line, sizeof line, "  %.1f MiB %s: %.160s\n", static_cast<double>(bytes) / (1 << 20), error,
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
    for (size_t s = 0; s < e.predicted_by_source.size(); ++s) {
      if (e.predicted_by_source.at(s) == 0) continue;
      snprintf(line, sizeof line, "%s%s %.1f MiB", sources.empty() ? "" : ", ", kSourceNames[s],
               static_cast<double>(e.predicted_by_source.at(s)) / kMi);
      sources += line;
    }
    if (sources.empty()) sources = "nothing predicted";
    snprintf(line, sizeof line, "#%zu %.60s%s%s: ", i, e.function.c_str(), e.captured ? " (captured)" : "",
             nodes.c_str());
    text += line + sources;
    if (!e.missing.empty()) text += "; " + e.missing;
    if (e.has_truth) {
      snprintf(line, sizeof line, "; touched %.1f MiB, predicted %.1f %%, untouched %.1f MiB",
               static_cast<double>(e.touched_bytes) / kMi,
               e.touched_bytes != 0
                   ? 100.0 * static_cast<double>(e.covered_bytes) / static_cast<double>(e.touched_bytes)
                   : 100.0,
               static_cast<double>(e.untouched_bytes()) / kMi);
      text += line;
    }
    text += '\n';
    if (!e.has_truth) continue;  // nothing to compare the access set with
    ++with_truth;
    total.predicted_bytes += e.predicted_bytes;
    total.touched_bytes += e.touched_bytes;
    total.covered_bytes += e.covered_bytes;
  }
  snprintf(line, sizeof line,
           "%zu launches, %zu with truth: touched %.1f MiB, predicted %.2f %%; untouched %.2f %% of the predicted "
           "bytes\n",
           launches.size(), with_truth, static_cast<double>(total.touched_bytes) / kMi,
           total.touched_bytes != 0
               ? 100.0 * static_cast<double>(total.covered_bytes) / static_cast<double>(total.touched_bytes)
               : 100.0,
           total.predicted_bytes != 0
               ? 100.0 * static_cast<double>(total.untouched_bytes()) / static_cast<double>(total.predicted_bytes)
               : 0.0);
  return text + ByKernel(launches) + line;
}

}  // namespace sluice::trace
