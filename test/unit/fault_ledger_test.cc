#include "hooklib/policy/budget/fault_ledger.h"

#include <catch2/catch_test_macros.hpp>

using sluice::memory::kChunkBytes;
using sluice::memory::kNever;
using sluice::policy::FaultLedger;
using sluice::policy::MigrationLedger;

TEST_CASE("without faults nothing was faulted in, whatever was fetched") {
  FaultLedger ledger;
  ledger.Begin(0);
  ledger.Update(10 * kChunkBytes, 0, 10 * kChunkBytes, 0);
  CHECK(ledger.bytes() == 0);
  // More than the engine asked for: the application's own prefetches.
  ledger.Update(14 * kChunkBytes, 0, 10 * kChunkBytes, 0);
  CHECK(ledger.bytes() == 0);
}

TEST_CASE("bytes beyond the requested fetches were faulted in") {
  FaultLedger ledger;
  ledger.Begin(7 * kChunkBytes);  // before the driver counted
  ledger.Update(3 * kChunkBytes, 40, 9 * kChunkBytes, 0);
  CHECK(ledger.bytes() == kChunkBytes);
  ledger.Update(5 * kChunkBytes, 80, 9 * kChunkBytes, 0);
  CHECK(ledger.bytes() == 3 * kChunkBytes);
}

TEST_CASE("a fetch in flight is owed, and is no fault once it is done") {
  FaultLedger ledger;
  ledger.Begin(0);
  ledger.Update(0, 0, 4 * kChunkBytes, 4 * kChunkBytes);
  ledger.Update(5 * kChunkBytes, 3, 4 * kChunkBytes, 0);
  CHECK(ledger.bytes() == kChunkBytes);
}

TEST_CASE("a fetch of resident bytes hides no later fault") {
  FaultLedger ledger;
  ledger.Begin(0);
  ledger.Update(0, 0, 4 * kChunkBytes, 0);  // nothing is in flight, and nothing moved
  ledger.Update(2 * kChunkBytes, 9, 4 * kChunkBytes, 0);
  CHECK(ledger.bytes() == 2 * kChunkBytes);
}

TEST_CASE("a fault brings a chunk at most") {
  FaultLedger ledger;
  ledger.Begin(0);
  ledger.Update(9 * kChunkBytes, 2, 0, 0);
  CHECK(ledger.bytes() == 2 * kChunkBytes);
}

TEST_CASE("a fault may be counted in one interval and its bytes in the next") {
  FaultLedger ledger;
  ledger.Begin(0);
  ledger.Update(0, 1, 0, 0);
  ledger.Update(kChunkBytes, 1, 0, 0);
  CHECK(ledger.bytes() == kChunkBytes);
  ledger.Update(2 * kChunkBytes, 1, 0, 0);
  CHECK(ledger.bytes() == kChunkBytes);
}

TEST_CASE("a ledger is unchanged while nothing moves, faults, is requested or owed") {
  FaultLedger ledger;
  ledger.Begin(kChunkBytes);
  CHECK(ledger.IsUnchanged(0, 0, kChunkBytes));
  CHECK_FALSE(ledger.IsUnchanged(1, 0, kChunkBytes));
  CHECK_FALSE(ledger.IsUnchanged(0, 1, kChunkBytes));
  ledger.Update(0, 0, 2 * kChunkBytes, kChunkBytes);
  CHECK_FALSE(ledger.IsUnchanged(0, 0, 2 * kChunkBytes));  // it may have been resident already
  ledger.Update(0, 0, 2 * kChunkBytes, 0);
  CHECK(ledger.IsUnchanged(0, 0, 2 * kChunkBytes));
}

TEST_CASE("a refused fetch is owed no more") {
  FaultLedger ledger;
  ledger.Begin(0);
  ledger.Update(0, 0, 4 * kChunkBytes, 4 * kChunkBytes);
  ledger.Update(4 * kChunkBytes, 64, 0, 4 * kChunkBytes);
  CHECK(ledger.bytes() == 4 * kChunkBytes);
}

TEST_CASE("bytes moved to the host beyond the queued evictions were taken by the driver") {
  MigrationLedger ledger;
  ledger.Begin(0);
  ledger.Update(kChunkBytes, 4 * kChunkBytes, kNever);
  ledger.Update(4 * kChunkBytes, 4 * kChunkBytes, kNever);
  CHECK(ledger.bytes() == 0);
  CHECK(ledger.IsUnchanged(4 * kChunkBytes, 4 * kChunkBytes));
  ledger.Update(7 * kChunkBytes, 4 * kChunkBytes, kNever);
  CHECK(ledger.bytes() == 3 * kChunkBytes);
}

TEST_CASE("an eviction of bytes that the driver had taken hides nothing once all queued work is done") {
  MigrationLedger ledger;
  ledger.Begin(0);
  ledger.Update(0, 2 * kChunkBytes, kNever);
  CHECK_FALSE(ledger.IsUnchanged(0, 2 * kChunkBytes));
  ledger.Update(0, 2 * kChunkBytes, 0);
  ledger.Update(kChunkBytes, 2 * kChunkBytes, 0);
  CHECK(ledger.bytes() == kChunkBytes);
}
