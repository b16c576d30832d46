// A manifest that is applied again must not change the pod that runs.
#include "webhook/decision/reapply.h"

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "webhook/decision/decision.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/review.h"

namespace {

using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): the library under test

struct Applied {
  Json manifest;
  Json running;  // after admission
  Config config;
};

Applied Apply(const std::string& yaml, const Config& config = {}) {
  std::string error;
  Applied out{ReadManifests(yaml, error).value().at(0), {}, config};
  const Decision d = Decide({out.manifest, "team-a", config, {}});
  INFO(d.Message());
  REQUIRE(d.verdict == Verdict::kPatch);
  out.running = out.manifest.patch(Json::parse(d.patch));
  out.running["spec"]["nodeName"] = "n1";  // as the scheduler's binding sets it
  return out;
}

// The API server's merge of the second apply, before it calls webhooks: the manifest's fields win.
Json Merged(const Applied& a, const Json& manifest) {
  Json out = a.running;
  for (const char* list : {"containers", "initContainers"}) {
    if (!manifest["spec"].contains(list)) continue;
    for (size_t i = 0; i < manifest["spec"][list].size(); ++i) {
      for (const auto& [key, value] : manifest["spec"][list][i].items()) {
        if (key != "env" && key != "resources") out["spec"][list][i][key] = value;
      }
      if (manifest["spec"][list][i].contains("resources")) {
        out["spec"][list][i]["resources"].merge_patch(manifest["spec"][list][i]["resources"]);
      }
      if (!manifest["spec"][list][i].contains("env")) continue;
      for (const Json& entry : manifest["spec"][list][i]["env"]) {
        Json& env = out["spec"][list][i]["env"];
        bool found = false;
        for (Json& e : env) {
          if (e["name"] != entry["name"]) continue;
          e = entry;
          found = true;
        }
        if (!found) env.insert(env.begin(), entry);
      }
    }
  }
  if (manifest["spec"].contains("schedulerName")) out["spec"]["schedulerName"] = manifest["spec"]["schedulerName"];
  return out;
}

Json AfterWebhook(const Applied& a, const Json& merged, const Config& config) {
  const std::string patch = KeepInjected(a.running, {merged, "team-a", config, {}});
  INFO(patch);
  return patch.empty() ? merged : merged.patch(Json::parse(patch));
}

void CheckUnchanged(const Applied& a) {
  const Json merged = Merged(a, a.manifest);
  CHECK(AfterWebhook(a, merged, a.config)["spec"] == a.running["spec"]);
}

constexpr char kPod[] = R"(
kind: Pod
metadata: {name: p, annotations: {sluice.dev/gpu-fraction: "0.5"}}
spec:
  schedulerName: default-scheduler
  containers:
  - name: main
    image: a
    env:
    - {name: FIRST, value: "1"}
    - {name: LD_PRELOAD, value: /usr/lib/libjemalloc.so.2}
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: LAST, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
)";

}  // namespace

TEST_CASE("a second apply of the same manifest changes nothing") {
  CheckUnchanged(Apply(kPod));
  Config config;
  config.scheduler_name = "sluice-scheduler";
  const Applied a = Apply(kPod, config);
  REQUIRE(a.running["spec"]["schedulerName"] == "sluice-scheduler");
  REQUIRE(Merged(a, a.manifest)["spec"] != a.running["spec"]);  // the case is one that the API server refuses
  CheckUnchanged(a);
  // The variable of another container, which was made void.
  CheckUnchanged(Apply(R"(
kind: Pod
metadata: {name: p, annotations: {gpu-fraction.sluice.dev/main: "0.5"}}
spec:
  initContainers: [{name: first, image: a, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]
  containers: [{name: main, image: a}, {name: other, image: b, env: [{name: NVIDIA_VISIBLE_DEVICES, value: "0"}]}]
)"));
}

TEST_CASE("an apply of another size keeps the running share") {
  for (const bool resized_before : {false, true}) {
    Applied a = Apply(kPod);
    Json manifest = a.manifest;
    manifest["metadata"]["annotations"]["sluice.dev/gpu-fraction"] = "0.7";
    if (resized_before) a.running["metadata"]["annotations"]["sluice.dev/gpu-fraction"] = "0.6";
    Json merged = Merged(a, manifest);
    REQUIRE(merged["spec"] != a.running["spec"]);
    merged["metadata"]["annotations"]["sluice.dev/gpu-fraction"] = "0.7";
    CHECK(AfterWebhook(a, merged, {})["spec"] == a.running["spec"]);
    // Units that the manifest itself gives are the user's, for the API server to judge.
    merged["spec"]["containers"][0]["resources"]["limits"]["sluice.dev/gpu-percent"] = "70";
    merged["spec"]["containers"][0]["resources"]["requests"]["sluice.dev/gpu-percent"] = "70";
    CHECK(AfterWebhook(a, merged, {})["spec"]["containers"][0]["resources"] ==
          merged["spec"]["containers"][0]["resources"]);
  }
}

TEST_CASE("a second apply of another system's form changes nothing") {
  Config config;
  config.aliases = true;
  config.assumed_gpu_memory = uint64_t{80} << 30;
  const Applied a = Apply(R"(
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: a, resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "8000"}}}]
)",
                          config);
  REQUIRE(!a.running["spec"]["containers"][0]["resources"]["limits"].contains("nvidia.com/gpumem"));
  CheckUnchanged(a);
}

