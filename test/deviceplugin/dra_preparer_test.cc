// The preparer on real files: idempotence, restarts, lost state, random sequences against a model of the scheduler.
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "deviceplugin/dra/preparer.h"
#include "deviceplugin/host/files.h"
#include "test/deviceplugin/cards_for_tests.h"
#include "test/deviceplugin/eager_agents.h"
#include "test/deviceplugin/fake_api.h"

namespace sluice::deviceplugin::dra {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Node {
  TempDir dir;
  std::shared_ptr<SnapshotPublisher> snapshots = std::make_shared<SnapshotPublisher>();
  std::map<std::string, Json> claims;  // in the API, by name
  bool api_is_down = false;
  std::unique_ptr<EagerAgents> agents;
  std::unique_ptr<Preparer> preparer;

  explicit Node(int cards, bool with_agent = true) {
    SetUpLog("dra_test", LogFormat::kText, LogLevel::kError);
    for (const char* name : {"alloc", "cdi", "lib"}) REQUIRE(MakeDirs(dir / name).ok());
    for (const char* file : {"libsluice.so", "libsluice_engine.so"}) std::ofstream(dir / "lib/" + file) << "x";
    if (with_agent) agents = std::make_unique<EagerAgents>(dir / "alloc");
    Publish(cards);
    Restart();
  }

  void Publish(int cards, CardState state = CardState::kHealthy) {
    auto snapshot = std::make_shared<NodeSnapshot>();
    for (int i = 0; i < cards; ++i) {
      snapshot->inventory.cards.push_back(HealthyCard("GPU-" + std::to_string(i), i));
      snapshot->inventory.cards.back().state = state;
      snapshot->cdi_names.insert("sluice.dev/gpu=GPU-" + std::to_string(i));
    }
    snapshot->lib_dir = dir / "lib";
    snapshots->Publish(std::move(snapshot));
  }

  ClaimStore Store() { return ClaimStore(dir / "alloc", dir / "cdi", ""); }

  // A new process: only files remain.
  void Restart() {
    preparer = std::make_unique<Preparer>(PreparerOptions{snapshots, Store(), "node-1", 0,
                                                          [this](const ClaimRef& ref) -> absl::StatusOr<Json> {
                                                            if (api_is_down) return absl::UnavailableError("down");
                                                            const auto it = claims.find(ref.name);
                                                            if (it == claims.end())
                                                              return absl::NotFoundError("no such claim");
                                                            return it->second;
                                                          },
                                                          std::make_shared<HeldUnits>(AllocationStore(dir / "alloc"))});
    REQUIRE(preparer->Restore().ok());
  }

