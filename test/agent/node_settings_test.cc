// Node: live changes of settings.
#include <catch2/catch_test_macros.hpp>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

TEST_CASE("a fraction that is set live reserves units, and is the share of time too") {
  World w;
  w.Allocate("one", 50);
  std::map<std::string, std::string> live;
  std::string error;
  const auto set = [&](const std::string& key, const std::string& value) {
    if (!w.node.CheckSet("one", {{key, value}}, &live, &error)) return false;
    w.node.ApplyLive("one", live);
    return true;
  };
  const auto share = [&] { return w.node.Status().allocations.front().gpus.front(); };
  REQUIRE(set("gpu-fraction", "0.9"));
  CHECK(share().guaranteed == 8 * kGiB * 90 / 100);
  CHECK(share().compute_request == 900000);
  CHECK(share().units == 50);  // kubelet's units do not change
  CHECK(w.node.FreeUnits("GPU-a") == 10);
  CHECK(w.node.ChooseCard(50, {}).empty());
  CHECK(w.node.ExcessNote("one").starts_with("this is more than its 50 units"));
  REQUIRE(set("gpu-fraction", "0.2"));
  CHECK(share().compute_request == 200000);
  CHECK(w.node.FreeUnits("GPU-a") == 80);
  CHECK(w.node.ExcessNote("one").empty());
  REQUIRE(set("gpu-memory", "6Gi"));
  CHECK(share().compute_request == 500000);  // bytes do not change the share of time
  CHECK(w.node.FreeUnits("GPU-a") == 25);
  CHECK_FALSE(w.node.ExcessNote("one").empty());
  CHECK_FALSE(set("gpu-fraction", "2"));
  CHECK(error == "gpu-fraction: '2' is not accepted; accepted: 0.01 to 1, as one has 1 GPU(s)");
  w.Allocate("other", 20);
  CHECK_FALSE(set("gpu-fraction", "0.81"));
  CHECK(error == "gpu-fraction: '0.81' is more than GPU GPU-a has left; accepted: at most 0.8");
}

TEST_CASE("an empty value removes an earlier setting, and no other") {
  World w;
  AllocationSpec spec;
  spec.id = "one";
  spec.gpus = {{"GPU-a", 50}};
  spec.settings.gpu_memory = 4 * kGiB;
  spec.settings.memory_factor = 80;
  std::map<std::string, std::string> live;
  std::string error;
  REQUIRE(w.node.AddAllocation(spec, {}, &error));
  const auto set = [&](const std::map<std::string, std::string>& change) {
    if (!w.node.CheckSet("one", change, &live, &error)) return false;
    w.node.ApplyLive("one", live);
    return true;
  };
  const auto now = [&] { return w.node.Status().allocations.front(); };
  CHECK_FALSE(set({{"memory-factor", ""}}));  // the allocation's own setting stays
  CHECK(error == "memory-factor: an empty value removes a setting, and this one is not set; set: none");
  REQUIRE(set({{"memory-factor", "50"}, {"gpu-fraction", "0.2"}, {"prefetch", "off"}}));
  CHECK(now().gpus.front().percent == 20);
  CHECK(now().gpus.front().guaranteed == 8 * kGiB / 100 * 20 + 8 * kGiB % 100 * 20 / 100);
  CHECK_FALSE(set({{"prefetch", ""}, {"compute-limit", ""}}));  // a wrong key refuses the whole change
  CHECK(error.ends_with("; set: gpu-fraction, memory-factor, prefetch"));
  CHECK(now().settings.contains("prefetch"));
  REQUIRE(set({{"memory-factor", ""}, {"prefetch", ""}}));
  CHECK(now().settings.at("memory-factor") == "80");
  CHECK_FALSE(now().settings.contains("prefetch"));
  // Another allocation has the units of the earlier share by now.
  w.Allocate("other", 70);
  CHECK_FALSE(set({{"gpu-fraction", ""}}));
  CHECK(error == "gpu-memory: '4Gi' is more than GPU GPU-a has left; accepted: at most 2457Mi");
  w.node.RemoveAllocation("other");
  REQUIRE(set({{"gpu-fraction", ""}}));
  CHECK(live.empty());
  CHECK(now().gpus.front().percent == 50);
  CHECK(now().gpus.front().guaranteed == 4 * kGiB);
  CHECK_FALSE(set({{"frob", ""}}));
  CHECK(error.starts_with("frob: this key is unknown"));
}

TEST_CASE("a granted percent is the share of memory and time instead of the units") {
  World w;
  w.Allocate("one", 50);
  const auto share = [&] { return w.node.Status().allocations.front().gpus.front(); };
  PodInfo pod{"team", "p", "main", {}, {}};
  pod.settings.gpu_percent = 90;  // the annotation; nothing was granted
  w.node.SetPod("one", pod);
  CHECK(share().guaranteed == 8 * kGiB * 50 / 100);
  pod.percent = 70;
  w.node.SetPod("one", pod);
  CHECK(share().guaranteed == 8 * kGiB * 70 / 100);
  CHECK(share().compute_request == 700000);
  CHECK(share().units == 50);
  CHECK(w.node.FreeUnits("GPU-a") == 30);
  CHECK(w.node.ExcessNote("one").empty());  // the scheduler knows
  pod.settings.gpu_percent.reset();
  pod.settings.gpu_memory = 7 * kGiB;  // capped at the bytes of the percent
  w.node.SetPod("one", pod);
  CHECK(share().guaranteed <= 8 * kGiB * 71 / 100);
  CHECK(share().guaranteed >= 8 * kGiB * 69 / 100);
  CHECK(share().compute_request == 700000);
  pod.percent = 30;
  w.node.SetPod("one", pod);
  CHECK(share().guaranteed <= 8 * kGiB * 31 / 100);
  CHECK(share().compute_request == 300000);
}
