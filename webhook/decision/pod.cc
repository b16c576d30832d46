#include "webhook/decision/pod.h"

#include <nlohmann/json.hpp>
#include <tuple>

#include "common/settings/settings.h"
#include "sluice/names.h"

namespace sluice::webhook {
namespace {

struct ContainerList {
  const char* name;
  ContainerKind kind;
};
constexpr ContainerList kLists[] = {{"initContainers", ContainerKind::kInit},
                                    {"containers", ContainerKind::kRegular},
                                    {"ephemeralContainers", ContainerKind::kEphemeral}};

// The API server calls the webhook before it validates the pod, so these bound a decision's time. No pod has more.
constexpr size_t kMaxContainers = 1000;   // some checks compare every container with every other
constexpr size_t kMaxNameBytes = 63;      // of a container, as in the Kubernetes API; messages repeat them
constexpr size_t kMaxVariables = 10'000;  // of all containers; the API server applies a patch of each in turn
constexpr size_t kMaxClaims = 1000;       // each container's are looked up
constexpr size_t kMaxAffinity = 2000;     // JSON values of the node affinity, which each node is compared with

constexpr char kWrongForm[] = ": this field does not have the form that the Kubernetes API defines";

// Reads the resource from limits or requests. False: the JSON breaks the API's schema.
bool ReadUnits(const Json& container, const char* which, std::optional<int64_t>& out, Container& c) {
  const Json* resources = Member(container, "resources");
  if (resources == nullptr) return true;
  if (!resources->is_object()) return false;
  const Json* list = Member(*resources, which);
  if (list == nullptr) return true;
  if (!list->is_object()) return false;
  const auto it = list->find(SLUICE_RESOURCE);
  if (it == list->end()) return true;
  c.requests_resource = true;
  out = WholeQuantity(*it);
  if (!out) c.invalid_quantity = it->is_string() ? it->get<std::string>() : it->dump();
  return true;
}

bool CheckEnv(const Json& container) {
  for (const char* list : {"env", "envFrom"}) {
    const Json* env = Member(container, list);
    if (env == nullptr) continue;
    if (!env->is_array()) return false;
    for (const Json& e : *env) {
      if (!e.is_object()) return false;
      const Json* value = Member(e, "value");
      if (value != nullptr && !value->is_string()) return false;
    }
  }
  return true;
}

std::string ReadContainer(const Json& json, Container& c) {
  if (!json.is_object()) return c.field + ": this field is not an object";
  const Json* name = Member(json, "name");
  if (name == nullptr || !name->is_string()) return c.field + ".name: this field is not a string";
  c.name = name->get<std::string>();
  if (c.name.size() > kMaxNameBytes) {
    return c.field + ".name: this field is too long; accepted: at most " + std::to_string(kMaxNameBytes) +
           " characters";
  }
  if (!ReadUnits(json, "limits", c.limit, c) || !ReadUnits(json, "requests", c.request, c)) {
    return c.field + ".resources" + kWrongForm;
  }
  if (!CheckEnv(json)) return c.field + ".env" + kWrongForm;
  if (c.kind == ContainerKind::kInit && Text(json, "restartPolicy") == "Always") c.kind = ContainerKind::kSidecar;
  return {};
}

size_t CountValues(const Json& json) {
  size_t count = 1;
  if (json.is_structured()) {
    for (const Json& child : json) count += CountValues(child);
  }
  return count;
}

std::string CheckLimits(const PodView& view) {
  size_t variables = 0;
  for (const Container& c : view.containers) {
    const Json* env = Member(*c.json, "env");
    if (env != nullptr) variables += env->size();
  }
  const Json* claims = Member(*view.spec, "resourceClaims");
  const Json* affinity = Member(*view.spec, "affinity");
  const Json* nodes = affinity == nullptr ? nullptr : Member(*affinity, "nodeAffinity");
  const std::tuple<const char*, size_t, size_t> limits[] = {
      {"spec.containers.env", variables, kMaxVariables},
      {"spec.resourceClaims", claims == nullptr ? 0 : claims->size(), kMaxClaims},
      {"spec.affinity.nodeAffinity", nodes == nullptr ? 0 : CountValues(*nodes), kMaxAffinity}};
  for (const auto& [field, count, most] : limits) {
    if (count <= most) continue;
    return std::string(field) + ": the pod has too many of these, " + std::to_string(count) + "; accepted: at most " +
           std::to_string(most);
  }
  return {};
}

std::string ReadAnnotations(PodView& view) {
  const Json* metadata = Member(*view.pod, "metadata");
  if (metadata == nullptr) return {};
  if (!metadata->is_object()) return "metadata: this field is not an object";
  const Json* annotations = Member(*metadata, "annotations");
  if (annotations == nullptr) return {};
  if (!annotations->is_object()) return "metadata.annotations: this field is not an object";
  for (const auto& [key, value] : annotations->items()) {
    if (!value.is_string()) return "metadata.annotations: the value of '" + key + "' is not a string";
  }
  view.annotations = annotations;
  return {};
}

}  // namespace

const Json* Member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string_view Text(const Json& object, std::string_view key) {
  const Json* member = Member(object, key);
  if (member == nullptr || !member->is_string()) return {};
  return member->get_ref<const std::string&>();
}

PodView ViewPod(const Json& pod) {
  PodView view;
  view.pod = &pod;
  if (!pod.is_object()) {
    view.error = "the pod is not an object";
    return view;
  }
  view.error = ReadAnnotations(view);
  if (!view.error.empty()) return view;
  view.spec = Member(pod, "spec");
  if (view.spec == nullptr || !view.spec->is_object()) {
    view.error = "spec: this field is not an object";
    return view;
  }
  for (const ContainerList& list : kLists) {
    const Json* array = Member(*view.spec, list.name);
    if (array == nullptr) continue;
    if (!array->is_array()) {
      view.error = std::string("spec.") + list.name + ": this field is not a list";
      return view;
    }
    if (view.containers.size() + array->size() > kMaxContainers) {
      view.error = std::string("spec.") + list.name + ": the pod has too many containers; accepted: at most " +
                   std::to_string(kMaxContainers);
      return view;
    }
    size_t index = 0;
    for (const Json& json : *array) {
      const std::string i = std::to_string(index++);
      Container c{list.kind,
                  {},
                  std::string("/spec/") + list.name + "/" + i,
                  std::string("spec.") + list.name + "[" + i + "]",
                  &json,
                  false,
                  {},
                  {},
                  {}};
      view.error = ReadContainer(json, c);
      if (!view.error.empty()) return view;
      view.containers.push_back(std::move(c));
    }
  }
  view.error = CheckLimits(view);
  return view;
}

std::optional<int64_t> WholeQuantity(const Json& value) {
  if (value.is_number_integer()) {
    const auto n = value.get<int64_t>();
    return n < 0 ? std::nullopt : std::optional<int64_t>(n);
  }
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "0") return 0;
  const auto parsed = settings::ParseQuantity(text);
  // ParseQuantity rounds up, so text with a point or a suffix below one is refused first. The API server's canonical
  // form of a whole number has neither.
  if (!parsed || *parsed > 1000000 || text.find_first_of(".mun") != std::string::npos) return std::nullopt;
  return static_cast<int64_t>(*parsed);
}

