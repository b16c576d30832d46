// The waits between tries of the client of the API server.
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <vector>

#include "kube/client.h"

namespace sluice::kube {
namespace {

using std::chrono::milliseconds;

TEST_CASE("back-off: waits grow from half a second to 30 seconds, and a third is random") {
  Backoff backoff;
  for (int64_t base : {500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000}) {
    const milliseconds wait = backoff.Next();
    CHECK((wait >= milliseconds(base * 2 / 3) && wait <= milliseconds(base)));
  }
  backoff.Reset();
  CHECK(backoff.Next() <= milliseconds(500));
}

TEST_CASE("back-off: two daemons do not retry in step") {
  Backoff one, other;
  std::vector<milliseconds> ones, others;
  for (int i = 0; i < 10; ++i) {
    ones.push_back(one.Next());
    others.push_back(other.Next());
  }
  CHECK(ones != others);
}

}  // namespace
}  // namespace sluice::kube
