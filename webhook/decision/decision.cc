#include "webhook/decision/decision.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "sluice/version.h"
#include "webhook/decision/claim_patch.h"
#include "webhook/decision/claim_shares.h"
#include "webhook/decision/convert.h"
#include "webhook/decision/host_access.h"
#include "webhook/decision/injection.h"
#include "webhook/decision/marker.h"
#include "webhook/decision/opportunistic.h"
#include "webhook/decision/other_systems.h"
#include "webhook/decision/patch.h"
#include "webhook/decision/requested_shares.h"
#include "webhook/decision/resize.h"
#include "webhook/decision/units.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kDefaultScheduler = "default-scheduler";

bool IsExcluded(const Input& input) {
  const auto& excluded = input.config.excluded_namespaces;
  return !input.off.test(static_cast<size_t>(Rule::kExcluded)) &&
         std::find(excluded.begin(), excluded.end(), input.name_space) != excluded.end();
}

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
    if (findings_.IsEnabled(Rule::kMirror) && IsMirrorPod(input_.pod)) return;
    if (IsExcluded(input_)) return;
    const RequestedShares requested = ResolveShares(view, input_, findings_);
    if (!requested.concerns_sluice) {
      CheckVisibleDevices(view, input_, findings_);
      Close();
      return;
    }
    marker_ = ReadMarker(view);
    if (IsWindows(*view.spec)) {
      findings_.Deny(Rule::kWindows,
                     "spec.os: this is a Windows pod, and a Windows pod cannot have a share of a GPU; accepted: linux");
    }
    std::vector<GrantedShare> shares;
    for (const RequestedShare& r : requested.containers) Grant(view, r, shares);
    Patch patch;
    if (is_by_claims_) {
      AddClaims(view, shares, input_, findings_, patch, out_);
    } else {
      CheckInitReuse(shares, findings_);
      InjectClaims(view, {}, findings_, patch);
    }
    for (const GrantedShare& s : shares) {
      if (!is_by_claims_) InjectResource(*s.requested, s.Units(), findings_, patch);
      InjectVariables(*s.requested, s.percent, s.is_resized, input_, findings_, patch);
      AddWarnings(*view.spec, *s.requested);
    }
    if (findings_.IsEnabled(Rule::kSetRuntimeClass) && !shares.empty() &&
        input_.config.driver_access == DriverAccess::kNvidiaRuntime &&
        Member(*view.spec, "runtimeClassName") == nullptr) {
      patch.Add("/spec", "runtimeClassName", Quote(input_.config.runtime_class));
    }
    if (!shares.empty()) {
      CheckHostAccess(view, input_, findings_);
      WarnSandbox(view, input_, findings_);
      HideOtherDevices(view, shares, patch);
      SetScheduler(*view.spec, patch);
      SetMarker(view, MarkerText(shares, true), patch);
      if (view.annotations != nullptr || findings_.IsEnabled(Rule::kSetMarker)) KeepSizes(shares, patch);
      DropOldAnswers(view, requested, patch);
      if (input_.mode == Mode::kTemplate) SetUnits(view, shares);
    }
    out_.patch = patch.Dump();
    Close();
  }

 private:
  void Close() {
    out_.verdict = out_.denials.empty() ? Verdict::kPatch : Verdict::kDeny;
    if (out_.verdict == Verdict::kDeny) {
      out_.patch.clear();
      out_.units_patch.clear();
      out_.claims.clear();
    } else if (out_.reason.empty()) {
      out_.verdict = Verdict::kNothing;
    }
  }

  void HideOtherDevices(const PodView& view, const std::vector<GrantedShare>& shares, Patch& patch) {
    for (const Container& c : view.containers) {
      const bool has_share = std::any_of(shares.begin(), shares.end(),
                                         [&](const GrantedShare& s) { return s.requested->container == &c; });
      if (!has_share && c.kind != ContainerKind::kEphemeral) HideDevices(c, input_, findings_, patch);
    }
  }

  // A pod that is restored, or copied with its annotations, is placed and answered anew.
  void DropOldAnswers(const PodView& view, const RequestedShares& requested, Patch& patch) {
    if (!findings_.IsEnabled(Rule::kDropPlacement)) return;
    for (const std::string& field : requested.old_answers) {
      if (!view.annotations->contains(field)) continue;
      findings_.Warn(Rule::kDropPlacement, field + " is removed: the pod is placed anew");
      patch.Remove("/metadata/annotations", field);
    }
  }

  // Adds this container's share, or denies.
  void Grant(const PodView& view, const RequestedShare& r, std::vector<GrantedShare>& shares) {
    const Container& c = *r.container;
    if (c.kind == ContainerKind::kEphemeral || r.sized_by.empty()) return;
    CheckOtherSystems(view, c, r.sized_by, input_, findings_);
    const uint32_t cards = CardsOf(r.settings);
    if (!CheckUnits(c, cards, findings_)) return;
    std::optional<int64_t> units = c.limit ? c.limit : c.request;
    if (r.settings.priority == settings::Priority::kOpportunistic && !is_by_claims_) {
      std::string problem = OpportunisticProblem(r, units);
      if (problem.empty()) return shares.push_back({&r, 1});
      return findings_.Deny(Rule::kResourceContradiction, std::move(problem));
    }
    const bool is_resized = units && marker_.HasOtherSize(c.name, *units, r.settings);
    const bool was_computed =
        units && r.settings.gpu_memory && marker_.HasComputed(c.name, *units, *r.settings.gpu_memory);
    if (units) *units /= cards;  // from here on of each GPU, as all sizes are
    if (input_.mode == Mode::kUpdate) return GrantRunning(view, r, units, shares);
    if (!CheckCount(view, r)) return;
    std::optional<uint32_t> percent = r.settings.gpu_percent;
    bool is_computed = false;
    if (const auto memory = r.settings.gpu_memory; memory && !percent) {
      if (is_by_claims_) return GrantClaim(view, r, 0, input_, findings_, out_, shares);
      is_computed = !units || is_resized || was_computed;
      percent = PercentOfMemory(view, r, *memory, units, is_computed);
      if (!percent) return;
    } else if (percent && units && *units != *percent && !is_resized) {
      findings_.Deny(Rule::kResourceContradiction,
                     r.sized_by + ": '" + settings::FormatFraction(*percent) + "' contradicts " + c.field +
                         ".resources of container '" + c.name + "', which requests " + std::to_string(*units * cards) +
                         " of " SLUICE_RESOURCE "; accepted: " + std::to_string(*percent * cards) +
                         ", or no such resource");
    }
    if (!percent && units) percent = static_cast<uint32_t>(*units);
    if (!percent) return;  // an invalid size is denied already
    if (is_by_claims_) return GrantClaim(view, r, *percent, input_, findings_, out_, shares);
    CheckMemoryLimit(view, r, *percent);
    shares.push_back({&r, *percent, cards, is_computed, is_resized});
  }

  // Whether a known node that the pod may go to has as many GPUs. Without known nodes any number may be right.
  bool CheckCount(const PodView& view, const RequestedShare& r) {
    const uint32_t cards = CardsOf(r.settings);
    if (cards == 1 || !findings_.IsEnabled(Rule::kCountAbove)) return true;
    const size_t most = Gpus(*view.spec, 1).most_on_a_node;
    if (most == 0 || most >= cards) return true;
    findings_.Deny(Rule::kCountAbove, CountField(r) + ": '" + std::to_string(cards) + "' exceeds the " +
                                          std::to_string(most) + " GPU(s) of the largest node that the pod may go to " +
                                          "(container '" + r.container->name + "'); accepted: at most " +
                                          std::to_string(most) + ", or a nodeSelector that matches only other nodes");
    return false;
  }

  // `units`: of each GPU. A running container keeps them; the agent gives it another size if its card has it.
  void GrantRunning(const PodView& view, const RequestedShare& r, std::optional<int64_t> units,
                    std::vector<GrantedShare>& shares) {
    if (input_.is_resize) CheckResize(view, r);
    if (!units) return;
    const auto percent = static_cast<uint32_t>(*units);
    CheckMemoryLimit(view, r, r.settings.gpu_percent.value_or(percent));
    shares.push_back({&r, percent, CardsOf(r.settings)});
  }

  void CheckResize(const PodView& view, const RequestedShare& r) {
    if (std::string problem = ResizeProblem(r); !problem.empty()) {
      findings_.Deny(Rule::kResize, std::move(problem));
    } else if (r.settings.gpu_memory) {
      const MemoryShare share = ShareOfMemory(*r.settings.gpu_memory, Gpus(*view.spec, CardsOf(r.settings)),
                                              input_.config.assumed_gpu_memory);
      if (share.percent || share.is_unknown) return;
      findings_.Deny(Rule::kMemoryAbove, r.sized_by + ": " + share.error + " (container '" + r.container->name + "')");
    }
  }

  // The GPUs of nodes that have at least so many.
  const Candidates& Gpus(const Json& spec, uint32_t cards) {
    const auto [found, is_new] = gpus_.try_emplace(cards);
    if (is_new) found->second = FindGpus(spec, input_.nodes, cards);
    return found->second;
  }

  // `units`: the container's request of the resource for each GPU; `is_computed`: the webhook chose them, for the
  // GPUs known then. nullopt: denied, or unknown.
  std::optional<uint32_t> PercentOfMemory(const PodView& view, const RequestedShare& r, uint64_t memory,
                                          std::optional<int64_t> units, bool is_computed) {
    const MemoryShare share =
        ShareOfMemory(memory, Gpus(*view.spec, CardsOf(r.settings)), input_.config.assumed_gpu_memory);
    if (!share.warning.empty()) findings_.Warn(Rule::kWarnModels, r.sized_by + ": " + share.warning);
    if (!share.percent) {
      // The agent gives no more than the units are worth.
      if (share.is_unknown && units) return static_cast<uint32_t>(*units);
      // A template may wait for nodes that an autoscaler adds.
      if (share.is_unknown && input_.mode == Mode::kTemplate) {
        out_.warnings.push_back(r.sized_by + ": " + share.error);
      } else {
        findings_.Deny(share.is_unknown ? Rule::kMemoryUnknown : Rule::kMemoryAbove,
                       r.sized_by + ": " + share.error + " (container '" + r.container->name + "')");
      }
      if (input_.mode == Mode::kCreate || !units) return std::nullopt;
      return static_cast<uint32_t>(*units);
    }
    if (!units || is_computed) return share.percent;
    // A user may request more units than the bytes need. Fewer can come with a pod copied from another cluster.
    const uint32_t cards = CardsOf(r.settings);
    if (*units < *share.percent) {
      findings_.Deny(Rule::kResourceContradiction,
                     r.sized_by + ": '" + settings::FormatQuantity(memory) + "' needs " +
                         std::to_string(*share.percent) + " percent of the smallest GPU" +
                         (cards > 1 ? ", " + std::to_string(cards) + " times" : "") + ", but " + r.container->field +
                         ".resources of container '" + r.container->name + "' requests " +
                         std::to_string(*units * cards) + " of " SLUICE_RESOURCE "; accepted: at least " +
                         std::to_string(*share.percent * cards) + ", or no such resource");
    }
    return static_cast<uint32_t>(*units);
  }

  void CheckMemoryLimit(const PodView& view, const RequestedShare& r, uint32_t percent) {
    if (!r.settings.memory_limit || r.settings.gpu_memory) return;
    const uint64_t smallest = Gpus(*view.spec, CardsOf(r.settings)).smallest();
    if (smallest == 0) return;
    const uint64_t budget = smallest / 100 * percent;
    if (*r.settings.memory_limit >= budget) return;
    findings_.Deny(Rule::kLimitBelowBudget,
                   SLUICE_DOMAIN "/" SLUICE_KEY_MEMORY_LIMIT ": '" +
                       settings::FormatQuantity(*r.settings.memory_limit) + "' is below the budget of container '" +
                       r.container->name + "', which is " + std::to_string(percent) + " percent of " +
                       settings::HumanBytes(smallest) + "; accepted: at least " + settings::HumanBytes(budget));
  }

  void AddWarnings(const Json& spec, const RequestedShare& r) {
    const Container& c = *r.container;
    const std::string_view image = Text(*c.json, "image");
    if (image.find("alpine") != std::string_view::npos || image.find("musl") != std::string_view::npos) {
      findings_.Warn(Rule::kWarnMusl, "container " + c.name + ": " + std::string(image.substr(0, 100)) +
                                          " looks like a musl image, and sluice has no effect there; use a glibc "
                                          "image");
    }
    const auto memory = HostMemoryLimit(spec, c);
    if (memory && r.settings.memory_limit && *memory < *r.settings.memory_limit) {
      findings_.Warn(Rule::kWarnMemory, "container " + c.name + ": limits.memory " + settings::HumanBytes(*memory) +
                                            " is below memory-limit " + settings::HumanBytes(*r.settings.memory_limit) +
                                            "; memory evicted from the GPU counts against limits.memory");
    }
  }

  // Keeps a scheduler that the user chose, and a node that the user named.
  void SetScheduler(const Json& spec, Patch& patch) {
    const std::string& ours = input_.config.scheduler_name;
    const Json* current = Member(spec, "schedulerName");
    const bool is_default = current == nullptr || *current == "" || *current == kDefaultScheduler;
    if (!findings_.IsEnabled(Rule::kSetScheduler) || !is_default || !Text(spec, "nodeName").empty()) return;
    if (ours.empty() || ours == kDefaultScheduler) return;
    if (spec.contains("schedulerName")) {
      patch.Replace("/spec", "schedulerName", Quote(ours));
    } else {
      patch.Add("/spec", "schedulerName", Quote(ours));
    }
  }

  // The marker's text; also gives the decision its reason. The claims of a template are not known before its pods.
  std::string MarkerText(const std::vector<GrantedShare>& shares, bool with_claims) {
    std::string containers;
    out_.reason.clear();
    std::set<std::string_view> names;  // the API server refuses equal ones only after this call
    for (const GrantedShare& s : shares) {
      if (!names.insert(s.requested->container->name).second) continue;
      std::string entry;
      if (s.percent > 0) entry += ",\"percent\":" + std::to_string(s.percent);
      if (s.cards > 1) entry += ",\"cards\":" + std::to_string(s.cards);
      const auto memory = s.requested->settings.gpu_memory;
      if (memory) entry += ",\"memory\":" + std::to_string(*memory);
      if (s.is_computed && s.percent > 0) entry += ",\"units\":\"computed\"";
      const bool has_claim = with_claims && !s.claim.name.empty();
      if (has_claim) entry += ",\"claim\":" + Quote(s.claim.name);
      containers += (containers.empty() ? "" : ",") + Quote(s.requested->container->name) + ":{" +
                    entry.substr(std::min<size_t>(1, entry.size())) + "}";
      if (!out_.reason.empty()) out_.reason += "; ";
      out_.reason +=
          s.requested->container->name + ": " +
          (s.percent > 0 ? std::to_string(s.percent) + " percent " : settings::FormatQuantity(memory.value()) + " ") +
          (s.cards > 1 ? "of each of " + std::to_string(s.cards) + " GPUs " : "") + "by " +
          (s.size_annotation.empty() ? s.requested->sized_by : s.size_annotation) +
          (has_claim ? ", as the claim " + s.claim.name : "");
    }
    return R"({"version":")" SLUICE_VERSION R"(","containers":{)" + containers + R"(},"reason":)" + Quote(out_.reason) +
           "}";
  }

  void SetMarker(const PodView& view, const std::string& text, Patch& patch) {
    if (!findings_.IsEnabled(Rule::kSetMarker)) return;
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

  // The template's part of the decision. Nothing if the units are there: a stored template must not change with the
  // webhook's version.
  void SetUnits(const PodView& view, const std::vector<GrantedShare>& shares) {
    Patch patch;
    for (const GrantedShare& s : shares) {
      if (s.percent > 0) InjectResource(*s.requested, s.Units(), findings_, patch);
    }
    if (patch.Dump().empty()) return;
    SetMarker(view, MarkerText(shares, false), patch);
    out_.units_patch = patch.Dump();
  }

  const Input& input_;
  Decision& out_;
  Findings findings_;
  // A running pod keeps the way in which it got its share.
  const bool is_by_claims_ = input_.config.share_by == ShareBy::kClaims && input_.mode != Mode::kUpdate;
  Marker marker_;                        // of an earlier admission of this pod, or of the pod that it was copied from
  std::map<uint32_t, Candidates> gpus_;  // of this pod, by the least number on a node; found at first use
};

}  // namespace

