// Data that a claim carries for the webhook: libraries of the container's own, and the container's name.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include "deviceplugin/dra/claim.h"
#include "deviceplugin/dra/claim_store.h"
#include "test/deviceplugin/cards_for_tests.h"
#include "test/deviceplugin/fake_api.h"

namespace sluice::deviceplugin::dra {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

absl::StatusOr<ClaimShare> Read(const Json& claim) {
  Inventory inventory;
  inventory.cards = {HealthyCard("GPU-A", 0)};
  return ReadClaim(claim, {"team", "c", "uid-1"}, "node-1", inventory, 0);
}

Json Opaque(const Json& parameters) {
  return {{"source", "FromClaim"}, {"opaque", {{"driver", "sluice.dev"}, {"parameters", parameters}}}};
}

std::string Why(const absl::StatusOr<ClaimShare>& share) {
  return RefusalReason(share.status()) + ": " + std::string(share.status().message());
}

TEST_CASE("a claim may name libraries that are loaded behind sluice's") {
  Json object = MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"});
  Json& config = object["status"]["allocation"]["devices"]["config"];
  config = Json::array({Opaque({{"preload", "/a.so:/b.so"}})});
  auto share = Read(object);
  REQUIRE(share.ok());
  CHECK(share->preload == "/a.so:/b.so");
  PreparedClaim claim{*share, DriverAccess::kOwn, "/lib", {}};
  const Json env = Json::parse(MakeClaimSpec(claim, "/run"))["devices"][0]["containerEdits"]["env"];
  CHECK(std::ranges::count(env, "LD_PRELOAD=/opt/sluice/lib/libsluice.so:/a.so:/b.so") == 1);
  const auto kept = ParseAllocationFile(MakeAllocationFile(claim));
  REQUIRE(kept.ok());
  CHECK(kept->share.preload == "/a.so:/b.so");
  for (const Json& wrong :
       {Json(""), Json(7), Json("$HOME/a.so"), Json("a\nb"), Json("/a\"b"), Json(std::string(5000, 'a'))}) {
    CAPTURE(wrong);
    config = Json::array({Opaque({{"preload", wrong}})});
    CHECK_THAT(Why(Read(object)), ContainsSubstring("claim-config") && ContainsSubstring("preload: '") &&
                                      ContainsSubstring("accepted: paths of libraries"));
  }
  config = Json::array({Opaque({{"preload", "/a.so"}}), Opaque({{"preload", "/other.so"}})});
  config[1]["requests"] = {"another"};
  CHECK(Read(object)->preload == "/a.so");
}

TEST_CASE("a claim that the webhook made names its container") {
  Json object = MakeClaim({"c", "uid-1", {"gpu-a"}, "20Gi", "25"});
  CHECK(Read(object)->container.empty());
  Json& annotation = object["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"];
  annotation = "sluice-main";
  const auto share = Read(object);
  CHECK(share->container == "main");
  CHECK(ParseAllocationFile(MakeAllocationFile({*share, DriverAccess::kOwn, "/lib", {}}))->share.container == "main");
  annotation = "gpu";
  CHECK(Read(object)->container.empty());
  annotation = "sluice-" + std::string(56, 'n');  // it may have been cut
  CHECK(Read(object)->container.empty());
}

}  // namespace
}  // namespace sluice::deviceplugin::dra
