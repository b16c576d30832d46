// Units in pod templates, as queues count them.
#include "webhook/decision/template_units.h"

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "webhook/decision/base64.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/review.h"
#include "webhook/decision/validate.h"

namespace {

using namespace sluice::webhook;  // NOLINT(google-build-using-namespace): the library under test

constexpr char kUnits[] = "sluice.dev/gpu-percent";

Json Read(const std::string& yaml) {
  std::string error;
  const auto documents = ReadManifests(yaml, error);
  INFO(error);
  REQUIRE(documents);
  return documents->at(0);
}

struct Cluster {
  Config config;
  Nodes nodes;

  // The workload as the API server stores it after /mutate and /validate; the test fails where that denies.
  Json Stored(const Json& workload, const Json* old = nullptr) const {
    const TemplateUnits units = GiveTemplateUnits(old, {workload, "team-a", config, nodes, Mode::kTemplate});
    const Json out = units.patch.empty() ? workload : workload.patch(Json::parse(units.patch));
    const ValidationResult valid = ValidateTemplate(old, {out, "team-a", config, nodes, Mode::kTemplate});
    INFO(valid.Message());
    REQUIRE(valid.denials.empty());
    return out;
  }

  // The pod that a controller makes of the template.
  Json PodOf(const Json& workload, const std::string& pointer) const {
    const Json pod = workload[Json::json_pointer(pointer)];
    const Decision d = Decide({pod, "team-a", config, nodes});
    INFO(d.Message());
    REQUIRE(d.verdict == Verdict::kPatch);
    return pod.patch(Json::parse(d.patch));
  }
};

Json Job(const std::string& annotations, const std::string& resources = "{requests: {cpu: 1, memory: 200Mi}}") {
  return Read(
      "{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {suspend: true, template: {metadata: "
      "{annotations: {" +
      annotations + "}}, spec: {containers: [{name: main, image: a, resources: " + resources + "}]}}}}");
}

const Json& Resources(const Json& workload, const std::string& pointer = "/spec/template", size_t container = 0) {
  return workload[Json::json_pointer(pointer)]["spec"]["containers"][container]["resources"];
}

Json Amount(const Json& workload, const std::string& list = "requests", const std::string& pointer = "/spec/template") {
  const Json& resources = Resources(workload, pointer);
  return resources.contains(list) && resources[list].contains(kUnits) ? resources[list][kUnits] : Json();
}

TEST_CASE("a Job's template has the units that its pods get") {
  const Cluster cluster;
  const Json job = Job(R"(sluice.dev/gpu-fraction: "0.5")");
  const Json stored = cluster.Stored(job);
  CHECK(Amount(stored) == "50");
  CHECK(Amount(stored, "limits") == "50");
  CHECK(Resources(stored)["requests"]["memory"] == "200Mi");
  CHECK_FALSE(Resources(job).contains("limits"));  // the fault that it mends: queues saw none
  // Only units and marker: variables would be the pods', of the webhook that runs when they start.
  CHECK_FALSE(stored["spec"]["template"]["spec"]["containers"][0].contains("env"));
  CHECK_FALSE(stored["spec"]["template"]["spec"].contains("schedulerName"));
  CHECK(cluster.Stored(stored) == stored);

  const Json pod = cluster.PodOf(stored, "/spec/template");
  const Json plain = cluster.PodOf(job, "/spec/template");
  CHECK(pod["spec"] == plain["spec"]);
  CHECK(IsHandled(pod));
  CHECK_FALSE(IsHandled(stored["spec"]["template"]));  // during an outage the policy denies the pod
}

TEST_CASE("templates of other projects' workloads have units") {
  const Cluster cluster;
  const Json set = Read(R"(
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: s}
spec:
  replicatedJobs:
  - name: workers
    template:
      spec:
        template:
          metadata: {annotations: {gpu-fraction.sluice.dev/trainer: "0.25"}}
          spec: {containers: [{name: trainer, image: a}, {name: logs, image: b}]}
  - name: driver
    template: {spec: {template: {spec: {containers: [{name: main, image: a}]}}}}
)");
  const Json stored = cluster.Stored(set);
  const std::string workers = "/spec/replicatedJobs/0/template/spec/template";
  CHECK(Amount(stored, "requests", workers) == "25");
  CHECK_FALSE(stored[Json::json_pointer(workers)]["spec"]["containers"][1].contains("resources"));
  CHECK(stored["spec"]["replicatedJobs"][1] == set["spec"]["replicatedJobs"][1]);
  CHECK(cluster.PodOf(stored, workers)["spec"] == cluster.PodOf(set, workers)["spec"]);
}

TEST_CASE("templates that ask for no share, or name it themselves, stay as they are") {
  const Cluster cluster;
  for (const Json& job : {Job(""), Job(R"(sluice.dev/inject: "false", sluice.dev/gpu-fraction: "0.5")"),
                          Job(R"(sluice.dev/gpu-fraction: "0.5")",
                              "{limits: {sluice.dev/gpu-percent: 50}, requests: {sluice.dev/gpu-percent: 50}}")}) {
    CHECK(cluster.Stored(job) == job);
  }
  const Json wrong = Job(R"(sluice.dev/gpu-fraction: "1.5")");
  CHECK(GiveTemplateUnits(nullptr, {wrong, "team-a", cluster.config, {}, Mode::kTemplate}).patch.empty());
  const Json job = Job(R"(sluice.dev/gpu-fraction: "0.5")");
  CHECK(GiveTemplateUnits(nullptr, {job, "kube-system", cluster.config, {}, Mode::kTemplate}).patch.empty());
}

