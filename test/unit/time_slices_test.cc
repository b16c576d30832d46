// Time slices of one process (hooklib/compute/time_slices.h): a GPU in virtual time; the test acts as the arbiter.
#include "hooklib/compute/time_slices.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

using sluice::compute::StampClock;
using sluice::compute::TimeSlicePort;
using sluice::compute::TimeSlices;

namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;

// Kernels run one after the other from their launches on; Pass and Sleep move the host's clock.
class FakeGpu final : public StampClock {
 public:
  struct Stamp {
    uint64_t at;
    const void* context;
  };
  void Kernel(uint64_t ns) { busy_until = std::max<uint64_t>(busy_until, now) + ns; }
  void Pass(uint64_t ns) { now += ns; }

  ~FakeGpu() override {
    for (Stamp* s : live_stamps) delete s;  // real ones end with their context
  }
  void* Record(void*, void* again) override {
    auto* s = again != nullptr ? static_cast<Stamp*>(again) : new Stamp;
    s->at = std::max<uint64_t>(busy_until, now);
    s->context = context;
    std::lock_guard lock(stamping);
    live_stamps.insert(s);
    return s;
  }
  bool Reached(void* s) override { return static_cast<Stamp*>(s)->at <= now; }
  bool Elapsed(void* a, void* b, int64_t* ns) override {
    *ns = static_cast<int64_t>(static_cast<Stamp*>(b)->at - static_cast<Stamp*>(a)->at);
    return true;
  }
  void Free(void* s) override {
    std::lock_guard lock(stamping);
    live_stamps.erase(static_cast<Stamp*>(s));
    delete static_cast<Stamp*>(s);
  }
  bool BelongsTo(void* s, const void* context) override { return static_cast<Stamp*>(s)->context == context; }
  size_t stamps() {
    std::lock_guard lock(stamping);
    return live_stamps.size();
  }
  uint64_t Now() override { return now; }
  void Sleep(uint64_t ns) override {
    {
      std::lock_guard lock(launching);
      now += ns;
    }
    std::this_thread::yield();
  }
  std::atomic<uint64_t> now{1000 * kMs};
  uint64_t busy_until = 0;
  const void* context = nullptr;  // of the stamps recorded from here on
  std::mutex stamping;
  std::set<Stamp*> live_stamps;
  std::mutex launching;  // no time passes between a launch's stamps but its kernel's
};

class FakePort final : public TimeSlicePort {
 public:
  bool Request(uint64_t burst) override {
    ++requests;
    last_burst = burst;
    return is_connected;
  }
  void Release(uint64_t id, uint64_t used, uint64_t, bool estimated) override {
    used_by[id] += used;
    ++releases[id];
    any_estimated |= estimated;
  }
  bool is_connected = true, any_estimated = false;
  std::atomic<int> requests{0};
  uint64_t last_burst = 0;
  std::map<uint64_t, uint64_t> used_by;
  std::map<uint64_t, int> releases;
};

struct World {
  FakeGpu gpu;
  FakePort port;
  TimeSlices slices{&gpu, &port};
  int stream = 0;
  void Launch(uint64_t ns, uint64_t what = 1) {
    TimeSlices::Launch l = slices.Enter(what);
    slices.BeginLaunch(&l, &stream, false);
    gpu.Kernel(ns);
    gpu.Pass(3 * kUs);
    slices.EndLaunch(&l, &stream);
  }
  // Grants every request on a thread of its own, since launches block at the gate.
  template <typename F>
  void Granting(uint64_t quantum, F launches) {
    std::atomic<bool> over{false};
    std::thread arbiter([&] {
      int granted = 0;
      while (!over) {
        if (port.requests > granted) slices.NoteGranted(static_cast<uint64_t>(++granted), quantum, 10000 * kMs);
        std::this_thread::yield();
      }
    });
    launches();
    over = true;
    arbiter.join();
  }
};

}  // namespace

TEST_CASE("without demand is_connected is no request, no stamp and no wait") {
  World w;
  CHECK_FALSE(w.slices.wanted());
  for (int i = 0; i < 100; ++i) w.Launch(kMs);
  CHECK(w.port.requests == 0);
  CHECK(w.gpu.stamps() == 0);
  CHECK(w.slices.used().ns == 0);
}

TEST_CASE("samples estimate unmeasured launches, and are marked as estimated") {
  World w;
  w.slices.BeginSampling(0);
  for (uint64_t i = 1; i <= 50; ++i) {
    for (int n = 0; n < 20; ++n) w.Launch(200 * kUs);
    w.gpu.Pass(4 * kMs);
    w.slices.BeginSampling(i * 20);
    w.slices.Tick();
  }
  const auto used = w.slices.used();
  CHECK(used.ns == used.estimated_ns);
  CHECK(used.ns > 150 * kMs);
  CHECK(used.ns < 210 * kMs);
}

TEST_CASE("a quantum is exceeded by at most one kernel, and its use is measured") {
  World w;
  w.slices.SetDemanded(true);
  CHECK(w.slices.wanted());
  w.Granting(20 * kMs, [&] {
    for (int i = 0; i < 400; ++i) w.Launch(kMs);
    w.gpu.Pass(500 * kMs);
    w.slices.Tick();
  });
  uint64_t all = 0;
  for (const auto& [id, used] : w.port.used_by) {
    INFO("grant " << id);
    CHECK(w.port.releases[id] == 1);
    CHECK(used <= 21 * kMs + 100 * kUs);
    all += used;
  }
  CHECK(all == 400 * kMs);
  CHECK_FALSE(w.port.any_estimated);
  CHECK(w.slices.used().ns == 400 * kMs);
  CHECK(w.slices.used().estimated_ns == 0);
  w.slices.SetDemanded(false);
  CHECK(w.gpu.stamps() == 0);
}

