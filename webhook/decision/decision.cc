#include "webhook/decision/decision.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "sluice/version.h"
#include "sluice/wire.h"
#include "webhook/decision/injection.h"
#include "webhook/decision/patch.h"
#include "webhook/decision/requested_shares.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kMirror = "kubernetes.io/config.mirror";
constexpr std::string_view kDefaultScheduler = "default-scheduler";
constexpr std::string_view kMarkerField = SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED;

bool IsMirror(const Json* annotations) { return annotations != nullptr && annotations->contains(kMirror); }

bool IsWindows(const Json& spec) {
  if (const Json* os = Member(spec, "os"); os != nullptr && Text(*os, "name") == "windows") return true;
  const Json* selector = Member(spec, "nodeSelector");
  return selector != nullptr &&
         (Text(*selector, "kubernetes.io/os") == "windows" || Text(*selector, "beta.kubernetes.io/os") == "windows");
}

bool AcceptedUnits(int64_t units) {
  return (units >= 1 && units <= SLUICE_UNITS_PER_GPU) ||
         (units > 0 && units % SLUICE_UNITS_PER_GPU == 0 && units <= int64_t{SLUICE_UNITS_PER_GPU} * SLUICE_MAX_GPUS);
}

// What each container gets.
struct Share {
  const Asked* asked;
  uint32_t percent;
};

class Decider {
 public:
  Decider(const Input& input, Decision& out) : input_(input), out_(out), findings_(out, input.off) {}

  void Run() {
    const PodView view = ViewPod(input_.pod);
    if (!view.error.empty()) {
      findings_.Deny(Rule::kMalformed, view.error);
      Close();
      return;
    }
    if (findings_.On(Rule::kMirror) && IsMirror(view.annotations)) return;
    const auto& excluded = input_.config.excluded_namespaces;
    if (findings_.On(Rule::kExcluded) &&
        std::find(excluded.begin(), excluded.end(), input_.name_space) != excluded.end()) {
      return;
    }
    const AskedPod asked = Resolve(view, input_, findings_);
    if (!asked.concerns) return;
    if (IsWindows(*view.spec)) {
      findings_.Deny(Rule::kWindows, "spec.os: a Windows pod can have no share of a GPU; accepted: Linux");
    }
    std::vector<Share> shares;
    for (const Asked& a : asked.containers) Size(view, a, shares);
    CheckInitReuse(shares);
    Patch patch;
    for (const Share& s : shares) {
      InjectResource(*s.asked, s.percent, findings_, patch);
      InjectVariables(*s.asked, s.percent, input_, findings_, patch);
      Warnings(*view.spec, *s.asked);
    }
    if (findings_.On(Rule::kSetRuntimeClass) && !shares.empty() &&
        input_.config.driver_access == DriverAccess::kNvidiaRuntime &&
        Member(*view.spec, "runtimeClassName") == nullptr) {
      patch.Add("/spec", "runtimeClassName", Quote(input_.config.runtime_class));
    }
    if (!shares.empty()) Schedule(*view.spec, patch);
    if (!shares.empty()) Mark(view, shares, patch);
    out_.patch = patch.Dump();
    Close();
  }

 private:
  void Close() {
    out_.verdict = out_.denials.empty() ? Verdict::kPatch : Verdict::kDeny;
    if (out_.verdict == Verdict::kDeny) {
      out_.patch.clear();
    } else if (out_.reason.empty()) {
      out_.verdict = Verdict::kNothing;
    }
  }

