// The access class of launches, by their measured times.
#include "hooklib/policy/fetch/launch_classifier.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "hooklib/memory/types.h"

namespace sluice::policy {

namespace {
const LinkModel kLink;
}  // namespace

TEST_CASE("remote access is found far faster although the times by faults vary by half") {
  constexpr uint64_t kBytes =
      1128 * kChunkBytes;  // as lookups in a table of 3 GiB on an H200: 3 to 8 ms, 0.17 remotely
  using AccessClass = LaunchClassifier::AccessClass;
  uint64_t late_seeds = 0, all = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    LaunchClassifier classifier(&kLink);
    uint64_t state = seed, launches = 0;
    for (; launches < 1000 && classifier.ClassOf(7, true, launches + 1) != AccessClass::kStreaming; ++launches) {
      LaunchProbe probe{.id = 7, .host_bytes = kBytes, .oversize = true, .by_faults = true};
      const bool is_probe = classifier.ClassOf(7, true, launches + 1) == AccessClass::kUnknownFaulting;
      if (is_probe) {
        classifier.NoteProbe(probe, launches + 1);
      } else {
        const RemoteShare share = classifier.ShareOf(7, kBytes);
        probe.stride = share.stride;
        if (share.stride) classifier.NoteMapped(7, std::min(share.max_new_bytes, kBytes / share.stride));
      }
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t faults_ns = 3'200'000 + (state >> 33) % 4'800'000;
      const uint64_t ns = faults_ns - (probe.stride ? faults_ns / probe.stride : 0) + 170'000;
      if (is_probe || classifier.IsDue(7, true, probe.stride)) {
        classifier.NoteAnswered(probe);
        classifier.NoteMeasured(probe, ns, launches + 1);
      }
    }
    late_seeds += launches > 200;
    all += launches;
  }
  CHECK(late_seeds <= 8);
  CHECK(all / 200 <= 130);
}

TEST_CASE("noise does not switch launches between faults and remote access") {
  LaunchClassifier classifier(&kLink);
  constexpr uint64_t kBytes = 400 * kChunkBytes;
  using AccessClass = LaunchClassifier::AccessClass;
  uint64_t state = 1, changes = 0;
  AccessClass last = AccessClass::kFaulting;
  for (uint64_t now = 1; now < 100'000; ++now) {
    const AccessClass access_class = classifier.ClassOf(7, true, now);
    LaunchProbe probe{
        .id = 7, .host_bytes = kBytes, .oversize = true, .by_faults = access_class != AccessClass::kStreaming};
    if (access_class == AccessClass::kUnknownFaulting) {
      classifier.NoteProbe(probe, now);
    } else {
      probe.stride = access_class == AccessClass::kStreaming ? 1 : classifier.ShareOf(7, kBytes).stride;
      if (!classifier.IsDue(7, true)) continue;
    }
    state = state * 6364136223846793005u + 1442695040888963407u;
    classifier.NoteAnswered(probe);
    // Neither is faster, and a third of the time is noise.
    classifier.NoteMeasured(probe, 150'000 + (state >> 33) % 100'000, now);
    changes += access_class != last;
    last = access_class;
  }
  CHECK(changes <= 8);
}

