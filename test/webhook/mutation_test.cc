// Invariants of the decision on 10,000 randomly changed golden pods (seeded), on hostile pods, and on real ones.
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include "golden.h"
#include "sluice/names.h"
#include "webhook/decision/convert.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/review.h"
#include "webhook/decision/validate.h"

namespace {

using namespace sluice::webhook;        // NOLINT(google-build-using-namespace): the library under test
using namespace sluice::webhook::test;  // NOLINT(google-build-using-namespace)

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}
  size_t Below(size_t n) { return random_() % n; }

  void Mutate(Json& pod) {
    for (size_t n = 1 + Below(3); n > 0; --n) {
      if (Below(3) == 0) {
        Annotate(pod);
      } else {
        Step(pod, 0);
      }
    }
  }

 private:
  void Annotate(Json& pod) {
    static const std::vector<std::string> keys = {"gpu-fraction",  "gpu-memory", "memory-limit", "memory-factor",
                                                  "prefetch",      "inject",     "injected",     "placement",
                                                  "compute-limit", "nonsense",   "granted",      ""};
    static const std::vector<std::string> values = {"0.5", "1",   "2",   "10Gi",     "false", "off",
                                                    "",    "100", "1e3", "\xc3\xa9", "{}"};
    if (!pod.is_object()) return;
    Json& metadata = pod["metadata"];
    if (!metadata.is_object()) return;
    Json& annotations = metadata["annotations"];
    if (!annotations.is_object()) annotations = Json::object();
    const std::string& key = keys[Below(keys.size())];
    const std::string name =
        Below(3) == 0 ? key + ".sluice.dev/" + (Below(2) == 0 ? "trainer" : "app") : "sluice.dev/" + key;
    annotations[name] = values[Below(values.size())];
  }

  Json Value() {
    switch (Below(9)) {
      case 0:
        return nullptr;
      case 1:
        return true;
      case 2:
        return -1;
      case 3:
        return 18446744073709551615ULL;
      case 4:
        return std::string(Below(300), 'x');
      case 5:
        return Json::array({1, "a", nullptr});
      case 6:
        return Json{{"name", "trainer"}, {"value", "/opt/sluice/lib/libsluice.so"}};
      case 7:
        return Json{{"limits", {{SLUICE_RESOURCE, Below(2) == 0 ? Json("50") : Json(1.5)}}}};
      default:
        return "sluice.dev";
    }
  }

  void Step(Json& at, int depth) {
    if (at.is_structured() && !at.empty() && (depth < 2 || Below(3) > 0)) {
      auto it = at.begin();
      std::advance(it, Below(at.size()));
      if (Below(6) == 0) {
        at.erase(it);
      } else if (at.is_array() && Below(5) == 0) {
        Json copy = *it;
        at.push_back(std::move(copy));
      } else {
        Step(*it, depth + 1);
      }
      return;
    }
    at = Value();
  }

  std::mt19937 random_;
};

// Takes the webhook's entries from a list of claims, and a list that holds no others.
void DropOwnClaims(Json& object, const char* name) {
  const auto list = object.find(name);
  if (list == object.end()) return;
  Json kept = Json::array();
  for (const Json& entry : list->is_array() ? *list : Json::array()) {
    const bool is_ours = entry.is_object() && entry.value("name", Json("")).is_string() &&
                         entry.value("name", "").starts_with("sluice-");
    if (!is_ours) kept.push_back(entry);
  }
  object[name] = kept;
  if (kept.empty()) object.erase(name);
}

