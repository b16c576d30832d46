#include "hooklib/engine/observe/driver_counters.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cstring>

#include "hooklib/dispatch/real.h"
#include "test/unit/fake_uvm_tools.h"

namespace sluice {
constinit Real g_real;
}

namespace {

// A kernel module with the answers that a test sets.
struct Module : FakeUvmTools {
  uint32_t init_status = 0, enable_status = 0;
  bool knows_requests = true;
  int good_space = 0;  // of the spaces
  int inits = 0;
  uint64_t enabled = 0;
  uint64_t* page = nullptr;
  unsigned char uuid[16] = {};
  uint32_t all_gpus = 0;
} g_module;

int Open() { return g_module.Open(); }

int Control(int, unsigned long request, void* argument) {
  if (!g_module.knows_requests) {
    errno = EINVAL;
    return -1;
  }
  if (request == 56) {
    ++g_module.inits;
    CHECK(At<uint64_t>(argument, 8) == 0);
    g_module.page = At<uint64_t*>(argument, 16);
    CHECK(reinterpret_cast<uint64_t>(g_module.page) % 4096 == 0);
    std::memcpy(g_module.uuid, static_cast<const char*>(argument) + 24, 16);
    g_module.all_gpus = At<uint32_t>(argument, 40);
    const bool right = At<uint32_t>(argument, 44) == static_cast<uint32_t>(g_module.good_space);
    return SetStatus(argument, 48, right ? g_module.init_status : 0x16);
  }
  CHECK(request == 60);
  g_module.enabled = At<uint64_t>(argument, 0);
  return SetStatus(argument, 8, g_module.enable_status);
}

std::vector<int> Spaces(int) { return {7, 8}; }

sluice::DriverCounters Counts() { return sluice::DriverCounters({Open, Control, Spaces}); }

void Reset() { g_module = {}, g_module.good_space = 7; }

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("the counters of the driver's page are read") {
  Reset();
  sluice::DriverCounters counts = Counts();
  REQUIRE(counts.Open(nullptr));
  CHECK(g_module.all_gpus == 1);
  CHECK(g_module.enabled == 0x203);
  g_module.page[0] = 4096;
  g_module.page[1] = 8192;
  g_module.page[9] = 3;
  CHECK(counts.BytesToDevice() == 4096);
  CHECK(counts.BytesToHost() == 8192);
  CHECK(counts.Faults() == 3);
  CHECK(counts.Open(nullptr));
  CHECK(g_module.inits == 1);
}

TEST_CASE("one GPU of several is selected by its UUID") {
  Reset();
  unsigned char uuid[16];
  std::memset(uuid, 0xab, sizeof uuid);
  sluice::DriverCounters counts = Counts();
  REQUIRE(counts.Open(uuid));
  CHECK(g_module.all_gpus == 0);
  CHECK(std::memcmp(g_module.uuid, uuid, 16) == 0);
}

TEST_CASE("of the process' descriptors the one with the address space is found") {
  Reset();
  g_module.good_space = 8;
  sluice::DriverCounters counts = Counts();
  CHECK(counts.Open(nullptr));
  CHECK(g_module.inits == 2);
}

TEST_CASE("where the driver does not count, the reason is known, and nothing stays open") {
  Reset();
  SECTION("no device in the container") { g_module.open_error = ENOENT; }
  SECTION("no permission") { g_module.open_error = EACCES; }
  SECTION("another interface") { g_module.knows_requests = false; }
  SECTION("no descriptor with an address space") { g_module.good_space = 99; }
  SECTION("the tracker is refused") { g_module.init_status = 0x1b; }
  SECTION("the counters are refused") { g_module.enable_status = 0x1f; }
  sluice::DriverCounters counts = Counts();
  CHECK_FALSE(counts.Open(nullptr));
  CHECK_FALSE(counts.counting());
  CHECK(!counts.why().empty());
  CHECK((g_module.opened < 0 || !IsOpen(g_module.opened)));
  const int inits = g_module.inits;
  CHECK_FALSE(counts.Open(nullptr));  // asked once
  CHECK(g_module.inits == inits);
}