TEST_CASE("units by gpu-memory follow the GPUs that are there when the pod starts") {
  Cluster cluster;
  const Json job = Job("sluice.dev/gpu-memory: 10Gi");
  CHECK(cluster.Stored(job) == job);  // no GPU is known
  cluster.nodes["n"] = {"n", {}, {{"L4", uint64_t{20} << 30}}};
  const Json stored = cluster.Stored(job);
  CHECK(Amount(stored) == "50");
  cluster.nodes["n"] = {"n", {}, {{"A100", uint64_t{40} << 30}}};
  CHECK(cluster.PodOf(stored, "/spec/template")["spec"]["containers"][0]["resources"]["limits"][kUnits] == "25");
}

TEST_CASE("an update keeps, renews and never invents units") {
  const Cluster cluster;
  const Json half = Job(R"(sluice.dev/gpu-fraction: "0.5")");
  const Json stored = cluster.Stored(half);
  SECTION("a workload that is older than this webhook gets no rollout") {
    Json scaled = half;
    scaled["spec"]["parallelism"] = 3;
    CHECK(cluster.Stored(scaled, &half) == scaled);
  }
  SECTION("a manifest that replaces the template gets the same units again") {
    CHECK(cluster.Stored(half, &stored) == stored);
  }
  SECTION("a changed size changes the units") {
    Json quarter = stored;
    quarter["spec"]["template"]["metadata"]["annotations"]["sluice.dev/gpu-fraction"] = "0.25";
    const Json now = cluster.Stored(quarter, &stored);
    CHECK(Amount(now) == "25");
    CHECK(Amount(now, "limits") == "25");
    CHECK(cluster.PodOf(now, "/spec/template")["spec"] ==
          cluster.PodOf(Job(R"(sluice.dev/gpu-fraction: "0.25")"), "/spec/template")["spec"]);
  }
  SECTION("a size in an older workload, or in a new template, gives units") {
    const Json plain = Job("");
    CHECK(Amount(cluster.Stored(half, &plain)) == "50");
    Json old = half;
    old["spec"].erase("template");
    CHECK(Amount(cluster.Stored(half, &old)) == "50");
  }
  SECTION("a resource that the user wrote beside another size is still denied") {
    const Json own = Job(R"(sluice.dev/gpu-fraction: "0.25")", "{limits: {sluice.dev/gpu-percent: 50}}");
    CHECK(GiveTemplateUnits(&half, {own, "team-a", cluster.config, {}, Mode::kTemplate}).patch.empty());
    CHECK_FALSE(ValidateTemplate(&half, {own, "team-a", cluster.config, {}, Mode::kTemplate}).denials.empty());
  }
}

TEST_CASE("an update may turn a list into an object") {
  const Cluster cluster;
  const char* const key = "99999999999999999999999999";  // no index, and a number that no integer holds
  Json old = Read("{apiVersion: example.org/v1, kind: Training, metadata: {name: t}, spec: {parts: [{a: b}]}}");
  Json now = old;
  now["spec"]["parts"] = {{key, Job(R"(sluice.dev/gpu-fraction: "0.5")")["spec"]["template"]}};
  const Json stored = cluster.Stored(now, &old);
  CHECK(Amount(stored, "limits", std::string("/spec/parts/") + key) == "50");
}

TEST_CASE("other systems' sizes become sluice's in a template") {
  Cluster cluster;
  cluster.config.aliases = true;
  cluster.config.assumed_gpu_memory = uint64_t{80} << 30;
  const Json job = Job("", "{limits: {cpu: 4, nvidia.com/gpu: 1, nvidia.com/gpumem: 8000}}");
  const Json stored = cluster.Stored(job);
  CHECK(Amount(stored, "limits") == "10");
  CHECK_FALSE(Resources(stored)["limits"].contains("nvidia.com/gpumem"));
  CHECK(cluster.Stored(stored) == stored);
  CHECK(cluster.PodOf(stored, "/spec/template")["spec"] == cluster.PodOf(job, "/spec/template")["spec"]);
}

TEST_CASE("the server answers a workload at /mutate with the units' patch") {
  const Cluster cluster;
  const auto review = [&](const Json& job, const Json& old, const char* sub_resource) {
    const Json request = {{"uid", "u"},
                          {"operation", old.is_null() ? "CREATE" : "UPDATE"},
                          {"namespace", "team-a"},
                          {"subResource", sub_resource},
                          {"resource", {{"group", "batch"}, {"version", "v1"}, {"resource", "jobs"}}},
                          {"object", job},
                          {"oldObject", old}};
    const Json body = {{"apiVersion", "admission.k8s.io/v1"}, {"kind", "AdmissionReview"}, {"request", request}};
    return Review(Path::kMutate, body.dump(), cluster.config, cluster.nodes);
  };
  const Json job = Job(R"(sluice.dev/gpu-fraction: "0.5")");
  const Answer answer = review(job, nullptr, "");
  CHECK(answer.outcome == Answer::Outcome::kPatched);
  const Json response = Json::parse(answer.body)["response"];
  CHECK(response["patch"] ==
        Base64(GiveTemplateUnits(nullptr, {job, "team-a", cluster.config, {}, Mode::kTemplate}).patch));
  CHECK(answer.log.find("50 percent by sluice.dev/gpu-fraction") != std::string::npos);
  CHECK(review(job, job, "").outcome == Answer::Outcome::kNothing);
  CHECK(review(job, nullptr, "status").outcome == Answer::Outcome::kNothing);
}

}  // namespace
