// Stream-ordered discards: of free chunks that a live allocation owns and that only that stream has used.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

// An arena of 40 chunks that an allocator owns, 36 of which may be resident. All are live. The first 36 are resident
// and used by queued work of stream 1.
struct Gpu : FakeGpu {
  static constexpr uint64_t kAll = 40, kCapacity = 36;

  Gpu() : FakeGpu(kAll, kCapacity) {
    residency.set_remote_access(false);
    residency.set_in_order(true);
    for (uint64_t i = 0; i < kCapacity; ++i) Launch({Chunks(i)});
  }
  const Plan& Launch(const std::vector<Extent>& set, StreamId stream = 1) { return Queue(set, stream); }
  void ReportFreed(Extent range) { residency.RemoveLive(range, Chunks(0, kAll)); }
};

}  // namespace

TEST_CASE("chunks freed behind queued work are discarded in stream order, and no live chunk is evicted") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  const Plan& plan = gpu.Launch({Chunks(38)});
  CHECK(plan.stream_discard ==
        std::vector<Extent>{Chunks(4, 2)});  // more than is needed, since the stream waits for the discard
  CHECK(plan.discard.empty());
  CHECK(plan.now.evict.empty());
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(38)});
  CHECK_FALSE(gpu.residency.awaits_freed());
  // Allocated again, it is fetched without contents. The earlier plan is no longer valid.
  gpu.residency.AddLive(Chunks(4, 2));
  const uint64_t in = gpu.residency.stats().bytes_in;
  const Plan& back = gpu.Launch({Chunks(4)});
  CHECK(back.stream_discard.empty());
  CHECK(back.now.fetch == std::vector<Extent>{Chunks(4, 2)});  // 5 is allocated again, too
  CHECK(gpu.residency.stats().bytes_in == in);
}

TEST_CASE("discarded chunks are fetched even for a launch that is left to demand faults") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  const bool at_once = GENERATE(false, true);
  INFO((at_once ? "discarded at once" : "discarded in stream order"));
  if (at_once) {
    gpu.fences.Close();
    gpu.Finish();
  }
  const Plan& plan = gpu.Launch({Chunks(38, 2)});
  REQUIRE((at_once ? plan.discard : plan.stream_discard) == std::vector<Extent>{Chunks(4, 2)});
  gpu.residency.AddLive(Chunks(4, 2));
  std::vector<Extent> set{Chunks(0, Gpu::kAll)};
  uint64_t id = 0;
  bool is_transient = true;  // chunk 5 does not fit, and is evicted behind the launch
  SECTION("since it is larger than the capacity") { set = {Chunks(36, 4), Chunks(0, 36)}; }
  SECTION("to probe which pages it touches") {
    gpu.residency.set_remote_access(true);
    id = 7;
  }
  SECTION("since nothing is fetched any more") {
    gpu.residency.set_prefetch(Prefetch::kOff);
    set = {Chunks(4, 2)};
    is_transient = false;
  }
  SECTION("nor is it used remotely") {
    gpu.residency.NoteUnseenUse();  // it may hold anything again
    gpu.residency.chunks().Find(Chunks(4).base)->cold = true;
    gpu.residency.set_remote_access(true);
    id = 7;
  }
  const Plan& back = gpu.residency.Prepare(1, ++gpu.seq[1], set, id);
  const auto covers = [](const std::vector<Extent>& runs, Extent range) {
    return std::any_of(runs.begin(), runs.end(),
                       [&range](const Extent& run) { return run.base <= range.base && range.end() <= run.end(); });
  };
  CHECK(covers(back.now.fetch, Chunks(4, 2)));
  CHECK(back.wait_in != 0);
  CHECK(covers(back.evict_after, Chunks(5)) == is_transient);
  CHECK_FALSE(covers(back.map_remote, Chunks(4)));
}

