// The pure decisions: grant, response, registration, collector, card inventory, settings.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "deviceplugin/config.h"
#include "deviceplugin/decide/card_inventory.h"
#include "deviceplugin/decide/collector.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/decide/registration.h"
#include "deviceplugin/decide/response.h"
#include "sluice/names.h"
#include "test/deviceplugin/cards_for_tests.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
using namespace std::chrono_literals;

Inventory Node(std::vector<Card> cards) {
  Inventory inventory;
  inventory.cards = std::move(cards);
  return inventory;
}

std::string Why(const absl::StatusOr<Grant>& grant) {
  return grant.ok() ? "granted" : RefusalReason(grant.status()) + ": " + std::string(grant.status().message());
}

TEST_CASE("a request is granted in full or refused with a reason") {
  Card unhealthy = HealthyCard("GPU-unhealthy", 1), taken = HealthyCard("GPU-taken", 2);
  unhealthy.state = CardState::kUnhealthy;
  unhealthy.detail = "XID 79";
  taken.state = CardState::kNotOffered;
  taken.detail = "another device plugin offers this card";
  const Inventory node = Node({HealthyCard("GPU-a", 0), HealthyCard("GPU-b", 3), unhealthy, taken});

  auto half = DecideGrant(Ids("GPU-a", 10, 60), node);
  REQUIRE(half.ok());
  CHECK(half->cards == std::vector<GrantedCard>{{"GPU-a", 50, 0}});
  CHECK(half->Fraction() == "0.50");
  CHECK(DecideGrant(Ids("GPU-a", 0, 7), node)->Fraction() == "0.07");
  CHECK(DecideGrant(Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 100)}), node)->Fraction() == "2");

  CHECK_THAT(Why(DecideGrant({}, node)), ContainsSubstring("size: "));
  CHECK_THAT(Why(DecideGrant(std::vector<std::string>{"GPU-a"}, node)), ContainsSubstring("malformed: "));
  CHECK_THAT(Why(DecideGrant(std::vector<std::string>{"GPU-a::1", "GPU-a::1"}, node)),
             ContainsSubstring("duplicate: "));
  CHECK_THAT(Why(DecideGrant(Ids("GPU-x", 0, 5), node)), ContainsSubstring("unknown: "));
  CHECK_THAT(Why(DecideGrant(Ids("GPU-unhealthy", 0, 5), node)), ContainsSubstring("XID 79"));
  CHECK_THAT(Why(DecideGrant(Ids("GPU-taken", 0, 5), node)), ContainsSubstring("not-offered: "));
  CHECK_THAT(Why(DecideGrant(Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 50)}), node)), ContainsSubstring("size: "));
  const std::string split = Why(DecideGrant(Join({Ids("GPU-a", 0, 30), Ids("GPU-b", 0, 20)}), node));
  CHECK_THAT(split, ContainsSubstring("split: "));
  CHECK_THAT(split, ContainsSubstring("30 of GPU-a, 20 of GPU-b"));
  CHECK_THAT(split, ContainsSubstring("no GPU of this node has 50 percent free"));
  CHECK_THAT(split, ContainsSubstring("scheduler.mode=own"));  // the setting that helps
  std::vector<std::string> thousands;
  for (int i = 0; i < 20'000; ++i) thousands.push_back("GPU-a::" + std::to_string(i % 100));
  CHECK_THAT(Why(DecideGrant(thousands, node)), ContainsSubstring("size: "));
}

TEST_CASE("the response has constant container paths and the driver access of the setting") {
  const auto grant = DecideGrant(Ids("GPU-a", 0, 25), Node({HealthyCard("GPU-a")}));
  ResponseInput input{&*grant, DriverAccess::kOwn, "/var/lib/sluice/lib/9.9-x", "/var/lib/sluice/alloc/pod-1"};
  const ContainerResponse own = MakeResponse(input);
  CHECK(own.envs.at("LD_PRELOAD") == "/opt/sluice/lib/libsluice.so");
  CHECK(own.envs.at(SLUICE_ENV_SOCKET) == "/opt/sluice/run/agent.sock");
  CHECK(own.envs.at(SLUICE_ENV_GPU_FRACTION) == "0.25");
  CHECK(own.envs.at("NVIDIA_VISIBLE_DEVICES") == "void");
  CHECK(own.mounts == std::vector<Mount>{{"/opt/sluice/lib", input.lib_dir}, {"/opt/sluice/run", input.run_dir}});
  CHECK(own.cdi_names == std::vector<std::string>{"sluice.dev/gpu=GPU-a"});
  input.access = DriverAccess::kNvidiaCdi;
  CHECK(MakeResponse(input).cdi_names == std::vector<std::string>{"nvidia.com/gpu=GPU-a"});
  CHECK(MakeResponse(input).envs.at("NVIDIA_VISIBLE_DEVICES") == "void");
  input.access = DriverAccess::kNvidiaRuntime;
  CHECK(MakeResponse(input).cdi_names.empty());
  CHECK(MakeResponse(input).envs.at("NVIDIA_VISIBLE_DEVICES") == "GPU-a");
  for (auto access : {DriverAccess::kOwn, DriverAccess::kNvidiaCdi, DriverAccess::kNvidiaRuntime}) {
    input.access = access;  // the image's own value holds
    CHECK_FALSE(MakeResponse(input).envs.contains("NVIDIA_DRIVER_CAPABILITIES"));
  }
}

