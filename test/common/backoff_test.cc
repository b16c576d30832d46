// Waits between tries.
#include "common/backoff.h"

#include <catch2/catch_test_macros.hpp>
#include <vector>

namespace sluice {
namespace {

using std::chrono::milliseconds;

TEST_CASE("waits double up to the longest, and begin anew after a reset") {
  Backoff backoff(milliseconds(100), milliseconds(700));
  CHECK(backoff.current() == milliseconds(100));
  for (const int64_t wait : {100, 200, 400, 700, 700}) CHECK(backoff.Next() == milliseconds(wait));
  CHECK(backoff.current() == milliseconds(700));
  backoff.Reset();
  CHECK(backoff.Next() == milliseconds(100));
}

TEST_CASE("up to a third of each wait is random") {
  RandomBackoff one(milliseconds(500), milliseconds(30'000)), other(milliseconds(500), milliseconds(30'000));
  std::vector<milliseconds> ones, others;
  for (const int64_t most : {500, 1000, 2000, 4000, 8000, 16000, 30000, 30000}) {
    ones.push_back(one.Next());
    others.push_back(other.Next());
    CHECK((ones.back() >= milliseconds(most * 2 / 3) && ones.back() <= milliseconds(most)));
  }
  CHECK(ones != others);
  one.Reset();
  CHECK(one.Next() <= milliseconds(500));
}

}  // namespace
}  // namespace sluice
