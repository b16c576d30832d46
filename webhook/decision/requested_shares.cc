#include "webhook/decision/requested_shares.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/meant_container.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kShareGivers = SLUICE_DOMAIN "/" SLUICE_KEY_GPU_FRACTION ", " SLUICE_DOMAIN
                                                        "/" SLUICE_KEY_GPU_MEMORY " or the resource " SLUICE_RESOURCE;

class Resolver {
 public:
  Resolver(const PodView& view, const Input& input, Findings& findings)
      : view_(view), input_(input), findings_(findings), sorted_(SortAnnotations(view, input, findings)) {}

  RequestedShares Run() {
    RequestedShares out;
    const bool requests_resource = std::any_of(view_.containers.begin(), view_.containers.end(),
                                               [](const Container& c) { return c.requests_resource; });
    if (!sorted_.has_settings && !sorted_.is_alias_used && !requests_resource) {
      out.concerns_sluice = sorted_.is_inject_invalid;
      if (sorted_.has_marker && input_.mode == Mode::kCreate) {
        out.concerns_sluice = true;
        findings_.Deny(Rule::kOwnKey, SLUICE_DOMAIN
                       "/" SLUICE_KEY_INJECTED
                       ": only sluice may write this annotation, and no container of this pod requests a share of a "
                       "GPU; accepted: a pod without it");
      }
      return out;
    }
    out.concerns_sluice = true;
    out.old_answers = sorted_.old_answers;
    if (sorted_.is_inject_false) {
      const auto first = std::find_if(view_.containers.begin(), view_.containers.end(),
                                      [](const Container& c) { return c.requests_resource; });
      findings_.Deny(Rule::kInjectContradiction, SLUICE_DOMAIN "/" SLUICE_KEY_INJECT ": 'false' contradicts " +
                                                     first->field + ".resources of container '" + first->name +
                                                     "', which requests " SLUICE_RESOURCE "; accepted: one of the two");
      if (findings_.IsEnabled(Rule::kInjectContradiction)) return out;
    }
    CheckNames();
    for (const Container& c : view_.containers) out.containers.push_back(ForContainer(c));
    AddPodLevel(out.containers);
    for (RequestedShare& r : out.containers) AddFromVariables(r);
    for (RequestedShare& r : out.containers) Parse(r);
    std::erase_if(out.containers, [](const RequestedShare& r) { return r.sources.empty() && r.sized_by.empty(); });
    return out;
  }

 private:
  // The containers that can have a share, for messages.
  std::string Choices() const {
    std::string out;
    for (const Container& c : view_.containers) {
      if (c.kind == ContainerKind::kEphemeral) continue;
      if (!out.empty()) out += ", ";
      out += c.name;
    }
    return out;
  }

  const Container* Find(std::string_view name) const {
    for (const Container& c : view_.containers) {
      if (c.name == name) return &c;
    }
    return nullptr;
  }

  void CheckNames() {
    for (const auto& [name, list] : sorted_.by_name) {
      if (findings_.IsFull()) return;  // each message lists all containers: the time must stay bounded
      const Container* c = Find(name);
      if (c == nullptr) {
        findings_.Deny(Rule::kUnknownContainer,
                       list.front().field + ": the pod has no container '" + name + "'; accepted: " + Choices());
      } else if (c->kind == ContainerKind::kEphemeral) {
        findings_.Deny(Rule::kEphemeral, list.front().field + ": container '" + name +
                                             "' is ephemeral and cannot have a share of a GPU; accepted: " + Choices());
      }
    }
    if (!sorted_.alias_container.empty() && Find(sorted_.alias_container) == nullptr) {
      findings_.Deny(Rule::kUnknownContainer, std::string(kAliasContainer) + ": the pod has no container '" +
                                                  sorted_.alias_container + "'; accepted: " + Choices());
    }
    for (const Container& c : view_.containers) {
      if (c.kind == ContainerKind::kEphemeral && c.requests_resource) {
        findings_.Deny(Rule::kEphemeral, c.field + ".resources: container '" + c.name +
                                             "' is ephemeral and cannot request " SLUICE_RESOURCE
                                             "; accepted: a regular or init container");
      }
    }
  }

