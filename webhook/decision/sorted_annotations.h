// Reads a pod's annotations and sorts the settings by the containers that they apply to. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_SORTED_ANNOTATIONS_H_
#define SLUICE_WEBHOOK_DECISION_SORTED_ANNOTATIONS_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/settings/settings.h"
#include "webhook/decision/findings.h"

namespace sluice::webhook {

inline constexpr std::string_view kAliasContainer = "gpu-fraction-container-name";

// One annotation that gives a setting.
struct SettingSource {
  const settings::Key* key;
  std::string value;
  std::string field;  // the annotation's whole key, for messages
};

struct SortedAnnotations {
  std::vector<SettingSource> pod;                                          // sluice.dev/<key>
  std::map<std::string, std::vector<SettingSource>, std::less<>> by_name;  // <key>.sluice.dev/<container>
  std::vector<SettingSource> alias;                                        // gpu-fraction, gpu-memory
  std::string alias_container;                                             // empty: the first regular container
  bool is_alias_used = false;
  bool has_marker = false;         // sluice.dev/injected
  bool has_settings = false;       // any key of ours but the marker and the pod's inject
  bool is_inject_false = false;    // sluice.dev/inject: "false"
  bool is_inject_invalid = false;  // denied already
  // A placement or a granted size beside the marker: of the pod that this one was copied from.
  std::vector<std::string> old_answers;
};

// Denies unknown keys, reserved keys and wrong alias values; the values of settings are parsed later.
SortedAnnotations SortAnnotations(const PodView& view, const Input& input, Findings& findings);

// Whether the key gives a container its share: gpu-fraction or gpu-memory.
bool IsSize(const settings::Key& key);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_SORTED_ANNOTATIONS_H_
