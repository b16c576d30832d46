#include "hooklib/engine/observe/fault_records.h"

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
  bool knows_long = true;  // 535 has only short records
  uint32_t init_status = 0, enable_status = 0;
  int inits = 0, enables = 0;
  uint64_t enabled = 0;
  char* queue = nullptr;
  uint64_t records = 0, record_bytes = 0;
  uint32_t* control = nullptr;  // get ahead, get behind, put ahead, put behind, then 64 counts of dropped records

  void Fault(uint64_t address, unsigned char type = 3) {
    const uint32_t at = control[3], next = (at + 1) % static_cast<uint32_t>(records);
    if (next == control[1]) {
      ++reinterpret_cast<uint64_t*>(control + 4)[type];
      return;
    }
    char* record = queue + at * record_bytes;
    std::memset(record, 0xff, record_bytes);
    *record = static_cast<char>(type);
    std::memcpy(record + 8, &address, sizeof address);
    control[2] = control[3] = next;
  }
} g_module;

int Open() { return g_module.Open(); }

int Control(int, unsigned long request, void* argument) {
  if (request == 56 || request == 76) {
    ++g_module.inits;
    if (request == 76 && !g_module.knows_long) {
      errno = EINVAL;
      return -1;
    }
    g_module.queue = At<char*>(argument, 0);
    g_module.records = At<uint64_t>(argument, 8);
    g_module.control = At<uint32_t*>(argument, 16);
    g_module.record_bytes = request == 76 ? 72 : 64;
    return SetStatus(argument, 48, g_module.init_status);
  }
  const auto bits = At<uint64_t>(argument, 0);
  if (request == 58) {
    ++g_module.enables;
    if (!g_module.enable_status) g_module.enabled |= bits;
    return SetStatus(argument, 8, g_module.enable_status);
  }
  CHECK(request == 59);
  g_module.enabled &= ~bits;
  return SetStatus(argument, 8, 0);
}

std::vector<int> Spaces(int) { return {7}; }

using Pages = std::vector<uint64_t>;
Pages Drained(sluice::FaultRecords* records) {
  Pages pages;
  records->Drain(&pages);
  return pages;
}

}  // namespace

TEST_CASE("faulted pages are reported while recording is on") {
  g_module = {};
  SECTION("as newer drivers have them") {}
  SECTION("as 535 has them") { g_module.knows_long = false; }
  sluice::FaultRecords records({Open, Control, Spaces});
  CHECK(g_module.opened < 0);  // nothing is opened before Start
  REQUIRE(records.Start(nullptr));
  CHECK(g_module.enabled == 8);
  g_module.Fault(0x7f0000001234);
  g_module.Fault(0x7f0000001678);     // the same page
  g_module.Fault(0x7f0000400000, 2);  // a move
  g_module.Fault(0x7f0000200000);
  CHECK(Drained(&records) == Pages{0x7f0000001000, 0x7f0000200000});
  CHECK(Drained(&records).empty());
  records.Stop();
  CHECK(g_module.enabled == 0);
  CHECK_FALSE(records.Lost());

  g_module.Fault(0x7f0000600000);  // came late
  REQUIRE(records.Start(nullptr));
  CHECK(Drained(&records).empty());
  CHECK(g_module.inits == (g_module.knows_long ? 1 : 2));
}

TEST_CASE("records beyond the queue's size are known to be lost") {
  g_module = {};
  sluice::FaultRecords records({Open, Control, Spaces});
  REQUIRE(records.Start(nullptr));
  for (uint64_t i = 0; i < g_module.records - 1; ++i) g_module.Fault(i << 12);
  CHECK_FALSE(records.Lost());
  CHECK(Drained(&records).size() == g_module.records - 1);
  for (uint64_t i = 0; i < g_module.records + 10; ++i) g_module.Fault(i << 12);
  CHECK(records.Lost());
  records.Stop();
  REQUIRE(records.Start(nullptr));
  CHECK_FALSE(records.Lost());
}

TEST_CASE("a driver that records nothing is asked once") {
  g_module = {};
  SECTION("no device in the container") { g_module.open_error = ENOENT; }
  SECTION("queues are refused") { g_module.init_status = 0x56; }
  SECTION("faults are refused") { g_module.enable_status = 0x1f; }
  sluice::FaultRecords records({Open, Control, Spaces});
  CHECK_FALSE(records.Start(nullptr));
  CHECK(records.refused());
  CHECK(!records.why().empty());
  const int inits = g_module.inits, enables = g_module.enables;
  CHECK_FALSE(records.Start(nullptr));
  CHECK(g_module.inits == inits);
  CHECK(g_module.enables == enables);
  if (g_module.init_status) CHECK(fcntl(g_module.opened, F_GETFD) < 0);
}