TEST_CASE("the access class of a launch larger than its budget") {
  LaunchClassifier classifier(&kLink);
  const LaunchProbe faults{7, uint64_t{1} << 30, 0, true, true}, host{7, uint64_t{1} << 30, 0, true, false};
  CHECK(classifier.ClassOf(7, true, 1) == LaunchClassifier::AccessClass::kUnknownFaulting);
  classifier.NoteProbe(faults, 1);
  CHECK_FALSE(classifier.NoteMeasured(faults, 100'000'000, 2));  // it touches all of it
  CHECK(classifier.ClassOf(7, true, 3) == LaunchClassifier::AccessClass::kUnknown);
  CHECK_FALSE(classifier.NoteMeasured(host, 30'000'000, 4));
  CHECK(classifier.ClassOf(7, true, 5) == LaunchClassifier::AccessClass::kStreaming);
  // Another one touches little, which is settled at the fourth time.
  const LaunchProbe sparse{8, uint64_t{1} << 30, 0, true, true};
  for (int i = 0; i < 3; ++i) CHECK_FALSE(classifier.NoteMeasured(sparse, 1'000'000, 6));
  CHECK(classifier.NoteMeasured(sparse, 1'000'000, 6));
  CHECK_FALSE(classifier.NoteMeasured(sparse, 1'000'000, 6));
  CHECK(classifier.ClassOf(8, true, 7) == LaunchClassifier::AccessClass::kFaulting);
}

TEST_CASE("a streaming launch that re-reads the little that it touches is left to faults if these are cheaper") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe host{7, 64 * kMiB, 0, false}, faults{7, 32 * kMiB, 0, false, true};
  for (const bool sparse : {true, false}) {
    LaunchClassifier classifier(&kLink);
    classifier.NoteMeasured({7, 8 * kMiB, 0, false}, 200'000, 1);
    REQUIRE(classifier.ClassOf(7, false, 2) == LaunchClassifier::AccessClass::kStreaming);
    classifier.NoteMeasured(host, 1'600'000, 3);  // 42 GB/s: once
    REQUIRE(classifier.ClassOf(7, false, 4) == LaunchClassifier::AccessClass::kStreaming);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(classifier.ClassOf(7, false, 5) == LaunchClassifier::AccessClass::kStreaming);
      classifier.NoteMeasured(host, 2'600'000, 5);
    }
    CHECK(classifier.ClassOf(7, false, 6) == LaunchClassifier::AccessClass::kUnknownFaulting);
    classifier.NoteMeasured(faults, sparse ? 300'000 : 1'500'000, 7);
    CHECK(classifier.ClassOf(7, false, 8) ==
          (sparse ? LaunchClassifier::AccessClass::kFaulting : LaunchClassifier::AccessClass::kStreaming));
  }
}