TEST_CASE("discarded chunks are populated at once where nothing can be queued") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  gpu.fences.Close();
  gpu.Finish();
  REQUIRE(gpu.Launch({Chunks(38, 2)}).discard == std::vector<Extent>{Chunks(4, 2)});
  gpu.residency.AddLive(Chunks(4, 2));
  gpu.time.transfers_instant = false;
  const bool on_its_way = GENERATE(false, true);
  INFO((on_its_way ? "another stream's launch fetches it" : "no launch has fetched it"));
  if (on_its_way) {
    REQUIRE(gpu.Launch({Chunks(4, 2)}, 2).now.fetch == std::vector<Extent>{Chunks(4, 2)});
    gpu.residency.chunks().ForEach(Chunks(4, 2), [](Chunk& chunk) { chunk.Leave(); });  // evicted again
  }
  const Plan& plan = gpu.residency.Prepare(1, ++gpu.seq[1], std::vector<Extent>{Chunks(0, 6)}, 0, false);
  CHECK(plan.populate_now == std::vector<Extent>{Chunks(4, 2)});  // and none of the others
  CHECK_FALSE(plan.is_empty);
}

TEST_CASE("chunks that a launch fetches without naming them are not its victims") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  REQUIRE(gpu.Launch({Chunks(38, 2)}).stream_discard == std::vector<Extent>{Chunks(4, 2)});
  gpu.residency.AddLive(Chunks(4, 2));
  const Plan& plan = gpu.Launch({Chunks(0, 4), Chunks(6, 28), Chunks(36, 2)});  // all but two chunks of the capacity
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(4, 2), Chunks(36, 2)});
  CHECK((gpu.Resident(4) && gpu.Resident(5)));
  CHECK(BytesWithin(plan.now.evict, Chunks(4, 2)) == 0);
}

TEST_CASE("chunks that a launch fetches without naming them stay until it is over") {
  FakeGpu gpu(8, 4);
  gpu.residency.set_remote_access(false);
  gpu.residency.set_in_order(true);
  gpu.Queue({Chunks(0, 4)});
  gpu.residency.RemoveLive(Chunks(0), Chunks(0, 8));
  REQUIRE(gpu.Queue({Chunks(4)}).stream_discard == std::vector<Extent>{Chunks(0)});
  gpu.Finish();
  gpu.time.FinishTransfers(1, 100, 100);
  gpu.residency.AddLive(Chunks(0));
  gpu.time.transfers_instant = false;
  gpu.time.FinishTransfers(1, 2, 0);
  CHECK(gpu.Queue({Chunks(1)}).now.fetch == std::vector<Extent>{Chunks(0)});  // in another chunk's place
  CHECK(gpu.Queue({Chunks(0)}, 2).now.fetch == std::vector<Extent>{Chunks(0)});
  gpu.Finish(2);
  // The first stream's fetch may run after any work of the second.
  const Plan& plan = gpu.Queue({Chunks(5, 3)}, 2);
  CHECK_FALSE(plan.now.evict.empty());
  CHECK(BytesWithin(plan.now.evict, Chunks(0, 2)) == 0);
}

TEST_CASE("after a transient fetch a discarded chunk is like any other for its stream") {
  FakeGpu gpu(16, 4);
  gpu.residency.set_in_order(true);
  gpu.time.transfers_instant = false;
  gpu.Queue({Chunks(8, 4)});
  gpu.residency.RemoveLive(Chunks(8), Chunks(0, 16));
  REQUIRE(gpu.Queue({Chunks(12)}).stream_discard == std::vector<Extent>{Chunks(8)});
  gpu.residency.AddLive(Chunks(8));
  // A launch larger than the capacity, queued ahead of the GPU: its last chunks do not fit, and are left to faults.
  // Only the discarded one is fetched, the first time.
  const auto is_transient = [&gpu] {
    const Plan& plan = gpu.Queue({Chunks(0, 9)}, 1, 7);
    return std::count(plan.now.fetch.begin(), plan.now.fetch.end(), Chunks(8)) == 1;
  };
  CHECK(is_transient());
  for (int i = 0; i < 4; ++i) CHECK_FALSE(is_transient());
}

TEST_CASE("a chunk that is allocated and freed repeatedly is fetched once") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4));
  REQUIRE(gpu.Launch({Chunks(38)}).stream_discard == std::vector<Extent>{Chunks(4)});
  for (int i = 0; i < 3; ++i) {
    gpu.residency.AddLive(Chunks(4));
    if (i < 2) gpu.ReportFreed(Chunks(4));
  }
  const uint64_t resident_before = gpu.residency.resident_bytes();
  CHECK(gpu.Launch({Chunks(38)}).now.fetch == std::vector<Extent>{Chunks(4)});
  CHECK(gpu.residency.resident_bytes() == resident_before);  // in another chunk's place
  CHECK(gpu.Launch({Chunks(38)}).now.fetch.empty());
}

