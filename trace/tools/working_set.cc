#include "working_set.h"

#include <cstdio>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "ranges.h"
#include "walker.h"

namespace sluice::trace {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{2} << 20, kMinuteNs = 60'000'000'000;

struct Block {
  uint64_t bytes, replayed;
};

// Walks one of the two traces past graphs that were not played.
const Event* NextPlayed(Walker& walker, std::vector<Event>& allocated, std::vector<uint64_t>& freed,
                        std::vector<Range>& copied) {
  const Event* e = walker.Next(allocated, freed, &copied);
  while (e != nullptr && e->type == Type::kGraphLaunch && walker.Played(*e) == nullptr)
    e = walker.Next(allocated, freed, &copied);
  return e;
}

// The chunks, in the replay's addresses, of ranges in the source's.
void AddChunks(std::span<const Range> ranges, const std::map<uint64_t, Block>& blocks, std::vector<Range>& chunks) {
  constexpr size_t kMaxUnmerged = 1 << 16;
  if (chunks.size() > kMaxUnmerged) Merge(chunks);
  for (const Range& range : ranges) {
    auto block = blocks.upper_bound(range.address);
    if (block != blocks.begin()) --block;
    for (; block != blocks.end() && block->first < range.address + range.bytes; ++block) {
      const uint64_t first = std::max(range.address, block->first);
      const uint64_t end = std::min(range.address + range.bytes, block->first + block->second.bytes);
      if (first >= end || block->second.bytes <= kMaxSmallBlockBytes) continue;
      const uint64_t base = block->second.replayed - block->first;
      const uint64_t begin = (base + first) / kChunkBytes * kChunkBytes;
      chunks.push_back({begin, (base + end - 1) / kChunkBytes * kChunkBytes + kChunkBytes - begin});
    }
  }
}

}  // namespace

WorkingSetCheck CheckWorkingSet(const Trace& source, const Trace& replayed) {
  WorkingSetCheck check;
  std::map<uint64_t, uint64_t> estimates;  // by device
  uint64_t at = 0;
  for (const Event& e : replayed.events) {
    if (e.type != Type::kWorkingSet) continue;
    estimates[e.a] = e.b;
    at = e.time_ns;
  }
  check.is_known = !estimates.empty();
  for (const auto& [device, bytes] : estimates) check.estimated_bytes += bytes;
  if (!check.is_known) return check;
  Walker a(source), b(replayed);
  std::map<uint64_t, Block> blocks;  // by the source's address
  std::vector<Range> chunks;
  std::vector<Event> pending_a, pending_b;
  while (true) {
    std::vector<uint64_t> freed_a, freed_b;
    std::vector<Range> copied_a, copied_b;
    const Event* const of_source = NextPlayed(a, pending_a, freed_a, copied_a);
    const Event* const of_replay = NextPlayed(b, pending_b, freed_b, copied_b);
    if (of_source == nullptr || of_replay == nullptr || of_replay->time_ns > at) break;
    for (const uint64_t address : freed_a) blocks.erase(address);
    const size_t n = std::min(pending_a.size(), pending_b.size());
    for (size_t i = 0; i < n; ++i) blocks[pending_a[i].a] = {pending_a[i].b, pending_b[i].a};
    pending_a.erase(pending_a.begin(), pending_a.begin() + static_cast<std::ptrdiff_t>(n));
    pending_b.erase(pending_b.begin(), pending_b.begin() + static_cast<std::ptrdiff_t>(n));
    if (of_replay->time_ns + kMinuteNs < at) continue;
    AddChunks(copied_a, blocks, chunks);
    const auto add = [&](const Launch& launch) {
      ++check.launches;
      check.without_truth += launch.has_truth ? 0 : 1;
      AddChunks(launch.truth, blocks, chunks);
    };
    if (of_source->type == Type::kGraphLaunch) {
      const Captured& graph = *a.Played(*of_source);
      AddChunks(graph.copies, blocks, chunks);
      for (const Launch* launch : graph.launches) add(*launch);
    } else if (const Launch& launch = source.launches[of_source->a]; (launch.flags & kLaunchCaptured) == 0) {
      add(launch);
    }
  }
  Merge(chunks);
  check.touched_bytes = Bytes(chunks);
  return check;
}

std::string WorkingSetText(const WorkingSetCheck& check) {
  if (!check.is_known) return "";
  constexpr double kMi = 1 << 20;
  char line[256];
  std::snprintf(line, sizeof line,
                "working set of the last minute: estimated %.1f MiB, truly touched %.1f MiB (%zu launches, %zu without "
                "truth)\n",
                static_cast<double>(check.estimated_bytes) / kMi, static_cast<double>(check.touched_bytes) / kMi,
                check.launches, check.without_truth);
  return line;
}

}  // namespace sluice::trace