TEST_CASE("a setting that became stricter does not stop a second apply") {
  Config lenient;
  lenient.privileged = Reaction::kAllow;
  std::string yaml = kPod;
  Applied a = Apply(yaml + "    securityContext: {privileged: true}\n", lenient);
  a.config.privileged = Reaction::kDeny;
  CheckUnchanged(a);
}

TEST_CASE("a real change of the pod stays, for the API server to judge") {
  const Applied a = Apply(kPod);
  Json changed = a.manifest;
  changed["spec"]["containers"][0]["env"][1]["value"] = "/usr/lib/libtcmalloc.so.4";
  const Json merged = Merged(a, changed);
  CHECK(AfterWebhook(a, merged, {})["spec"]["containers"][0]["env"] != a.running["spec"]["containers"][0]["env"]);
  // A new image is accepted by the API server, beside the old preload.
  changed = a.manifest;
  changed["spec"]["containers"][0]["image"] = "b";
  Json wanted = a.running["spec"];
  wanted["containers"][0]["image"] = "b";
  CHECK(AfterWebhook(a, Merged(a, changed), {})["spec"] == wanted);
}

TEST_CASE("the review of an update answers with the patch") {
  const Applied a = Apply(kPod);
  Json review = {{"apiVersion", "admission.k8s.io/v1"},
                 {"kind", "AdmissionReview"},
                 {"request",
                  {{"uid", "u"},
                   {"operation", "UPDATE"},
                   {"namespace", "team-a"},
                   {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
                   {"object", Merged(a, a.manifest)},
                   {"oldObject", a.running}}}};
  Answer answer = Review(Path::kMutate, review.dump(), {}, {});
  CHECK(answer.outcome == Answer::Outcome::kPatched);
  CHECK(Json::parse(answer.body)["response"]["allowed"] == true);
  review["request"]["object"] = a.running;
  CHECK(Review(Path::kMutate, review.dump(), {}, {}).outcome == Answer::Outcome::kNothing);
  review["request"].erase("oldObject");
  CHECK(Review(Path::kMutate, review.dump(), {}, {}).status == 400);
}

TEST_CASE("a second apply of a pod whose share is a claim changes nothing") {
  Config config;
  config.share_by = ShareBy::kClaims;
  for (const char* share : {R"(annotations: {sluice.dev/gpu-memory: 4Gi, sluice.dev/gpu-count: "2"}})",
                            R"(annotations: {gpu-fraction.sluice.dev/main: "1", gpu-memory.sluice.dev/next: 1Gi}})"}) {
    const bool has_two = std::string(share).find("next") != std::string::npos;
    const Applied a =
        Apply(std::string("kind: Pod\nmetadata: {name: p, ") + share + "\nspec: {containers: [{name: main, image: a}" +
                  (has_two ? ", {name: next, image: b}]}" : "]}"),
              config);
    REQUIRE(a.running["spec"]["resourceClaims"].size() == (has_two ? 2 : 1));
    CheckUnchanged(a);
    // A client that replaces the whole object loses the entries.
    Json replaced = a.running;
    replaced["spec"].erase("resourceClaims");
    CHECK(AfterWebhook(a, replaced, config)["spec"] == a.running["spec"]);
    // Other cards in the cluster would give other templates now.
    Nodes nodes;
    nodes["n1"] = {"n1", {}, {}, {80995, 80995}};
    nodes["n2"] = {"n2", {}, {}, {143156, 143156}};
    const std::string patch = KeepInjected(a.running, {replaced, "team-a", config, nodes});
    REQUIRE(!patch.empty());
    CHECK(replaced.patch(Json::parse(patch))["spec"] == a.running["spec"]);
    // An entry of the user's own is for the API server to judge.
    replaced["spec"]["resourceClaims"] = Json::array({{{"name", "mine"}, {"resourceClaimName", "mine"}}});
    CHECK(AfterWebhook(a, replaced, config)["spec"]["resourceClaims"] == replaced["spec"]["resourceClaims"]);
  }
  // Units that the manifest asks for, and that the running pod has as a claim.
  const Applied units = Apply(R"(
kind: Pod
metadata: {name: p}
spec: {containers: [{name: main, image: a, resources: {limits: {sluice.dev/gpu-percent: "100", memory: 1Gi}}}]}
)",
                              config);
  REQUIRE(!units.running["spec"]["containers"][0]["resources"]["limits"].contains("sluice.dev/gpu-percent"));
  CheckUnchanged(units);
}
