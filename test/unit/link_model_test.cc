// The link model: prices, comparisons of residences, and corrections by measured fetches.
#include "hooklib/policy/cost/link_model.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::policy {

namespace {
constexpr uint64_t kGiB = uint64_t{1} << 30, kMs = 1'000'000;

// A fetch of a GiB that takes so many milliseconds, `times` in a row.
void Fetch(LinkModel* link, uint64_t ms, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) link->NoteFetch(kGiB, ms * kMs);
}
}  // namespace

TEST_CASE("link model: a residence costs the bytes that move for it, and those used over the link") {
  LinkModel link;
  link.set_slow_write_back(false);
  CHECK(link.Cost(Residence::kResident, kGiB, 8 * kGiB) == 0);
  CHECK(link.Cost(Residence::kSwapped, kGiB, 8 * kGiB) == 52 * kMs);  // however often it is used
  CHECK(link.Cost(Residence::kRemote, kGiB, 3 * kGiB) == 72 * kMs);   // each time
  CHECK(link.Cost(Residence::kRemote, kGiB, 0) == 0);
  // Faults bring the touched bytes, once.
  CHECK(link.Cost(Residence::kFaulted, kGiB, kGiB / 2) == 64 * kMs);
  CHECK(link.Cost(Residence::kFaulted, kGiB, 4 * kGiB) == 128 * kMs);
  // Without contents, or with a clean copy in host memory, nothing is written back.
  CHECK(link.Cost(Residence::kDiscarded, kGiB, kGiB) < link.Cost(Residence::kDuplicated, kGiB, kGiB));
  CHECK(link.Cost(Residence::kDuplicated, kGiB, kGiB) < link.Cost(Residence::kSwapped, kGiB, kGiB));
  CHECK(link.Bytes(LinkStep::kFetch, 11 * kMs) == kGiB / 2);
}

TEST_CASE("link model: how many passes are cheaper remote depends on how memory is written back") {
  LinkModel link;
  const auto cheaper = [&](Residence residence, Residence than, uint64_t tenths) {
    return link.IsCheaper(residence, than, kGiB, kGiB / 10 * tenths);
  };
  for (const bool slow : {false, true}) {
    link.set_slow_write_back(slow);
    // An optimizer's first moments are used once or twice in an iteration, its second moments three times.
    CHECK(cheaper(Residence::kRemote, Residence::kSwapped, 10));
    CHECK(cheaper(Residence::kRemote, Residence::kSwapped, 20) == slow);
    CHECK(cheaper(Residence::kSwapped, Residence::kRemote, 30) == !slow);
    // Between the two neither is worth a change.
    CHECK_FALSE(cheaper(Residence::kSwapped, Residence::kRemote, 28));
    CHECK_FALSE(cheaper(Residence::kRemote, Residence::kSwapped, 29));
    CHECK(cheaper(Residence::kSwapped, Residence::kRemote, 60));
  }
}

TEST_CASE("link model: fetches that all take longer raise the price of the link alone") {
  LinkModel link;
  link.set_slow_write_back(false);
  Fetch(&link, 44, LinkModel::kMeasurements - 1);
  CHECK(link.Ns(LinkStep::kFetch, kGiB) == 22 * kMs);  // not yet
  Fetch(&link, 40, 1);
  CHECK(link.Ns(LinkStep::kFetch, kGiB) / kMs == 39);  // by the mildest
  CHECK(link.Ns(LinkStep::kRemotePass, kGiB) / kMs == 43);
  CHECK(link.Ns(LinkStep::kWriteBack, kGiB) == 30 * kMs);
  CHECK(link.Ns(LinkStep::kFault, kGiB) == 98 * kMs);
  Fetch(&link, 22, LinkModel::kMeasurements);  // the neighbour has gone
  CHECK(link.Ns(LinkStep::kFetch, kGiB) == 22 * kMs);
}

TEST_CASE("link model: noise and single wild measurements change no price") {
  LinkModel link;
  for (int i = 0; i < 1000; ++i) {
    Fetch(&link, i % LinkModel::kMeasurements == 0 ? 22 : 5'000, 1);
    Fetch(&link, 26, 1);  // a busy link
    link.NoteFetch(LinkModel::kMinFetchBytes - 1, 100 * kMs);
  }
  link.NoteFetch(kGiB, 0);
  CHECK(link.link_scale() == LinkModel::kWhole);
  // Measurements on both sides in turn say nothing either.
  for (int i = 0; i < 1000; ++i) Fetch(&link, i % 2 == 0 ? 10 : 60, 1);
  CHECK(link.link_scale() == LinkModel::kWhole);
  // However wild they are, the price is bounded.
  Fetch(&link, 5'000, 1000);
  CHECK(link.link_scale() > 2 * LinkModel::kWhole);
  CHECK(link.link_scale() <= LinkModel::kBound * LinkModel::kWhole);
  Fetch(&link, 1, 1000);
  CHECK(link.link_scale() == LinkModel::kWhole / LinkModel::kBound);
}

}  // namespace sluice::policy
