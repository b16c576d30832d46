// The conditions that policy.cc writes as CEL.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/convert.h"
#include "webhook/decision/decision.h"
#include "webhook/decision/host_access.h"
#include "webhook/decision/marker.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kMirror = "kubernetes.io/config.mirror";

bool IsMirror(const Json* annotations) { return annotations != nullptr && annotations->contains(kMirror); }

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

template <typename F>
bool AnyResource(const Json& container, F f) {
  const Json* resources = Member(container, "resources");
  if (resources == nullptr) return false;
  for (const char* list : {"limits", "requests"}) {
    const Json* quantities = Member(*resources, list);
    if (quantities == nullptr || !quantities->is_object()) continue;
    for (const auto& [name, quantity] : quantities->items()) {
      if (f(name)) return true;
    }
  }
  return false;
}

bool RequestsResource(const Json& container) {
  return AnyResource(container, [](const std::string& name) { return name == SLUICE_RESOURCE; });
}

bool PreloadsLibrary(const Json& container) {
  const Json* env = Member(container, "env");
  return env != nullptr && env->is_array() && std::any_of(env->begin(), env->end(), [](const Json& e) {
           return Text(e, "name") == "LD_PRELOAD" && Text(e, "value").starts_with(SLUICE_CONTAINER_SHIM);
         });
}

}  // namespace

bool IsOwnAnnotation(std::string_view key, bool aliases) {
  if (ParseOwnKey(key)) return true;
  MemoryAlias unused;
  return aliases && (key == "gpu-fraction" || key == "gpu-memory" || ParseMemoryAlias(key, unused));
}

bool IsMirrorPod(const Json& pod) { return IsMirror(Annotations(pod)); }

bool ConcernsSluice(const Json& pod, bool aliases) {
  const Json* annotations = Annotations(pod);
  if (IsMirror(annotations)) return false;
  if (annotations != nullptr && Text(*annotations, kInjectField) != "false") {
    for (const auto& [key, value] : annotations->items()) {
      if (IsOwnAnnotation(key, aliases) && !(key == kInjectField && value == "true")) return true;
    }
  }
  if (AnyContainer(pod, RequestsResource)) return true;
  // sluice.dev/inject: "false" leaves other systems' pods to them.
  const bool is_left_alone = annotations != nullptr && Text(*annotations, kInjectField) == "false";
  return aliases && !is_left_alone && AnyContainer(pod, [](const Json& c) {
           return AnyResource(c, [](const auto& n) { return IsAliasResource(n); });
         });
}

bool IsHandled(const Json& pod) {
  const Json* annotations = Annotations(pod);
  return annotations != nullptr && annotations->contains(kMarkerField) && !annotations->contains(kPlacementField) &&
         !annotations->contains(kGrantedField) &&
         !AnyContainer(pod, [](const Json& c) { return RequestsResource(c) && !PreloadsLibrary(c); });
}

bool NeedsDecision(const Json& pod, bool aliases) {
  if (ConcernsSluice(pod, aliases)) return true;
  return !IsMirrorPod(pod) && AnyContainer(pod, [](const Json& c) {
    const Json* env = Member(c, "env");
    return env != nullptr && env->is_array() &&
           std::any_of(env->begin(), env->end(), [](const Json& e) { return Text(e, "name") == kVisibleDevices; });
  });
}

}  // namespace sluice::webhook
