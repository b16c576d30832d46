// Sizes that a pod gives in the form of other sharing systems, as annotations of sluice. Pure.
#ifndef SLUICE_WEBHOOK_DECISION_CONVERT_H_
#define SLUICE_WEBHOOK_DECISION_CONVERT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

// nvidia.com/container.<name>.gpu-memory.request or .limit (KAI, Run:ai 3): the parts of the key.
struct MemoryAlias {
  std::string_view container;
  bool is_limit = false;
};
// False: the key is another one.
bool ParseMemoryAlias(std::string_view annotation, MemoryAlias& out);

// Resources by which HAMi and nvshare give a part of a GPU.
bool IsAliasResource(std::string_view resource);

struct Conversion {
  bool has_changes = false;
  Json pod;           // the pod afterwards, if there are changes
  std::string patch;  // JSON Patch of the changes, without brackets
  std::vector<Finding> denials;
  std::vector<std::string> warnings;
};

// kAdmission: the annotations of others stay in the pod. kManifest: they leave it, with the bare gpu-fraction and
// gpu-memory and the other system's scheduler, so that the manifest needs no aliases any more.
enum class ConversionScope { kAdmission, kManifest };

// `pod` may be a template.
Conversion ConvertAliases(const Json& pod, ConversionScope scope);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_CONVERT_H_
