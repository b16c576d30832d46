// Many readers at once cost the loop little.
#include "agent/shared_answer.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <thread>
#include <vector>

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kMs = 1'000'000;

void Spend(uint64_t ns) {
  const uint64_t until = ThreadNs() + ns;
  while (ThreadNs() < until) {
  }
}

}  // namespace

TEST_CASE("an answer that many threads ask for takes a two-hundredth of the loop's time") {
  EventLoop loop;
  std::thread thread([&] { loop.Run([] { return 1000; }); });
  int made = 0;
  std::atomic<int> given = 0;
  SharedAnswer<int> answer(&loop, 0, [&] {
    Spend(2 * kMs);
    return ++made;
  });
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        if (answer.Get() != nullptr) ++given;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  stop = true;
  for (std::thread& t : readers) t.join();
  loop.Stop();
  thread.join();
  CHECK(given > 100);
  CHECK(made >= 1);
  CHECK(made <= 4);  // without a bound: hundreds
}

TEST_CASE("a fresh answer is made once the last one is old, and a loop that stands gives none") {
  EventLoop loop;
  std::thread thread([&] { loop.Run([] { return 1000; }); });
  int made = 0;
  SharedAnswer<int> answer(&loop, 20 * kMs, [&] { return ++made; });
  REQUIRE(answer.Get() != nullptr);
  CHECK(*answer.Get() == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(*answer.Get() == 2);
  loop.Stop();
  thread.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(answer.Get() == nullptr);
}