  void Put(const ClaimOrder& order) { claims[order.name] = MakeClaim(order); }
  absl::StatusOr<PreparedClaim> Prepare(const std::string& name, const std::string& uid, int wait_ms = 5000) {
    return preparer->Prepare({"team", name, uid}, Preparer::Clock::now() + std::chrono::milliseconds(wait_ms));
  }
  std::string Why(const std::string& name, const std::string& uid, int wait_ms = 5000) {
    const auto claim = Prepare(name, uid, wait_ms);
    return claim.ok() ? "ok" : RefusalReason(claim.status()) + ": " + std::string(claim.status().message());
  }
  std::set<std::string> Folders() {
    const auto names = ListDir(dir / "alloc");
    return {names->begin(), names->end()};
  }
  std::set<std::string> Specs() {
    const auto names = ListDir(dir / "cdi");
    return {names->begin(), names->end()};
  }
  // Bytes of each card by the files that the agent reads.
  std::map<std::string, uint64_t> HeldByFiles() {
    std::map<std::string, uint64_t> out;
    for (const std::string& name : Folders()) {
      const Json file = Json::parse(*ReadFile(dir / "alloc/" + name + "/allocation.json"));
      for (const Json& device : file["claim"]["devices"]) {
        out[device["uuid"]] += device["memory"].get<uint64_t>();
      }
    }
    return out;
  }
};

TEST_CASE("two claims share one card, each with its own folder, and give it back") {
  Node node(1);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  node.Put({"b", "u-b", {"gpu-0"}, "40Gi", "50"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  REQUIRE(node.Why("b", "u-b") == "ok");
  CHECK(node.Folders() == std::set<std::string>{"claim-u-a", "claim-u-b"});
  CHECK(node.Specs() == std::set<std::string>{"sluice.dev-claim_u-a.json", "sluice.dev-claim_u-b.json"});
  CHECK(node.HeldByFiles()["GPU-0"] == 80 * kGiB);
  CHECK(node.preparer->Unprepare({"team", "a", "u-a"}).ok());
  CHECK(node.preparer->Unprepare({"team", "a", "u-a"}).ok());  // again
  CHECK(node.preparer->Unprepare({"team", "x", "never"}).ok());
  CHECK(node.Folders() == std::set<std::string>{"claim-u-b"});
  CHECK(node.Specs() == std::set<std::string>{"sluice.dev-claim_u-b.json"});
}

TEST_CASE("to prepare a claim again changes nothing, also after a restart and on a card that became unhealthy") {
  Node node(1);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  const std::string file = *ReadFile(node.dir / "alloc/claim-u-a/allocation.json");
  CHECK(node.Why("a", "u-a") == "ok");
  node.Restart();
  node.Publish(1, CardState::kUnhealthy);
  CHECK(node.Why("a", "u-a") == "ok");
  CHECK(*ReadFile(node.dir / "alloc/claim-u-a/allocation.json") == file);
  node.Put({"b", "u-b", {"gpu-0"}, "10Gi", "5"});
  CHECK_THAT(node.Why("b", "u-b"), ContainsSubstring("unhealthy"));
}

TEST_CASE("the files of a prepared claim stay while its card cannot be read") {
  Node node(2);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  struct stat before{}, after{};
  REQUIRE(stat((node.dir / "alloc/claim-u-a").c_str(), &before) == 0);
  node.Publish(0);  // the driver is being replaced, or NVML hangs
  node.Restart();
  CHECK_THAT(node.Why("a", "u-a"), ContainsSubstring("unknown: "));
  CHECK(node.Folders() == std::set<std::string>{"claim-u-a"});
  CHECK(node.Specs() == std::set<std::string>{"sluice.dev-claim_u-a.json"});
  node.Publish(2);
  CHECK(node.Why("a", "u-a") == "ok");
  REQUIRE(stat((node.dir / "alloc/claim-u-a").c_str(), &after) == 0);
  CHECK(after.st_ino == before.st_ino);  // containers have it mounted
}

TEST_CASE("after a reboot, which empties the folder of specs, a restart makes the specs again") {
  Node node(1);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  const std::string spec = *ReadFile(node.dir / "cdi/sluice.dev-claim_u-a.json");
  REQUIRE(RemoveTree(node.dir / "cdi").ok());
  node.Restart();
  CHECK(*ReadFile(node.dir / "cdi/sluice.dev-claim_u-a.json") == spec);
  // A truncated checkpoint is removed, and kubelet's next call makes the claim anew.
  std::ofstream(node.dir / "alloc/claim-u-a/allocation.json") << "{\"version\":1,";
  node.Restart();
  CHECK(node.Folders().empty());
  CHECK(node.Why("a", "u-a") == "ok");
}

TEST_CASE("a claim that was allocated anew under its old uid is prepared anew") {
  Node node(2);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  node.Put({"a", "u-a", {"gpu-1"}, "20Gi", "10"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  CHECK(node.HeldByFiles() == std::map<std::string, uint64_t>{{"GPU-1", 20 * kGiB}});
}

TEST_CASE("claims that exceed a card are refused, unless those that hold it have ended without a call") {
  Node node(1);
  node.Put({"a", "u-a", {"gpu-0"}, "60Gi", "10"});
  node.Put({"b", "u-b", {"gpu-0"}, "30Gi", "10"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  CHECK_THAT(node.Why("b", "u-b"), ContainsSubstring("claim-excess") && ContainsSubstring("team/a") &&
                                       ContainsSubstring("has 80Gi for claims, and other claims hold 60Gi"));
  CHECK(node.Folders() == std::set<std::string>{"claim-u-a"});
  node.claims.erase("a");
  CHECK(node.Why("b", "u-b") == "ok");
  CHECK(node.Folders() == std::set<std::string>{"claim-u-b"});
  // Time is booked like memory, and a claim without capacity is one for the whole card.
  node.Put({"c", "u-c", {"gpu-0"}, "1Gi", "95"});
  CHECK_THAT(node.Why("c", "u-c"), ContainsSubstring("10 percent of its time"));
  node.Put({"d", "u-d", {"gpu-0"}, "", ""});
  CHECK_THAT(node.Why("d", "u-d"), ContainsSubstring("claim-excess"));
}

TEST_CASE("units of the device plugin's containers count until those end") {
  Node node(1);
  Json devices = Json::array();
  for (const std::string& id : Ids("GPU-0", 0, 40)) devices.push_back(id);
  REQUIRE(MakeDirs(node.dir / "alloc/pod-1").ok());
  std::ofstream(node.dir / "alloc/pod-1/allocation.json")
      << Json{{"version", 1}, {"id", "pod-1"}, {"devices", devices}};
  node.Restart();
  node.Put({"a", "u-a", {"gpu-0"}, "60Gi", "10"});
  CHECK_THAT(node.Why("a", "u-a"), ContainsSubstring("claim-excess") && ContainsSubstring("has 48Gi for claims") &&
                                       ContainsSubstring("40 percent of its time: containers of the device plugin"));
  node.Put({"b", "u-b", {"gpu-0"}, "48Gi", "60"});
  CHECK(node.Why("b", "u-b") == "ok");
  CHECK(node.preparer->Unprepare({"team", "b", "u-b"}).ok());
  REQUIRE(RemoveTree(node.dir / "alloc/pod-1").ok());
  CHECK(node.Why("a", "u-a") == "ok");
}

TEST_CASE("the device plugin counts the units of claims from before a node's switch") {
  Node node(2);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  node.Put({"b", "u-b", {"gpu-0", "gpu-1"}, "20Gi", "10"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  REQUIRE(node.Why("b", "u-b") == "ok");
  const auto units = ClaimedUnits(node.dir / "alloc");
  REQUIRE(units.has_value());
  CHECK(*units == std::map<std::string, int>{{"GPU-0", 75}, {"GPU-1", 25}});
  CHECK(ClaimedUnits(node.dir / "nowhere")->empty());
}

TEST_CASE("the id of a share is kubelet's to know, and no part of the checkpoint") {
  Node node(1);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  Json& result = node.claims["a"]["status"]["allocation"]["devices"]["results"][0];
  result["shareID"] = "share-1";
  REQUIRE(node.Prepare("a", "u-a")->share.devices[0].share_id == "share-1");
  const std::string file = *ReadFile(node.dir / "alloc/claim-u-a/allocation.json");
  CHECK(file.find("share-1") == std::string::npos);
  node.Restart();
  CHECK(node.Prepare("a", "u-a")->share.devices[0].share_id == "share-1");
  CHECK(*ReadFile(node.dir / "alloc/claim-u-a/allocation.json") == file);  // not prepared anew
}

TEST_CASE("nothing is given back on the word of an API server that does not answer") {
  Node node(1);
  node.Put({"a", "u-a", {"gpu-0"}, "60Gi", "10"});
  REQUIRE(node.Why("a", "u-a") == "ok");
  node.api_is_down = true;
  CHECK(node.preparer->Collect() == 0);
  CHECK_THAT(node.Why("a", "u-a"), ContainsSubstring("api: sluice refuses: ResourceClaim team/a cannot be read: down"));
  CHECK(node.Folders().size() == 1);
  node.api_is_down = false;
  node.claims.erase("a");
  CHECK(node.preparer->Collect() == 1);
  CHECK(node.Folders().empty());
}

TEST_CASE("no container starts before the agent serves its claim") {
  Node node(1, /*with_agent=*/false);
  node.Put({"a", "u-a", {"gpu-0"}, "40Gi", "50"});
  CHECK_THAT(node.Why("a", "u-a", 50),
             ContainsSubstring("agent: sluice refuses: the node agent has not made its socket"));
  node.agents = std::make_unique<EagerAgents>(node.dir / "alloc");
  CHECK(node.Why("a", "u-a") == "ok");
}

TEST_CASE("uids that could leave the folder are refused") {
  Node node(1);
  for (const char* uid : {"", "..", "a/b", "-a", "a b", "u\n"})
    CHECK_THAT(node.Why("a", uid), ContainsSubstring("malformed"));
  CHECK_THAT(node.Why("a", std::string(200, 'u')), ContainsSubstring("malformed"));
  CHECK(node.preparer->Unprepare({"team", "a", "../lib"}).ok());
  CHECK(IsFile(node.dir / "lib/libsluice.so"));
}

TEST_CASE("a thousand claims of one node are prepared by several callers at once") {
  Node node(16);
  for (int i = 0; i < 1000; ++i) {
    const std::string n = std::to_string(i);
    node.Put({"c" + n, "u-" + n, {"gpu-" + std::to_string(i % 16)}, "1Gi", "1"});
  }
  std::atomic<int> next = 0, refused = 0;
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&] {
      for (int i = next++; i < 1000; i = next++) {
        const std::string n = std::to_string(i);
        const auto claim =
            node.preparer->Prepare({"team", "c" + n, "u-" + n}, Preparer::Clock::now() + std::chrono::seconds(30));
        if (!claim.ok()) ++refused;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(refused == 0);
  CHECK(node.Folders().size() == 1000);
  node.Restart();
  CHECK(node.preparer->Prepared().size() == 1000);
}

// The scheduler's and kubelet's side: the allocated claims, and those that kubelet counts as prepared.
struct Model {
  struct Claim {
    std::string name, uid, memory;
    int card;
    uint64_t bytes;
    int percent;
    bool prepared = false;
  };
  std::vector<Claim> claims;
  std::map<int, uint64_t> bytes;
  std::map<int, int> percent;
  int made = 0;
};

TEST_CASE("10,000 random steps give no byte of a card out twice") {
  constexpr int kCards = 4;
  Node node(kCards);
  Model model;
  std::mt19937 random(20261126);
  const auto dice = [&](size_t sides) { return static_cast<size_t>(random() % sides); };
  const auto forget = [&](size_t i) {
    const auto& claim = model.claims[i];
    model.bytes[claim.card] -= claim.bytes;
    model.percent[claim.card] -= claim.percent;
    node.claims.erase(claim.name);
    model.claims.erase(model.claims.begin() + static_cast<long>(i));
  };
  for (int step = 0; step < 10'000; ++step) {
    INFO("step " << step);
    const size_t act = dice(20);
    if (act < 7 || model.claims.empty()) {  // the scheduler allocates where there is room
      Model::Claim claim;
      claim.card = static_cast<int>(dice(kCards));
      claim.bytes = (1 + dice(30)) * kGiB;
      claim.percent = static_cast<int>(1 + dice(30));
      if (model.bytes[claim.card] + claim.bytes > 80 * kGiB || model.percent[claim.card] + claim.percent > 100)
        continue;
      claim.name = "c" + std::to_string(model.made);
      claim.uid = "u-" + std::to_string(model.made++);
      claim.memory = std::to_string(claim.bytes >> 30) + "Gi";
      model.bytes[claim.card] += claim.bytes;
      model.percent[claim.card] += claim.percent;
      node.Put(
          {claim.name, claim.uid, {"gpu-" + std::to_string(claim.card)}, claim.memory, std::to_string(claim.percent)});
      model.claims.push_back(claim);
    } else if (act < 13) {  // kubelet prepares, perhaps again
      auto& claim = model.claims[dice(model.claims.size())];
      REQUIRE(node.Why(claim.name, claim.uid) == "ok");
      claim.prepared = true;
    } else if (act < 16) {  // the pod ends: kubelet gives back, then the claim goes
      const size_t i = dice(model.claims.size());
      REQUIRE(node.preparer->Unprepare({"team", model.claims[i].name, model.claims[i].uid}).ok());
      forget(i);
    } else if (act == 16) {  // kubelet's state is lost: the claim goes without a word
      forget(dice(model.claims.size()));
    } else if (act == 17) {  // the driver is killed
      node.Restart();
    } else if (act == 18) {  // a scheduler that errs gives more than there is
      const auto& victim = model.claims[dice(model.claims.size())];
      if (!victim.prepared) continue;
      node.Put({"excess", "u-excess-" + std::to_string(step), {"gpu-" + std::to_string(victim.card)}, "80Gi", "1"});
      REQUIRE(node.Why("excess", "u-excess-" + std::to_string(step)).starts_with("claim-excess"));
    } else {  // reboot
      REQUIRE(RemoveTree(node.dir / "cdi").ok());
      node.Restart();
    }
    if (step % 10 != 0) continue;
    for (const auto& [card, bytes] : node.HeldByFiles()) REQUIRE(bytes <= 80 * kGiB);
    for (const auto& claim : model.claims) {
      if (claim.prepared) REQUIRE(IsFile(node.dir / "alloc/claim-" + claim.uid + "/allocation.json"));
    }
  }
  node.preparer->Collect();
  std::set<std::string> expected;
  for (const auto& claim : model.claims) {
    if (claim.prepared) expected.insert("claim-" + claim.uid);
  }
  CHECK(node.Folders() == expected);
  CHECK(node.Specs().size() == expected.size());
}

}  // namespace
}  // namespace sluice::deviceplugin::dra