std::string JoinFindings(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& f : findings) {
    if (!out.empty()) out += "; also ";
    out += f.text;
  }
  return out;
}

Decision Decide(const Input& input) {
  Decision out;
  const bool may_convert = input.config.aliases && input.mode != Mode::kUpdate &&
                           !input.off.test(static_cast<size_t>(Rule::kConvert)) && ConcernsSluice(input.pod, true) &&
                           !IsExcluded(input);
  if (!may_convert) {
    Decider(input, out).Run();
    return out;
  }
  Conversion conversion = ConvertAliases(input.pod, ConversionScope::kAdmission);
  out.warnings = std::move(conversion.warnings);
  out.denials = std::move(conversion.denials);
  if (!out.denials.empty()) {
    out.verdict = Verdict::kDeny;
    return out;
  }
  if (!conversion.has_changes) {
    Decider(input, out).Run();
    return out;
  }
  Decider({conversion.pod, input.name_space, input.config, input.nodes, input.mode, input.off}, out).Run();
  if (out.verdict == Verdict::kPatch) {
    for (std::string* patch : {&out.patch, &out.units_patch}) {
      *patch = patch->empty() ? "[" + conversion.patch + "]" : "[" + conversion.patch + "," + patch->substr(1);
    }
  }
  return out;
}

}  // namespace sluice::webhook
