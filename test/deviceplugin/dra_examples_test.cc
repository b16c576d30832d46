// Every example of a claim: the webhook accepts it, and so does the driver once it is allocated.
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "deviceplugin/dra/claim.h"
#include "deviceplugin/host/files.h"
#include "test/deviceplugin/cards_for_tests.h"
#include "test/deviceplugin/fake_api.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/validate.h"

namespace sluice::deviceplugin::dra {
namespace {

using Json = nlohmann::json;

std::vector<webhook::Finding> Judge(const Json& object) {
  const webhook::Config config;
  const webhook::Nodes nodes;
  const webhook::Input input{object, "team", config, nodes, webhook::Mode::kTemplate};
  if (object["kind"] == "Pod") return webhook::Decide(input).denials;
  return webhook::ValidateTemplate(nullptr, input).denials;
}

// The spec of a claim, or of a template's claims; nullptr: another kind.
Json* SpecOf(Json& object) {
  if (object["kind"] == "ResourceClaim") return &object["spec"];
  return object["kind"] == "ResourceClaimTemplate" ? &object["spec"]["spec"] : nullptr;
}

std::vector<Json> ReadExample(const std::filesystem::path& path) {
  std::string error;
  const auto documents = webhook::ReadManifests(*ReadFile(path.string()), error);
  INFO(path << ": " << error);
  REQUIRE(documents.has_value());
  return *documents;
}

TEST_CASE("the examples of claims are accepted, and a wrong amount or setting in them is not") {
  int claims = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_EXAMPLES)) {
    INFO(entry.path());
    for (Json& document : ReadExample(entry.path())) {
      for (const auto& denial : Judge(document)) FAIL(denial.text);
      Json* spec = SpecOf(document);
      if (spec == nullptr) continue;
      ++claims;
      // The scheduler copies the configuration into the allocation.
      ClaimOrder order{"c", "uid-1", {"gpu-a"}, "40Gi", "25", Json::array()};
      for (Json config : (*spec)["devices"].value("config", Json::array())) {
        config["source"] = "FromClaim";
        order.config.push_back(std::move(config));
      }
      Inventory inventory;
      inventory.cards = {HealthyCard("GPU-A")};
      const auto share = ReadClaim(MakeClaim(order), {"team", "c", "uid-1"}, "node-1", inventory, 0);
      INFO(share.status().message());
      CHECK(share.ok());

      (*spec)["devices"]["config"] =
          Json::array({{{"opaque", {{"driver", "sluice.dev"}, {"parameters", {{"prefetch", "never"}}}}}}});
      CHECK(Judge(document).size() == 1);
      spec->at("devices").erase("config");
      Json& request = (*spec)["devices"]["requests"][0];
      Json& exact = request.contains("exactly") ? request["exactly"] : request["firstAvailable"][0];
      exact["capacity"]["requests"]["compute"] = "101";
      CHECK(Judge(document).size() == 1);
    }
  }
  CHECK(claims == 10);
}

}  // namespace
}  // namespace sluice::deviceplugin::dra
