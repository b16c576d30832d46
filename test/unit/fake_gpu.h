// A GPU under the residency policy: an arena of chunks, all live, of which some may be resident. The test controls its
// time.
#ifndef SLUICE_TEST_UNIT_FAKE_GPU_H_
#define SLUICE_TEST_UNIT_FAKE_GPU_H_

#include <algorithm>
#include <vector>

#include "hooklib/policy/residency.h"
#include "test/unit/fake_timeline.h"

namespace sluice::policy {

using memory::FakeTimeline;

inline constexpr Va kBase = uint64_t{1} << 40;
inline Extent Chunks(uint64_t first, uint64_t count = 1) { return {kBase + first * kChunkBytes, count * kChunkBytes}; }

inline uint64_t TotalBytes(const std::vector<Extent>& runs) {
  uint64_t bytes = 0;
  for (const Extent& run : runs) bytes += run.bytes;
  return bytes;
}

// The bytes of `runs` inside `part`.
inline uint64_t BytesWithin(const std::vector<Extent>& runs, Extent part) {
  uint64_t bytes = 0;
  for (const Extent& run : runs) {
    const Va base = std::max(run.base, part.base), end = std::min(run.end(), part.end());
    if (base < end) bytes += end - base;
  }
  return bytes;
}

// The numbers of the chunks, as Chunks() counts them.
inline std::vector<uint64_t> ChunksOf(const std::vector<Extent>& runs) {
  std::vector<uint64_t> chunks;
  for (const Extent& run : runs) {
    for (Va at = run.base; at < run.end(); at += kChunkBytes) chunks.push_back((at - kBase) / kChunkBytes);
  }
  return chunks;
}

inline std::vector<Extent> Joined(std::vector<Extent> runs, const std::vector<Extent>& more) {
  runs.insert(runs.end(), more.begin(), more.end());
  return runs;
}

// The extents of a plan for its launch, then those ahead of later launches. Evictions behind the launch are none of
// them.
inline std::vector<Extent> Evicted(const Plan& plan) { return Joined(plan.now.evict, plan.ahead.evict); }
inline std::vector<Extent> Fetched(const Plan& plan) { return Joined(plan.now.fetch, plan.ahead.fetch); }

// The newest eviction that a fetch of the step waits for; 0: none.
inline uint64_t AwaitedEviction(const PlanStep& step) {
  uint64_t awaited = 0;
  for (const PlanPiece& piece : step.pieces) awaited = std::max(awaited, piece.in_after_out);
  return awaited;
}
inline uint64_t ContentBytes(const PlanStep& step) {
  uint64_t bytes = 0;
  for (const PlanPiece& piece : step.pieces) bytes += piece.fetch_content_bytes;
  return bytes;
}

struct FakeGpu {
  FakeTimeline time;
  Fences fences{&time};
  Residency residency{&time, &fences};
  Seq seq[4] = {};

  FakeGpu(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) {
    residency.set_capacity(capacity * kChunkBytes);
    residency.set_prefetch(mode);
    residency.AddArena(Chunks(0, total), false);
    residency.AddLive(Chunks(0, total));
  }
  // Queues a launch that the GPU has not begun.
  const Plan& Queue(const std::vector<Extent>& set, StreamId stream = 1, uint64_t id = 0, size_t overwritten = 0,
                    std::optional<size_t> hot_extents = {}) {
    const Plan& plan = residency.Prepare(stream, ++seq[stream], set, id, true, overwritten, hot_extents);
    time.Queue(stream, seq[stream]);
    return plan;
  }
  void Finish(StreamId stream = 1) { time.Finish(stream, seq[stream]); }
  // Runs a launch that uses its host-resident bytes at `rate` GB/s, and reports its time if it is to be timed.
  LaunchProbe RunTimed(uint64_t id, const std::vector<Extent>& set, double rate) {
    const LaunchProbe probe = Queue(set, 1, id).probe;
    Finish();
    if (probe.id)
      residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / rate));
    return probe;
  }
  const Chunk& At(uint64_t chunk) { return *residency.chunks().Find(kBase + chunk * kChunkBytes); }
  bool Resident(uint64_t chunk) { return At(chunk).resident(); }
  uint64_t CountResident(uint64_t first, uint64_t count) {
    uint64_t chunks = 0;
    for (uint64_t i = first; i < first + count; ++i) chunks += Resident(i);
    return chunks;
  }
};

}  // namespace sluice::policy

#endif  // SLUICE_TEST_UNIT_FAKE_GPU_H_
