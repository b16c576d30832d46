#include "webhook/decision/other_systems.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/claim_patch.h"

namespace sluice::webhook {
namespace {

struct Name {
  std::string_view part;
  std::string_view system;
};
// Parts of the names of resources. The first match counts.
constexpr Name kResources[] = {
    {"nvidia.com/gpumem", "HAMi"},
    {"nvidia.com/gpucores", "HAMi"},
    {"nvidia.com/priority", "HAMi"},
    {"4paradigm.com/", "HAMi"},
    {"hami.io/", "HAMi"},
    {"nvshare.com/", "nvshare"},
    {"tencent.com/vcuda", "GPU Manager"},
    {"aliyun.com/gpu", "Aliyun"},
    {"volcano.sh/", "Volcano"},
    {"koordinator.sh/", "Koordinator"},
    {"elasticgpu.io/", "Elastic GPU"},
    {"kai.scheduler/", "KAI"},
    {"run.ai/", "Run:ai"},
    {"amd.com/", "AMD"},
    {"intel.com/", "Intel"},
};
// Libraries that intercept CUDA calls, too.
constexpr Name kLibraries[] = {{"libvgpu.so", "HAMi"},
                               {"libnvshare.so", "nvshare"},
                               {"libgemhook.so", "Gemini"},
                               {"libcuda-control.so", "GPU Manager"}};
// NVIDIA's network operator names its resources nvidia.com/... as well.
constexpr std::string_view kNetwork[] = {"hostdev",    "mlnx", "rdma", "sriov", "roce",
                                         "infiniband", "nics", "bf3",  "cx7"};
// Schedulers that give GPUs by annotations.
constexpr std::string_view kSchedulers[] = {"kai-scheduler", "runai-scheduler"};

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool IsZero(const Json& quantity) {
  const std::string text = quantity.is_string() ? quantity.get<std::string>() : quantity.dump();
  const size_t end = std::min(text.find_first_not_of("0."), text.size());
  return end > 0 && text.find_first_of("123456789") == std::string::npos;
}

}  // namespace

std::string GpuByResource(std::string_view resource) {
  const size_t slash = resource.find('/');
  if (slash == std::string_view::npos) return {};
  std::string name(resource);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string domain = name.substr(0, slash);
  if (domain == SLUICE_DOMAIN || domain.ends_with("." SLUICE_DOMAIN)) return {};
  const bool says_gpu = Contains(name, "gpu") || Contains(name, "cuda");
  for (const Name& n : kResources) {
    const bool at_domain = name.starts_with(n.part) || Contains(name, "." + std::string(n.part));
    if (at_domain && (says_gpu || Contains(n.part, "nvidia.com"))) return "a GPU of " + std::string(n.system);
  }
  if (domain == "nvidia.com" || domain.ends_with(".nvidia.com")) {
    if (name.starts_with("nvidia.com/mig-")) return "a MIG instance";
    const bool is_network = std::any_of(std::begin(kNetwork), std::end(kNetwork),
                                        [&](std::string_view word) { return Contains(name, word); });
    return is_network && !says_gpu ? std::string() : "a whole GPU";
  }
  return says_gpu ? "another GPU" : std::string();
}

std::string OtherGpuOf(const Container& c) {
  const Json* resources = Member(*c.json, "resources");
  if (resources == nullptr) return {};
  for (const char* list : {"limits", "requests"}) {
    const Json* quantities = Member(*resources, list);
    if (quantities == nullptr || !quantities->is_object()) continue;
    for (const auto& [name, quantity] : quantities->items()) {
      if (!GpuByResource(name).empty() && !IsZero(quantity)) return name;
    }
  }
  return {};
}

void CheckOtherSystems(const PodView& view, const Container& c, std::string_view sized_by, const Input& input,
                       Findings& findings) {
  if (input.mode == Mode::kUpdate) return;  // a running pod's spec is fixed
  if (const std::string name = OtherGpuOf(c); !name.empty()) {
    findings.Deny(Rule::kForeignGpu, c.field + ".resources: container '" + c.name + "' requests " + name +
                                         " and a share of a GPU, and would get " + GpuByResource(name) +
                                         " as well; accepted: one of the two");
  }
  if (const std::string claim = ForeignClaim(view, c); !claim.empty()) {
    findings.React(input.config.resource_claims, Rule::kResourceClaim,
                   c.field + ".resources.claims: container '" + c.name + "' has the claim '" + claim.substr(0, 64) +
                       "' and a share of a GPU, and would get a claimed GPU as well; accepted: one of the two");
  }
  if (view.annotations == nullptr) return;
  const std::string_view scheduler = Text(*view.spec, "schedulerName");
  if (std::find(std::begin(kSchedulers), std::end(kSchedulers), scheduler) == std::end(kSchedulers)) return;
  // They mean the container that another annotation names, or the first one.
  std::string_view target = Text(*view.annotations, "gpu-fraction-container-name");
  for (const Container& other : view.containers) {
    if (target.empty() && other.kind == ContainerKind::kRegular) target = other.name;
  }
  if (target != c.name) return;
  for (const char* annotation : {"gpu-fraction", "gpu-memory"}) {
    if (!view.annotations->contains(annotation) || sized_by == annotation) continue;
    findings.Deny(Rule::kForeignScheduler, std::string(annotation) + ": " + std::string(scheduler) +
                                               " gives a GPU by this annotation, and container '" + c.name +
                                               "' has a share of sluice; accepted: one of the two");
    return;
  }
}

std::string_view PreloadedSystem(std::string_view preload) {
  for (const Name& n : kLibraries) {
    if (Contains(preload, n.part)) return n.system;
  }
  return {};
}

}  // namespace sluice::webhook