TEST_CASE("discarded chunks are fetched for each stream until one of the fetches is over") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4));
  gpu.time.transfers_instant = false;
  REQUIRE(gpu.Launch({Chunks(38)}).stream_discard == std::vector<Extent>{Chunks(4)});
  gpu.residency.AddLive(Chunks(4));
  const uint64_t resident_before = gpu.residency.resident_bytes() + kChunkBytes;
  bool stays = true;
  SECTION("and it stays resident") { CHECK(gpu.Launch({Chunks(4)}, 1).now.fetch == std::vector<Extent>{Chunks(4)}); }
  SECTION("though another launch fetched it") {
    CHECK(gpu.Launch({Chunks(0)}, 1).now.fetch == std::vector<Extent>{Chunks(4)});
  }
  SECTION("though it is evicted behind the first launch") {
    CHECK_FALSE(gpu.Launch({Chunks(0, 4), Chunks(5, 35), Chunks(4)}, 1).evict_after.empty());
    stays = false;
  }
  const Plan& again = gpu.Launch({Chunks(4)}, 1);
  CHECK(again.now.fetch.empty() == stays);
  const Plan& other = gpu.Launch({Chunks(4)}, 2);
  CHECK(other.now.fetch == std::vector<Extent>{Chunks(4)});
  CHECK(other.wait_in == 1);
  if (!stays) return;
  CHECK(gpu.residency.resident_bytes() <= resident_before);
  gpu.time.FinishTransfers(1, 100, 0);
  CHECK(gpu.Launch({Chunks(4)}, 3).now.fetch.empty());
  CHECK_FALSE(gpu.At(4).discarded());
}

TEST_CASE("chunks freed by finished work are discarded at once") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  gpu.time.Finish(1, gpu.seq[1]);
  gpu.Launch({Chunks(5)});  // names 5, so that 5 is not discarded
  gpu.fences.Close();
  gpu.time.Finish(1, gpu.seq[1]);
  const Plan& plan = gpu.Launch({Chunks(38)});
  CHECK(plan.stream_discard.empty());
  CHECK(plan.discard == std::vector<Extent>{Chunks(4)});
}

TEST_CASE("chunks freed while in host memory are discarded there, and fetched without contents") {
  Gpu gpu;
  gpu.Launch({Chunks(36, 2)});  // in the place of 0 and 1, whose evictions are in flight
  gpu.time.transfers_instant = false;
  gpu.ReportFreed(Chunks(0));
  CHECK(gpu.Launch({Chunks(38)}).stream_discard.empty());  // its eviction may be in flight
  gpu.time.transfers_instant = true;
  SECTION("in stream order") { CHECK(gpu.Launch({Chunks(39)}).stream_discard == std::vector<Extent>{Chunks(0)}); }
  SECTION("at once, if all that was queued is done") {
    gpu.fences.Close();
    gpu.time.Finish(1, gpu.seq[1]);
    CHECK(gpu.Launch({Chunks(39)}).discard == std::vector<Extent>{Chunks(0)});
  }
  SECTION("not chunks used remotely, nor under a driver without discard") {
    GIVEN("mapped_remote") { gpu.residency.chunks().Find(Chunks(0).base)->Map(); }
    GIVEN("no discard") { gpu.residency.set_can_discard(false); }
    const Plan& plan = gpu.Launch({Chunks(39)});
    CHECK(plan.stream_discard.empty());
    CHECK(plan.discard.empty());
    return;
  }
  gpu.residency.AddLive(Chunks(0));
  const uint64_t in = gpu.residency.stats().bytes_in;
  CHECK(gpu.Launch({Chunks(0)}).now.fetch == std::vector<Extent>{Chunks(0)});
  CHECK(gpu.residency.stats().bytes_in == in);
}

TEST_CASE("chunks freed while in host memory are discarded without need for room, before their reuse") {
  Gpu gpu;
  gpu.Launch({Chunks(36, 2)});  // in the place of 0 and 1
  gpu.ReportFreed(Chunks(0));
  const Plan& plan = gpu.Launch({Chunks(10)});  // its set is resident
  CHECK(plan.stream_discard == std::vector<Extent>{Chunks(0)});
  CHECK_FALSE(plan.is_empty);
  CHECK_FALSE(gpu.residency.has_freed_chunks());
  gpu.residency.AddLive(Chunks(0));
  const uint64_t in = gpu.residency.stats().bytes_in;
  gpu.Launch({Chunks(0)});
  CHECK(gpu.residency.stats().bytes_in == in);
}

