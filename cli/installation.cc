#include "cli/installation.h"

#include <nlohmann/json.hpp>

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kWebhook = "mutate.sluice.dev";  // the same under every name of the chart's objects
constexpr const char* kNameLabel = "app.kubernetes.io/name";

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

bool IsOurs(const Json& configuration) {
  for (const Json& webhook : configuration.value("webhooks", Json::array())) {
    if (webhook.is_object() && Text(webhook, "name") == kWebhook) return true;
  }
  return false;
}

std::string NameIn(const std::string& list) {
  const Json found = Json::parse(list, nullptr, false);
  if (!found.is_object()) return "";
  for (const Json& item : found.value("items", Json::array())) {
    if (!item.is_object() || !IsOurs(item)) continue;
    const Json metadata = item.value("metadata", Json::object());
    const std::string label = Text(metadata.value("labels", Json::object()), kNameLabel);
    return label.empty() ? Text(metadata, "name") : label;
  }
  return "";
}

}  // namespace

std::string SelectorOf(const Kubectl& kubectl, const std::string& component) {
  const Kubectl::Answer answer = kubectl.Run({"get", "mutatingwebhookconfigurations", "-o", "json"});
  std::string name = answer.ok() ? NameIn(answer.out) : "";
  if (name.empty()) name = "sluice";
  return std::string(kNameLabel) + "=" + name + ",app.kubernetes.io/component=" + component;
}

}  // namespace sluice::cli
