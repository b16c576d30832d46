#include "experiments/bench/step_counter.h"

#include <sched.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <string>
#include <thread>

using sluice::bench::StepCounter;

namespace {

// Two instructions a repetition.
__attribute__((noinline)) void Repeat(long times) {
#if defined(__x86_64__)
  asm volatile("1: dec %0\n\tjnz 1b" : "+r"(times) : : "cc");
#else
  asm volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(times) : : "cc");
#endif
}

void Sample(StepCounter& counter, long times) {
  counter.Begin();
  Repeat(times);
  counter.End();
}

}  // namespace

TEST_CASE("steps count exactly the instructions of the thread that attached") {
  StepCounter counter({});
  std::atomic<bool> leave{false};
  std::thread other([&] {  // its instructions must not count
    while (!leave) Repeat(100);
  });
  REQUIRE(counter.Attach() == 0);
  for (const long times : {1, 1, 101, 1001}) Sample(counter, times);
  counter.Detach();
  Sample(counter, 5);  // not stepped any more
  leave = true;
  other.join();
  REQUIRE(counter.samples() == 5);
  CHECK(counter.Count(0) < 60);
  CHECK(counter.Count(1) == counter.Count(0));
  CHECK(counter.Count(2) - counter.Count(1) == 200);
  CHECK(counter.Count(3) - counter.Count(1) == 2000);
  CHECK(counter.Count(4) == 0);
}

TEST_CASE("steps are counted by loaded object") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").filename();
  StepCounter counter({"/libc.so", "/" + program});
  sched_yield();  // binds the name
  REQUIRE(counter.Attach() == 0);
  counter.Begin();
  sched_yield();
  counter.End();
  Sample(counter, 1);
  counter.Detach();
  CHECK(counter.Count(0, 0) >= 2);
  CHECK(counter.Count(0, 1) >= 1);
  CHECK(counter.Count(1, 0) == 0);
  CHECK(counter.Count(1, 1) == counter.Count(1));
  CHECK(counter.Count(0, 2) == 0);
}

TEST_CASE("a repeated string instruction counts once") {
  StepCounter counter({});
  REQUIRE(counter.Attach() == 0);
  Sample(counter, 1);
  counter.Begin();
  Repeat(1);
#if defined(__x86_64__)
  char bytes[64];
  char* to = bytes;
  long left = sizeof bytes;
  asm volatile("rep stosb" : "+D"(to), "+c"(left) : "a"(0) : "memory");
#endif
  counter.End();
  counter.Detach();
  CHECK(counter.Count(1) < counter.Count(0) + 16);
}
