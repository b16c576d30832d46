// A typed, checked view of a pod (or of a pod template) in JSON. Nothing is copied: the JSON must outlive the view.
#ifndef SLUICE_WEBHOOK_DECISION_POD_H_
#define SLUICE_WEBHOOK_DECISION_POD_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::webhook {

using Json = nlohmann::json;

enum class ContainerKind { kInit, kSidecar, kRegular, kEphemeral };

struct Container {
  ContainerKind kind;
  std::string name;
  std::string pointer;  // JSON pointer inside the pod: /spec/containers/0
  std::string field;    // for messages: spec.containers[0]
  const Json* json;
  bool requests_resource = false;  // limits or requests name sluice's resource
  std::optional<int64_t> limit;    // units; nullopt: absent
  std::optional<int64_t> request;  // units; nullopt: absent
  std::string invalid_quantity;    // the value in the pod if it is no whole number
};

struct PodView {
  const Json* pod = nullptr;
  const Json* spec = nullptr;
  const Json* annotations = nullptr;  // an object of strings, or nullptr
  std::vector<Container> containers;  // init first, then regular, then ephemeral
  std::string error;                  // a field that breaks the Kubernetes API's schema; empty: none
};

// A member of an object; nullptr if it is absent or null, or if `object` is no object.
const Json* Member(const Json& object, std::string_view key);
// The same, as a string; empty if it is absent or no string.
std::string_view Text(const Json& object, std::string_view key);

PodView ViewPod(const Json& pod);

// An extended resource's quantity as a whole number from 0 to 1,000,000 ("50", 50, "1k"); nullopt: any other value.
std::optional<int64_t> WholeQuantity(const Json& value);

// The parts of sluice.dev/<key> (`container` is empty) or <key>.sluice.dev/<container>.
struct AnnotationKey {
  std::string_view key;
  std::string_view container;
  bool by_name = false;
};
// nullopt: the annotation belongs to another project.
std::optional<AnnotationKey> ParseOwnKey(std::string_view annotation);

// Whether the pod runs on Windows, by spec.os or its node selector.
bool IsWindows(const Json& spec);

// Bytes of the lowest limit on host memory that applies to this container: its own, or the whole pod's. nullopt: none.
std::optional<uint64_t> HostMemoryLimit(const Json& spec, const Container& c);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_POD_H_
