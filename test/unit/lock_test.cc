// A lock admits one thread at a time, and wakes waiting threads.
#include "hooklib/memory/lock.h"

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice::memory {

TEST_CASE("a lock admits one thread at a time, and no thread is left waiting") {
  Lock lock;
  uint64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50'000; ++i) {
        const std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(count == 200'000);
  CHECK(lock.try_lock());
  CHECK(!lock.try_lock());
  lock.unlock();
}

TEST_CASE("a thread that waits for a lock sleeps until the lock is released") {
  Lock lock;
  lock.lock();
  std::vector<std::thread> threads;
  std::atomic<int> in{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const std::lock_guard guard(lock);
      ++in;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(in == 0);
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  CHECK(in == 3);
}

}  // namespace sluice::memory
