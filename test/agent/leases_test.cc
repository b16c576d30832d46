// Leases of a container's memory-limit. Each process is played by its words in the page.
#include "agent/leases.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <thread>
#include <vector>

namespace sluice::agent {
namespace {

constexpr Bytes kMiB = 1ull << 20, kGiB = 1ull << 30;

// A process as hooklib/client/leases.cc is one.
struct Process {
  Process(Leases* leases, MemberId member, bool returning = false) : leases_(leases), member_(member) {
    leases->Add(member, &words, returning);
    leases->Grant(member, 0);
    Hear();
  }
  void Hear() {
    const Bytes granted = leases_->Granted(member_);
    words.headroom_bytes += static_cast<int64_t>(granted - words.granted_bytes);
    words.granted_bytes = granted;
  }
  // Whether it was within the lease; `asked` counts requests.
  bool Allocate(Bytes bytes) {
    if (words.headroom_bytes < static_cast<int64_t>(bytes)) {
      ++asked;
      const bool given = leases_->Grant(member_, bytes - static_cast<Bytes>(words.headroom_bytes));
      Hear();
      if (!given) return false;
    }
    Force(static_cast<int64_t>(bytes));
    return true;
  }
  void Force(int64_t bytes) {
    words.headroom_bytes -= bytes;
    words.charged_bytes += static_cast<Bytes>(bytes);
  }
  sluice_lease words{};
  int asked = 0;