TEST_CASE("chunks freed in host memory and reused before a discard keep their contents") {
  Gpu gpu;
  gpu.Launch({Chunks(36, 2)});
  gpu.ReportFreed(Chunks(0));
  gpu.residency.AddLive(Chunks(0));
  CHECK(gpu.Launch({Chunks(10)}).is_empty);
  const uint64_t in = gpu.residency.stats().bytes_in;
  gpu.Launch({Chunks(0)});
  CHECK(gpu.residency.stats().bytes_in == in + kChunkBytes);
}

TEST_CASE("chunks that others may be given, use or keep are not discarded in stream order") {
  Gpu gpu;
  SECTION("other streams work") { gpu.residency.set_in_order(false), gpu.ReportFreed(Chunks(4)); }
  SECTION("freed, not reported") { gpu.residency.RemoveLive(Chunks(4)); }
  SECTION("reported, then the allocation itself is freed") {
    gpu.ReportFreed(Chunks(4));
    gpu.residency.NoteFreed(Chunks(0, Gpu::kAll));
  }
  SECTION("the allocation holds only a part of the chunk") {
    gpu.residency.RemoveLive(Chunks(4), {Chunks(4).base + 4096, Chunks(4, 9).bytes});
  }
  SECTION("captured") { gpu.residency.Pin(Chunks(4), true), gpu.ReportFreed(Chunks(4)); }
  SECTION("a second stream has used it") {
    gpu.Launch({Chunks(4)}, 2);
    gpu.ReportFreed(Chunks(4));
  }
  SECTION("a driver without discard") { gpu.residency.set_can_discard(false), gpu.ReportFreed(Chunks(4)); }
  SECTION("the launch itself names it") {
    gpu.ReportFreed(Chunks(4));
    CHECK(gpu.Launch({Chunks(4), Chunks(38)}).stream_discard.empty());
    return;
  }
  SECTION("a part of it is live") { gpu.residency.RemoveLive({Chunks(4).base, 4096}, Chunks(0, Gpu::kAll)); }
  const Plan& plan = gpu.Launch({Chunks(38)});
  CHECK(plan.stream_discard.empty());
  CHECK(plan.discard.empty());
  CHECK(plan.now.evict.size() == 1);
}

TEST_CASE("a chunk that two queues may be evicting is not discarded when the newer eviction is done") {
  FakeGpu gpu(16, 4);
  gpu.residency.set_remote_access(false);
  gpu.time.transfers_instant = false;
  gpu.Queue({Chunks(0, 4), Chunks(5)}, 1);  // 5 does not fit: evicted behind it
  for (int i = 0; i < 2; ++i) gpu.Queue({Chunks(8, 4), Chunks(5)}, 2);
  gpu.Finish(1);
  gpu.Finish(2);
  gpu.residency.RemoveLive(Chunks(5));
  gpu.fences.Close();
  gpu.time.FinishTransfers(2, 100, 100);  // stream 1's evictions are in flight
  CHECK(gpu.Queue({Chunks(13)}, 2).discard.empty());
  CHECK(gpu.Queue({Chunks(14)}, 2).discard.empty());
}

TEST_CASE("a chunk that another queue may still be evicting is neither fetched nor discarded") {
  FakeGpu gpu(16, 4);
  gpu.residency.set_remote_access(false);
  gpu.time.transfers_instant = false;
  gpu.Queue({Chunks(0, 4), Chunks(5)}, 1);  // 5 does not fit: evicted behind it
  gpu.Queue({Chunks(8, 4), Chunks(5)}, 2);  // and behind this launch
  gpu.Finish(1);
  gpu.Finish(2);
  gpu.time.FinishTransfers(2, 100, 100);  // stream 1's evictions are in flight
  const Plan& plan = gpu.Queue({Chunks(5)}, 2);
  CHECK(plan.now.fetch.empty());  // faults bring it
  CHECK(plan.evict_after == std::vector<Extent>{Chunks(5)});
  gpu.Finish(2);
  gpu.time.FinishTransfers(2, 100, 100);
  gpu.residency.RemoveLive(Chunks(5));
  gpu.fences.Close();
  CHECK(gpu.Queue({Chunks(13)}, 2).discard.empty());
  CHECK(gpu.Queue({Chunks(14)}, 2).discard.empty());
  gpu.Finish(2);
  gpu.time.FinishTransfers(1, 100, 100);
  gpu.time.FinishTransfers(2, 100, 100);
  CHECK(gpu.Queue({Chunks(13)}, 2).discard == std::vector<Extent>{Chunks(5)});
}