  // The percent of this container, or a denial.
  void Size(const PodView& view, const Asked& a, std::vector<Share>& shares) {
    const Container& c = *a.container;
    if (c.kind == ContainerKind::kEphemeral || a.sized_by.empty()) return;
    ForeignGpu(c);
    if (!ResourceValue(c)) return;
    const std::optional<int64_t> has = c.limit ? c.limit : c.request;
    std::optional<uint32_t> percent = a.settings.gpu_percent;
    if (const auto memory = a.settings.gpu_memory; memory && !percent) {
      percent = FromMemory(view, a, *memory, has);
      if (!percent) return;
    } else if (percent && has && *has != *percent) {
      findings_.Deny(Rule::kResourceContradiction,
                     a.sized_by + ": '" + settings::FormatFraction(*percent) + "' contradicts " + c.field +
                         ".resources, which asks for " + std::to_string(*has) +
                         " of " SLUICE_RESOURCE "; accepted: leave the resource out, or " + std::to_string(*percent));
    }
    if (!percent && has) percent = static_cast<uint32_t>(*has);
    if (!percent) return;  // the size was refused already
    LimitBelowBudget(view, a, *percent);
    shares.push_back({&a, *percent});
  }

  bool ResourceValue(const Container& c) {
    if (!c.asks) return true;
    const std::string field = c.field + ".resources (" SLUICE_RESOURCE ")";
    constexpr std::string_view kAccepted = " is not accepted; accepted: 1 to 100, or a multiple of 100";
    if (!c.bad_quantity.empty()) {
      findings_.Deny(Rule::kResourceValue, field + ": '" + c.bad_quantity.substr(0, 64) + "'" + std::string(kAccepted));
      return false;
    }
    for (const auto& units : {c.limit, c.request}) {
      if (units && !AcceptedUnits(*units)) {
        findings_.Deny(Rule::kResourceValue, field + ": '" + std::to_string(*units) + "'" + std::string(kAccepted));
        return false;
      }
    }
    if (c.limit && c.request && *c.limit != *c.request) {
      findings_.Deny(Rule::kRequestsDiffer, field + ": limits has " + std::to_string(*c.limit) + " and requests " +
                                                std::to_string(*c.request) + "; accepted: the same in both");
      return false;
    }
    return true;
  }

  void ForeignGpu(const Container& c) {
    const Json* resources = Member(*c.json, "resources");
    if (resources == nullptr) return;
    for (const char* list : {"limits", "requests"}) {
      const Json* quantities = Member(*resources, list);
      if (quantities == nullptr) continue;
      for (const auto& [name, quantity] : quantities->items()) {
        if (!name.starts_with("nvidia.com/") || quantity == "0" || quantity == 0) continue;
        findings_.Deny(Rule::kForeignGpu, c.field + ".resources: " + name +
                                              " beside a share of a GPU gives the container a "
                                              "whole card as well; accepted: one of the two");
        return;
      }
    }
  }

  const Candidates& Gpus(const Json& spec) {
    if (!gpus_) gpus_ = FindGpus(spec, input_.nodes);
    return *gpus_;
  }

  std::optional<uint32_t> FromMemory(const PodView& view, const Asked& a, uint64_t memory, std::optional<int64_t> has) {
    const MemoryShare share = ShareOfMemory(memory, Gpus(*view.spec), input_.config.assumed_gpu_memory);
    if (!share.warning.empty()) findings_.Warn(Rule::kWarnModels, a.sized_by + ": " + share.warning);
    if (!share.percent) {
      // A running pod keeps what it was given; a template may wait for nodes that an autoscaler adds.
      if (share.unknown && input_.mode == Mode::kTemplate) {
        out_.warnings.push_back(a.sized_by + ": " + share.error);
      } else if (input_.mode != Mode::kUpdate) {
        findings_.Deny(share.unknown ? Rule::kMemoryUnknown : Rule::kMemoryAbove, a.sized_by + ": " + share.error);
      }
      if (input_.mode == Mode::kCreate || !has) return std::nullopt;
      return static_cast<uint32_t>(*has);
    }
    if (!has) return share.percent;
    // More than the bytes need is the user's to pay. Less can come of a copied pod in another cluster.
    if (*has < *share.percent && input_.mode != Mode::kUpdate) {
      findings_.Deny(Rule::kResourceContradiction,
                     a.sized_by + ": needs " + std::to_string(*share.percent) + " percent of the smallest GPU, " +
                         a.container->field + ".resources asks for " + std::to_string(*has) +
                         "; accepted: leave the resource out, or at least " + std::to_string(*share.percent));
    }
    return static_cast<uint32_t>(*has);
  }

