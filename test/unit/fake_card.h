// A card under the residency policy: an arena of chunks, all alive, of which some may be resident. Time is the test's.
#ifndef SLUICE_TEST_UNIT_FAKE_CARD_H_
#define SLUICE_TEST_UNIT_FAKE_CARD_H_

#include <vector>

#include "hooklib/policy/residency.h"
#include "test/unit/fake_timeline.h"

namespace sluice::policy {

using memory::FakeTimeline;

inline constexpr Va kBase = uint64_t{1} << 40;
inline Extent Chunks(uint64_t first, uint64_t count = 1) { return {kBase + first * kChunkBytes, count * kChunkBytes}; }

struct FakeCard {
  FakeTimeline time;
  Fences fences{&time};
  Residency residency{&time, &fences};
  Seq seq[4] = {};

  FakeCard(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) {
    residency.set_capacity(capacity * kChunkBytes);
    residency.set_prefetch(mode);
    residency.AddArena(Chunks(0, total), false);
    residency.AddLive(Chunks(0, total));
  }
  // Queued, and the GPU has not begun with it.
  const Plan& Queue(const std::vector<Extent>& set, StreamId stream = 1, uint64_t id = 0, size_t overwritten = 0,
                    std::optional<size_t> hotter = {}) {
    const Plan& plan = residency.Prepare(stream, ++seq[stream], set, id, true, overwritten, hotter);
    time.Queue(stream, seq[stream]);
    return plan;
  }
  void Finish(StreamId stream = 1) { time.Finish(stream, seq[stream]); }
  const Chunk& At(uint64_t chunk) { return *residency.chunks().Find(kBase + chunk * kChunkBytes); }
  bool Resident(uint64_t chunk) { return At(chunk).resident; }
};

}  // namespace sluice::policy

#endif  // SLUICE_TEST_UNIT_FAKE_CARD_H_
