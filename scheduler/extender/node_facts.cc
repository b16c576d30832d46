#include "scheduler/extender/node_facts.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "scheduler/extender/pod_facts.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

const Json& At(const Json& object, const char* pointer) {
  static const Json kNull;
  const Json::json_pointer path(pointer);
  return object.contains(path) ? object.at(path) : kNull;
}

}  // namespace

NodeFacts ReadNode(const Json& node) {
  NodeFacts facts;
  if (const Json& name = At(node, "/metadata/name"); name.is_string()) facts.name = name;
  facts.cpu_milli = ReadMilli(At(node, "/status/allocatable/cpu"));
  facts.memory_mib = ReadMemoryMib(At(node, "/status/allocatable/memory"));
  const Json& annotation = At(node, "/metadata/annotations/sluice.dev~1gpus");
  if (!annotation.is_string()) {
    facts.problem = "no annotation " SLUICE_NODE_ANNOTATION_GPUS ": sluice's agent does not run there";
    return facts;
  }
  auto cards = ParseNodeCards(annotation.get_ref<const std::string&>());
  if (!cards.ok()) {
    facts.problem =
        absl::StrCat("annotation " SLUICE_NODE_ANNOTATION_GPUS " cannot be read: ", cards.status().message());
    return facts;
  }
  // Kubelet offers no units while the plugin is away, even if the agent reports free ones.
  if (ReadMilli(At(node, "/status/allocatable/sluice.dev~1gpu-percent")) == 0) {
    facts.problem = "offers no " SLUICE_RESOURCE ": sluice's device plugin does not run there";
  }
  facts.cards = *std::move(cards);
  return facts;
}

}  // namespace sluice::scheduler
