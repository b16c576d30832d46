#include "webhook/decision/meant_container.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "webhook/decision/json_reader.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kLastApplied = "kubectl.kubernetes.io/last-applied-configuration";
constexpr std::string_view kDefaultContainer = "kubectl.kubernetes.io/default-container";

using Names = ContainerNames;

// The containers in one writer's set of fields (FieldsV1): {"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{}}}}.
Names FieldsContainers(const Json& fields) {
  Names out;
  const Json* spec = Member(fields, "f:spec");
  const Json* containers = spec == nullptr ? nullptr : Member(*spec, "f:containers");
  if (containers == nullptr || !containers->is_object()) return out;
  for (const auto& [key, value] : containers->items()) {
    if (!key.starts_with("k:")) continue;
    std::string unused;
    const auto name = ReadJson(std::string_view(key).substr(2), unused);
    if (name) out.emplace(Text(*name, "name"));
  }
  return out;
}

// By metadata.managedFields. nullopt: the pod does not say.
std::optional<Names> ManagedContainers(const Json& pod, std::string_view annotation) {
  const Json* metadata = Member(pod, "metadata");
  const Json* entries = metadata == nullptr ? nullptr : Member(*metadata, "managedFields");
  if (entries == nullptr || !entries->is_array()) return std::nullopt;
  Names all;
  for (const Json& entry : *entries) {
    const Json* fields = Member(entry, "fieldsV1");
    if (fields == nullptr || !Text(entry, "subresource").empty()) continue;
    Names names = FieldsContainers(*fields);
    const Json* owned = Member(*fields, "f:metadata");
    const Json* annotations = owned == nullptr ? nullptr : Member(*owned, "f:annotations");
    const bool wrote_annotation =
        annotations != nullptr && annotations->is_object() && annotations->contains("f:" + std::string(annotation));
    if (wrote_annotation && !names.empty()) return names;
    all.merge(names);
  }
  if (all.empty()) return std::nullopt;
  return all;
}

// By the annotation of `kubectl apply`, in a pod that a person applied.
std::optional<Names> AppliedContainers(const PodView& view, std::string_view annotation) {
  const std::string_view text =
      view.annotations == nullptr ? std::string_view() : Text(*view.annotations, kLastApplied);
  std::string unused;
  const auto applied = text.empty() ? std::nullopt : ReadJson(text, unused);
  if (!applied || Text(*applied, "kind") != "Pod") return std::nullopt;
  const PodView written = ViewPod(*applied);
  if (!written.error.empty() || written.annotations == nullptr || !written.annotations->contains(annotation)) {
    return std::nullopt;
  }
  Names out;
  for (const Container& c : written.containers) {
    if (c.kind == ContainerKind::kRegular) out.insert(c.name);
  }
  if (out.empty()) return std::nullopt;
  return out;
}

// An entry of the setting: NAME, or NAME@PART of the image.
bool IsSidecar(const Container& c, const std::vector<std::string>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
    const size_t at = entry.find('@');
    if (entry.substr(0, at) != c.name) return false;
    return at == std::string::npos || Text(*c.json, "image").find(entry.substr(at + 1)) != std::string_view::npos;
  });
}

}  // namespace

std::optional<ContainerNames> WrittenContainers(const PodView& view, std::string_view field) {
  // A tool that restores a pod writes all containers, and the applied manifest is still there.
  if (auto names = AppliedContainers(view, field)) return names;
  return ManagedContainers(*view.pod, field);
}

const Container* MeantContainer(const PodView& view, std::string_view field,
                                const std::vector<const Container*>& regular, const Input& input,
                                const Findings& findings) {
  std::vector<const Container*> candidates = regular;
  if (candidates.size() > 1 && findings.IsEnabled(Rule::kWrittenContainers)) {
    if (const auto names = WrittenContainers(view, field)) {
      std::erase_if(candidates, [&](const Container* c) { return !names->contains(c->name); });
      if (candidates.empty()) candidates = regular;  // the containers were renamed
    }
  }
  if (candidates.size() > 1 && findings.IsEnabled(Rule::kSidecarNames)) {
    std::erase_if(candidates, [&](const Container* c) { return IsSidecar(*c, input.config.sidecars); });
  }
  if (candidates.size() == 1) return candidates.front();
  if (!findings.IsEnabled(Rule::kDefaultContainer) || view.annotations == nullptr) return nullptr;
  const std::string_view name = Text(*view.annotations, kDefaultContainer);
  const auto named = std::find_if(candidates.begin(), candidates.end(), [&](const auto* c) { return c->name == name; });
  return named == candidates.end() ? nullptr : *named;
}

}  // namespace sluice::webhook