// The pod without the fields that sluice may change.
Json Stripped(Json pod) {
  if (auto m = pod.find("metadata"); m != pod.end() && m->is_object()) {
    if (auto a = m->find("annotations"); a != m->end() && a->is_object()) {
      a->erase("sluice.dev/injected");
      a->erase("sluice.dev/placement");
      a->erase("sluice.dev/granted");
      // Where shares are claims, a size in units becomes an annotation.
      for (auto entry = a->begin(); entry != a->end();) {
        const bool is_size = entry.key().starts_with("gpu-") && entry.key().find(".sluice.dev/") != std::string::npos;
        entry = is_size ? a->erase(entry) : std::next(entry);
      }
      if (a->empty()) m->erase("annotations");
    } else if (a != m->end() && a->is_null()) {
      m->erase("annotations");
    }
    if (m->empty()) pod.erase("metadata");
  } else if (m != pod.end() && m->is_null()) {
    pod.erase("metadata");
  }
  pod["spec"].erase("runtimeClassName");
  DropOwnClaims(pod["spec"], "resourceClaims");
  const auto scheduler = pod["spec"].find("schedulerName");
  if (scheduler != pod["spec"].end() && (*scheduler == "sluice-scheduler" || *scheduler == "default-scheduler" ||
                                         *scheduler == "" || scheduler->is_null())) {
    pod["spec"].erase(scheduler);
  }
  for (const char* list : {"containers", "initContainers"}) {
    if (!pod["spec"].contains(list) || !pod["spec"][list].is_array()) continue;
    for (Json& c : pod["spec"][list]) {
      Json kept = Json::array();
      if (c.contains("env") && c["env"].is_array()) {
        for (const Json& e : c["env"]) {
          const std::string name = e.value("name", Json("")).is_string() ? e.value("name", "") : "";
          const bool is_ours = name == "LD_PRELOAD" || name == "NVIDIA_VISIBLE_DEVICES" || name.starts_with("SLUICE_");
          if (!is_ours) kept.push_back(e);
        }
      }
      c["env"] = kept;
      if (!c.contains("resources") || !c["resources"].is_object()) c["resources"] = Json::object();
      DropOwnClaims(c["resources"], "claims");
      for (const char* which : {"limits", "requests"}) {
        Json& quantities = c["resources"][which];
        if (quantities.is_null()) quantities = Json::object();
        quantities.erase(SLUICE_RESOURCE);
      }
    }
  }
  return pod;
}

}  // namespace

