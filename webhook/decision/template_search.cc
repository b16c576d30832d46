#include "webhook/decision/template_search.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "webhook/decision/decision.h"

namespace sluice::webhook {
namespace {

constexpr size_t kMaxTemplates = 100;
constexpr size_t kMaxStrays = 20;

bool HasShape(const Json& object) {
  const Json* spec = Member(object, "spec");
  const Json* containers = spec == nullptr ? nullptr : Member(*spec, "containers");
  return containers != nullptr && containers->is_array() && !containers->empty() &&
         std::all_of(containers->begin(), containers->end(), [](const Json& c) { return c.is_object(); });
}

std::string Escape(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? std::string("~0") : c == '/' ? std::string("~1") : std::string(1, c);
  return out;
}

std::string Unescape(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    const bool is_escape = token[i] == '~' && i + 1 < token.size();
    out += !is_escape ? token[i] : token[i + 1] == '1' ? '/' : '~';
    i += is_escape ? 1 : 0;
  }
  return out;
}

// Calls `visit(json, pointer)` for `json` and all that it holds. The visitor returns false to stay out of a value.
template <typename F>
void Walk(const Json& json, const std::string& pointer, F& visit) {
  if (!json.is_structured() || !visit(json, pointer)) return;
  if (json.is_array()) {
    for (size_t i = 0; i < json.size(); ++i) Walk(json[i], pointer + "/" + std::to_string(i), visit);
    return;
  }
  for (const auto& [key, value] : json.items()) {
    if (value.is_structured()) Walk(value, pointer + "/" + Escape(key), visit);
  }
}

}  // namespace

std::vector<std::string> FindTemplates(const Json& workload) {
  std::vector<std::string> out;
  auto visit = [&](const Json& json, const std::string& pointer) {
    if (!HasShape(json) || out.size() >= kMaxTemplates) return out.size() < kMaxTemplates;
    out.push_back(pointer);
    return false;
  };
  Walk(workload, "", visit);
  return out;
}

const Json* FindAt(const Json& workload, std::string_view pointer) {
  constexpr size_t kMaxDigits = 9;
  const Json* at = &workload;
  while (at != nullptr && !pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view token = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(token.size());
    if (at->is_array()) {
      const bool is_index = !token.empty() && token.size() <= kMaxDigits &&
                            std::all_of(token.begin(), token.end(), [](char c) { return c >= '0' && c <= '9'; });
      const size_t index = is_index ? std::stoul(std::string(token)) : at->size();
      at = index < at->size() ? &(*at)[index] : nullptr;
      continue;
    }
    at = Member(*at, Unescape(token));
  }
  return at != nullptr && at->is_object() ? at : nullptr;
}

std::vector<StrayAnnotation> FindStrayAnnotations(const Json& workload, const std::vector<std::string>& templates,
                                                  bool aliases) {
  std::vector<StrayAnnotation> out;
  auto visit = [&](const Json& json, const std::string& pointer) {
    if (std::find(templates.begin(), templates.end(), pointer) != templates.end()) return false;
    const bool is_map = json.is_object() && (pointer.ends_with("/annotations") || pointer.ends_with("Annotations"));
    if (!is_map) return true;
    for (const auto& [key, value] : json.items()) {
      if (value.is_string() && IsOwnAnnotation(key, aliases) && out.size() < kMaxStrays) out.push_back({pointer, key});
    }
    return false;
  };
  Walk(workload, "", visit);
  return out;
}

Json TemplateAsPod(const Json& found) {
  Json pod = found;
  if (!HasShape(pod)) return pod;
  Json& containers = pod["spec"]["containers"];
  if (containers.size() == 1 && Member(containers[0], "name") == nullptr) containers[0]["name"] = "user-container";
  return pod;
}

}  // namespace sluice::webhook
