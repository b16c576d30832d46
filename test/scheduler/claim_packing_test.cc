// The cards that a pod's claims get on one node.
#include "scheduler/placement/claim_packing.h"

#include <catch2/catch_test_macros.hpp>

#include "claim_objects.h"
#include "scheduler/extender/claim_facts.h"

namespace sluice::scheduler {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::vector<int> CardsOf(const Json& slice, const std::vector<Json>& claims, std::vector<CardRoom> rooms = {}) {
  const SliceFacts facts = ReadSlice(slice);
  if (rooms.empty()) {
    for (const ClaimCard& card : facts.cards) rooms.push_back({card.memory, card.compute});
  }
  std::vector<ClaimFacts> read;
  std::vector<const CardsClaim*> asked;
  for (const Json& claim : claims) read.push_back(ReadClaim(claim));
  for (const ClaimFacts& claim : read) asked.push_back(&claim.requested->cards);
  const auto taken = AllocateCards(facts.cards, rooms, asked);
  if (!taken) return {-1};
  std::vector<int> out;
  for (const TakenCard& one : *taken) out.push_back(one.card);
  return out;
}

TEST_CASE("claims: cards are taken as kube-scheduler takes them: the first that fit, with backtracking") {
  const Json slice = MakeSlice("a", 4);  // cards 0 and 1, and 2 and 3, are of one NUMA node each
  std::vector<CardRoom> rooms(4, {100 * kGiB, 100});
  rooms[0].memory = 20 * kGiB;
  CHECK(CardsOf(slice, {MakeClaim("p", "30Gi")}, rooms) == std::vector{1});
  CHECK(CardsOf(slice, {MakeClaim("p", "10Gi")}, rooms) == std::vector{0});
  CHECK(CardsOf(slice, {MakeClaim("p", "60Gi"), MakeClaim("q", "60Gi")}, rooms) == std::vector{1, 2});
  CHECK(CardsOf(slice, {MakeClaim("p", "", 4)}, rooms) == std::vector{-1});
  // Two shares of one card meet a request for two, unless they are to be distinct.
  Json two = MakeClaim("p", "40Gi", 2);
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{1, 1});
  Json& constraints = two["spec"]["devices"]["constraints"];
  constraints = Json::array({{{"distinctAttribute", "sluice.dev/uuid"}}});
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{1, 2});
  constraints.push_back({{"requests", {"gpu"}}, {"matchAttribute", "sluice.dev/numaNode"}});
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{2, 3});
  constraints.push_back({{"requests", {"gpu"}}, {"matchAttribute", "resource.kubernetes.io/pcieRoot"}});
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{-1});
  constraints.back()["requests"] = {"another"};
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{2, 3});
}

TEST_CASE("claims: of a request's alternatives the first that leaves room for the rest is taken") {
  const Json slice = MakeSlice("a", 2);
  std::vector<CardRoom> rooms(2, {100 * kGiB, 100});
  rooms[0].memory = 60 * kGiB;
  const Json claim = MakeAlternatives("p", {{"100Gi", ""}, {"50Gi", ""}});
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{1});
  // The first alternative would leave no card for q.
  CHECK(CardsOf(slice, {claim, MakeClaim("q", "90Gi")}, rooms) == std::vector{0, 1});
  CHECK(CardsOf(slice, {claim, MakeClaim("q", "90Gi"), MakeClaim("r", "20Gi")}, rooms) == std::vector{-1});
  // A constraint on the request is one on its alternatives.
  Json two = MakeAlternatives("p", {{"60Gi", ""}, {"40Gi", ""}});
  Json& devices = two["spec"]["devices"];
  for (Json& one : devices["requests"][0]["firstAvailable"]) one["count"] = 2;
  rooms[0].memory = 50 * kGiB;
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{0, 1});
  devices["constraints"] = Json::array({{{"requests", {"gpu/size-1"}}, {"matchAttribute", "sluice.dev/uuid"}}});
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{1, 1});
  devices["constraints"] = Json::array({{{"requests", {"gpu"}}, {"distinctAttribute", "sluice.dev/uuid"}}});
  CHECK(CardsOf(slice, {two}, rooms) == std::vector{0, 1});
}

TEST_CASE("claims: compute, taints, cards that are not shared, and requests for all") {
  Json slice = MakeSlice("a", 3);
  Json& devices = slice["spec"]["devices"];
  devices[0]["taints"] = Json::array({{{"key", "sluice.dev/unhealthy"}, {"effect", "NoSchedule"}}});
  devices[1].erase("allowMultipleAllocations");
  std::vector<CardRoom> rooms(3, {100 * kGiB, 100});
  Json claim = MakeClaim("p", "1Gi");
  Json& exactly = claim["spec"]["devices"]["requests"][0]["exactly"];
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{1});
  rooms[1].is_used = true;
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{2});
  rooms[2].compute = 40;
  exactly["capacity"]["requests"]["compute"] = "41";
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{-1});
  exactly["tolerations"] = Json::array({{{"key", "sluice.dev/unhealthy"}, {"operator", "Exists"}}});
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{0});
  exactly.erase("capacity");
  exactly["allocationMode"] = "All";
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{-1});
  rooms = std::vector<CardRoom>(3, {100 * kGiB, 100});
  CHECK(CardsOf(slice, {claim}, rooms) == std::vector{0, 1, 2});
  const SliceFacts facts = ReadSlice(slice);
  CHECK(FreeUnits(facts.cards[0], rooms[0]) == 0);
  CHECK(FreeUnits(facts.cards[2], {50 * kGiB, 40, true}) == 40);
  CHECK(FreeUnits(facts.cards[1], {100 * kGiB, 100, true}) == 0);
}

}  // namespace
}  // namespace sluice::scheduler
