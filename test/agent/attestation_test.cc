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
    for (const int64_t pid : pids) Add(*sample, "GPU-a", pid, "pod-x");
    attestation.Apply(sample, {}, false, now);
  }
  static ProcessFacts& Add(GpuSample& sample, const std::string& gpu, int64_t pid, const std::string& pod) {
    sample.processes[gpu].push_back({pid, kGiB, 50});
    ProcessFacts& facts = sample.facts[pid];
    facts.there = true;
    facts.container = {pod, ""};
    return facts;
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

TEST_CASE("a pid that became another pod's process is judged anew") {
  Watched w;
  w.Allocate("y", 50);
  w.node.SetHolder("y", "pod-y", "main");
  const auto check = [&](const std::string& pod, uint64_t started) {
    auto sample = std::make_shared<GpuSample>();
    Watched::Add(*sample, "GPU-a", Watched::kPid, pod).started_ns = started;
    w.attestation.Apply(sample, {}, false, w.now);
  };
  const auto reported = [&] {
    std::set<std::string> out;
    for (const Event& e : w.node.EventsAfter(0)) {
      if (e.kind == "not hooked") out.insert(e.allocation);
    }
    return out;
  };
  w.Check({});
  w.Pass(20 * kSec);
  for (int i = 0; i < 3; ++i) {
    check("pod-x", kSec);
    w.Pass(kSec);
  }
  CHECK(reported() == std::set<std::string>{"x"});
  check("pod-y", 23 * kSec);  // the driver's list is old: it named the process before
  CHECK(reported() == std::set<std::string>{"x"});
  w.Pass(2 * kSec);
  check("pod-y", 23 * kSec);
  CHECK(reported() == std::set<std::string>{"x", "y"});
}

TEST_CASE("a process that may be younger than the driver's list is on no other's GPU yet") {
  Watched w;
  w.node.SetCards({{"GPU-a", "A", 8 * kGiB, 0, -1}, {"GPU-b", "B", 8 * kGiB, 0, -1}});
  for (const bool young : {true, false}) {
    auto sample = std::make_shared<GpuSample>();
    Watched::Add(*sample, "GPU-b", Watched::kPid, "pod-x").is_young = young;
    w.attestation.Apply(sample, {}, false, w.now);
    CHECK(w.node.Status().foreign.empty() == young);
  }
  CHECK_FALSE(WasListed(10 * kSec, 10 * kSec + 1));
  CHECK(WasListed(10 * kSec, 11 * kSec));
}

TEST_CASE("short processes without the hook that follow each other are reported") {
  Watched w;
  w.Check({});
  w.Pass(20 * kSec);
  for (int64_t i = 0; i < 10; ++i) {
    w.Check({1000 + i});
    CHECK_FALSE(w.IsReported());
    w.Pass(kSec);
  }
  w.Check({});  // a gap: none is there
  w.Pass(kSec);
  for (int64_t i = 0; i <= 10; ++i) {
    CHECK_FALSE(w.IsReported());
    w.Check({2000 + i});
    w.Pass(kSec);
  }
  CHECK(w.IsReported());
}
