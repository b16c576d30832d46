// libFuzzer target: frames of four processes in two containers, in any order, and any content of their pages. The
// ledgers must stay consistent. ../webhook/fuzz_replay.cc runs it without libFuzzer.
//
// A record is one byte and its data. The low two bits are the session, the next two the action:
//   0  a frame (256 bytes)
//   1  a length, and so many bytes
//   2  the counters of a page (272 bytes)
//   3  one byte: odd closes the session, even n lets n times 10 ms pass
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "agent/node.h"

namespace {

using namespace sluice::agent;  // NOLINT(google-build-using-namespace): the library under test

class NullPort : public Port {
 public:
  void Send(SessionId, const sluice_frame& frame) override {
    if (frame.h.magic != SLUICE_WIRE_MAGIC) std::abort();
  }
  void Close(SessionId session) override { open[session] = false; }
  bool open[8] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  NullPort port;
  Node node(&port, {}, 1000);
  constexpr Bytes kMemory = 8ull << 30;
  node.SetCards({{"GPU-a", "A", kMemory, 0, -1}});
  node.SetHostLimit(kMemory);
  for (const char* id : {"x", "y"}) {
    AllocationSpec spec;
    spec.id = id;
    spec.gpus = {{"GPU-a", 50}};
    std::string error;
    if (!node.AddAllocation(spec, {}, &error)) std::abort();
  }
  sluice_page pages[4] = {};
  uint64_t now = 1'000'000'000'000;
  const auto take = [&](void* to, size_t limit) {
    const size_t n = std::min(limit, size);
    std::memcpy(to, data, n);
    data += n;
    size -= n;
    return n;
  };
  while (size > 0) {
    uint8_t control = 0, more = 0;
    take(&control, 1);
    const SessionId s = 1 + (control & 3);
    const auto open = [&] {
      if (port.open[s]) return;
      port.open[s] = true;
      pages[s - 1] = {};
      node.Opened(s, s % 2 == 0 ? "x" : "y", 100 + static_cast<int64_t>(s), &pages[s - 1], now);
    };
    alignas(8) uint8_t bytes[SLUICE_FRAME_BYTES * 2] = {};
    switch (control >> 2 & 3) {
      case 0:
        open();
        take(bytes, SLUICE_FRAME_BYTES);
        node.Received(s, bytes, SLUICE_FRAME_BYTES, now);
        break;
      case 1:
        open();
        take(&more, 1);
        node.Received(s, bytes, take(bytes, more), now);
        break;
      case 2:
        if (port.open[s]) take(&pages[s - 1].gpu[0], sizeof(sluice_gpu_slot));
        break;
      default:
        take(&more, 1);
        if (more % 2 == 1) {
          port.open[s] = false;
          node.Closed(s, now);
        } else {
          now += more * 10'000'000ull;
          int slices = 0, wait = 0;
          while ((wait = node.Tick(now)) == 0 && slices < 4) ++slices;
          if (wait < 1) std::abort();  // the loop would never sleep
        }
    }
    node.Settle();
    if (node.LedgerOf("GPU-a")->exposure() > kMemory) std::abort();
  }
  const NodeStatus status = node.Status();
  if (status.allocations.size() != 2) std::abort();
  for (SessionId s = 1; s <= 4; ++s) node.Closed(s, now);
  if (node.sessions() != 0 || node.LedgerOf("GPU-a")->exposure() != 0) std::abort();
  return 0;
}
