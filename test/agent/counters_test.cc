#include "agent/counters.h"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "common/counter_rules.h"
#include "common/counters_page.h"

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
  CHECK(offsetof(sluice_gpu_slot, generation) == 48);
  CHECK(offsetof(sluice_gpu_slot, unmanaged_bytes) == 72);
  CHECK(offsetof(sluice_gpu_slot, launches) == 144);
  CHECK(offsetof(sluice_gpu_slot, factor) == 216);
  CHECK(offsetof(sluice_gpu_slot, fault_exact) == 220);
  CHECK(offsetof(sluice_gpu_slot, kernel_estimated_ns) == 224);
  CHECK(offsetof(sluice_gpu_slot, newer_entries) == 232);
  CHECK(offsetof(sluice_page, gpu) == 64);
  CHECK(offsetof(sluice_page, lease) == 64 + SLUICE_MAX_GPUS * 272);
}

TEST_CASE("the counters of the second part lie behind the leases, where an older agent reads nothing") {
  CHECK(offsetof(sluice_page, gpu_more) == offsetof(sluice_page, lease) + SLUICE_MAX_GPUS * sizeof(sluice_lease));
  CHECK(offsetof(sluice_gpu_slot_more, peak_live_bytes) == 0);
  CHECK(offsetof(sluice_gpu_slot_more, map_ns) == 48);
}

TEST_CASE("each counter is read from the page as it was stored, and no slot touches another one") {
  auto page = std::make_unique<sluice_page>();
  sluice_gpu_counters stored{};
  uint32_t value = 0;
#define SLUICE_COUNTER(name, ...) stored.name = ++value;
#include "counters.def"
  std::strcpy(page->gpu[1].uuid, "GPU-b");
  sluice::StoreCounters(stored, 1, page.get());
  const sluice_gpu_counters read = sluice::LoadCounters(*page, 1);
  const sluice_gpu_counters before = sluice::LoadCounters(*page, 0), after = sluice::LoadCounters(*page, 2);
#define SLUICE_COUNTER(name, ...)  \
  CHECK(read.name == stored.name); \
  CHECK(before.name == 0);         \
  CHECK(after.name == 0);
#include "counters.def"
  CHECK(std::string(page->gpu[1].uuid) == "GPU-b");
}
