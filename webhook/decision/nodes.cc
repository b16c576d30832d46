#include "webhook/decision/nodes.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "sluice/names.h"

namespace sluice::webhook {
namespace {

std::optional<int64_t> Integer(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return n;
}

// One matchExpressions or matchFields entry, with the rules of k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
bool Matches(const Json& requirement, std::optional<std::string_view> value) {
  const std::string_view op = Text(requirement, "operator");
  const Json* values = Member(requirement, "values");
  const auto listed = [&] {
    return value && values != nullptr && values->is_array() &&
           std::any_of(values->begin(), values->end(),
                       [&](const Json& v) { return v.is_string() && v.get_ref<const std::string&>() == *value; });
  };
  if (op == "In") return listed();
  if (op == "NotIn") return !listed();
  if (op == "Exists") return value.has_value();
  if (op == "DoesNotExist") return !value;
  if (op == "Gt" || op == "Lt") {
    if (!value || values == nullptr || !values->is_array() || values->size() != 1) return false;
    const Json& bound = values->front();
    const auto left = Integer(*value);
    const auto right = bound.is_string() ? Integer(bound.get_ref<const std::string&>()) : std::nullopt;
    if (!left || !right) return false;
    return op == "Gt" ? *left > *right : *left < *right;
  }
  return true;
}

bool MatchesTerm(const Json& term, const Node& node) {
  const Json* expressions = Member(term, "matchExpressions");
  const Json* fields = Member(term, "matchFields");
  bool any = false;
  for (const Json* list : {expressions, fields}) {
    if (list == nullptr || !list->is_array()) continue;
    for (const Json& requirement : *list) {
      any = true;
      const std::string_view key = Text(requirement, "key");
      std::optional<std::string_view> value;
      if (list == expressions) {
        value = node.labels.Find(key);
      } else if (key == "metadata.name") {
        value = node.name;
      }
      if (!Matches(requirement, value)) return false;
    }
  }
  return any;  // an empty term matches nothing
}

// Rounds up: the requested bytes must fit into the granted share.
uint64_t Percent(uint64_t bytes, uint64_t memory) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bytes) * 100 + memory - 1) / memory);
}

// "NVIDIA L4 (22.5 GiB): 45 percent, NVIDIA H200 (140.4 GiB): 8 percent"
std::string Table(uint64_t bytes, const Candidates& gpus) {
  std::string out;
  for (const auto& [memory, models] : gpus.models) {
    for (const std::string& model : models) {
      if (!out.empty()) out += ", ";
      out += model + " (" + settings::HumanBytes(memory) + "): " + std::to_string(Percent(bytes, memory)) + " percent";
    }
  }
  return out;
}

}  // namespace

Node ReadNode(const Json& node, std::string& error) {
  Node out;
  const Json* metadata = Member(node, "metadata");
  if (metadata == nullptr) return out;
  out.name = Text(*metadata, "name");
  if (const Json* labels = Member(*metadata, "labels"); labels != nullptr && labels->is_object()) {
    for (const auto& [key, value] : labels->items()) {
      if (value.is_string()) out.labels.Set(key, value.get_ref<const std::string&>());
    }
    out.labels.ShrinkToFit();
  }
  const Json* annotations = Member(*metadata, "annotations");
  if (annotations == nullptr) return out;
  const std::string_view text = Text(*annotations, SLUICE_NODE_ANNOTATION_GPUS);
  if (text.empty()) return out;
  const Json gpus = Json::parse(text, nullptr, false);
  if (!gpus.is_array()) {
    error = "node " + out.name + ": annotation " SLUICE_NODE_ANNOTATION_GPUS " is not a JSON list";
    return out;
  }
  for (const Json& g : gpus) {
    const Json* memory = Member(g, "memory");
    if (memory == nullptr || !memory->is_number_unsigned() || memory->get<uint64_t>() == 0) {
      error = "node " + out.name + ": annotation " SLUICE_NODE_ANNOTATION_GPUS " has a GPU without its memory in bytes";
      continue;
    }
    const std::string_view model = Text(g, "model");
    out.gpus.push_back({std::string(model.empty() ? "unknown model" : model), memory->get<uint64_t>()});
  }
  return out;
}

bool PodMatchesNode(const Json& spec, const Node& node) {
  if (const std::string_view name = Text(spec, "nodeName"); !name.empty() && name != node.name) return false;
  if (const Json* selector = Member(spec, "nodeSelector"); selector != nullptr && selector->is_object()) {
    for (const auto& [key, value] : selector->items()) {
      const auto label = node.labels.Find(key);
      if (!label || !value.is_string() || value.get_ref<const std::string&>() != *label) return false;
    }
  }
  const Json* at = &spec;
  for (const char* step :
       {"affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"}) {
    at = Member(*at, step);
    if (at == nullptr) return true;
  }
  if (!at->is_array()) return true;
  return std::any_of(at->begin(), at->end(), [&](const Json& term) { return MatchesTerm(term, node); });
}

Candidates FindGpus(const Json& spec, const Nodes& nodes, size_t at_least) {
  Candidates out;
  for (const auto& [name, node] : nodes) {
    if (node.gpus.empty()) continue;
    ++out.nodes_with_gpus;
    if (node.gpus.size() < at_least || !PodMatchesNode(spec, node)) continue;
    out.most_on_a_node = std::max(out.most_on_a_node, node.gpus.size());
    for (const Gpu& g : node.gpus) out.models[g.memory].insert(g.model);
  }
  return out;
}

MemoryShare ShareOfMemory(uint64_t bytes, const Candidates& known, std::optional<uint64_t> assumed) {
  MemoryShare out;
  Candidates gpus = known;
  if (gpus.models.empty() && assumed) gpus.models[*assumed] = {"assumed by the setting assumedGpuMemory"};
  const std::string quantity = "'" + settings::FormatQuantity(bytes) + "' ";
  if (gpus.models.empty()) {
    out.is_unknown = true;
    out.error = quantity + "cannot be converted into a share, because " +
                (gpus.nodes_with_gpus == 0
                     ? "the webhook knows no node's GPUs yet; accepted: "
                     : "nodeSelector and node affinity match none of the " + std::to_string(gpus.nodes_with_gpus) +
                           " nodes whose GPUs are known; accepted: a selector that matches one of them, ") +
                "gpu-fraction instead, or the chart's value webhook.assumedGpuMemory";
    return out;
  }
  const uint64_t smallest = std::max<uint64_t>(gpus.smallest(), 1);  // a GPU without memory is refused where it is read
  const uint64_t percent = Percent(bytes, smallest);
  if (percent > 100) {
    out.error = quantity + "exceeds the memory of the smallest GPU that the pod may get; " + Table(bytes, gpus) +
                "; accepted: at most " + settings::HumanBytes(smallest) +
                ", or a nodeSelector that matches only larger GPUs";
    return out;
  }
  out.percent = static_cast<uint32_t>(percent);
  if (gpus.models.rbegin()->first > 2 * smallest) {
    out.warning =
        "the memory of the GPUs that this pod may get differs by more than a factor of 2: " + Table(bytes, gpus) +
        "; the pod is charged the share of the smallest GPU; a nodeSelector narrows the choice";
  }
  return out;
}

}  // namespace sluice::webhook