TEST_CASE("an idle time slice is released at once, with its burst") {
  World w;
  w.slices.SetDemanded(true);
  w.Granting(100 * kMs, [&] {
    for (int i = 0; i < 5; ++i) w.Launch(kMs);
    CHECK(w.slices.holding());
    for (int i = 0; i < 6; ++i) {
      w.gpu.Pass(800 * kUs);
      w.slices.Tick();
      CHECK(w.slices.holding());  // earlier launches still run
    }
    w.gpu.Pass(kMs);
    w.slices.Tick();
    CHECK(w.slices.holding());  // a short pause does not end the slice
    w.gpu.Pass(kMs);
    w.slices.Tick();
    CHECK_FALSE(w.slices.holding());
    w.Launch(kMs);
  });
  CHECK(w.port.used_by[1] == 5 * kMs);
  CHECK(w.port.last_burst == 5 * kMs);
}

TEST_CASE("a lease that ends voids the time slice; the rest is reported when its kernels end") {
  World w;
  w.slices.SetDemanded(true);
  std::thread arbiter([&] {
    while (w.port.requests < 1) std::this_thread::yield();
    w.slices.NoteGranted(1, kMs, 50 * kMs);
    while (w.port.requests < 2) std::this_thread::yield();
    w.slices.NoteGranted(2, kMs, 50 * kMs);
  });
  w.Launch(400 * kMs);  // far longer than quantum and lease
  // A launch waits for the end of the lease, not of the kernel: the kernel could wait for that launch.
  for (int i = 0; i < 12; ++i) w.Launch(kMs);
  CHECK(w.gpu.now < w.gpu.busy_until);
  CHECK(w.port.releases[1] == 0);
  arbiter.join();
  w.gpu.Pass(500 * kMs);
  w.slices.Tick();
  CHECK(w.port.releases[1] == 1);
  CHECK(w.port.used_by[1] >= 400 * kMs);
  CHECK(w.port.used_by[1] <= 412 * kMs);
}

TEST_CASE("launches continue after a revocation, a lost agent, and without an agent") {
  World w;
  w.slices.SetDemanded(true);
  w.Granting(10 * kMs, [&] {
    w.Launch(kMs);
    w.slices.NoteRevoked(99);
    CHECK(w.slices.holding());
    w.slices.NoteRevoked(1);
    CHECK_FALSE(w.slices.holding());
    w.Launch(kMs);
  });
  w.slices.NoteAgentLost();
  CHECK_FALSE(w.slices.wanted());
  for (int i = 0; i < 100; ++i) w.Launch(kMs);
  w.port.is_connected = false;
  w.slices.SetDemanded(true);
  for (int i = 0; i < 100; ++i) w.Launch(kMs);  // without an agent launches do not wait
}

TEST_CASE("an unneeded grant is released at once") {
  World w;
  w.slices.NoteGranted(7, kMs, 50 * kMs);
  CHECK(w.port.releases[7] == 1);
  CHECK_FALSE(w.slices.holding());
}

TEST_CASE("a context that ends takes its own stamps along, and no others") {
  World w;
  const int one = 0, other = 0;
  w.gpu.context = &one;
  w.slices.SetDemanded(true);
  w.Granting(6400 * kMs, [&] {
    w.Launch(kMs);
    w.gpu.Pass(20 * kMs);
    w.slices.Tick();  // the first segment is over: its first stamp is the grant's base
    w.Launch(kMs);
  });
  const size_t of_one = w.gpu.stamps();
  REQUIRE(of_one == 3);
  w.gpu.context = &other;
  int stream = 0;
  TimeSlices::Launch l = w.slices.Enter(1);
  w.slices.BeginLaunch(&l, &stream, true);
  w.slices.EndLaunch(&l, &stream);
  REQUIRE(w.gpu.stamps() == 5);
  w.slices.DropStamps(&one);
  CHECK(w.gpu.stamps() == 2);
  w.slices.DropStamps(&other);
  CHECK(w.gpu.stamps() == 0);
}

TEST_CASE("a grant that ends under a launch keeps no stamp") {
  for (const bool is_agent_lost : {false, true}) {
    World w;
    w.slices.SetDemanded(true);
    w.Granting(6400 * kMs, [&] { w.Launch(kMs); });
    is_agent_lost ? w.slices.NoteAgentLost() : w.slices.SetDemanded(false);
    w.gpu.Pass(20 * kMs);
    w.slices.Tick();
    CHECK(w.gpu.stamps() == 0);
  }
}

TEST_CASE("many threads launch on one GPU") {
  World w;
  w.slices.SetDemanded(true);
  w.Granting(5 * kMs, [&] {
    std::vector<std::thread> threads;
    std::vector<int> streams(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          TimeSlices::Launch l = w.slices.Enter(static_cast<uint64_t>(t) + 1);
          {
            std::lock_guard lock(w.gpu.launching);
            w.slices.BeginLaunch(&l, &streams[static_cast<size_t>(t)], true);
            w.gpu.Kernel(100 * kUs);
            w.slices.EndLaunch(&l, &streams[static_cast<size_t>(t)]);
          }
        }
      });
    }
    for (auto& t : threads) t.join();
    w.gpu.Pass(500 * kMs);
    w.slices.Tick();
  });
  CHECK(w.slices.used().ns == 20 * kMs);
}