TEST_CASE("faults are tried for a streaming launch that re-reads a part of a set larger than the capacity") {
  using AccessClass = LaunchClassifier::AccessClass;
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe host{.id = 7, .host_bytes = 384 * kMiB, .resident_bytes = 64 * kMiB, .oversize = true, .stride = 1};
  LaunchProbe faults = host;
  faults.by_faults = true;
  faults.stride = 0;
  // Launches until the next probe of faults, of which each takes `ns` remotely. 5 ms: faster than one pass.
  const auto until_probe = [&](LaunchClassifier* classifier, uint64_t ns, int most) {
    int n = 0;
    for (; n < most && classifier->ClassOf(7, true, 5) == AccessClass::kStreaming; ++n) {
      if (classifier->IsDue(7, true, 1)) classifier->NoteMeasured(host, ns, 5);
    }
    return n;
  };
  for (const bool is_sparse : {true, false}) {
    LaunchClassifier classifier(&kLink);
    classifier.NoteMeasured(host, 100'000, 1);
    REQUIRE(classifier.ClassOf(7, true, 2) == AccessClass::kStreaming);
    const int first = until_probe(&classifier, 5'000'000, 1000);
    CHECK(first <= 128);  // 0.2 s cover the probe's cost; every 64th launch is timed
    REQUIRE(classifier.ClassOf(7, true, 6) == AccessClass::kUnknownFaulting);
    classifier.NoteMeasured(faults, is_sparse ? 190'000 : 30'000'000, 7);
    if (is_sparse) {
      CHECK(classifier.ClassOf(7, true, 8) == AccessClass::kFaulting);
      continue;
    }
    REQUIRE(classifier.ClassOf(7, true, 8) == AccessClass::kStreaming);
    CHECK(until_probe(&classifier, 5'000'000, 10'000) >= 4 * first);  // a failed probe comes again ever later
  }
  // One pass over the whole set, and a launch that takes no more than its own time: never tried.
  for (const uint64_t ns : {8'600'000, 60'000}) {
    LaunchClassifier classifier(&kLink);
    classifier.NoteMeasured(host, 100'000, 1);
    CHECK(until_probe(&classifier, ns, 100'000) == 100'000);
  }
}

TEST_CASE("one slow launch of a streaming kind is no reason to try faults") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe host{.id = 7, .host_bytes = 384 * kMiB, .oversize = true, .stride = 1};
  LaunchClassifier classifier(&kLink);
  for (int i = 0; i < 100'000; ++i) {
    if (classifier.IsDue(7, true, 1)) classifier.NoteMeasured(host, i % 128 == 0 ? 5'000'000 : 20'000, 5);
    REQUIRE(classifier.ClassOf(7, true, 6) != LaunchClassifier::AccessClass::kUnknownFaulting);
  }
}

TEST_CASE("a host ahead of the GPU waits for the time that decides the class of its launches") {
  LaunchClassifier classifier(&kLink);
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false};
  for (int i = 0; i < 100; ++i) classifier.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK_FALSE(classifier.ShouldAwait(7));  // nothing is awaited
  classifier.NoteProbe(probe, 1);
  for (int i = 0; i < 31; ++i) classifier.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK_FALSE(classifier.ShouldAwait(7));  // too few are queued
  classifier.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK(classifier.ShouldAwait(7));
  CHECK_FALSE(classifier.ShouldAwait(8));  // another kind of launch goes on
  classifier.NoteAnswered(probe);
  // Few that miss much are as bad as many.
  classifier.NoteProbe(probe, 1);
  classifier.NoteMissing(7, false, 60 * kMiB, 100 * kMiB);
  CHECK_FALSE(classifier.ShouldAwait(7));
  classifier.NoteMissing(7, false, 60 * kMiB, 100 * kMiB);
  CHECK(classifier.ShouldAwait(7));
  classifier.NoteAnswered(probe);
  CHECK_FALSE(classifier.ShouldAwait(7));
  classifier.NoteMeasured(probe, 200000, 2);
  REQUIRE(classifier.ClassOf(7, false, 3) == LaunchClassifier::AccessClass::kStreaming);
  // The first launches of a class are all timed, and may change it; later ones are timed now and then.
  for (int i = 0; i < 4; ++i) CHECK(classifier.IsDue(7, false));
  for (int i = 0; i < 32; ++i) classifier.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK(classifier.ShouldAwait(7));
  for (int i = 0; i < 4; ++i) classifier.NoteAnswered(probe);
  CHECK_FALSE(classifier.ShouldAwait(7));
  int due = 0;
  for (int i = 0; i < 200; ++i) {
    due += classifier.IsDue(7, false);
    classifier.NoteMissing(7, false, kMiB, 100 * kMiB);
  }
  CHECK(due == 3);
  CHECK_FALSE(classifier.ShouldAwait(7));
}

TEST_CASE("the access class of an execution id") {
  LaunchClassifier classifier(&kLink);
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false}, faults{7, 8 * kMiB, 0, false, true};
  CHECK(classifier.ClassOf(7, false, 1) == LaunchClassifier::AccessClass::kUnknown);
  classifier.NoteProbe(probe, 1);
  CHECK(classifier.ClassOf(7, false, 2) == LaunchClassifier::AccessClass::kFetch);  // until its time is known
  classifier.NoteMeasured(probe, 200000, 3);                                        // 42 GB/s
  CHECK(classifier.ClassOf(7, false, 4) == LaunchClassifier::AccessClass::kStreaming);
  CHECK(classifier.ClassOf(7, true, 4) ==
        LaunchClassifier::AccessClass::kUnknownFaulting);  // too large for its budget: another question
  classifier.NoteMeasured(probe, 2000000, 5);              // 4 GB/s, now
  CHECK(classifier.ClassOf(7, false, 6) == LaunchClassifier::AccessClass::kFetch);
  CHECK(classifier.ClassOf(7, false, 100000) == LaunchClassifier::AccessClass::kUnknown);
  for (int i = 0; i < 3; ++i) classifier.NoteMeasured(probe, 2000000, 100000);
  for (int i = 0; i < 2; ++i) {
    CHECK(classifier.ClassOf(7, false, 100001) == LaunchClassifier::AccessClass::kUnknownFaulting);
    classifier.NoteMeasured(faults, 800000, 100001);
  }
  CHECK(classifier.ClassOf(7, false, uint64_t{1} << 40) == LaunchClassifier::AccessClass::kFetch);
}

TEST_CASE("launches faster than the link could transfer their host-resident bytes touch little of them") {
  LaunchClassifier classifier(&kLink);
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false}, few{7, 2 * kMiB, 0, false};
  CHECK(!classifier.TouchedShare(7).IsLittle());
  classifier.NoteMeasured(probe, 14'000, 1);
  CHECK(!classifier.TouchedShare(7).IsLittle());  // one may have met the part that it does not touch
  classifier.NoteMeasured(few, 5'000, 2);
  CHECK(!classifier.TouchedShare(7).IsLittle());  // too little to tell
  classifier.NoteMeasured(probe, 13'000, 3);
  CHECK(classifier.TouchedShare(7).IsLittle());
  // One slow sample is a busy link or a host that was delayed, and says nothing ...
  classifier.NoteMeasured(probe, 175'000, 4);
  CHECK(classifier.TouchedShare(7).IsLittle());
  for (int i = 0; i < 100; ++i) {
    classifier.NoteMeasured(probe, i % 3 == 2 ? 175'000 : 13'000, 5);
    CHECK(classifier.TouchedShare(7).IsLittle());
  }
  // ... but is looked at again at once, and several say that it has changed.
  for (int i = 0; i < 8; ++i) classifier.IsDue(7, false);
  CHECK_FALSE(classifier.IsDue(7, false));
  for (int i = 0; i < 4; ++i) classifier.NoteMeasured(probe, 13'000, 6);
  classifier.NoteMeasured(probe, 175'000, 6);
  for (int i = 0; i < 2; ++i) {
    CHECK(classifier.TouchedShare(7).IsLittle());
    CHECK(classifier.IsDue(7, false));
    classifier.NoteMeasured(probe, 175'000, 7);
  }
  CHECK(!classifier.TouchedShare(7).IsLittle());
}

TEST_CASE("the time in host memory tells the touched share of a launch's set") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto share = [](uint64_t mib, uint64_t percent_of_pass) {
    LaunchClassifier classifier(&kLink);
    const uint64_t ns = kLink.Ns(LinkStep::kRemoteRead, mib * kMiB) * percent_of_pass / 100;
    for (int i = 0; i < 2; ++i) classifier.NoteMeasured({7, mib * kMiB, 0, false}, ns, 1);
    return int{classifier.TouchedShare(7).parts};
  };
  CHECK(share(128, 50) == 32);
  CHECK(share(128, 55) == 36);
  CHECK(share(128, 20) == 13);
  CHECK(share(1024, 3) == 2);
  CHECK(share(128, 80) == 64);  // the link's price is not known better
  CHECK(share(128, 300) == 64);
  CHECK(share(4, 50) == 32);  // the launch's own start is not subtracted: it may not have taken any time
}

TEST_CASE("sparse launches are recognized although every third one is delayed") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false};
  for (int first = 0; first < 3; ++first) {
    LaunchClassifier classifier(&kLink);
    for (int i = 0; i < 6; ++i) classifier.NoteMeasured(probe, i % 3 == first ? 175'000 : 13'000, 1);
    CHECK(classifier.TouchedShare(7).IsLittle());
  }
}

}  // namespace sluice::policy