using Action = Registration::Action;

struct Folder {
  Registration machine;
  Observed seen;
  Registration::Clock::time_point now{1000s};
  int64_t stamp = 1;
  SocketId Fresh() { return {1, 7, ++stamp}; }
  Action Next() { return machine.Next(seen, now); }
  void Serve() {
    seen.own = Fresh();
    machine.Served(true, seen.own, now);
  }
  void Register() { machine.Registered(true, now); }
};

TEST_CASE("registration: serve, wait for kubelet, register, then wait") {
  Folder f;
  CHECK(f.Next() == Action::kServe);
  f.Serve();
  CHECK(f.Next() == Action::kWait);
  f.seen.kubelet = f.Fresh();
  CHECK(f.Next() == Action::kRegister);
  f.Register();
  f.seen.watchers = 1;
  f.now += 1h;
  CHECK(f.Next() == Action::kWait);
  CHECK(f.machine.registered());
}

TEST_CASE("registration follows changes of kubelet's socket and of ours") {
  Folder f;
  f.Next(), f.Serve();
  f.seen.kubelet = f.Fresh();
  f.Next(), f.Register();
  f.seen.watchers = 1;
  CHECK(f.Next() == Action::kWait);
  SECTION("kubelet empties the folder and recreates its own socket with the same inode") {
    f.seen.own.reset();
    f.seen.kubelet = f.Fresh();
    CHECK(f.Next() == Action::kServe);
    CHECK_FALSE(f.machine.registered());
    f.Serve();
    CHECK(f.Next() == Action::kRegister);
  }
  SECTION("only kubelet's socket is replaced") {
    f.seen.kubelet = f.Fresh();
    CHECK(f.Next() == Action::kRegister);
  }
  SECTION("kubelet stops") {
    f.seen.kubelet.reset();
    f.seen.watchers = 0;
    CHECK(f.Next() == Action::kWait);
    CHECK_FALSE(f.machine.registered());
    f.seen.kubelet = f.Fresh();
    CHECK(f.Next() == Action::kRegister);
  }
  SECTION("our socket is deleted or replaced") {
    f.seen.own = f.Fresh();
    CHECK(f.Next() == Action::kServe);
    // Kubelet kept running and must have ended its old client before it gets a new one.
    f.Serve();
    CHECK(f.Next() == Action::kWait);
    REQUIRE(f.machine.NextWake());
    f.now = *f.machine.NextWake();
    CHECK(f.Next() == Action::kRegister);
  }
  SECTION("kubelet closes its stream and keeps running: registration waits a while") {
    f.seen.watchers = 0;
    f.now += 500ms;
    CHECK(f.Next() == Action::kWait);
    REQUIRE(f.machine.NextWake());
    f.now = *f.machine.NextWake();
    CHECK(f.Next() == Action::kRegister);
  }
}

TEST_CASE("registration backs off, and starts over for another kubelet") {
  Folder f;
  f.Next(), f.Serve();
  f.seen.kubelet = f.Fresh();
  auto last = 0ms;
  for (int i = 0; i < 12; ++i) {
    REQUIRE(f.Next() == Action::kRegister);
    f.machine.Registered(false, f.now);
    REQUIRE(f.Next() == Action::kWait);
    REQUIRE(f.machine.NextWake());
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(*f.machine.NextWake() - f.now);
    CHECK(wait >= last);
    CHECK(wait <= Registration::kMaxBackoff);
    last = wait;
    f.now = *f.machine.NextWake();
  }
  CHECK(last == Registration::kMaxBackoff);
  REQUIRE(f.Next() == Action::kRegister);
  f.machine.Registered(false, f.now);
  // The socket belonged to a killed kubelet. The next kubelet is called as soon as its own socket exists.
  SECTION("the old socket is replaced") {}
  SECTION("the old socket disappears first") {
    f.seen.kubelet.reset();
    CHECK(f.Next() == Action::kWait);
    CHECK_FALSE(f.machine.NextWake());
  }
  f.seen.kubelet = f.Fresh();
  REQUIRE(f.Next() == Action::kRegister);
  f.machine.Registered(false, f.now);
  CHECK(f.Next() == Action::kWait);
  CHECK(*f.machine.NextWake() - f.now == Registration::kInitialBackoff);
}