TEST_CASE("each of 10,000 mutated pods gets an answer; patches are idempotent and change nothing unrelated") {
  std::vector<GoldenCase> cases;
  for (const std::string& path : FindCases(SLUICE_TEST_GOLDEN)) {
    GoldenCase c = LoadCase(path);
    if (c.documents.size() == 1 && c.documents[0].value("kind", "") == "Pod") cases.push_back(std::move(c));
  }
  REQUIRE(cases.size() > 50);
  Mutator mutator(7);
  size_t patched = 0, denied = 0, nothing = 0, malformed = 0;
  for (int i = 0; i < 10000; ++i) {
    const GoldenCase& c = cases[mutator.Below(cases.size())];
    Json pod = c.documents[0];
    mutator.Mutate(pod);
    const Decision d = Decide({pod, c.name_space, c.config, c.nodes});
    INFO(pod.dump());
    INFO(d.patch);
    if (d.verdict == Verdict::kDeny) {
      ++denied;
      REQUIRE(!d.Message().empty());
      REQUIRE(d.patch.empty());
      for (const Finding& f : d.denials) malformed += f.rule == Rule::kMalformed ? 1 : 0;
    } else if (d.verdict == Verdict::kPatch) {
      ++patched;
      const Json result = d.patch.empty() ? pod : pod.patch(Json::parse(d.patch));
      REQUIRE(IsHandled(result));
      REQUIRE(ConcernsSluice(pod, c.config.aliases));
      const Decision again = Decide({result, c.name_space, c.config, c.nodes});
      INFO(again.Message());
      REQUIRE(again.verdict == Verdict::kPatch);
      REQUIRE(again.patch.empty());
      const Conversion taken = c.config.aliases ? ConvertAliases(pod, ConversionScope::kAdmission) : Conversion();
      REQUIRE(Stripped(result) == Stripped(taken.has_changes ? taken.pod : pod));
    } else {
      ++nothing;
      REQUIRE(d.patch.empty());
    }
    const Json review = {{"apiVersion", "admission.k8s.io/v1"},
                         {"kind", "AdmissionReview"},
                         {"request",
                          {{"uid", "u"},
                           {"operation", "CREATE"},
                           {"namespace", c.name_space},
                           {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
                           {"object", pod}}}};
    const Answer answer = Review(Path::kMutate, review.dump(), c.config, c.nodes);
    REQUIRE((answer.status == 200 || pod.is_null()));
  }
  std::cout << patched << " patched, " << denied << " denied (" << malformed << " malformed), " << nothing
            << " unchanged\n";
  CHECK(patched > 1000);
  CHECK(denied > 1000);
  CHECK(nothing > 100);
}

// The API server asks the webhook before it validates a pod, so any user who may create pods chooses the input.
TEST_CASE("hostile pods are decided in bounded time, with a short message") {
  const auto decide = [](const Json& pod) { return Decide({pod, "team-a", {}, {}}); };
  const auto container = [](const std::string& name, const char* units) {
    return Json{{"name", name}, {"resources", {{"limits", {{SLUICE_RESOURCE, units}}}}}};
  };
  Json large = {{"spec", {{"containers", Json::array()}, {"initContainers", Json::array()}}}};
  for (int i = 0; i < 5000; ++i) {
    large["spec"]["initContainers"].push_back(container("i" + std::to_string(i), "200"));
    large["spec"]["containers"].push_back(container("c" + std::to_string(i), "200"));
  }
  CHECK(decide(large).Message().find("too many containers") != std::string::npos);

  Json wrong = {{"metadata", {{"annotations", Json::object()}}}, {"spec", {{"containers", Json::array()}}}};
  for (int i = 0; i < 900; ++i) wrong["spec"]["containers"].push_back(container("c" + std::to_string(i), "1.5"));
  for (int i = 0; i < 20000; ++i) {
    wrong["metadata"]["annotations"]["gpu-fraction.sluice.dev/n" + std::to_string(i)] = "x" + std::to_string(i);
    wrong["metadata"]["annotations"]["sluice.dev/k" + std::to_string(i)] = "x";
  }
  const Decision d = decide(wrong);
  CHECK(d.verdict == Verdict::kDeny);
  CHECK(d.denials.size() == 20);
  CHECK(d.Message().ends_with("there may be more errors"));
  CHECK(d.Message().size() < 20000);

  // A message that names all containers, for each of many annotations.
  Json named = {{"metadata", {{"annotations", Json::object()}}}, {"spec", {{"containers", Json::array()}}}};
  for (int i = 0; i < 1000; ++i) {
    named["spec"]["containers"].push_back({{"name", std::to_string(i) + std::string(59, 'n')}});
    named["metadata"]["annotations"]["gpu-fraction.sluice.dev/x" + std::to_string(i)] = "0.5";
  }
  CHECK(decide(named).verdict == Verdict::kDeny);
  CHECK(decide(named).Message().size() < 100'000);
  named["spec"]["containers"][0]["name"] = std::string(2'000'000, 'n');
  CHECK(decide(named).Message().starts_with("spec.containers[0].name: this field is too long"));

  // A claim's settings and requests.
  Json many = {{"apiVersion", "resource.k8s.io/v1"}, {"kind", "ResourceClaim"}};
  for (int i = 0; i < 30000; ++i) {
    const std::string name = "r" + std::to_string(i);
    many["spec"]["devices"]["requests"].push_back({{"name", name}, {"exactly", {{"deviceClassName", "sluice.dev"}}}});
    many["spec"]["devices"]["config"][0]["requests"].push_back("x" + name);
  }
  many["spec"]["devices"]["config"][0]["opaque"] = {{"driver", "sluice.dev"}, {"parameters", Json::object()}};
  CHECK(ValidateTemplate(nullptr, {many, "team-a", {}, {}}).Message().find("30000 entries") != std::string::npos);

  // Many volumes and many mounts: no check compares all of them with all others.
  const auto one = [] {
    return Json{{"metadata", {{"annotations", {{"sluice.dev/gpu-fraction", "0.5"}}}}},
                {"spec", {{"containers", {{{"name", "a"}}}}}}};
  };
  Json mounted = one();
  for (int i = 0; i < 30000; ++i) {
    mounted["spec"]["volumes"].push_back({{"name", "v" + std::to_string(i)}, {"hostPath", {{"path", "/data"}}}});
    mounted["spec"]["containers"][0]["volumeMounts"].push_back({{"name", "v29999"}, {"mountPath", "/x"}});
  }
  CHECK(decide(mounted).verdict == Verdict::kPatch);
  mounted["spec"]["volumes"][29999]["hostPath"]["path"] = "/dev";
  CHECK(decide(mounted).verdict == Verdict::kDeny);

  // A pod that would take the API server or a decision too long is denied with the number.
  Json varied = one(), claimed = one(), placed = one();
  for (int i = 0; i < 10001; ++i) {
    varied["spec"]["containers"][0]["env"].push_back({{"name", "NVIDIA_VISIBLE_DEVICES"}, {"value", "all"}});
    claimed["spec"]["resourceClaims"].push_back({{"name", "c" + std::to_string(i)}});
    placed["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        .push_back({{"matchExpressions", {{{"key", "a"}, {"operator", "Exists"}}}}});
  }
  CHECK(decide(varied).Message().find("spec.containers.env: the pod has too many") == 0);
  CHECK(decide(claimed).Message().find("spec.resourceClaims: the pod has too many") == 0);
  CHECK(decide(placed).Message().find("spec.affinity.nodeAffinity: the pod has too many") == 0);

  // Many GPUs and many containers: a decision visits the nodes once.
  Json wide = {{"metadata", {{"annotations", Json::object()}}}, {"spec", {{"containers", Json::array()}}}};
  Nodes nodes;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "n" + std::to_string(i);
    nodes[name] = {
        name, {{"pool", name}}, std::vector<Gpu>(8, {i % 2 == 0 ? "NVIDIA A" : "NVIDIA B", uint64_t{24} << 30})};
  }
  for (int i = 0; i < 1000; ++i) {
    wide["spec"]["containers"].push_back({{"name", "c" + std::to_string(i)}});
    wide["metadata"]["annotations"]["gpu-memory.sluice.dev/c" + std::to_string(i)] = std::to_string(25 + i) + "Gi";
  }
  const Decision table = Decide({wide, "team-a", {}, nodes});
  CHECK(table.verdict == Verdict::kDeny);
  CHECK(table.Message().size() < 20000);  // each model once
}

TEST_CASE("pods of real projects are decided, and their patches are idempotent") {
  const std::filesystem::path folder = SLUICE_TEST_REAL_PODS;
  if (!std::filesystem::exists(folder)) SKIP("no folder of real pods at " + folder.string());
  size_t count = 0;
  for (const std::string& path : FindCases(folder)) {
    std::string error;
    const auto documents = ReadManifests(ReadFile(path), error);
    INFO(path << ": " << error);
    if (error.find("occurs twice") != std::string::npos) continue;  // one project's own error
    REQUIRE(documents);
    for (const Json& pod : *documents) {
      for (const bool aliases : {false, true}) {
        Config config;
        config.aliases = aliases;
        const Decision d = Decide({pod, "team-a", config, {}});
        INFO(d.Message());
        if (!ConcernsSluice(pod, aliases)) CHECK(d.verdict == Verdict::kNothing);  // visibleDevices only warns
        if (!aliases && d.verdict == Verdict::kNothing) {
          // The same pod with an annotation for its first container.
          Json mine = pod;
          const std::string name = pod["spec"]["containers"][0]["name"];
          mine["metadata"]["annotations"]["gpu-fraction.sluice.dev/" + name] = "0.3";
          const Decision given = Decide({mine, "team-a", config, {}});
          INFO(given.Message());
          if (given.verdict == Verdict::kPatch) {
            const Json result = mine.patch(Json::parse(given.patch));
            CHECK(Decide({result, "team-a", config, {}}).patch.empty());
            CHECK(Stripped(result) == Stripped(mine));
          } else {
            // Windows pods, whole GPUs, claims, LD_PRELOAD with valueFrom and access to the host are denied.
            CHECK(given.verdict == Verdict::kDeny);
            for (const Finding& f : given.denials) {
              CHECK((f.rule == Rule::kWindows || f.rule == Rule::kForeignGpu || f.rule == Rule::kPreloadValueFrom ||
                     f.rule == Rule::kResourceClaim || f.rule == Rule::kPrivileged));
            }
            // None of the last is denied where the administrator allows it.
            config.privileged = config.resource_claims = Reaction::kWarn;
            for (const Finding& f : Decide({mine, "team-a", config, {}}).denials) {
              CHECK((f.rule != Rule::kResourceClaim && f.rule != Rule::kPrivileged));
            }
          }
        }
        ++count;
      }
    }
  }
  CHECK(count >= 116);
}