  void LimitBelowBudget(const PodView& view, const Asked& a, uint32_t percent) {
    if (!a.settings.memory_limit || a.settings.gpu_memory) return;
    const uint64_t smallest = Gpus(*view.spec).smallest();
    if (smallest == 0) return;
    const uint64_t budget = smallest / 100 * percent;
    if (*a.settings.memory_limit >= budget) return;
    findings_.Deny(Rule::kLimitBelowBudget,
                   SLUICE_DOMAIN "/" SLUICE_KEY_MEMORY_LIMIT ": '" +
                       settings::FormatQuantity(*a.settings.memory_limit) + "' of container '" + a.container->name +
                       "' is below its budget, " + std::to_string(percent) + " percent of " +
                       settings::HumanBytes(smallest) + "; accepted: at least " + settings::HumanBytes(budget));
  }

  // Kubelet hands an init container's devices on to the containers after it, and may then give a mix of cards.
  void CheckInitReuse(const std::vector<Share>& shares) {
    const Share* largest = nullptr;  // of the init containers so far; shares are in the containers' order
    for (const Share& s : shares) {
      const Container& c = *s.asked->container;
      if (largest != nullptr && s.percent < largest->percent) {
        findings_.Deny(Rule::kInitReuse, "init container '" + largest->asked->container->name +
                                             "' has several GPUs and '" + c.name +
                                             "' after it asks for fewer units; accepted: the same share, or one GPU in "
                                             "the init container");
        return;
      }
      if (c.kind == ContainerKind::kInit && s.percent > SLUICE_UNITS_PER_GPU) largest = &s;
    }
  }

  // The lowest limit on host memory that counts for this container: its own, or the whole pod's.
  static std::optional<uint64_t> HostMemory(const Json& spec, const Container& c) {
    std::optional<uint64_t> lowest;
    for (const Json* owner : {&spec, c.json}) {
      const Json* resources = Member(*owner, "resources");
      const Json* limits = resources == nullptr ? nullptr : Member(*resources, "limits");
      const auto memory = limits == nullptr ? std::nullopt : settings::ParseQuantity(Text(*limits, "memory"));
      if (memory && (!lowest || *memory < *lowest)) lowest = memory;
    }
    return lowest;
  }

  void Warnings(const Json& spec, const Asked& a) {
    const Container& c = *a.container;
    const std::string_view image = Text(*c.json, "image");
    if (image.find("alpine") != std::string_view::npos || image.find("musl") != std::string_view::npos) {
      findings_.Warn(Rule::kWarnMusl,
                     "container " + c.name + ": " + std::string(image.substr(0, 100)) +
                         " looks like a musl image, in which the hook does nothing; use a glibc image");
    }
    const auto memory = HostMemory(spec, c);
    if (memory && a.settings.memory_limit && *memory < *a.settings.memory_limit) {
      findings_.Warn(Rule::kWarnMemory, "container " + c.name + ": limits.memory " + settings::HumanBytes(*memory) +
                                            " is below memory-limit " + settings::HumanBytes(*a.settings.memory_limit) +
                                            "; what leaves the GPU lies in host memory and counts there");
    }
  }

  // A scheduler that the user chose, and a node that he named himself, stay his.
  void Schedule(const Json& spec, Patch& patch) {
    const std::string& ours = input_.config.scheduler_name;
    const Json* now = Member(spec, "schedulerName");
    const bool left = now == nullptr || *now == "" || *now == kDefaultScheduler;
    if (!findings_.On(Rule::kSetScheduler) || !left || !Text(spec, "nodeName").empty()) return;
    if (ours.empty() || ours == kDefaultScheduler) return;
    if (spec.contains("schedulerName")) {
      patch.Replace("/spec", "schedulerName", Quote(ours));
    } else {
      patch.Add("/spec", "schedulerName", Quote(ours));
    }
  }

