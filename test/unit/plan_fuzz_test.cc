// Plans of random programs, carried out on a card without any cleverness (brute_card.h).
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <optional>

#include "hooklib/policy/residency.h"
#include "test/unit/brute_card.h"

namespace sluice::policy {

namespace {

// Chunks [0, kWeights) are copied once and only read. The rest are blocks: each has a home stream, and may be freed and
// allocated again there.
constexpr uint64_t kChunks = 96, kWeights = 16, kBlockChunks = 4, kStreams = 3;
constexpr StreamId kEngineStream = kStreams + 1;

class Program {
 public:
  // kSamples: chunks that launches name are tried (touch_sampler.h), and the faults are told. kMore: blocks are pinned,
  // and another GPU writes.
  enum class Kind : uint8_t { kPlain, kSamples, kMore };
  explicit Program(unsigned seed, Kind kind = Kind::kPlain)
      : random_(seed), kind_(kind), card_(kChunks), fences_(&card_), residency_(&card_, &fences_) {
    alone_ = Chance(2);
    residency_.set_prefetch(static_cast<Prefetch>(random_() % 3));
    residency_.set_can_discard(!Chance(4));
    residency_.set_remote_access(!Chance(4));
    residency_.set_repopulates(!Chance(4));
    residency_.set_read_mostly(Chance(2));
    residency_.set_discards_on_host(!Chance(4));
    residency_.link().set_slow_write_back(Chance(2));
    residency_.set_piece_bytes(kChunkBytes << random_() % 4);
    is_steady_ = Chance(2);
    residency_.touched().set_enabled(kind != Kind::kPlain);
    SetCapacity();
    residency_.AddArena(Chunks(0, kChunks), false);
    residency_.AddLive(Chunks(0, kChunks));
    for (uint64_t i = 0; i < kChunks; ++i) card_.page(i).live = true;
    for (size_t i = 0; i < 24; ++i) shapes_.push_back(RandomLaunch());
  }
  void Run(int launches) {
    Load();
    for (int i = 0; i < launches; ++i) {
      if (Chance(40)) Disturb();
      if (kind_ == Kind::kMore && Chance(20)) DisturbMore();
      // Mostly one iteration over and over, so that the order of launches can be predicted.
      Launch(Chance(10) ? RandomLaunch() : shapes_[static_cast<size_t>(i) % shapes_.size()]);
      for (uint64_t steps = random_() % 8; steps > 0 && card_.Advance(&random_); --steps) CheckRoom();
      if (Chance(30)) Drain();
      Check();
    }
    Drain();
    Check();
  }

 private:
  struct LaunchShape {
    uint64_t id = 0;
    StreamId stream = 1;
    std::vector<uint64_t> blocks;  // by their first chunk
    bool reads_weights = false, is_graph = false;
    size_t overwritten = 0;  // blocks at the end
    uint64_t rate = 1;       // of its probes
  };

  bool Chance(unsigned one_of) { return random_() % one_of == 0; }
  StreamId HomeOf(uint64_t block) const {
    return alone_ ? 1 : static_cast<StreamId>(block / kBlockChunks % kStreams + 1);
  }
  void SetCapacity() { residency_.set_capacity((random_() % 60 + 12) * kChunkBytes + random_() % kChunkBytes); }