std::optional<AnnotationKey> ParseOwnKey(std::string_view annotation) {
  const size_t slash = annotation.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view prefix = annotation.substr(0, slash);
  const std::string_view name = annotation.substr(slash + 1);
  constexpr std::string_view kDomain = SLUICE_DOMAIN;
  if (prefix == kDomain) return AnnotationKey{name, {}, false};
  if (prefix.size() > kDomain.size() + 1 && prefix.ends_with(kDomain) &&
      prefix[prefix.size() - kDomain.size() - 1] == '.') {
    return AnnotationKey{prefix.substr(0, prefix.size() - kDomain.size() - 1), name, true};
  }
  return std::nullopt;
}

bool IsWindows(const Json& spec) {
  if (const Json* os = Member(spec, "os"); os != nullptr && Text(*os, "name") == "windows") return true;
  const Json* selector = Member(spec, "nodeSelector");
  return selector != nullptr &&
         (Text(*selector, "kubernetes.io/os") == "windows" || Text(*selector, "beta.kubernetes.io/os") == "windows");
}

std::optional<uint64_t> HostMemoryLimit(const Json& spec, const Container& c) {
  std::optional<uint64_t> lowest;
  for (const Json* owner : {&spec, c.json}) {
    const Json* resources = Member(*owner, "resources");
    const Json* limits = resources == nullptr ? nullptr : Member(*resources, "limits");
    const auto memory = limits == nullptr ? std::nullopt : settings::ParseQuantity(Text(*limits, "memory"));
    if (memory && (!lowest || *memory < *lowest)) lowest = memory;
  }
  return lowest;
}

}  // namespace sluice::webhook
