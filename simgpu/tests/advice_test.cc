// Advice on managed memory: read-mostly duplicates, remote access, preferred locations.
#include <vector>

#include "timing.h"

using namespace simgpu_test;  // NOLINT(google-build-using-namespace): the test's own vocabulary

// Figures of experiments/probes/read_mostly.cu on an H200, for a GiB.
TEST_CASE("read-mostly: withdrawn duplicates are host-resident without a copy") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(kGiB);
  Populate(card, s, p, kGiB);
  const CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const auto advise = [&](CUmem_advise advice) {
    return card.Time([&] { OK(cuMemAdvise(p, kGiB, advice, l)); }) / 1000;
  };
  const auto fetch = [&] { return card.Time([&] { card.Prefetch(s, p, kGiB, true); }) / 1000; };
  card.Prefetch(s, p, kGiB, false);
  OK(cuCtxSynchronize());
  uint64_t us = advise(CU_MEM_ADVISE_SET_READ_MOSTLY);
  CHECK((us > 70'000 && us < 86'000));
  us = fetch();
  CHECK((us > 20'000 && us < 25'000));
  const auto before = card.Stats();
  // A prefetch to the host leaves both copies.
  us = card.Time([&] { card.Prefetch(s, p, kGiB, false); }) / 1000;
  CHECK(us < 3'000);
  CHECK(simgpu_resident_bytes(p, kGiB) == kGiB);
  CHECK(card.Time([&] { card.Launch(s, {Read(p, kGiB)}); }) < 100'000);
  us = advise(CU_MEM_ADVISE_UNSET_READ_MOSTLY);
  CHECK((us > 1'000 && us < 2'500));
  CHECK(simgpu_resident_bytes(p, kGiB) == 0);
  CHECK(card.Stats().prefetch_out_bytes == before.prefetch_out_bytes);
  us = advise(CU_MEM_ADVISE_SET_READ_MOSTLY);
  CHECK((us > 4'000 && us < 6'000));
  CHECK(advise(CU_MEM_ADVISE_UNSET_READ_MOSTLY) < 2'500);
  us = card.Time([&] { card.Launch(s, {Read(p, kGiB)}); }) / 1000;
  CHECK((us > 90'000 && us < 110'000));
  // On the card: the move to the host makes the first duplicate, and costs as much as any move.
  CHECK(advise(CU_MEM_ADVISE_SET_READ_MOSTLY) < 2'500);
  us = card.Time([&] { card.Prefetch(s, p, kGiB, false); }) / 1000;
  CHECK((us > 60'000 && us < 110'000));
  CHECK(simgpu_resident_bytes(p, kGiB) == kGiB);
  // Withdrawn under a running reader: this costs only time.
  card.Launch(s, {Read(p, kGiB)}, 5'000'000);
  simgpu_advance_host(1'000'000);
  OK(cuMemAdvise(p, kGiB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, l));
  CHECK(card.Stats().evicted_in_use_bytes == before.evicted_in_use_bytes + kGiB);
  CHECK(card.Stats().misuses == 0);
  // If the card is the preferred location, its copy remains.
  OK(cuMemAdvise(p, kGiB, CU_MEM_ADVISE_SET_READ_MOSTLY, l));
  fetch();
  OK(cuMemAdvise(p, kGiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, l));
  OK(cuMemAdvise(p, kGiB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, l));
  CHECK(simgpu_resident_bytes(p, kGiB) == kGiB);
}

TEST_CASE("read-mostly: a write by a copy or a memset also collapses a duplicate") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(16 * kMiB);
  Populate(card, s, p, 16 * kMiB);
  const auto duplicate = [&] {
    card.Prefetch(s, p, 16 * kMiB, false);
    OK(cuCtxSynchronize());
    OK(cuMemAdvise(p, 16 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}));
    card.Prefetch(s, p, 16 * kMiB, true);
  };
  duplicate();
  const auto slow = [&](uint64_t ns) {
    CHECK((ns > 53'000'000 && ns < 62'000'000));
    OK(cuMemAdvise(p, 16 * kMiB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}));
    duplicate();
  };
  slow(card.Time([&] { card.Launch(s, {Write(p, 16 * kMiB)}); }));
  slow(card.Time([&] { OK(cuMemsetD8Async(p, 1, 16 * kMiB, s)); }));
  std::vector<char> host(16 * kMiB, 2);
  slow(card.Time([&] { OK(cuMemcpyHtoDAsync(p, host.data(), 16 * kMiB, s)); }));
  CHECK(card.Stats().duplicate_write_bytes == 48 * kMiB);
}

TEST_CASE("read-mostly: eviction of a clean duplicate is free, the first write is expensive") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(64 * kMiB);
  Populate(card, s, p, 64 * kMiB);
  card.Prefetch(s, p, 64 * kMiB, false);
  CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  OK(cuMemAdvise(p, 64 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, l));
  card.Prefetch(s, p, 64 * kMiB, true);
  OK(cuStreamSynchronize(s));
  CHECK(card.Time([&] { card.Prefetch(s, p, 64 * kMiB, false); }) < 200'000);
  card.Prefetch(s, p, 64 * kMiB, true);
  const uint64_t ns = card.Time([&] { card.Launch(s, {Write(p, 64 * kMiB)}); });
  CHECK(ns > 200'000'000);
  CHECK(ns < 260'000'000);
}