CheckpointEntry Given(const std::string& pod, const std::string& run, const std::string& lib,
                      std::vector<std::string> ids) {
  return {pod, "main", std::move(ids), run, lib, {"sluice.dev/gpu=GPU-a"}};
}

TEST_CASE("the collector deletes only unreferenced allocations and libraries") {
  const auto now = std::chrono::system_clock::now();
  CollectorInput input;
  input.now = now;
  input.allocations = {{"pod-live", "/a/pod-live", {}, now - 1h}, {"pod-ended", "/a/pod-ended", {}, now - 1h}};
  input.libraries = {"/l/old", "/l/unused", "/l/current"};
  input.current_library = "/l/current";
  input.checkpoint = {{Given("uid-1", "/a/pod-live", "/l/old", {"GPU-a::1"})}};

  CollectorPlan plan = PlanCollection(input);
  CHECK(plan.allocation_ids == std::vector<std::string>{"pod-ended"});
  CHECK(plan.libraries == std::vector<std::string>{"/l/unused"});
  CHECK(plan.cdi_names_in_use == std::vector<std::string>{"sluice.dev/gpu=GPU-a"});

  SECTION("an unreadable checkpoint deletes nothing") {
    input.checkpoint.reset();
    plan = PlanCollection(input);
    CHECK(plan.allocation_ids.empty());
    CHECK(plan.libraries.empty());
    CHECK_FALSE(plan.may_remove_cdi);
  }
  SECTION("while an allocation is young, it and all libraries stay") {
    input.allocations.push_back({"pod-young", "/a/pod-young", {}, now - 1min});
    plan = PlanCollection(input);
    CHECK(plan.allocation_ids == std::vector<std::string>{"pod-ended"});
    CHECK(plan.libraries.empty());
  }
  SECTION("an entry counts as ended only if pod folder and pod-resources agree") {
    input.pod_uids.emplace();
    CHECK(PlanCollection(input).allocation_ids.size() == 1);
    input.devices_in_use = {{"GPU-a::1"}};
    CHECK(PlanCollection(input).allocation_ids.size() == 1);
    input.devices_in_use = std::set<std::string>{};
    CHECK(PlanCollection(input).allocation_ids.size() == 2);
    CHECK(PlanCollection(input).libraries == std::vector<std::string>{"/l/unused"});
    input.pod_uids = {{"uid-1"}};
    CHECK(PlanCollection(input).allocation_ids.size() == 1);
  }
}

struct InventoryRig {
  CardInventory inventory{CardRules{{}, false, DefaultIgnoredXids(), 30s}};
  CardInventory::Clock::time_point now{1000s};
  CardInventory::Readings readings{"580.1", {Reading("GPU-a", 0), Reading("GPU-b", 1)}, {}};
  void Read() { inventory.ApplyReadings(readings, now); }
  Card A() { return *inventory.Current().Find("GPU-a"); }
};

TEST_CASE("a fatal XID makes a card unhealthy until it was quiet; application errors do not count") {
  InventoryRig b;
  b.Read();
  CHECK(b.A().state == CardState::kHealthy);
  b.inventory.ApplyEvent({NvmlEvent::Type::kXid, "GPU-a", 31}, b.now);
  CHECK(b.A().state == CardState::kHealthy);
  b.inventory.ApplyEvent({NvmlEvent::Type::kXid, "GPU-a", 79}, b.now);
  CHECK(b.A().state == CardState::kUnhealthy);
  CHECK(b.A().reason == "xid");
  CHECK(b.inventory.Current().Find("GPU-b")->state == CardState::kHealthy);
  b.now += 29s;
  b.Read();
  CHECK(b.A().state == CardState::kUnhealthy);
  b.inventory.ApplyEvent({NvmlEvent::Type::kDoubleBitEcc, "GPU-a", 0}, b.now);
  b.now += 29s;
  b.Read();
  CHECK(b.A().reason == "ecc");
  b.now += 1s;
  b.Read();
  CHECK(b.A().state == CardState::kHealthy);
}