  RequestedShare ForContainer(const Container& c) const {
    RequestedShare r{&c, {}, {}, {}};
    if (c.kind == ContainerKind::kEphemeral) return r;
    if (c.requests_resource) r.sized_by = SLUICE_RESOURCE;
    const auto it = sorted_.by_name.find(c.name);
    if (it == sorted_.by_name.end()) return r;
    r.sources = it->second;
    for (const SettingSource& s : r.sources) {
      if (IsSize(*s.key)) r.sized_by = s.field;
    }
    return r;
  }

  // The container that a pod's annotation `field` means; nullptr: it means none, or one of several.
  RequestedShare* OnlyRegular(std::vector<RequestedShare>& all, std::string_view field) const {
    std::vector<const Container*> regular;
    for (const RequestedShare& r : all) {
      if (r.container->kind != ContainerKind::kRegular) continue;
      if (r.container->requests_resource) return nullptr;  // that one is meant, by the user or by an earlier pass
      regular.push_back(r.container);
    }
    const Container* only = MeantContainer(view_, field, regular, input_, findings_);
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.container == only; });
    return it == all.end() ? nullptr : &*it;
  }

  // Adds a pod's annotation to a container unless the container has its own of that kind. Sizes are one kind: a
  // container's gpu-fraction also replaces the pod's gpu-memory.
  static bool AddIfAbsent(RequestedShare& r, const SettingSource& s) {
    for (const SettingSource& own : r.sources) {
      if (own.field == s.field) return false;
      const bool by_name = own.field.find('/') != std::string::npos && !own.field.starts_with(SLUICE_DOMAIN "/");
      if (by_name && (own.key == s.key || (IsSize(*own.key) && IsSize(*s.key)))) return false;
    }
    r.sources.push_back(s);
    if (IsSize(*s.key)) r.sized_by = s.field;
    return true;
  }

  void AddPodLevel(std::vector<RequestedShare>& containers) {
    for (const SettingSource& s : sorted_.alias) AddAlias(containers, s);
    // Sizes first: the other settings apply to every container that has a share after that.
    for (const bool sizes : {true, false}) {
      std::vector<RequestedShare*> targets;
      if (sizes) {
        const auto size = std::find_if(sorted_.pod.begin(), sorted_.pod.end(),
                                       [](const SettingSource& source) { return IsSize(*source.key); });
        RequestedShare* only = size == sorted_.pod.end() ? nullptr : OnlyRegular(containers, size->field);
        for (RequestedShare& r : containers) {
          if (&r == only || r.container->requests_resource) targets.push_back(&r);
        }
      } else {
        for (RequestedShare& r : containers) {
          if (!r.sized_by.empty()) targets.push_back(&r);
        }
      }
      for (const SettingSource& s : sorted_.pod) {
        if (IsSize(*s.key) != sizes) continue;
        if (targets.empty()) {
          DenyWithoutTarget(s, sizes);
          continue;
        }
        bool is_used = false;
        for (RequestedShare* r : targets) is_used |= AddIfAbsent(*r, s);
        if (!is_used) {
          findings_.Deny(Rule::kNoEffect, s.field +
                                              ": this annotation has no effect, because every container that it "
                                              "applies to has its own; accepted: a pod without it");
        }
      }
    }
  }

  void DenyWithoutTarget(const SettingSource& s, bool is_size) {
    settings::Settings unused;
    if (std::string error = settings::Set(unused, *s.key, s.value, s.field); !error.empty()) {
      findings_.Deny(Rule::kValue, std::move(error));
    }
    if (!is_size) {
      findings_.Deny(Rule::kNoFraction,
                     s.field + ": no container of this pod requests a share of a GPU; accepted: together with " +
                         std::string(kShareGivers));
      return;
    }
    findings_.Deny(Rule::kAmbiguous,
                   s.field + ": the pod has several containers, and the annotation must name one; accepted: " +
                       std::string(s.key->name) +
                       "." SLUICE_DOMAIN "/<container>, where <container> is one of: " + Choices());
  }

  // KAI gives an unnamed fraction to the first container. At a second pass, it is the one that requests the resource.
  const Container* FirstContainer(const SettingSource& s) const {
    const auto written = WrittenContainers(view_, s.field);
    const Container* first = nullptr;
    for (const Container& c : view_.containers) {
      if (c.kind != ContainerKind::kRegular) continue;
      if (c.requests_resource) return &c;
      if (first == nullptr && (!written || written->contains(c.name))) first = &c;
    }
    return first;
  }

  void AddAlias(std::vector<RequestedShare>& containers, const SettingSource& s) const {
    const Container* target = sorted_.alias_container.empty() ? FirstContainer(s) : Find(sorted_.alias_container);
    for (RequestedShare& r : containers) {
      if (r.container != target) continue;
      r.sources.push_back(s);
      if (IsSize(*s.key)) r.sized_by = s.field;
      return;
    }
  }

  // `kubectl debug --copy-to` copies the webhook's additions, without the annotations. The resource is there, so the
  // variables about its use need no other permission.
  void AddFromVariables(RequestedShare& r) const {
    if (r.sized_by != SLUICE_RESOURCE || !findings_.IsEnabled(Rule::kCopiedVariable)) return;
    const auto& own = r.sources;
    const bool has_count = std::any_of(own.begin(), own.end(),
                                       [](const SettingSource& s) { return s.key->id == settings::Id::kGpuCount; });
    if (!has_count) AddFromVariable(settings::Of(settings::Id::kGpuCount), r);
    AddFromVariable(settings::Of(settings::Id::kGpuMemory), r);
  }

  static void AddFromVariable(const settings::Key& key, RequestedShare& r) {
    const Json* env = Member(*r.container->json, "env");
    if (env == nullptr) return;
    for (size_t i = env->size(); i > 0; --i) {  // the last variable of a name counts
      const Json& entry = (*env)[i - 1];
      if (Text(entry, "name") != key.variable) continue;
      if (Member(entry, "valueFrom") != nullptr) return;
      const std::string field = r.container->field + ".env[" + std::to_string(i - 1) + "] (" +
                                std::string(key.variable) + " of container '" + r.container->name + "')";
      r.sources.push_back({&key, std::string(Text(entry, "value")), field});
      if (IsSize(key)) r.sized_by = key.variable;
      return;
    }
  }

  void Parse(RequestedShare& r) {
    bool is_valid = true;
    for (const SettingSource& s : r.sources) {
      std::string error = settings::Set(r.settings, *s.key, s.value, s.field);
      is_valid &= error.empty();
      // A pod's annotation reaches several containers, and its error is reported once.
      if (!error.empty() && !findings_.IsFull() && std::find(errors_.begin(), errors_.end(), error) == errors_.end()) {
        errors_.push_back(error);
        findings_.Deny(Rule::kValue, error + " (container '" + r.container->name + "')");
      }
    }
    if (r.sized_by.empty() && !r.sources.empty() && r.container->kind != ContainerKind::kEphemeral) {
      findings_.Deny(Rule::kNoFraction, r.sources.front().field + ": container '" + r.container->name +
                                            "' requests no share of a GPU; accepted: together with " +
                                            std::string(kShareGivers));
    }
    if (!is_valid) return;
    for (std::string& text : settings::Conflicts(r.settings, SLUICE_DOMAIN "/")) {
      text += " (container '" + r.container->name + "')";
      findings_.Deny(Rule::kConflict, std::move(text));
    }
  }

  const PodView& view_;
  const Input& input_;
  Findings& findings_;
  const SortedAnnotations sorted_;
  std::vector<std::string> errors_;
};

}  // namespace

RequestedShares ResolveShares(const PodView& view, const Input& input, Findings& findings) {
  return Resolver(view, input, findings).Run();
}

}  // namespace sluice::webhook
