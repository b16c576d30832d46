#include "webhook/decision/sorted_annotations.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/marker.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kAliasFraction = "gpu-fraction";
constexpr std::string_view kAliasMemory = "gpu-memory";
constexpr std::string_view kAliasDevices = "gpu-fraction-num-devices";

// Levenshtein distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Whether people may mean this key: by a slip, other case, or a part of its name ("memory").
bool IsNear(std::string_view typed, std::string_view name) {
  constexpr size_t kMaxBytes = 64, kMinPart = 4;
  if (typed.size() > kMaxBytes) return false;
  std::string lower(typed);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return EditDistance(lower, name) <= 2 || (lower.size() >= kMinPart && name.find(lower) != std::string_view::npos);
}

std::string UnknownKeyMessage(std::string_view annotation, std::string_view key) {
  std::string out = std::string(annotation.substr(0, 128)) + ": this key is unknown";
  for (const settings::Key& k : settings::Table()) {
    if (IsNear(key, k.name)) {
      out += "; did you mean " + std::string(k.name) + "?";
      break;
    }
  }
  return out + "; accepted: " + settings::Names();
}

class Sorter {
 public:
  Sorter(const PodView& view, const Input& input, Findings& findings)
      : view_(view), input_(input), findings_(findings) {}

  SortedAnnotations Run() {
    if (view_.annotations == nullptr) return {};
    if (findings_.IsEnabled(Rule::kInjectFalse) && Text(*view_.annotations, kInjectField) == "false") {
      sorted_.is_inject_false = true;  // whatever else the annotations say
      return std::move(sorted_);
    }
    for (const auto& [annotation, json] : view_.annotations->items()) {
      const auto& value = json.get_ref<const std::string&>();
      if (const auto key = ParseOwnKey(annotation)) Add(annotation, *key, value);
    }
    if (input_.config.aliases && findings_.IsEnabled(Rule::kAliases)) AddAliases();
    return std::move(sorted_);
  }

 private:
  void Add(const std::string& annotation, const AnnotationKey& own, const std::string& value) {
    if (!own.by_name && own.key == SLUICE_KEY_INJECTED) {
      sorted_.has_marker = true;
      return;
    }
    const settings::Key* key = settings::Find(own.key);
    if (!own.by_name && key != nullptr && key->id == settings::Id::kInject) {
      settings::Settings parsed;
      const std::string error = settings::Set(parsed, *key, value, annotation);
      sorted_.is_inject_invalid = !error.empty();
      if (!error.empty()) findings_.Deny(Rule::kInject, error);
      return;
    }
    const bool is_answer = !own.by_name && (own.key == SLUICE_KEY_PLACEMENT || own.key == SLUICE_KEY_GRANTED);
    if (is_answer && input_.mode == Mode::kCreate && view_.annotations->contains(kMarkerField)) {
      sorted_.old_answers.push_back(annotation);
      return;
    }
    sorted_.has_settings = true;
    if (is_answer) {
      if (input_.mode != Mode::kUpdate) {
        findings_.Deny(Rule::kOwnKey,
                       annotation + ": only sluice may write this annotation; accepted: a pod without it");
      }
      return;
    }
    if (key == nullptr) {
      if (!findings_.IsFull()) findings_.Deny(Rule::kUnknownKey, UnknownKeyMessage(annotation, own.key));
      return;
    }
    if (own.by_name && key->id == settings::Id::kInject) {
      findings_.Deny(Rule::kPodKey, annotation + ": inject applies to the whole pod, not to container '" +
                                        std::string(own.container) +
                                        "'; accepted: " SLUICE_DOMAIN "/" SLUICE_KEY_INJECT);
      return;
    }
    SettingSource source{key, value, annotation};
    if (own.by_name) {
      sorted_.by_name[std::string(own.container)].push_back(std::move(source));
    } else {
      sorted_.pod.push_back(std::move(source));
    }
  }

  bool HasPrefixedSize() const {
    const auto has_size = [](const std::vector<SettingSource>& list) {
      return std::any_of(list.begin(), list.end(), [](const SettingSource& s) { return IsSize(*s.key); });
    };
    return has_size(sorted_.pod) || std::any_of(sorted_.by_name.begin(), sorted_.by_name.end(),
                                                [&](const auto& entry) { return has_size(entry.second); });
  }

  void AddAliases() {
    const auto fraction = view_.annotations->find(kAliasFraction);
    const auto memory = view_.annotations->find(kAliasMemory);
    const bool has_fraction = fraction != view_.annotations->end();
    const bool has_memory = memory != view_.annotations->end();
    if (!has_fraction && !has_memory) return;
    const std::string name(has_fraction ? kAliasFraction : kAliasMemory);
    if (HasPrefixedSize()) {
      findings_.Warn(Rule::kWarnAlias, "the annotation " + name +
                                           " is ignored, because an annotation of " SLUICE_DOMAIN " gives the share");
      return;
    }
    sorted_.is_alias_used = true;
    findings_.Warn(Rule::kWarnAlias, "the annotation " + name + " is deprecated; use " SLUICE_DOMAIN "/" + name);
    if (has_fraction) {
      sorted_.alias.push_back(
          {settings::Find(SLUICE_KEY_GPU_FRACTION), fraction->get<std::string>(), std::string(kAliasFraction)});
    }
    if (has_memory) AddAliasMemory(memory->get_ref<const std::string&>());
    sorted_.alias_container = Text(*view_.annotations, kAliasContainer);
    const std::string devices(Text(*view_.annotations, kAliasDevices));
    if (!devices.empty()) {
      sorted_.alias.push_back({settings::Find(SLUICE_KEY_GPU_COUNT), devices, std::string(kAliasDevices)});
    }
  }

  // KAI's unit is a bare number of MiB.
  void AddAliasMemory(const std::string& text) {
    uint64_t mib = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
    if (error != std::errc{} || end != text.data() + text.size() || mib == 0 || mib > (uint64_t{1} << 40)) {
      findings_.Deny(Rule::kAliasValue, std::string(kAliasMemory) + ": '" + text.substr(0, 64) +
                                            "' is not accepted; accepted: a whole number of MiB above 0");
      return;
    }
    sorted_.alias.push_back(
        {settings::Find(SLUICE_KEY_GPU_MEMORY), std::to_string(mib) + "Mi", std::string(kAliasMemory)});
  }

  const PodView& view_;
  const Input& input_;
  Findings& findings_;
  SortedAnnotations sorted_;
};

}  // namespace

SortedAnnotations SortAnnotations(const PodView& view, const Input& input, Findings& findings) {
  return Sorter(view, input, findings).Run();
}

bool IsSize(const settings::Key& key) {
  return key.id == settings::Id::kGpuFraction || key.id == settings::Id::kGpuMemory;
}

}  // namespace sluice::webhook