TEST_CASE("a card stays unhealthy while the driver asks for its reset") {
  InventoryRig b;
  b.Read();
  b.inventory.ApplyEvent({NvmlEvent::Type::kXid, "GPU-a", 48}, b.now);
  b.readings.cards[0].recovery_needed = true;
  b.now += 1h;
  b.Read();
  b.now += 1h;
  b.Read();
  CHECK(b.A().state == CardState::kUnhealthy);
  b.readings.cards[0].recovery_needed = false;
  b.Read();
  CHECK(b.A().state == CardState::kUnhealthy);
  b.now += 31s;
  b.Read();
  CHECK(b.A().state == CardState::kHealthy);
}

TEST_CASE("a card that disappears is unhealthy until it is listed again; all are while NVML fails") {
  InventoryRig b;
  b.Read();
  const CardReading gone = b.readings.cards[0];
  b.readings.cards.erase(b.readings.cards.begin());
  b.Read();
  CHECK(b.A().reason == "silent");
  CHECK(b.inventory.Current().Find("GPU-b")->state == CardState::kHealthy);
  b.readings.cards.push_back(gone);
  b.Read();
  CHECK(b.A().state == CardState::kHealthy);
  b.inventory.ApplyReadFailure(absl::DeadlineExceededError("NVML hangs: Count did not return"), b.now);
  CHECK_THAT(b.A().detail, ContainsSubstring("hangs"));
  b.Read();
  CHECK(b.A().state == CardState::kHealthy);
}

TEST_CASE("cards that must not be shared are listed with the fix") {
  InventoryRig b;
  b.readings.cards[0].exclusive = true;
  b.readings.cards[0].compute_mode = "Exclusive_Process";
  b.Read();
  CHECK(b.A().state == CardState::kNotOffered);
  CHECK_THAT(b.A().detail, ContainsSubstring("-c DEFAULT"));
  b.readings.cards[0].exclusive = false;
  b.readings.cards[0].mig = true;
  b.Read();
  CHECK(b.A().reason == "mig");
  b.readings.cards[0].mig = false;
  b.readings.cards[0].vgpu = true;
  b.Read();
  CHECK(b.A().reason == "vgpu");
  b.readings.cards[0].vgpu = false;
  b.Read();
  b.inventory.SetOfferedByOthers({{"GPU-a", "nvidia.com/gpu"}});
  CHECK(b.A().reason == "coexist");
  CHECK_THAT(b.A().detail, ContainsSubstring("coexist: allow"));
  b.inventory.SetRules({{}, true, {}, 30s});
  CHECK(b.A().state == CardState::kHealthy);
  b.inventory.SetRules({{"GPU-a"}, true, {}, 30s});
  CHECK(b.A().reason == "excluded");
}

TEST_CASE("settings: unknown keys and bad values are refused with the accepted ones") {
  CHECK(ParseConfig("", "f").ok());
  const auto good = ParseConfig("driverAccess: own\nexclude: [GPU-a]\npollMs: 100\nmetricsAddress: ':9404'\n", "f");
  REQUIRE(good.ok());
  CHECK(good->driver_access == "own");
  CHECK(good->exclude.contains("GPU-a"));
  auto message = [](const char* yaml) { return std::string(ParseConfig(yaml, "f").status().message()); };
  CHECK_THAT(message("driverAcess: own"), ContainsSubstring("f:1: driverAcess: this key is unknown; accepted: ") &&
                                              ContainsSubstring("driverAccess"));
  CHECK_THAT(message("driverAccess: all"), ContainsSubstring("auto, nvidia-cdi, nvidia-runtime, own"));
  CHECK_THAT(message("pollMs: -3"), ContainsSubstring("50 to 3600000"));
  CHECK_THAT(message("allocDir: here"), ContainsSubstring("absolute path"));
  CHECK_THAT(message("exclude: GPU-a"), ContainsSubstring("list of GPU uuids"));
  CHECK_THAT(message("metricsAddress: host:99999"), ContainsSubstring("ADDRESS:PORT"));
  CHECK(ParseConfig("metricsAddress: '[::]:9401'", "f").ok());
  CHECK_THAT(message("metricsAddress: '::1:9401'"), ContainsSubstring("[IPV6]:PORT"));
  CHECK_THAT(message("logFormat: xml"), ContainsSubstring("text, json"));
  CHECK_THAT(message("logLevel: LOUD"), ContainsSubstring("error, warn, info, debug"));
  CHECK(ParseConfig("logFormat: json\nlogLevel: DEBUG", "f")->log_format == LogFormat::kJson);
  CHECK_THAT(message("pollMs: 100\npollMs: 200"), ContainsSubstring("twice"));
  CHECK_THAT(message("- 1"), ContainsSubstring("a map of keys and values"));
  CHECK_THAT(message("{"), ContainsSubstring("YAML"));
}

}  // namespace
}  // namespace sluice::deviceplugin
