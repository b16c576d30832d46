// Reviews of pods whose shares are ResourceClaims: the templates exist before the pod is admitted.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include "webhook/decision/review.h"

namespace {

using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): the library under test
using Catch::Matchers::ContainsSubstring;

Json ReviewOf(const Json& pod, const char* operation = "CREATE") {
  return {{"apiVersion", "admission.k8s.io/v1"},
          {"kind", "AdmissionReview"},
          {"request",
           {{"uid", "u"},
            {"operation", operation},
            {"namespace", "team"},
            {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
            {"object", pod}}}};
}

Json Pod(const Json& annotations) {
  return {{"metadata", {{"name", "p"}, {"annotations", annotations}}},
          {"spec", {{"containers", Json::array({{{"name", "main"}, {"image", "i"}}})}}}};
}

struct Maker {
  std::vector<std::string> made;  // namespace/name
  std::string problem;
  MakeClaims Function() {
    return [this](std::string_view name_space, const std::vector<ClaimTemplate>& templates) {
      for (const ClaimTemplate& t : templates) {
        CHECK(t.object["metadata"]["name"] == t.name);
        CHECK(t.object["metadata"]["namespace"] == name_space);
        made.push_back(std::string(name_space) + "/" + t.name);
      }
      return problem;
    };
  }
};

Config ByClaims() {
  Config config;
  config.share_by = ShareBy::kClaims;
  return config;
}

Json Respond(const Json& review, const Config& config, const MakeClaims& make) {
  const Answer answer = Review(Path::kMutate, review.dump(), config, {}, make);
  REQUIRE(answer.status == 200);
  return Json::parse(answer.body)["response"];
}

const Json kTwenty = {{"sluice.dev/gpu-memory", "20Gi"}};

TEST_CASE("a pod's claim template is made before the pod is admitted") {
  Maker maker;
  const Json response = Respond(ReviewOf(Pod(kTwenty)), ByClaims(), maker.Function());
  CHECK(response["allowed"] == true);
  REQUIRE(maker.made.size() == 1);
  CHECK(maker.made[0].starts_with("team/sluice-"));
  // Equal requests have one template, others another one.
  Respond(ReviewOf(Pod(kTwenty)), ByClaims(), maker.Function());
  Respond(ReviewOf(Pod({{"sluice.dev/gpu-memory", "20480Mi"}})), ByClaims(), maker.Function());
  Respond(ReviewOf(Pod({{"sluice.dev/gpu-memory", "21Gi"}})), ByClaims(), maker.Function());
  REQUIRE(maker.made.size() == 4);
  CHECK(maker.made[1] == maker.made[0]);
  CHECK(maker.made[2] == maker.made[0]);
  CHECK(maker.made[3] != maker.made[0]);
}

TEST_CASE("no template is made for a dry run, a denied pod, an update, or a share by units") {
  Maker maker;
  Json review = ReviewOf(Pod(kTwenty));
  review["request"]["dryRun"] = true;
  CHECK(Respond(review, ByClaims(), maker.Function())["allowed"] == true);
  CHECK(Respond(ReviewOf(Pod({{"sluice.dev/gpu-memory", "none"}})), ByClaims(), maker.Function())["allowed"] == false);
  Json update = ReviewOf(Pod(kTwenty), "UPDATE");
  update["request"]["oldObject"] = Pod(kTwenty);
  CHECK(Respond(update, ByClaims(), maker.Function())["allowed"] == true);
  CHECK(Respond(ReviewOf(Pod({{"sluice.dev/gpu-fraction", "0.5"}})), {}, maker.Function())["allowed"] == true);
  CHECK(maker.made.empty());
}

TEST_CASE("a pod whose template cannot be made is denied with the reason") {
  Maker maker;
  maker.problem = "the ResourceClaimTemplate team/x could not be created: no etcd; try again";
  Json response = Respond(ReviewOf(Pod(kTwenty)), ByClaims(), maker.Function());
  CHECK(response["allowed"] == false);
  CHECK(response["status"]["message"] == maker.problem);
  CHECK_FALSE(response.contains("patch"));
  // No access to the API server at all.
  response = Respond(ReviewOf(Pod(kTwenty)), ByClaims(), {});
  CHECK(response["allowed"] == false);
  CHECK_THAT(response["status"]["message"].get<std::string>(), ContainsSubstring("no access to the API server"));
}

TEST_CASE("a stored template is the wanted one with members that the API server added, and no other") {
  const Json wanted = {{"a", {{"b", Json::array({{{"c", "1"}}})}}}};
  CHECK(IsTemplate(wanted, wanted));
  CHECK(IsTemplate(R"({"a":{"b":[{"c":"1","new":true}],"x":7},"y":[]})"_json, wanted));
  CHECK_FALSE(IsTemplate(R"({"a":{"b":[{"c":"2"}]}})"_json, wanted));
  CHECK_FALSE(IsTemplate(R"({"a":{"b":[{"c":"1"},{"c":"1"}]}})"_json, wanted));
  CHECK_FALSE(IsTemplate(R"({"a":{}})"_json, wanted));
  CHECK_FALSE(IsTemplate(R"("a")"_json, wanted));
}

TEST_CASE("an API server that drops amounts is told from another client's template") {
  ShareClaimInput input;
  input.settings.gpu_percent = 50;
  input.cards = 2;
  input.sizes = {22563, 80995};
  const Json wanted = MakeTemplate("team", RequestShare(input).spec).object["spec"];
  CHECK(TemplateProblem(wanted, wanted).empty());
  Json stored = wanted;
  for (Json& one : stored["spec"]["devices"]["requests"][0]["firstAvailable"]) one.erase("capacity");
  CHECK_THAT(TemplateProblem(stored, wanted), ContainsSubstring("DRAConsumableCapacity"));
  stored["spec"]["devices"]["requests"][0]["firstAvailable"][0]["count"] = 1;
  CHECK_THAT(TemplateProblem(stored, wanted), ContainsSubstring("another client has made it"));
  CHECK_THAT(TemplateProblem(Json(), wanted), ContainsSubstring("another client has made it"));
}

TEST_CASE("the sizes of cards are read from the driver's slices alone") {
  const auto slice = [](const char* driver) {
    return Json{{"spec",
                 {{"driver", driver},
                  {"devices", Json::array({{{"attributes", {{"memoryMiB", {{"int", 80995}}}}}},
                                           {{"attributes", {{"memoryMiB", {{"string", "80995"}}}}}},
                                           {{"name", "of an older driver"}},
                                           7})}}}};
  };
  CHECK(ReadSizes(slice("sluice.dev")) == std::vector<uint64_t>{80995});
  CHECK(ReadSizes(slice("other.example")).empty());
  CHECK(ReadSizes(Json()).empty());
}

}  // namespace
