// A typed, checked look at a pod (or a pod template) in JSON. Nothing is copied; the JSON must outlive the view.
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
  std::string field;    // for people: spec.containers[0]
  const Json* json;
  bool asks = false;               // names the resource in limits or requests
  std::optional<int64_t> limit;    // units; nullopt where absent
  std::optional<int64_t> request;  //
  std::string bad_quantity;        // what was written, where it is not a whole number
};

struct PodView {
  const Json* pod = nullptr;
  const Json* spec = nullptr;
  const Json* annotations = nullptr;  // object of strings, or nullptr
  std::vector<Container> containers;  // init first, then regular, then ephemeral
  std::string error;                  // what is not as the Kubernetes API has it; empty: fine
};

// Member of an object, nullptr where absent, null, or `object` is no object.
const Json* Member(const Json& object, std::string_view key);
// The same, as a string; empty where absent or no string.
std::string_view Text(const Json& object, std::string_view key);

PodView ViewPod(const Json& pod);

// An extended resource's quantity as a whole number ("50", 50, "1k"); nullopt: it is none.
std::optional<int64_t> WholeQuantity(const Json& value);

// Splits an annotation's key. `container` is empty for sluice.dev/<key>. nullopt: not ours.
struct AnnotationKey {
  std::string_view key;
  std::string_view container;
  bool by_name = false;
};
std::optional<AnnotationKey> OurKey(std::string_view annotation);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_POD_H_
