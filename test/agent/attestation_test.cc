// Attestation: when a process on a GPU is said to run without the hook.
#include "agent/attestation.h"

#include <catch2/catch_test_macros.hpp>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

struct Watched : World {
  static constexpr int64_t kPid = 101;  // of session 1, when it attaches

  Watched() {
    Allocate("x", 50);
    node.SetHolder("x", "pod-x", "main");
  }
  // A check of a sample in which these processes of the pod use the GPU.
  void Check(const std::set<int64_t>& pids) {
    auto sample = std::make_shared<GpuSample>();
    for (const int64_t pid : pids) {
      sample->processes["GPU-a"].push_back({pid, kGiB, 50});
      ProcessFacts& facts = sample->facts[pid];
      facts.there = true;
      facts.container = {"pod-x", ""};
    }
    attestation.Apply(sample, {}, false, now);
  }
  bool IsReported() const {
    for (const Event& e : node.EventsAfter(0)) {
      if (e.kind == "not hooked") return true;
    }
    return false;
  }
  Attestation attestation{&node};
};

}  // namespace

TEST_CASE("after the agent's start hooked processes have time to attach again") {
  Watched w;
  w.Check({Watched::kPid});  // it was attached to the agent before
  w.Pass(5 * kSec);
  w.Check({Watched::kPid});
  CHECK_FALSE(w.IsReported());
  w.Attach(1, "x");
  for (int i = 0; i < 10; ++i) {
    w.Pass(kSec);
    w.pages[1].heartbeat_ns = w.now;
    w.Check({Watched::kPid});
  }
  CHECK_FALSE(w.IsReported());
}

TEST_CASE("a process that was there at the agent's start and never attaches is reported") {
  Watched w;
  w.Check({Watched::kPid});
  w.Pass(10 * kSec);
  w.Check({Watched::kPid});
  CHECK(w.IsReported());
}

TEST_CASE("a process that starts without the hook is reported within two seconds") {
  Watched w;
  w.Check({});
  w.Pass(20 * kSec);
  w.Check({Watched::kPid});
  CHECK_FALSE(w.IsReported());  // CUDA may just have started
  w.Pass(2 * kSec);
  w.Check({Watched::kPid});
  CHECK(w.IsReported());
}
