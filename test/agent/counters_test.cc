#include "agent/counters.h"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>

#include "common/counter_rules.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)
using sluice::CounterRule;
using sluice::OutlivesProcess;

namespace {

sluice_gpu_counters Filled(uint32_t value) {
  sluice_gpu_counters out{};
#define SLUICE_COUNTER(name, ...) out.name = value;
#include "counters.def"
  return out;
}

uint64_t Expected(CounterRule rule, bool attached) {
  if (!attached && !OutlivesProcess(rule)) return 1;
  switch (rule) {
    case CounterRule::kEach:
      return 1;
    case CounterRule::kHighest:
    case CounterRule::kPeak:
      return 5;
    default:
      return 6;
  }
}

}  // namespace

TEST_CASE("each counter is summed by its rule, over attached and over ended processes") {
  sluice_gpu_counters attached = Filled(1), ended = Filled(1);
  AddAttached(attached, Filled(5));
  AddEnded(ended, Filled(5));
#define SLUICE_COUNTER(name, type, rule, ...)                   \
  CHECK(attached.name == Expected(CounterRule::k##rule, true)); \
  CHECK(ended.name == Expected(CounterRule::k##rule, false));
#include "counters.def"
}

TEST_CASE("the counters of version 1.0 keep their places on the wire") {
  CHECK(offsetof(sluice_gpu_counters, generation) == 48);
  CHECK(offsetof(sluice_gpu_counters, unmanaged_bytes) == 72);
  CHECK(offsetof(sluice_gpu_counters, launches) == 144);
  CHECK(offsetof(sluice_gpu_counters, factor) == 216);
  CHECK(offsetof(sluice_gpu_counters, fault_exact) == 220);
  CHECK(offsetof(sluice_gpu_counters, kernel_estimated_ns) == 224);
  CHECK(offsetof(sluice_gpu_counters, newer_entries) == 232);
}
