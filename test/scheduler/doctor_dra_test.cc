#include "cli/doctor_dra.h"

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json Device(const std::string& uuid, const std::string& taint = "", bool is_shared = true) {
  Json out = {{"name", "gpu"}, {"attributes", {{"uuid", {{"string", uuid}}}}}};
  if (is_shared) out["allowMultipleAllocations"] = true;
  if (!taint.empty()) out["taints"] = Json::array({{{"key", "sluice.dev/unhealthy"}, {"value", taint}}});
  return out;
}

Json Slice(const Json& devices, int generation = 3, int count = 1) {
  return {{"metadata", {{"name", "a-sluice.dev"}}},
          {"spec",
           {{"driver", "sluice.dev"},
            {"nodeName", "a"},
            {"pool", {{"name", "a"}, {"generation", generation}, {"resourceSliceCount", count}}},
            {"devices", devices}}}};
}

Json Claim(const std::string& pool, const std::string& driver = "sluice.dev") {
  return {
      {"status", {{"allocation", {{"devices", {{"results", Json::array({{{"driver", driver}, {"pool", pool}}})}}}}}}}};
}

std::string Judge(const std::vector<Json>& slices, const std::vector<Json>& claims, const DraNode& node) {
  DraCheck check;
  for (const Json& slice : slices) check.AddSlice(slice);
  for (const Json& claim : claims) check.AddClaim(claim);
  std::string text;
  for (const Finding& f : check.Judge(node)) {
    text += (f.kind == Finding::kOk ? "ok " : f.kind == Finding::kWarn ? "warn " : "BAD ") + f.what + "\n";
    CHECK((f.kind == Finding::kOk || !f.fix.empty()));
  }
  return text;
}

const DraNode kServed{"a", {"GPU-1", "GPU-2"}, "0", true, "logs"};

TEST_CASE("doctor: a node without DRA gets no line about it") {
  CHECK(Judge({}, {}, {"a", {"GPU-1"}, "100", std::nullopt}) == "");
  CHECK(Judge({Slice(Json::array({Device("GPU-1")}))}, {Claim("a")}, {"b", {"GPU-1"}, "100", std::nullopt}) == "");
}

TEST_CASE("doctor: a driver's node shows its offer") {
  const Json both = {Device("GPU-1"), Device("GPU-2")};
  CHECK(Judge({Slice(both)}, {Claim("a"), Claim("a"), Claim("b"), Claim("a", "nic.example")}, kServed) ==
        "ok node a: 2 GPU(s) in its ResourceSlice, 2 claim(s)\n");
  DraNode unready = kServed;
  unready.driver_ready = false;
  CHECK(Judge({Slice(both)}, {}, unready) ==
        "BAD node a: its DRA driver is not ready: it is not registered with kubelet, or cannot publish its cards\n");
  CHECK(Judge({}, {}, kServed) ==
        "BAD node a: 2 GPU(s), and no ResourceSlice of sluice.dev: the scheduler knows none of them\n");
  CHECK(Judge({Slice({Device("GPU-1", "xid"), Device("GPU-2")})}, {}, kServed) ==
        "warn node a: GPU GPU-1 gets no new claim: sluice.dev/unhealthy=xid\n");
  CHECK(Judge({Slice(Json::array({Device("GPU-1")}))}, {}, kServed) ==
        "warn node a: not in its ResourceSlice: GPU-2\n");
  CHECK(Judge({Slice({Device("GPU-1"), Device("GPU-2"), Device("GPU-9")})}, {}, kServed) ==
        "BAD node a: its ResourceSlice is stale: it lists GPU-9, which the agent does not see\n");
  CHECK(Judge({Slice({Device("GPU-1", "", false), Device("GPU-2")})}, {}, kServed) ==
        "BAD node a: claims get whole cards: the API server drops allowMultipleAllocations\n");
  CHECK(Judge({Slice(both, 4, 2), Slice(Json::array({Device("GPU-9")}), 3)}, {}, kServed) ==
        "BAD node a: its pool of generation 4 is incomplete: 1 of 2 ResourceSlices\n");
}

TEST_CASE("doctor: a card that both ways offer, and claims that no driver serves") {
  DraNode switched = kServed;
  switched.units = "200";
  const Json one = Json::array({Device("GPU-1"), Device("GPU-2")});
  const std::string twice =
      "BAD node a: device plugin and DRA driver offer the same cards: 200 units of "
      "sluice.dev/gpu-percent and the ResourceSlice a-sluice.dev\n";
  CHECK(Judge({Slice(one)}, {}, switched) == twice);
  switched.driver_ready.reset();
  CHECK(Judge({Slice(one)}, {}, switched) == twice);
  CHECK(Judge({}, {Claim("a")}, switched) ==
        "BAD node a: 1 claim(s) of ResourceClaims are allocated here, and no DRA driver serves the node: their pods "
        "neither start nor end\n");
  switched.units = "";
  CHECK(Judge({Slice(one)}, {}, switched) ==
        "BAD node a: the ResourceSlice a-sluice.dev is stale: no DRA driver runs here\n");
}

TEST_CASE("doctor: malformed objects do no harm") {
  for (const char* text : {"null", "[]", "3", R"({"spec":3})", R"({"spec":{"driver":"sluice.dev","devices":[3,{}]}})",
                           R"({"spec":{"driver":"sluice.dev","pool":[],"devices":{"a":1}}})",
                           R"({"status":{"allocation":{"devices":{"results":[1]}}}})"}) {
    (void)Judge({Json::parse(text)}, {Json::parse(text)}, kServed);
  }
}

std::string Sockets(const std::string& kubelet_dir, bool (*listens)(const std::string&)) {
  std::string text;
  for (const Finding& f : JudgeDraSockets(kubelet_dir, listens))
    text += (f.kind == Finding::kOk ? "ok " : "BAD ") + f.what + "\n";
  return text;
}

TEST_CASE("doctor: the driver's sockets on this node") {
  std::string pattern = (fs::temp_directory_path() / "sluice-doctor-XXXXXX").string();
  const fs::path root = mkdtemp(pattern.data());
  const std::string dir = (root / "device-plugins/").string();
  fs::create_directories(root / "plugins_registry");
  const auto none = [](const std::string&) { return false; };
  const auto all = [](const std::string&) { return true; };
  CHECK(Sockets(dir, none) == "");
  CHECK(Sockets(dir, [](const std::string& s) { return s.ends_with(".sock") && !s.ends_with("sluice.sock"); }) ==
        "ok DRA driver: its sockets are in " + root.string() + "\n");
  CHECK(Sockets(dir, [](const std::string& s) { return s.ends_with("dra.sock"); }) ==
        "BAD DRA driver: not registered: no program serves " + root.string() +
            "/plugins_registry/sluice.dev-reg.sock\n");
  CHECK(Sockets(dir, all) ==
        "ok DRA driver: its sockets are in " + root.string() +
            "\nBAD device plugin and DRA driver serve this node at once: a card may be given out twice\n");
  std::ofstream(root / "plugins_registry/sluice.dev-reg.sock") << "";
  CHECK(Sockets(dir, none) == "BAD DRA driver: no program serves " + root.string() + "/plugins/sluice.dev/dra.sock\n");
  fs::remove_all(root);
}

}  // namespace
}  // namespace sluice::cli