  void Mark(const PodView& view, const std::vector<Share>& shares, Patch& patch) {
    std::string containers;
    for (const Share& s : shares) {
      containers += (containers.empty() ? "" : ",") + Quote(s.asked->container->name) +
                    ":{\"percent\":" + std::to_string(s.percent);
      if (const auto memory = s.asked->settings.gpu_memory) containers += ",\"memory\":" + std::to_string(*memory);
      containers += "}";
      if (!out_.reason.empty()) out_.reason += "; ";
      out_.reason += s.asked->container->name + ": " + std::to_string(s.percent) + " percent by " + s.asked->sized_by;
    }
    if (!findings_.On(Rule::kSetMarker)) return;
    const std::string text = R"({"version":")" SLUICE_VERSION R"(","containers":{)" + containers + R"(},"reason":)" +
                             Quote(out_.reason) + "}";
    if (view.annotations == nullptr) {
      if (Member(*view.pod, "metadata") == nullptr) {
        patch.Add("", "metadata", Pair("annotations", Pair(kMarkerField, Quote(text))));
      } else {
        patch.Add("/metadata", "annotations", Pair(kMarkerField, Quote(text)));
      }
      return;
    }
    const std::string_view old = Text(*view.annotations, kMarkerField);
    if (old == text) return;
    if (view.annotations->contains(kMarkerField)) {
      patch.Replace("/metadata/annotations", kMarkerField, Quote(text));
    } else {
      patch.Add("/metadata/annotations", kMarkerField, Quote(text));
    }
  }

  const Input& input_;
  Decision& out_;
  Findings findings_;
  std::optional<Candidates> gpus_;  // those of this pod, once they are needed
};

const Json* Annotations(const Json& pod) {
  const Json* metadata = Member(pod, "metadata");
  const Json* annotations = metadata == nullptr ? nullptr : Member(*metadata, "annotations");
  return annotations != nullptr && annotations->is_object() ? annotations : nullptr;
}

template <typename F>
bool AnyContainer(const Json& pod, F f) {
  const Json* spec = Member(pod, "spec");
  if (spec == nullptr) return false;
  for (const char* list : {"containers", "initContainers"}) {
    const Json* containers = Member(*spec, list);
    if (containers != nullptr && containers->is_array() && std::any_of(containers->begin(), containers->end(), f)) {
      return true;
    }
  }
  return false;
}

bool AsksForResource(const Json& container) {
  const Json* resources = Member(container, "resources");
  if (resources == nullptr) return false;
  for (const char* list : {"limits", "requests"}) {
    const Json* quantities = Member(*resources, list);
    if (quantities != nullptr && quantities->is_object() && quantities->contains(SLUICE_RESOURCE)) return true;
  }
  return false;
}

bool HasLibrary(const Json& container) {
  const Json* env = Member(container, "env");
  return env != nullptr && env->is_array() && std::any_of(env->begin(), env->end(), [](const Json& e) {
           return Text(e, "name") == "LD_PRELOAD" && Text(e, "value").starts_with(SLUICE_CONTAINER_SHIM);
         });
}

}  // namespace

std::string Decision::Message() const {
  std::string out;
  for (const Finding& f : denials) {
    if (!out.empty()) out += "; also ";
    out += f.text;
  }
  return out;
}

Decision Decide(const Input& input) {
  Decision out;
  Decider(input, out).Run();
  return out;
}

bool ConcernsUs(const Json& pod, bool aliases) {
  const Json* annotations = Annotations(pod);
  if (IsMirror(annotations)) return false;
  if (annotations != nullptr) {
    for (const auto& [key, value] : annotations->items()) {
      if (OurKey(key) && !(key == SLUICE_DOMAIN "/" SLUICE_KEY_INJECT && (value == "false" || value == "true")))
        return true;
      if (aliases && (key == "gpu-fraction" || key == "gpu-memory")) return true;
    }
  }
  return AnyContainer(pod, AsksForResource);
}

bool Handled(const Json& pod) {
  const Json* annotations = Annotations(pod);
  return annotations != nullptr && annotations->contains(kMarkerField) &&
         !AnyContainer(pod, [](const Json& c) { return AsksForResource(c) && !HasLibrary(c); });
}

}  // namespace sluice::webhook