  LaunchShape RandomLaunch() {
    LaunchShape shape;
    shape.id = Chance(8) ? 0 : (random_() | 1);
    shape.stream = alone_ ? 1 : static_cast<StreamId>(random_() % kStreams + 1);
    shape.is_graph = shape.id && !is_steady_ && Chance(6);
    const uint64_t most = shape.is_graph ? 20 : Chance(6) ? 16 : 4;
    for (uint64_t n = random_() % most + 1; n > 0; --n) {
      const uint64_t block = kWeights + random_() % ((kChunks - kWeights) / kBlockChunks) * kBlockChunks;
      if (HomeOf(block) == shape.stream && std::count(shape.blocks.begin(), shape.blocks.end(), block) == 0)
        shape.blocks.push_back(block);
    }
    shape.reads_weights = Chance(3);
    if (!shape.is_graph && Chance(3)) shape.overwritten = random_() % (shape.blocks.size() + 1);
    shape.rate = random_() % 60 + 1;
    return shape;
  }
  // Copies write the weights.
  void Load() {
    std::vector<uint64_t> set;
    for (uint64_t i = 0; i < kWeights; ++i) set.push_back(i);
    Queue({.stream = 1, .set = set}, {Chunks(0, kWeights)}, {}, true);
    residency_.NoteCopied(Chunks(0, kWeights));
    Drain();
  }
  void Launch(const LaunchShape& shape) {
    std::vector<Extent> extents;
    BruteCard::Launch launch{.stream = shape.stream};
    const auto name = [&](uint64_t first, uint64_t count) {
      extents.push_back(Chunks(first, count));
      for (uint64_t i = first; i < first + count; ++i) launch.set.push_back(i);
    };
    const auto is_freed = [&](uint64_t block) { return freed_.contains(block); };
    if (shape.blocks.empty() || shape.reads_weights) {
      name(0, kWeights);
      launch.writes = false;
    }
    size_t overwritten = 0;
    for (size_t i = 0; i < shape.blocks.size(); ++i) {
      const uint64_t block = shape.blocks[i];
      if (is_freed(block)) {
        Unpin(block);
        Allocate(block);
      }
      name(block, kBlockChunks);
      const bool whole = i + shape.overwritten >= shape.blocks.size() && launch.writes;
      overwritten += whole;
      for (uint64_t chunk = block; chunk < block + kBlockChunks; ++chunk) {
        if (!launch.writes || whole || fresh_.contains(chunk)) launch.fresh.insert(chunk);
        if (launch.writes) fresh_.erase(chunk);
      }
    }
    Queue(launch, extents, shape, !Chance(25), overwritten);
  }
  void Queue(BruteCard::Launch launch, const std::vector<Extent>& extents, const LaunchShape& shape, bool can_queue,
             size_t overwritten = 0) {
    if (launch.writes) {
      for (const Extent& extent : extents) residency_.NoteWritten(extent);
    }
    Withdraw();
    TellFaults();
    residency_.set_in_order(alone_ && residency_.has_freed_chunks());
    std::optional<size_t> hot;
    if (shape.is_graph) hot = extents.size() / 2;
    const Seq seq = seqs_[launch.stream] + 1;
    const Plan& plan = residency_.Prepare(launch.stream, seq, extents, shape.id, can_queue, overwritten, hot);
    for (const uint64_t chunk : launch.set) {
      if (TouchSampler::IsLeftOut(*residency_.chunks().Find(kBase + chunk * kChunkBytes)))
        launch.left_out.insert(chunk);
    }
    REQUIRE(card_.Queue(plan, launch) == seq);
    seqs_[launch.stream] = seq;
    if (plan.probe.id)
      launch_times_.push_back({plan.probe, {launch.stream, seq}, plan.probe.host_bytes / shape.rate + 5000});
    if (plan.graph_probe.id)
      graph_times_.push_back({plan.graph_probe, {launch.stream, seq}, random_() % 5'000'000 + 1});
    Report();
  }
  void TellFaults() {
    if (!residency_.touched().enabled()) return;
    residency_.MarkTouchesOver();
    residency_.ConcludeTouches(card_.TakeFaults(), Chance(50));
  }
  // Times of probes that are over.
  void Report() {
    const auto report = [this](auto* times) {
      std::erase_if(*times, [this](const auto& one) {
        if (!card_.Done(one.mark)) return false;
        residency_.NoteMeasured(one.probe, one.ns);
        return true;
      });
    };
    for (const auto& one : launch_times_) {
      if (card_.Done(one.mark)) residency_.NoteAnswered(one.probe);
    }
    report(&launch_times_);
    report(&graph_times_);
  }
  // The advice of former duplicates ends at once, with the copy on the GPU.
  void Withdraw() {
    for (const Extent& run : residency_.TakeWithdrawn()) {
      for (Va va = run.base; va < run.end(); va += kChunkBytes) {
        BruteCard::Page& page = card_.page((va - kBase) / kChunkBytes);
        page.duplicate = false;
        if (page.on_gpu && page.gpu == page.host) page.on_gpu = false;
      }
    }
  }
  void Allocate(uint64_t block) {
    freed_.erase(block);
    for (uint64_t i = block; i < block + kBlockChunks; ++i) {
      card_.page(i).live = true;
      fresh_.insert(i);
    }
    residency_.AddLive(Chunks(block, kBlockChunks));
  }
  void Free(uint64_t block) {
    if (!freed_.insert(block).second) return;
    if (!pinned_.contains(block)) {
      for (uint64_t i = block; i < block + kBlockChunks; ++i) card_.page(i).live = false;
    }
    residency_.RemoveLive(Chunks(block, kBlockChunks), Chunks(kWeights, kChunks - kWeights));
  }
  // Something between two launches.
  void Disturb() {
    const uint64_t block = kWeights + random_() % ((kChunks - kWeights) / kBlockChunks) * kBlockChunks;
    switch (random_() % 6) {
      case 0:
      case 1:
        for (uint64_t i = block; i < kChunks && i < block + 3 * kBlockChunks; i += kBlockChunks) Free(i);
        break;
      case 2:
        if (!is_steady_) SetCapacity();
        break;
      case 3:
        card_.Queue(residency_.Shrink(kEngineStream, residency_.capacity()), kEngineStream);
        break;
      case 4:
        card_.Queue(residency_.RestoreWorkingSet(kEngineStream, 16 * kChunkBytes, 1), kEngineStream);
        if (residency_.touched().enabled() && !is_steady_) {  // and gives it up again
          SetCapacity();
          card_.Queue(residency_.Shrink(kEngineStream, residency_.capacity()), kEngineStream);
        }
        break;
      default:
        if (residency_.has_excess_duplicates()) card_.Queue(residency_.DropExcessDuplicates(), kEngineStream);
        residency_.NoteHostSync();
    }
  }
  void Unpin(uint64_t block) {
    if (!pinned_.erase(block)) return;
    residency_.Pin(Chunks(block, kBlockChunks), false);
    for (uint64_t i = block; i < block + kBlockChunks; ++i) card_.page(i).live = !freed_.contains(block);
  }
  // Another GPU writes chunks that were never written, whose pages are made here.
  void WriteElsewhere(uint64_t block) {
    for (uint64_t i = block; i < block + kBlockChunks; ++i) {
      const Chunk& chunk = *residency_.chunks().Find(kBase + i * kChunkBytes);
      if (freed_.contains(block) || chunk.resident() || chunk.has_contents() || chunk.discarded()) continue;
      card_.WriteElsewhere(i);
      residency_.NoteWrittenElsewhere(Chunks(i));
      fresh_.erase(i);
    }
  }
  void DisturbMore() {
    const uint64_t block = kWeights + random_() % ((kChunks - kWeights) / kBlockChunks) * kBlockChunks;
    switch (random_() % 5) {
      case 0:
        if (pinned_.insert(block).second) residency_.Pin(Chunks(block, kBlockChunks), true);
        break;
      case 1:
        if (!pinned_.empty()) Unpin(*pinned_.begin());
        break;
      case 2:
        Drain();
        WriteElsewhere(block);
        break;
      case 3:
        Drain();
        card_.Queue(residency_.PopulateDiscarded(Chance(2)), kEngineStream);
        break;
      default:
        residency_.NoteFreed(Chunks(block, kBlockChunks));
    }
  }
  void Drain() {
    while (card_.Advance(&random_)) CheckRoom();
    Report();
    TellFaults();
    CheckUncounted();
  }
  // A fetch waits for the evictions that make its room, so the fetched memory fits at every moment.
  void CheckRoom() {
    if (!is_steady_ || residency_.stats().over_budget_launches) return;
    BruteCard::Expect(card_.Fetched() * kChunkBytes <= residency_.capacity(), "more is fetched than fits");
  }
  // Nothing is queued. Residency counts each chunk on the GPU, or has yet to evict the pages that faults brought.
  void CheckUncounted() {
    for (uint64_t i = 0; i < kChunks; ++i) {
      const memory::Chunk* const chunk = residency_.chunks().Find(kBase + i * kChunkBytes);
      BruteCard::Expect(
          !card_.page(i).on_gpu || card_.page(i).discarded || chunk->resident() || chunk->has_fault_residue(),
          "a chunk stays on the GPU uncounted");
    }
  }
  // What residency says of itself.
  void Check() {
    uint64_t resident = 0;
    residency_.chunks().ForAll([&](const Chunk& chunk) { resident += chunk.resident() ? kChunkBytes : 0; });
    REQUIRE(resident == residency_.resident_bytes());
  }

