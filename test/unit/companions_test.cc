// Which other chunks a fault brings.
#include "hooklib/policy/touched/companions.h"

#include <catch2/catch_test_macros.hpp>
#include <vector>

namespace sluice::policy {
namespace {

constexpr Va kBase = uint64_t{1} << 40;
Va At(uint64_t chunk) { return kBase + chunk * kChunkBytes; }

}  // namespace

TEST_CASE("companions: chunks whose faults follow each other are one group, later ones another") {
  Companions companions;
  companions.NoteFault(At(3), 100);
  companions.NoteFault(At(20), 103);
  companions.NoteFault(At(40), 130);
  companions.NoteFault(At(4), 500);
  CHECK(companions.GroupOf(At(20)) == std::vector<Va>{At(3), At(20), At(40)});
  CHECK(companions.GroupOf(At(4)) == std::vector<Va>{At(4)});
  CHECK(companions.GroupOf(At(5)).empty());
  // A chunk of the first group returns, and one that is new follows: the first group stays as it is.
  companions.NoteFault(At(20), 900);
  companions.NoteFault(At(7), 901);
  CHECK(companions.GroupOf(At(3)) == std::vector<Va>{At(3), At(20), At(40)});
  CHECK(companions.GroupOf(At(7)) == std::vector<Va>{At(7)});
}

TEST_CASE("companions: faults of two graphs are two groups") {
  Companions companions;
  companions.NoteFault(At(1), 100);
  companions.NoteFault(At(2), 100);
  companions.EndGroup();
  companions.NoteFault(At(3), 101);
  CHECK(companions.GroupOf(At(1)) == std::vector<Va>{At(1), At(2)});
  CHECK(companions.GroupOf(At(3)) == std::vector<Va>{At(3)});
}

TEST_CASE("companions: the same place of operands of one size") {
  Companions companions;
  companions.NoteOperand({At(0), 8 * kChunkBytes});
  companions.NoteOperand({At(8), 8 * kChunkBytes});
  companions.NoteOperand({At(16), 4 * kChunkBytes});
  companions.NoteOperand({At(32), 8 * kChunkBytes});
  CHECK(companions.AlikeOf(At(11)) == std::vector<Va>{At(3), At(35)});
  CHECK(companions.AlikeOf(At(17)).empty());
  CHECK(companions.AlikeOf(At(24)).empty());  // of no operand
  companions.RemoveArena({At(32), 16 * kChunkBytes});
  CHECK(companions.AlikeOf(At(11)) == std::vector<Va>{At(3)});
}

TEST_CASE("companions: chunks of an arena that is given back are forgotten") {
  Companions companions;
  companions.NoteFault(At(1), 1);
  companions.NoteFault(At(64), 2);
  companions.RemoveArena({At(64), 8 * kChunkBytes});
  CHECK(companions.GroupOf(At(1)) == std::vector<Va>{At(1)});
  CHECK(companions.GroupOf(At(64)).empty());
}

}  // namespace sluice::policy