 private:
  Leases* leases_;
  MemberId member_;
};

Bytes FillUp(Process& process, Bytes step) {
  Bytes got = 0;
  while (process.Allocate(step)) got += step;
  return got;
}

}  // namespace

TEST_CASE("a process that is alone has the whole limit ahead and asks for nothing") {
  Leases leases;
  leases.SetLimit(3 * kGiB);
  Process one(&leases, 1);
  CHECK(one.words.headroom_bytes == static_cast<int64_t>(3 * kGiB));
  CHECK(FillUp(one, 256 * kMiB) == 3 * kGiB);
  CHECK(one.asked == 1);  // the refused one
}

TEST_CASE("the limit holds for the sum of the processes") {
  Leases leases;
  leases.SetLimit(3 * kGiB);
  Process one(&leases, 1), two(&leases, 2), three(&leases, 3);
  REQUIRE(two.words.headroom_bytes == 0);  // the first has it all, unused
  Bytes sum = FillUp(two, 256 * kMiB / 2);
  CHECK(sum == 3 * kGiB);
  CHECK(FillUp(one, kMiB) == 0);
  CHECK(FillUp(three, kMiB) == 0);
  CHECK(leases.charged() == 3 * kGiB);
}

TEST_CASE("turns between processes end at the limit, and few allocations ask") {
  Leases leases;
  leases.SetLimit(8 * kGiB);
  Process one(&leases, 1), two(&leases, 2), three(&leases, 3);
  Bytes sum = 0;
  int allocations = 0;
  for (bool more = true; more;) {
    more = false;
    for (Process* p : {&one, &two, &three}) {
      if (!p->Allocate(8 * kMiB)) continue;
      more = true;
      sum += 8 * kMiB;
      ++allocations;
    }
  }
  CHECK(sum == 8 * kGiB);
  CHECK((one.asked + two.asked + three.asked) * 10 < allocations);
}

TEST_CASE("a process that ends returns its bytes at once, whatever it had charged") {
  Leases leases;
  leases.SetLimit(2 * kGiB);
  Process one(&leases, 1), two(&leases, 2);
  REQUIRE(one.Allocate(2 * kGiB));
  REQUIRE(!two.Allocate(kMiB));
  leases.Remove(1);
  CHECK(two.Allocate(2 * kGiB));
}

TEST_CASE("bytes that cannot be refused are charged beyond the lease, and count against the others") {
  Leases leases;
  leases.SetLimit(kGiB);
  Process one(&leases, 1), two(&leases, 2);
  one.Force(static_cast<int64_t>(kGiB + 100 * kMiB));  // a context's heap
  CHECK(!two.Allocate(kMiB));
  CHECK(!one.Allocate(kMiB));
  one.Force(-static_cast<int64_t>(200 * kMiB));
  CHECK(two.Allocate(100 * kMiB));
  CHECK(!two.Allocate(kMiB));
  CHECK(!one.Allocate(kMiB));
}

TEST_CASE("a process that attaches late has charged bytes already, and is given no more than the rest") {
  Leases leases;
  leases.SetLimit(kGiB);
  Process one(&leases, 1);
  Process late(&leases, 2);
  late.words.headroom_bytes -= static_cast<int64_t>(600 * kMiB);
  late.words.charged_bytes = 600 * kMiB;
  CHECK(FillUp(late, 50 * kMiB) == 400 * kMiB);
  CHECK(FillUp(one, kMiB) == 24 * kMiB);
}

TEST_CASE("a limit that falls takes unused bytes back, and one that rises gives more") {
  Leases leases;
  leases.SetLimit(4 * kGiB);
  Process one(&leases, 1), two(&leases, 2);
  REQUIRE(one.Allocate(kGiB));
  leases.SetLimit(2 * kGiB);
  CHECK(one.words.headroom_bytes == static_cast<int64_t>(kGiB));
  CHECK(one.words.taken_bytes == 2 * kGiB);
  leases.SetLimit(kGiB / 2);  // below the charged bytes
  CHECK(!one.Allocate(kMiB));
  CHECK(!two.Allocate(kMiB));
  leases.SetLimit(2 * kGiB);
  CHECK(FillUp(two, 128 * kMiB) == kGiB);
}

TEST_CASE("an agent that restarts goes on with the leases in the pages") {
  Leases before;
  before.SetLimit(3 * kGiB);
  Process one(&before, 1), two(&before, 2);
  REQUIRE(one.Allocate(kGiB));
  REQUIRE(two.Allocate(kGiB));
  Leases after;
  after.SetLimit(3 * kGiB);
  after.Add(1, &one.words, true);
  after.Add(2, &two.words, true);
  CHECK(after.Granted(1) == one.words.granted_bytes);
  CHECK(after.charged() == 2 * kGiB);
  Process three(&after, 3);
  CHECK(FillUp(three, 64 * kMiB) == kGiB);
  CHECK(one.words.headroom_bytes == 0);
  CHECK(two.words.headroom_bytes == 0);
}

TEST_CASE("a process of an older hook has no lease; its bytes count against the others") {
  Leases leases;
  leases.SetLimit(3 * kGiB);
  leases.AddUnleased(1);
  CHECK(!leases.IsLeased(1));
  leases.Observe(1, 2 * kGiB);
  Process two(&leases, 2);
  CHECK(FillUp(two, 256 * kMiB) == kGiB);
  CHECK(leases.charged() == 3 * kGiB);
}

TEST_CASE("words that lie give their own container no more than its limit, and break nothing") {
  for (const int64_t headroom : {INT64_MIN, INT64_MAX, int64_t{-1}}) {
    for (const Bytes claim : {UINT64_MAX, Bytes{0}, UINT64_MAX / 2}) {
      Leases leases;
      leases.SetLimit(kGiB);
      sluice_lease words{headroom, claim, claim, ~claim};
      leases.Add(1, &words, true);
      leases.Grant(1, UINT64_MAX);
      leases.Grant(1, kMiB);
      Process two(&leases, 2);
      FillUp(two, 128 * kMiB);
      CHECK(two.words.charged_bytes <= kGiB);
      leases.SetLimit(kMiB);
      leases.Remove(1);
    }
  }
}

TEST_CASE("bytes are taken back from a process that allocates at the same moment, and none is counted twice") {
  constexpr Bytes kLimit = 64 * kMiB, kStep = 4096;
  Leases leases;
  leases.SetLimit(kLimit);
  Process busy(&leases, 1), other(&leases, 2);
  std::atomic<bool> stop{false};
  Bytes busy_has = 0;
  std::thread thread([&] {
    while (!stop) {
      int64_t headroom = __atomic_load_n(&busy.words.headroom_bytes, __ATOMIC_RELAXED);
      if (headroom < static_cast<int64_t>(kStep)) continue;
      if (__atomic_compare_exchange_n(&busy.words.headroom_bytes, &headroom, headroom - static_cast<int64_t>(kStep),
                                      false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        busy_has += kStep;
        __atomic_store_n(&busy.words.charged_bytes, busy_has, __ATOMIC_RELAXED);
      }
    }
  });
  Bytes other_has = 0;
  while (other.Allocate(kStep)) other_has += kStep;
  stop = true;
  thread.join();
  CHECK(busy_has + other_has <= kLimit);
  CHECK(busy_has + other_has + static_cast<Bytes>(busy.words.headroom_bytes) + 2 * kStep >= kLimit);
}

}  // namespace sluice::agent