  template <typename Probe>
  struct Timed {
    Probe probe;
    memory::Mark mark;
    uint64_t ns;
  };
  std::mt19937 random_;
  Kind kind_;
  std::set<uint64_t> pinned_;
  bool alone_ = false;      // one stream works
  bool is_steady_ = false;  // the capacity is, and no graph exceeds it
  BruteCard card_;
  Fences fences_;
  Residency residency_;
  std::vector<LaunchShape> shapes_;
  std::set<uint64_t> freed_, fresh_;
  std::map<StreamId, Seq> seqs_;
  std::vector<Timed<LaunchProbe>> launch_times_;
  std::vector<Timed<GraphProbe>> graph_times_;
};

}  // namespace

TEST_CASE("plans of random programs keep their promises on a card without cleverness") {
  const char* const first = std::getenv("PLAN_FUZZ_FIRST");
  const char* const count = std::getenv("PLAN_FUZZ_COUNT");
  const auto from = static_cast<unsigned>(first ? std::atoi(first) : 1);
  const auto programs = static_cast<unsigned>(count ? std::atoi(count) : 200);
  for (unsigned seed = from; seed < from + programs; ++seed) {
    INFO("PLAN_FUZZ_FIRST=" << seed << " PLAN_FUZZ_COUNT=1");
    REQUIRE_NOTHROW(Program(seed).Run(400));
    REQUIRE_NOTHROW(Program(seed, Program::Kind::kSamples).Run(400));
    REQUIRE_NOTHROW(Program(seed, Program::Kind::kMore).Run(400));
  }
}

// Each of these failed once, and none of the first 200 does so for the same reason.
TEST_CASE("plans of programs that failed once keep their promises") {
  // Faults of another stream's queued work behind an eviction (561, 608, 725, 867); an eviction in a plan twice (3890,
  // 10788); a fence that closed before its launch was queued (5559, 16801, 20868).
  for (const unsigned seed : {561u, 608u, 725u, 867u, 3890u, 5559u, 10788u, 16801u, 20868u}) {
    INFO("PLAN_FUZZ_FIRST=" << seed << " PLAN_FUZZ_COUNT=1");
    REQUIRE_NOTHROW(Program(seed).Run(400));
  }
  // With samples: an eviction overtook a fetch for later launches, which another stream's launch used first (799), or
  // one for the launch itself (32641).
  for (const unsigned seed : {799u, 32641u}) {
    INFO("PLAN_FUZZ_FIRST=" << seed << " PLAN_FUZZ_COUNT=1");
    REQUIRE_NOTHROW(Program(seed, Program::Kind::kSamples).Run(400));
  }
}

}  // namespace sluice::policy
