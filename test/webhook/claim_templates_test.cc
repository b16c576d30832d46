// ResourceClaimTemplates of annotated pods on a real API server. apiserver.py runs it.
#include "webhook/claim_templates.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include "kube_fixture.h"

namespace {

using namespace sluice::kube;        // NOLINT(google-build-using-namespace)
using namespace sluice::kube::test;  // NOLINT(google-build-using-namespace)
using Catch::Matchers::ContainsSubstring;
using sluice::webhook::ClaimTemplate;
using sluice::webhook::ClaimTemplates;

constexpr char kDefault[] = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";

// As the decision makes it for a fraction on cards of two sizes.
ClaimTemplate Template(uint64_t first) {
  sluice::webhook::ShareClaimInput input;
  input.settings.gpu_percent = 50;
  input.settings.log_level = sluice::settings::LogLevel::kInfo;
  input.cards = 2;
  input.preload = "/usr/lib/libjemalloc.so";
  input.sizes = {first, 80995};
  return sluice::webhook::MakeTemplate("default", sluice::webhook::RequestShare(input).spec);
}

std::string Path(const ClaimTemplate& t) { return std::string(kDefault) + "/" + t.name; }

}  // namespace

TEST_CASE("the API server keeps a claim template as it is written, and a second one is none") {
  ClaimTemplates templates(ByCertificate());
  Client client(ByCertificate());
  const ClaimTemplate one = Template(22563);
  CHECK(templates.Ensure("default", {one}).empty());
  const auto stored = client.Get(Path(one));
  REQUIRE(stored.ok());
  CHECK((*stored)["spec"]["spec"] == one.object["spec"]["spec"]);  // the hashed spec has all defaults
  CHECK((*stored)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "sluice");
  CHECK(templates.Ensure("default", {one, one}).empty());
  ClaimTemplates other_replica(ByCertificate());
  CHECK(other_replica.Ensure("default", {one}).empty());
  CHECK((*client.Get(Path(one)))["metadata"]["uid"] == (*stored)["metadata"]["uid"]);

  // A watch tells of the deletion.
  REQUIRE(client.Delete(Path(one)).ok());
  CHECK(Wait([&] { return templates.Ensure("default", {one}).empty() && client.Get(Path(one)).ok(); }));
}

TEST_CASE("a template of another content, and one that cannot be made, deny the pod with a sentence") {
  ClaimTemplates templates(ByCertificate());
  Client client(ByCertificate());
  ClaimTemplate forged = Template(30000);
  const ClaimTemplate wanted = forged;
  forged.object["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"].erase(1);
  REQUIRE(client.Create(kDefault, forged.object).ok());
  CHECK_THAT(templates.Ensure("default", {wanted}),
             ContainsSubstring("default/" + wanted.name) && ContainsSubstring("another client has made it"));
  ClaimTemplate elsewhere = wanted;
  elsewhere.object["metadata"]["namespace"] = "nowhere";
  CHECK_THAT(templates.Ensure("nowhere", {elsewhere}),
             ContainsSubstring("could not be created") && ContainsSubstring("not found"));
  ClientConfig away = ByCertificate();
  away.server = "https://127.0.0.1:1";
  ClaimTemplates unreachable(away);
  const auto began = std::chrono::steady_clock::now();
  CHECK_THAT(unreachable.Ensure("default", {wanted}), ContainsSubstring("could not be created"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(4));
  REQUIRE(client.Delete(Path(wanted)).ok());
  CHECK(templates.Ensure("default", {wanted}).empty());
  REQUIRE(client.Delete(Path(wanted)).ok());
}