TEST_CASE("where nothing can be queued, discarded chunks are populated on the GPU or in host memory") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  gpu.fences.Close();
  gpu.Finish();
  REQUIRE(gpu.Launch({Chunks(38, 2)}).discard == std::vector<Extent>{Chunks(4, 2)});
  gpu.residency.AddLive(Chunks(4, 2));
  const bool is_full = GENERATE(false, true);
  INFO((is_full ? "the budget is full" : "the budget has room"));
  if (!is_full) gpu.residency.set_capacity(Gpu::kAll * kChunkBytes);
  // The part of a launch that exceeds the budget is left to faults.
  const std::vector<Extent> set{is_full ? Chunks(0, Gpu::kAll) : Chunks(4)};
  const Plan& plan = gpu.residency.Prepare(1, ++gpu.seq[1], set, is_full ? 77 : 0, false);
  CHECK(plan.now.empty());
  if (is_full) {
    CHECK(plan.populate_on_host == std::vector<Extent>{Chunks(4, 2)});
    CHECK(plan.populate_now.empty());
  } else {
    CHECK(plan.populate_now == std::vector<Extent>{Chunks(4)});
    CHECK(plan.populate_on_host == std::vector<Extent>{Chunks(5)});  // it may be written, though it is not named
  }
  // Both count as memory with contents from now on.
  gpu.residency.set_capacity(Gpu::kCapacity * kChunkBytes);
  const uint64_t in = gpu.residency.stats().bytes_in;
  gpu.Launch({Chunks(5)});
  CHECK(gpu.residency.stats().bytes_in == in + kChunkBytes);
}

TEST_CASE("a launch that can queue nothing populates chunks whose fetch another stream has queued") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 2));
  gpu.fences.Close();
  gpu.Finish();
  REQUIRE(gpu.Launch({Chunks(38, 2)}).discard == std::vector<Extent>{Chunks(4, 2)});
  gpu.residency.AddLive(Chunks(4, 2));
  gpu.time.transfers_instant = false;
  REQUIRE(gpu.Launch({Chunks(4)}, 1).now.fetch == std::vector<Extent>{Chunks(4, 2)});
  const Plan& plan = gpu.residency.Prepare(2, ++gpu.seq[2], std::vector<Extent>{Chunks(4)}, 0, false);
  CHECK(plan.populate_now == std::vector<Extent>{Chunks(4)});
}

TEST_CASE("beside other GPUs discarded chunks are populated when they are allocated again") {
  Gpu gpu;
  gpu.ReportFreed(Chunks(4, 3));
  gpu.fences.Close();
  gpu.Finish();
  REQUIRE(gpu.Launch({Chunks(37, 3)}).discard == std::vector<Extent>{Chunks(4, 3)});
  CHECK_FALSE(gpu.residency.has_reused_chunks());
  gpu.residency.AddLive(Chunks(4));
  REQUIRE(gpu.residency.has_reused_chunks());
  gpu.Launch({Chunks(4)});  // its fetch is queued, not done
  gpu.residency.AddLive(Chunks(5));
  const uint64_t in_host = gpu.residency.stats().host_bytes;
  const Plan first = gpu.residency.PopulateDiscarded(true);
  CHECK(first.populate_now == std::vector<Extent>{Chunks(4)});
  CHECK(first.populate_on_host == std::vector<Extent>{Chunks(5)});
  CHECK(gpu.residency.stats().host_bytes == in_host + kChunkBytes);
  CHECK_FALSE(gpu.residency.has_reused_chunks());
  gpu.residency.AddLive(Chunks(6));
  const Plan& later = gpu.residency.PopulateDiscarded(false);
  CHECK(later.populate_now.empty());
  CHECK(later.populate_on_host == std::vector<Extent>{Chunks(6)});
}

}  // namespace sluice::policy
