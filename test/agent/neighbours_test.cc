// Which GPUs a program gets that asks for a share of several.
#include "agent/neighbours.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::agent {
namespace {

using Uuids = std::vector<std::string>;

CardStatus Gpu(const std::string& uuid, int numa, uint32_t free) {
  CardStatus card;
  card.uuid = uuid;
  card.numa = numa;
  card.free_units = free;
  return card;
}

}  // namespace

TEST_CASE("shares of several GPUs lie on one NUMA node, the smallest that has enough") {
  const std::vector<CardStatus> cards = {Gpu("a", 0, 100), Gpu("b", 0, 60),  Gpu("c", 0, 100), Gpu("d", 1, 50),
                                         Gpu("e", 1, 70),  Gpu("f", 2, 100), Gpu("g", 2, 10)};
  CHECK(ChooseNeighbours(cards, 2, 50) == Uuids{"e", "d"});  // the freest of all are apart
  CHECK(ChooseNeighbours(cards, 2, 60) == Uuids{"a", "c"});  // node 1 has one alone
  CHECK(ChooseNeighbours(cards, 3, 50) == Uuids{"a", "c", "b"});
}

TEST_CASE("where no NUMA node has enough, as few as possible are used") {
  const std::vector<CardStatus> cards = {Gpu("a", 0, 100), Gpu("b", 1, 100), Gpu("c", 1, 80), Gpu("d", 2, 90)};
  CHECK(ChooseNeighbours(cards, 3, 50) == Uuids{"b", "c", "a"});
  CHECK(ChooseNeighbours(cards, 4, 50) == Uuids{"b", "c", "a", "d"});
}

TEST_CASE("all shares or none, and each on a GPU of its own") {
  const std::vector<CardStatus> cards = {Gpu("a", -1, 100), Gpu("b", -1, 40)};
  CHECK(ChooseNeighbours(cards, 2, 50).empty());
  CHECK(ChooseNeighbours(cards, 2, 40) == Uuids{"a", "b"});
  CHECK(ChooseNeighbours(cards, 3, 1).empty());
  CHECK(ChooseNeighbours({}, 2, 1).empty());
}

}  // namespace sluice::agent
