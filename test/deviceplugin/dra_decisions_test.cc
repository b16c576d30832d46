// DRA's decisions: opaque configuration, the meaning of an allocation, the ResourceSlice.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include "common/claims/parameters.h"
#include "deviceplugin/dra/claim.h"
#include "deviceplugin/dra/claim_store.h"
#include "deviceplugin/dra/health.h"
#include "deviceplugin/dra/resource_slice.h"
#include "deviceplugin/host/cdi.h"
#include "test/deviceplugin/cards_for_tests.h"
#include "test/deviceplugin/fake_api.h"

namespace sluice::deviceplugin::dra {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

constexpr uint64_t kGiB = uint64_t{1} << 30;

Inventory TwoCards() {
  Inventory out;
  out.cards = {HealthyCard("GPU-A", 0), HealthyCard("GPU-B", 1)};
  out.driver_version = "580.95.05";
  return out;
}

absl::StatusOr<ClaimShare> Read(const Json& claim, const Inventory& inventory = TwoCards()) {
  return ReadClaim(claim, {"team", "c", "uid-1"}, "node-1", inventory, 0);
}

Json Opaque(const Json& parameters, const char* source = "FromClaim") {
  return {{"source", source}, {"opaque", {{"driver", "sluice.dev"}, {"parameters", parameters}}}};
}

std::string Why(const absl::StatusOr<ClaimShare>& share) {
  return RefusalReason(share.status()) + ": " + std::string(share.status().message());
}

TEST_CASE("consumed capacity becomes the budget, the guaranteed time and the units of a claim") {
  const auto share = Read(MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"}));
  REQUIRE(share.ok());
  REQUIRE(share->cards.size() == 1);
  CHECK(share->cards[0] == GrantedCard{"GPU-A", 25, 0});
  CHECK(share->settings.gpu_memory == 20 * kGiB);
  CHECK(share->settings.compute_request == 250000);
  CHECK(share->pod == "c-pod");
  // Part of a percent counts as one: the units of a card's claims never understate them.
  CHECK(Read(MakeClaim({"c", "uid-1", {"gpu-a"}, "20481Mi", "1"}))->cards[0].units == 26);
}

TEST_CASE("a claim without consumed capacity gets the whole card") {
  const auto share = Read(MakeClaim({"c", "uid-1", {"gpu-b"}, "", ""}));
  REQUIRE(share.ok());
  CHECK(share->cards[0] == GrantedCard{"GPU-B", 100, 1});
  CHECK_FALSE(share->settings.gpu_memory.has_value());
}

TEST_CASE("a claim on several cards has one size; devices of one card add up") {
  const auto two = Read(MakeClaim({"c", "uid-1", {"gpu-a", "gpu-b"}, "40Gi", "50"}));
  REQUIRE(two.ok());
  CHECK(two->cards.size() == 2);
  CHECK(two->settings.gpu_memory == 40 * kGiB);
  const auto same = Read(MakeClaim({"c", "uid-1", {"gpu-a", "gpu-a"}, "10Gi", "5"}));
  REQUIRE(same.ok());
  CHECK(same->settings.gpu_memory == 20 * kGiB);
  CHECK(same->settings.compute_request == 100000);
  Json unequal = MakeClaim({"c", "uid-1", {"gpu-a", "gpu-b"}, "40Gi", "50"});
  unequal["status"]["allocation"]["devices"]["results"][1]["consumedCapacity"]["memory"] = "10Gi";
  CHECK_THAT(Why(Read(unequal)), ContainsSubstring("claim-size: sluice refuses: the claim has consumed 40Gi") &&
                                     ContainsSubstring("10Gi") && ContainsSubstring("accepted: the same on each card"));
}

TEST_CASE("the claim's configuration wins over the class's, and is read by the annotations' parser") {
  ClaimOrder order{"c", "uid-1", {"gpu-a"}, "20Gi", "25", Json::array()};
  order.config = {Opaque({{"prefetch", "off"}}), Opaque({{"prefetch", "launch"}, {"memory-factor", 70}}, "FromClass")};
  const auto share = Read(MakeClaim(order));
  REQUIRE(share.ok());
  CHECK(share->settings.prefetch == settings::Prefetch::kOff);
  CHECK(share->settings.memory_factor == 70);
  const auto refused = [&](const Json& parameters) {
    order.config = {Opaque(parameters)};
    return Why(Read(MakeClaim(order)));
  };
  CHECK_THAT(
      refused({{"prefetch", "on"}}),
      ContainsSubstring("claim-config: sluice refuses: config[0].opaque.parameters.prefetch: 'on' is not accepted"));
  CHECK_THAT(refused({{"prefetsch", "off"}}),
             ContainsSubstring("prefetsch: this key is unknown; accepted: memory-limit"));
  CHECK_THAT(refused({{"gpu-fraction", "0.5"}}),
             ContainsSubstring("the size is the request's capacity.requests.memory"));
  CHECK_THAT(refused({{"memory-limit", "10Gi"}}), ContainsSubstring("accepted: at least the budget, 20Gi"));
  CHECK_THAT(refused({{"compute-limit", "0.1"}}), ContainsSubstring("accepted: at least compute-request, 0.25"));
  CHECK_THAT(refused(Json::array()), ContainsSubstring("this is no object"));
  CHECK_THAT(refused({{"kind", "Pod"}}), ContainsSubstring("accepted: ShareSettings"));
  // Another driver's configuration is not ours to judge.
  order.config = {{{"source", "FromClaim"}, {"opaque", {{"driver", "gpu.nvidia.com"}, {"parameters", {{"x", 1}}}}}}};
  CHECK(Read(MakeClaim(order)).ok());
}

TEST_CASE("an allocation that this node cannot serve is refused with its reason") {
  CHECK_THAT(Why(Read(MakeClaim({"c", "other", {"gpu-a"}, "20Gi", "25"}))), ContainsSubstring("claim-gone"));
  CHECK_THAT(Why(Read({{"metadata", {{"uid", "uid-1"}}}})), ContainsSubstring("claim-unallocated"));
  CHECK_THAT(Why(Read(MakeClaim({"c", "uid-1", {"gpu-x"}, "20Gi", "25"}))),
             ContainsSubstring("gpu-x is not on this node"));
  Json elsewhere = MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"});
  elsewhere["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-2";
  CHECK_THAT(Why(Read(elsewhere)), ContainsSubstring("pool 'node-2'"));
  Inventory sick = TwoCards();
  sick.cards[0].state = CardState::kUnhealthy;
  sick.cards[0].detail = "XID 79";
  const Json claim = MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"});
  CHECK_THAT(Why(Read(claim, sick)), ContainsSubstring("unhealthy: sluice refuses: GPU GPU-A is unhealthy: XID 79"));
  CHECK(ReadClaim(claim, {"team", "c", "uid-1"}, "node-1", sick, 0, true).ok());
  for (const Json& wrong :
       {Json(), Json::array(), Json("x"), Json{{"metadata", 3}}, Json{{"status", {{"allocation", 1}}}}}) {
    CHECK_FALSE(Read(wrong).ok());
  }
}

TEST_CASE("a device for monitoring takes no share and gets no hook") {
  Json claim = MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"});
  claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = true;
  const auto share = Read(claim);
  REQUIRE(share.ok());
  CHECK(share->cards.empty());
  const PreparedClaim prepared{*share, DriverAccess::kOwn, "/lib", {}};
  CHECK(CdiNames(prepared, share->devices[0]) == std::vector<std::string>{"sluice.dev/gpu=GPU-A"});
  CHECK(MakeClaimSpec(prepared, "/run").find("LD_PRELOAD") == std::string::npos);
}

TEST_CASE("a prepared claim's files say the same when they are read again") {
  ClaimOrder order{"c", "uid-1", {"gpu-a", "gpu-b"}, "20Gi", "25", Json::array()};
  order.config = {Opaque({{"memory-limit", "64Gi"}, {"log-level", "INFO"}})};
  PreparedClaim claim{*Read(MakeClaim(order)), DriverAccess::kOwn, "/var/lib/sluice/lib/1", {}};
  const auto again = ParseAllocationFile(MakeAllocationFile(claim));
  REQUIRE(again.ok());
  CHECK(MakeAllocationFile(*again) == MakeAllocationFile(claim));
  const std::string spec = MakeClaimSpec(claim, "/var/lib/sluice/alloc/claim-uid-1");
  CHECK(ValidateCdiSpec(spec).ok());
  CHECK(MakeClaimSpec(*again, "/var/lib/sluice/alloc/claim-uid-1") == spec);
  for (const char* part :
       {"LD_PRELOAD=/opt/sluice/lib/libsluice.so", "SLUICE_MEMORY_LIMIT=64Gi", "SLUICE_LOG_LEVEL=INFO",
        "SLUICE_GPU_FRACTION=0.25", "NVIDIA_VISIBLE_DEVICES=void", "/opt/sluice/run"}) {
    CHECK_THAT(spec, ContainsSubstring(part));
  }
  const std::string text = MakeAllocationFile(claim);
  for (const char* member : {"claim", "gpus", "settings", "created", "pod", "namespace"}) {
    Json damaged = Json::parse(text);
    damaged.erase(member);
    CHECK_FALSE(ParseAllocationFile(damaged.dump()).ok());
    damaged[member] = 7;
    CHECK_FALSE(ParseAllocationFile(damaged.dump()).ok());
  }
  CHECK_FALSE(ParseAllocationFile(text.substr(0, text.size() / 2)).ok());
}

SliceInput Node() { return {"node-1", "node-uid", TwoCards(), kGiB, {}, false}; }

TEST_CASE("the slice lists each healthy card with the capacity that claims may consume") {
  SliceInput input = Node();
  input.inventory.cards[0].reserved_bytes = kGiB / 2;
  input.inventory.cards[0].architecture = "Hopper";
  input.inventory.cards[0].pcie_root = "pci0000:64";
  input.inventory.cards[0].nvlink_clique = "c.1";
  input.inventory.cards[0].numa = 1;
  const Json slice = MakeSlice(input, 4);
  CHECK(slice["metadata"]["name"] == "node-1-sluice.dev");
  CHECK(slice["metadata"]["ownerReferences"][0]["uid"] == "node-uid");
  CHECK(slice["spec"]["pool"] == Json{{"name", "node-1"}, {"generation", 4}, {"resourceSliceCount", 1}});
  REQUIRE(slice["spec"]["devices"].size() == 2);
  const Json& device = slice["spec"]["devices"][0];
  CHECK(device["name"] == "gpu-a");
  CHECK(device["allowMultipleAllocations"] == true);
  CHECK(device["capacity"]["memory"]["value"] == "80384Mi");  // 80 GiB less 0.5 and 1
  CHECK(device["capacity"]["memory"]["requestPolicy"]["validRange"]["step"] == "1Mi");
  CHECK(device["capacity"]["compute"]["value"] == "100");
  CHECK(device["attributes"]["uuid"]["string"] == "GPU-A");
  CHECK(device["attributes"]["memoryMiB"]["int"] == MemoryCapacity(input.inventory.cards[0], input.reserve) >> 20);
  CHECK(device["attributes"]["architecture"]["string"] == "Hopper");
  CHECK(device["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] == "pci0000:64");
  CHECK(device["attributes"]["nvlinkClique"]["string"] == "c.1");
  CHECK(device["attributes"]["numaNode"]["int"] == 1);
  CHECK(device["attributes"]["driverVersion"]["version"] == "580.95.5");
  input.inventory.cards[0].state = CardState::kUnhealthy;
  CHECK(MakeDevices(input).size() == 1);
}

TEST_CASE("an unhealthy card is listed with a taint where the API server keeps taints") {
  SliceInput sick = Node();
  sick.inventory.cards[1].state = CardState::kUnhealthy;
  sick.inventory.cards[1].reason = "xid";
  CHECK(MakeDevices(sick).size() == 1);
  sick.keeps_taints = true;
  const Json devices = MakeDevices(sick);
  REQUIRE(devices.size() == 2);
  CHECK_FALSE(devices[0].contains("taints"));
  const Json taint = {{"key", "sluice.dev/unhealthy"}, {"value", "xid"}, {"effect", "NoSchedule"}};
  CHECK(devices[1]["taints"] == Json::array({taint}));
  // The API server adds the time, which is no change, and which a change of another card must keep.
  Json stored = MakeSlice(sick, 3);
  stored["metadata"]["resourceVersion"] = "5";
  stored["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-11-26T00:00:00Z";
  CHECK(PlanSlices(sick, {stored}).act == SlicePlan::Act::kNothing);
  SliceInput other = sick;
  other.inventory.cards[0].architecture = "Hopper";
  const SlicePlan plan = PlanSlices(other, {stored});
  REQUIRE(plan.act == SlicePlan::Act::kUpdate);
  CHECK((*plan.slice)["spec"]["devices"][1]["taints"] == stored["spec"]["devices"][1]["taints"]);
  // Another effect is another taint, and begins anew.
  other.taint_effect = "NoExecute";
  CHECK_FALSE((*PlanSlices(other, {stored}).slice)["spec"]["devices"][1]["taints"][0].contains("timeAdded"));
  // A card that is well again loses it.
  const SlicePlan well = PlanSlices(Node(), {stored});
  REQUIRE(well.act == SlicePlan::Act::kUpdate);
  CHECK_FALSE((*well.slice)["spec"]["devices"][1].contains("taints"));
  // Cards that are not offered are never listed.
  sick.inventory.cards[1].state = CardState::kNotOffered;
  CHECK(MakeDevices(sick).size() == 1);
}

TEST_CASE("a dry run's answer says whether the API server keeps taints") {
  Json answer = TaintProbe("node-1");
  CHECK(answer["spec"]["nodeName"] == "node-1");
  CHECK(answer["metadata"]["name"] != SliceName("node-1"));
  CHECK(KeepsTaints(answer));
  answer["spec"]["devices"][0].erase("taints");
  CHECK_FALSE(KeepsTaints(answer));
  CHECK_FALSE(KeepsTaints(Json::object()));
}

TEST_CASE("an unhealthy card is given to claims that tolerate its taint, and to no other") {
  Inventory sick = TwoCards();
  sick.cards[0].state = CardState::kUnhealthy;
  sick.cards[0].reason = "xid";
  const auto read = [&](const Json& tolerations) {
    Json claim = MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"});
    claim["status"]["allocation"]["devices"]["results"][0]["tolerations"] = tolerations;
    return Read(claim, sick);
  };
  CHECK(Why(read(Json::array())).starts_with("unhealthy"));
  CHECK(read({{{"operator", "Exists"}}}).ok());
  CHECK(read({{{"key", "sluice.dev/unhealthy"}, {"operator", "Exists"}, {"effect", "NoSchedule"}}}).ok());
  CHECK(read({{{"key", "sluice.dev/unhealthy"}, {"operator", "Equal"}, {"value", "xid"}}}).ok());
  CHECK(read({{{"key", "sluice.dev/unhealthy"}, {"value", "xid"}}}).ok());
  CHECK(Why(read({{{"key", "sluice.dev/unhealthy"}, {"value", "lost"}}})).starts_with("unhealthy"));
  CHECK(Why(read({{{"key", "example.com/other"}, {"operator", "Exists"}}})).starts_with("unhealthy"));
  CHECK(Why(read("all")).starts_with("unhealthy"));
  sick.cards[0].state = CardState::kNotOffered;
  CHECK(Why(read({{{"operator", "Exists"}}})).starts_with("not-offered"));
}

TEST_CASE("kubelet is told of each card's health, with the reason") {
  Inventory cards = TwoCards();
  cards.cards[0].state = CardState::kUnhealthy;
  cards.cards[0].reason = "xid";
  cards.cards[0].detail = "XID 79" + std::string(2000, '.');
  cards.cards[1].state = CardState::kNotOffered;
  cards.cards[1].reason = "mig";
  cards.cards.push_back(HealthyCard("GPU-C", 2));
  const auto health = HealthOf(cards);
  REQUIRE(health.size() == 3);
  CHECK(health[0].device == "gpu-a");
  CHECK(health[0].state == DeviceHealth::State::kUnhealthy);
  CHECK(health[0].message.starts_with("xid: XID 79"));
  CHECK(health[0].message.size() == 1024);
  CHECK(health[1].state == DeviceHealth::State::kUnknown);
  CHECK(health[2] == DeviceHealth{"gpu-c", DeviceHealth::State::kHealthy, ""});
}

TEST_CASE("units that the device plugin's containers still hold are not offered") {
  SliceInput input = Node();
  input.reserve = 0;
  input.held_units = {{"GPU-A", 30}, {"GPU-B", 100}};
  const Json devices = MakeDevices(input);
  REQUIRE(devices.size() == 1);
  CHECK(devices[0]["capacity"]["memory"]["value"] == "56Gi");
  CHECK(devices[0]["capacity"]["compute"]["value"] == "70");
}

TEST_CASE("a slice is written only when the pool differs, and its generation rises") {
  CHECK(PlanSlices(Node(), {}).act == SlicePlan::Act::kCreate);
  Json stored = MakeSlice(Node(), 7);
  stored["metadata"]["resourceVersion"] = "12";
  stored["spec"]["devices"][0]["capacity"]["memory"]["value"] = "84825604096";  // 79Gi in another form
  CHECK(PlanSlices(Node(), {stored}).act == SlicePlan::Act::kNothing);
  SliceInput sick = Node();
  sick.inventory.cards[1].state = CardState::kUnhealthy;
  SlicePlan plan = PlanSlices(sick, {stored});
  REQUIRE(plan.act == SlicePlan::Act::kUpdate);
  CHECK((*plan.slice)["spec"]["pool"]["generation"] == 8);
  CHECK((*plan.slice)["metadata"]["resourceVersion"] == "12");
  CHECK((*plan.slice)["spec"]["devices"].size() == 1);
  // An attribute that is gone must go.
  Json extra = stored;
  extra["spec"]["devices"][0]["attributes"]["nvlinkClique"] = {{"string", "c.1"}};
  CHECK(PlanSlices(Node(), {extra}).act == SlicePlan::Act::kUpdate);
  // A slice of another name in the pool would leave it incomplete.
  Json other = stored;
  other["metadata"]["name"] = "old";
  plan = PlanSlices(Node(), {stored, other});
  CHECK(plan.remove == std::vector<std::string>{"old"});
  CHECK((*plan.slice)["spec"]["pool"]["generation"] == 8);
}

TEST_CASE("fields that the API server drops are not asked for again and again") {
  Json stored = MakeSlice(Node(), 7);
  for (Json& device : stored["spec"]["devices"]) {
    device.erase("allowMultipleAllocations");
    for (Json& capacity : device["capacity"]) capacity.erase("requestPolicy");
  }
  CHECK_FALSE(MayShare(stored));
  CHECK(PlanSlices(Node(), {stored}).act == SlicePlan::Act::kNothing);
  SliceInput asking = Node();
  asking.asks_for_sharing = true;
  CHECK(PlanSlices(asking, {stored}).act == SlicePlan::Act::kUpdate);
}

TEST_CASE("names and versions follow the API's rules") {
  CHECK(DeviceName("GPU-9CB9C1D1-1") == "gpu-9cb9c1d1-1");
  CHECK(DeviceName("GPU-").empty());
  CHECK(DeviceName("GPU_1").empty());
  CHECK(SemanticVersion("580.95.05") == "580.95.5");
  CHECK(SemanticVersion("580.1") == "580.1.0");
  CHECK(SemanticVersion("580.95.05-x").empty());
  CHECK(SemanticVersion("").empty());
  CHECK(SliceName(std::string(253, 'n')).size() <= 253);
  CHECK(SliceName(std::string(253, 'n')) != SliceName(std::string(252, 'n') + "m"));
}

Json Spec(const Json& requests, const Json& config) {
  return {{"devices", {{"requests", requests}, {"config", config}}}};
}

Json Request(const std::string& name, const Json& capacity) {
  return {{"name", name}, {"exactly", {{"deviceClassName", "sluice.dev"}, {"capacity", {{"requests", capacity}}}}}};
}

TEST_CASE("a claim's spec is judged with the sentences of the driver") {
  const auto check = [](const std::vector<Json>& requests, const std::vector<Json>& config = {}) {
    const auto errors = claims::CheckSpec(Spec(Json(requests), Json(config)), "spec");
    std::string all;
    for (const std::string& error : errors) all += error + "\n";
    return all;
  };
  const Json half = Request("gpu", {{"memory", "40Gi"}});
  CHECK(check({half}, {Opaque({{"memory-limit", "64Gi"}})}).empty());
  CHECK_THAT(check({half}, {Opaque({{"memory-limit", "10Gi"}})}), ContainsSubstring("at least the budget, 40Gi"));
  CHECK_THAT(check({half}, {Opaque({{"prefetch", "on"}})}),
             ContainsSubstring("spec.devices.config[0].opaque.parameters.prefetch: 'on' is not accepted"));
  CHECK_THAT(check({Request("gpu", {{"memory", "much"}})}),
             ContainsSubstring("spec.devices.requests[0].exactly.capacity.requests.memory: 'much' is not accepted"));
  CHECK_THAT(check({Request("gpu", {{"compute", "150"}})}), ContainsSubstring("1 to 100"));
  CHECK_THAT(check({half, Request("other", {{"memory", "10Gi"}})}), ContainsSubstring("ask for different amounts"));
  CHECK_THAT(check({half, Request("other", Json::object())}), ContainsSubstring("ask for different amounts"));
  // Alternatives may differ, since the claim gets one of them.
  const Json choice = {
      {"name", "gpu"},
      {"firstAvailable",
       {{{"name", "large"}, {"deviceClassName", "sluice.dev"}, {"capacity", {{"requests", {{"memory", "40Gi"}}}}}},
        {{"name", "small"}, {"deviceClassName", "sluice.dev"}, {"capacity", {{"requests", {{"memory", "20Gi"}}}}}}}}};
  CHECK(check({choice}).empty());
  Json some = Opaque({{"prefetch", "off"}});
  some["requests"] = {"gpu"};
  CHECK_THAT(check({half, Request("two", {{"memory", "40Gi"}})}, {some}),
             ContainsSubstring("names some of the claim's requests"));
  some["requests"] = {"gpu", "two"};
  CHECK(check({half, Request("two", {{"memory", "40Gi"}})}, {some}).empty());
  // Other classes and drivers are not ours.
  Json foreign = Request("nic", {{"bandwidth", "fast"}, {"memory", "much"}});
  foreign["exactly"]["deviceClassName"] = "nic.example";
  CHECK(check({foreign}).empty());
}

}  // namespace
}  // namespace sluice::deviceplugin::dra
