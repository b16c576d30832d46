// Bounded regret: launches of an unknown kind are fetched for on credit, and left to demand faults beyond it.
#include <catch2/catch_test_macros.hpp>

#include "hooklib/policy/cost/regret_account.h"
#include "hooklib/policy/fetch/launch_classifier.h"
#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kMs = 1'000'000;
constexpr uint64_t kId = 7;

// Blocks of 64 chunks, of which one fits. To swap one takes more than the first credit.
struct Blocks {
  static constexpr uint64_t kChunks = 64;
  FakeGpu gpu{4 * kChunks, kChunks + 16};
  Blocks() {
    gpu.residency.link().set_slow_write_back(false);
    for (uint64_t block = 0; block < 4; ++block) {  // written by copies
      gpu.Queue({Chunks(block * kChunks, kChunks)});
      gpu.Finish();
      gpu.time.FinishTransfers(1, 1 << 20, 1 << 20);
    }
  }
  // A launch of this kind on a block, which takes `ns` if it is to be timed.
  Plan Run(uint64_t id, uint64_t block, uint64_t ns) {
    const Plan plan = gpu.Queue({Chunks(block % 4 * kChunks, kChunks)}, 1, id);
    gpu.Finish();
    gpu.time.FinishTransfers(1, 1 << 20, 1 << 20);
    if (plan.probe.id) {
      gpu.residency.NoteAnswered(plan.probe);
      gpu.residency.NoteMeasured(plan.probe, ns);
    }
    return plan;
  }
};

}  // namespace

TEST_CASE("regret account: moves are paid from credit, which dense launches earn and sparse ones take") {
  RegretAccount account;
  CHECK(account.Pay(RegretAccount::kFirstCreditNs / 2));
  CHECK_FALSE(account.Pay(RegretAccount::kFirstCreditNs));
  CHECK(account.Pay(RegretAccount::kFirstCreditNs / 2));  // what is refused costs nothing
  CHECK_FALSE(account.Pay(1));
  account.NoteDense(kMs);
  CHECK(account.credit_ns() == RegretAccount::kEarned * kMs);
  account.NoteSparse();
  CHECK(account.credit_ns() == RegretAccount::kEarned * kMs / 2);
  for (int i = 0; i < 1000; ++i) account.NoteDense(1000 * kMs);
  CHECK(account.credit_ns() == RegretAccount::kMaxCreditNs);
}

TEST_CASE("regret: a launch of an unknown kind whose moves exceed the credit is left to demand faults and timed") {
  Blocks blocks;
  const Plan first = blocks.Run(kId, 0, kMs / 5);
  CHECK(first.now.fetch.empty());
  CHECK(first.probe.by_faults);
  CHECK(first.probe.host_bytes == Blocks::kChunks * kChunkBytes);
  // It touched little: the next ones are not fetched for either.
  for (uint64_t i = 1; i < 20; ++i) CHECK(blocks.Run(kId, i, kMs / 5).now.fetch.empty());
}

TEST_CASE("regret: a kind that touches its whole set is fetched for, and pays for others") {
  Blocks blocks;
  CHECK(blocks.Run(kId, 0, 13 * kMs).probe.by_faults);  // all 128 MiB
  uint64_t fetched = 0;
  // The first one is probed in host memory, since it names one operand alone.
  for (uint64_t i = 1; i < 9; ++i) fetched += TotalBytes(blocks.Run(kId, i, 100 * kMs).now.fetch);
  CHECK(fetched >= 3 * Blocks::kChunks * kChunkBytes);
  CHECK(TotalBytes(blocks.Run(8, 1, 100 * kMs).now.fetch) > 0);
}

TEST_CASE("regret: while the time of a launch by faults is awaited, others of its kind are left to faults") {
  using AccessClass = LaunchClassifier::AccessClass;
  const LinkModel link;
  LaunchClassifier classifier(&link);
  const LaunchProbe faults{.id = kId, .host_bytes = 128 * kMiB, .by_faults = true, .exploratory = true};
  CHECK(classifier.IsUndecided(kId));
  classifier.TryFaults(kId);
  classifier.NoteProbe(faults, 1);
  CHECK(classifier.ClassOf(kId, false, 2) == AccessClass::kFaulting);
  CHECK(classifier.ShouldAwait(kId));  // at once: each launch may cost much
  classifier.NoteAnswered(faults);
  CHECK_FALSE(classifier.ShouldAwait(kId));
  SECTION("it touched little") {
    classifier.NoteMeasured(faults, kMs / 5, 3);
    CHECK(classifier.ClassOf(kId, false, 4) == AccessClass::kFaulting);
    CHECK_FALSE(classifier.IsUndecided(kId));
    CHECK(classifier.TakeFindings().found_sparse);
    // Remote use is tried; a slow one leads back to faults, and never to a fetch.
    CHECK(classifier.MayTryRemote(kId));
    const LaunchProbe host{.id = kId, .host_bytes = 128 * kMiB, .exploratory = true};
    classifier.NoteProbe(host, 5);
    CHECK(classifier.ClassOf(kId, false, 6) == AccessClass::kFaulting);
    classifier.NoteMeasured(host, kMs, 7);
    CHECK(classifier.ClassOf(kId, false, 8) == AccessClass::kFaulting);
    CHECK_FALSE(classifier.MayTryRemote(kId));
  }
  SECTION("it touched all") {
    classifier.NoteMeasured(faults, 13 * kMs, 3);
    CHECK(classifier.ClassOf(kId, false, 4) == AccessClass::kUnknown);
    CHECK_FALSE(classifier.IsUndecided(kId));
    CHECK(classifier.TakeFindings().earned_bytes == 128 * kMiB);
    CHECK(classifier.TakeFindings().earned_bytes == 0);
  }
  SECTION("it touched half: one more is asked") {
    classifier.NoteMeasured(faults, 8 * kMs, 3);
    CHECK(classifier.IsUndecided(kId));
    CHECK(classifier.TakeFindings().earned_bytes == 0);
    classifier.TryFaults(kId);
    classifier.NoteProbe(faults, 4);
    classifier.NoteAnswered(faults);
    classifier.NoteMeasured(faults, 8 * kMs, 5);
    CHECK_FALSE(classifier.IsUndecided(kId));
  }
}

}  // namespace sluice::policy
