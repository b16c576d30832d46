#include "hooklib/memory/fences.h"

#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_timeline.h"

namespace sluice::memory {

TEST_CASE("a fence is done when everything queued at its close is") {
  FakeTimeline time;
  Fences fences(&time);
  time.Queue(1, 5);
  time.Queue(2, 7);
  const Epoch epoch = fences.Use();
  CHECK_FALSE(fences.Done(epoch));  // not even closed
  fences.Close();
  CHECK_FALSE(fences.Done(epoch));
  time.Finish(1, 5);
  CHECK_FALSE(fences.Done(epoch));
  time.Queue(2, 9);  // later work does not hold it up
  time.Finish(2, 7);
  CHECK(fences.Done(epoch));
}

TEST_CASE("an unused fence stays open, a used one closes once") {
  FakeTimeline time;
  Fences fences(&time);
  const Epoch epoch = fences.open();
  fences.Close();
  CHECK(fences.open() == epoch);
  fences.Use();
  fences.Close();
  CHECK(fences.open() == epoch + 1);
}

TEST_CASE("a fence behind work that is being planned closes once the work is queued") {
  FakeTimeline time;
  Fences fences(&time);
  const Epoch epoch = fences.Hold();
  fences.Close();
  CHECK_FALSE(fences.Done(epoch));
  fences.Release();
  time.Queue(1, 5);
  fences.Close();
  CHECK_FALSE(fences.Done(epoch));
  time.Finish(1, 5);
  CHECK(fences.Done(epoch));
}

TEST_CASE("while a capture forbids marks, a fence cannot be closed, and nothing behind it is done") {
  FakeTimeline time;
  Fences fences(&time);
  time.capturing = true;
  const Epoch epoch = fences.Use();
  fences.Close();
  CHECK_FALSE(fences.Done(epoch));
  time.capturing = false;
  fences.Close();
  CHECK(fences.Done(epoch));
}

}  // namespace sluice::memory