TEST_CASE("accessed-by: remote access without migration, at the link's rate") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(kGiB);
  Populate(card, s, p, kGiB);
  card.Prefetch(s, p, kGiB, false);
  CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  OK(cuMemAdvise(p, kGiB, CU_MEM_ADVISE_SET_ACCESSED_BY, l));
  const auto before = card.Stats();
  // One direction at the rate of copies; both directions together a little more.
  const uint64_t reading = card.Time([&] { card.Launch(s, {Read(p, kGiB)}); });
  CHECK(Gbps(kGiB, reading) > 50);
  CHECK(Gbps(kGiB, reading) < 52);
  const uint64_t updating = card.Time([&] { card.Launch(s, {Update(p, kGiB)}); });
  CHECK(Gbps(2 * kGiB, updating) > 80);
  CHECK(Gbps(2 * kGiB, updating) < 85);
  // Four reads cross the link four times.
  const uint64_t again = card.Time([&] { card.Launch(s, {{p, kGiB, SIMGPU_READ | SIMGPU_PASSES(4), 0}}); });
  CHECK(again > 3.9 * static_cast<double>(reading));
  // A filter with several places reads three times as often.
  const uint64_t filtered = card.Time(
      [&] { card.Launch(s, {{p, kGiB, SIMGPU_READ | SIMGPU_PASSES(4), 0}}, 1000, SIMGPU_KERNEL(SIMGPU_CONVOLUTION)); });
  CHECK(filtered > 2.9 * static_cast<double>(again));
  CHECK(simgpu_resident_bytes(p, kGiB) == 0);
  const auto after = card.Stats();
  CHECK(after.fault_bytes == before.fault_bytes);
  CHECK(after.remote_bytes - before.remote_bytes == 19 * kGiB);
  // A prefetch still fetches it, and accesses are local. After its eviction it is read remotely again.
  card.Prefetch(s, p, kGiB, true);
  CHECK(card.Time([&] { card.Launch(s, {Read(p, kGiB)}); }) < 1'000'000);
  CHECK(simgpu_resident_bytes(p, kGiB) == kGiB);
  card.Prefetch(s, p, kGiB, false);
  CHECK(card.Time([&] { card.Launch(s, {Read(p, kGiB)}); }) > 19'000'000);
  OK(cuMemAdvise(p, kGiB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, l));
  card.Launch(s, {Read(p, kGiB)});
  OK(cuStreamSynchronize(s));
  CHECK(simgpu_resident_bytes(p, kGiB) == kGiB);
  CHECK(card.Stats().fault_bytes - after.fault_bytes == kGiB);
}

TEST_CASE("accessed-by shares the link: a concurrent prefetch slows both, and both complete") {
  Card card;
  CUstream s = card.Stream(), other = card.Stream();
  CUdeviceptr host = card.Managed(kGiB), moved = card.Managed(kGiB);
  for (CUdeviceptr p : {host, moved}) {
    Populate(card, s, p, kGiB);
    card.Prefetch(s, p, kGiB, false);
  }
  CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  OK(cuMemAdvise(host, kGiB, CU_MEM_ADVISE_SET_ACCESSED_BY, l));
  const uint64_t both = card.Time([&] {
    card.Prefetch(other, moved, kGiB, true);
    card.Launch(s, {Read(host, kGiB)});
  });
  CHECK(Gbps(2 * kGiB, both) > 40);
  CHECK(Gbps(2 * kGiB, both) < 60);
}

TEST_CASE("advice waits for an eviction in flight, not for queued evictions or for fetches") {
  Card card;
  CUstream s = card.Stream(), other = card.Stream();
  CUdeviceptr moved = card.Managed(kGiB), advised = card.Managed(64 * kMiB);
  for (CUdeviceptr p : {moved, advised}) Populate(card, s, p, p == moved ? kGiB : 64 * kMiB);
  card.Prefetch(s, advised, 64 * kMiB, false);
  const CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const auto advise = [&] {
    return card.HostTime([&] { OK(cuMemAdvise(advised, 2 * kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, l)); });
  };
  const uint64_t alone = advise();
  CHECK(alone > 60'000);
  CHECK(alone < 100'000);
  // Deferred behind a kernel: two ranges of 512 MiB, of which the first is in flight.
  card.Launch(s, {}, 1'000'000);
  card.Prefetch(s, moved, 512 * kMiB, false);
  card.Prefetch(s, moved + 512 * kMiB, 512 * kMiB, false);
  CHECK(advise() < 100'000);  // no eviction has begun
  simgpu_advance_host(8'000'000);
  const uint64_t beside = advise();
  CHECK(beside > 25'000'000);  // the rest of 36 ms
  CHECK(beside < 31'000'000);
  OK(cuCtxSynchronize());
  card.Launch(other, {}, 1'000'000);
  card.Prefetch(other, moved, kGiB, true);
  simgpu_advance_host(8'000'000);
  CHECK(advise() < 100'000);
}

TEST_CASE("preferred on the host: the card accesses remotely, and new pages are populated there") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(64 * kMiB);
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0}, device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  OK(cuMemAdvise(p, 64 * kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  OK(cuMemAdvise(p, 64 * kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  const uint64_t before = card.Stats().remote_bytes;
  card.Launch(s, {Write(p, 64 * kMiB)});
  OK(cuStreamSynchronize(s));
  CHECK(simgpu_resident_bytes(p, 64 * kMiB) == 0);
  CHECK(card.Stats().remote_bytes - before == 64 * kMiB);
  OK(cuMemAdvise(p, 64 * kMiB, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host));
  OK(cuMemAdvise(p, 64 * kMiB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device));
  card.Launch(s, {Read(p, 64 * kMiB)});
  OK(cuStreamSynchronize(s));
  CHECK(simgpu_resident_bytes(p, 64 * kMiB) == 64 * kMiB);
}
