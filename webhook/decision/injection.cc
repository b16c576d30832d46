#include "webhook/decision/injection.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/host_access.h"
#include "webhook/decision/other_systems.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kPreload = "LD_PRELOAD";
constexpr std::string_view kShim = SLUICE_CONTAINER_SHIM;
// Only the allocation may set these: with another value, a user could escape the share.
constexpr std::string_view kReserved[] = {SLUICE_ENV_SOCKET, SLUICE_ENV_ENGINE, SLUICE_ENV_DISABLE};
// Variables without an annotation that users may set.
constexpr std::string_view kUsersOwn[] = {SLUICE_ENV_USERS_OWN};

const settings::Key* FindVariable(std::string_view name) {
  for (const settings::Key& k : settings::Table()) {
    if (!k.variable.empty() && k.variable == name) return &k;
  }
  return nullptr;
}

// "spec.containers[0].env[1] (LD_PRELOAD of container 'trainer')"
std::string EnvField(const Container& c, size_t index, std::string_view variable) {
  return c.field + ".env[" + std::to_string(index) + "] (" + std::string(variable) + " of container '" + c.name + "')";
}

// Whether both give `key` the same value.
bool HaveSameValue(const settings::Key& key, const settings::Settings& a, const settings::Settings& b) {
  const auto left = settings::Format(a);
  const auto right = settings::Format(b);
  const auto i = left.find(std::string(key.name));
  const auto j = right.find(std::string(key.name));
  return i != left.end() && j != right.end() && i->second == j->second;
}

// Compares one of the user's variables with the container's settings.
void CheckVariable(const RequestedShare& share, size_t index, const Json& entry, const settings::Settings& given,
                   Findings& findings) {
  const Container& c = *share.container;
  const std::string name(Text(entry, "name"));
  if (!name.starts_with("SLUICE_")) return;
  const std::string field = EnvField(c, index, name);
  if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
    findings.Deny(Rule::kReservedVariable, field + ": only sluice may set this variable; accepted: no such variable");
    return;
  }
  const settings::Key* key = FindVariable(name);
  if (key == nullptr) {
    if (std::find(std::begin(kUsersOwn), std::end(kUsersOwn), name) == std::end(kUsersOwn)) {
      findings.Warn(Rule::kWarnVariable, "container " + c.name + ": the variable " + name + " is unknown to sluice");
    }
    return;
  }
  if (Member(entry, "valueFrom") != nullptr) {
    findings.Deny(
        Rule::kVariableValueFrom,
        field + ": sluice cannot compare valueFrom with the annotations; accepted: the annotation " SLUICE_DOMAIN "/" +
            std::string(key->name));
    return;
  }
  settings::Settings own;
  const std::string error = settings::Set(own, *key, Text(entry, "value"), field);
  if (!error.empty()) {
    findings.Deny(Rule::kVariableContradiction, error);
    return;
  }
  const auto all = settings::Format(given);
  const auto expected = all.find(std::string(key->name));
  // Without an annotation the user may set the variable: it cannot raise the share. But it does not split it either.
  const bool is_split = own.gpu_count > 1u;
  if (expected == all.end() && !IsSize(*key) && !is_split) return;
  if (HaveSameValue(*key, own, given)) return;
  const std::string value(Text(entry, "value"));
  findings.Deny(
      Rule::kVariableContradiction,
      field + ": '" + value.substr(0, 64) + "' contradicts " +
          (expected == all.end() ? share.sized_by + ", which gives the container's share; accepted: no such variable"
                                 : std::string(key->name) + ", which is '" + expected->second + "'; accepted: '" +
                                       expected->second + "', or no such variable"));
}

// Gives a variable about the size the size of `given`. Returns its name.
std::string_view ReplaceSize(const std::string& pointer, const Json& entry, const settings::Settings& given,
                             Patch& patch) {
  const settings::Key& key = settings::Of(given.gpu_memory ? settings::Id::kGpuMemory : settings::Id::kGpuFraction);
  const std::string value = settings::Format(given).at(std::string(key.name));
  if (Text(entry, "name") != key.variable) patch.Replace(pointer, "name", Quote(key.variable));
  if (Text(entry, "value") != value) patch.Add(pointer, "value", Quote(value));  // adds a member or replaces it
  return key.variable;
}

std::string MergePreload(std::string_view old) {
  return old.empty() ? std::string(kShim) : std::string(kShim) + ":" + std::string(old);
}

// A container's variables from ConfigMaps and Secrets, which the webhook does not see.
bool HasUnseenVariables(const Container& c) {
  const Json* env_from = Member(*c.json, "envFrom");
  return env_from != nullptr && !env_from->empty();
}

// The kubelet puts the pod's variables over the device plugin's, which names the GPU of the share.
void RemoveVisibleDevices(const Container& c, const Json& env, bool keeps_void, Findings& findings, Patch& patch) {
  for (size_t i = env.size(); i > 0; --i) {
    const Json& entry = env[i - 1];
    if (Text(entry, "name") != kVisibleDevices) continue;
    if (AsksForDevices(entry)) {
      findings.Warn(Rule::kOwnDevices, "container " + c.name + ": the pod's " + std::string(kVisibleDevices) +
                                           " is removed, because the share gives the GPU");
    } else if (keeps_void) {
      continue;
    }
    patch.Remove(c.pointer + "/env", i - 1);
  }
}

}  // namespace

bool PreloadsSluice(std::string_view value) { return value.substr(0, value.find_first_of(": ")) == kShim; }

void InjectVariables(const RequestedShare& share, uint32_t percent, bool is_resized, const Input& input,
                     Findings& findings, Patch& patch) {
  const Container& c = *share.container;
  settings::Settings given = share.settings;
  given.inject.reset();
  if (!given.gpu_percent && !given.gpu_memory) given.gpu_percent = percent;  // only the resource gives the share

  const Json* env = Member(*c.json, "env");
  const size_t count = env == nullptr ? 0 : env->size();
  std::optional<size_t> preload;  // the last variable of a name counts
  std::vector<std::string> present;
  for (size_t i = 0; i < count; ++i) {
    const Json& entry = (*env)[i];
    const std::string_view name = Text(entry, "name");
    if (name == kPreload) preload = i;
    if (const settings::Key* key = FindVariable(name); is_resized && key != nullptr && IsSize(*key)) {
      present.emplace_back(ReplaceSize(c.pointer + "/env/" + std::to_string(i), entry, given, patch));
      continue;
    }
    present.emplace_back(name);
    // A running pod's variables repeat the annotations of its creation.
    if (input.mode != Mode::kUpdate) CheckVariable(share, i, entry, given, findings);
  }

  if (preload && Member((*env)[*preload], "valueFrom") != nullptr) {
    findings.Deny(Rule::kPreloadValueFrom,
                  EnvField(c, *preload, kPreload) +
                      ": sluice cannot add its library to a variable with valueFrom; accepted: a plain value, or the "
                      "library's path in the image's entry point");
    return;
  }
  if (preload && input.mode != Mode::kUpdate) {
    if (const auto system = PreloadedSystem(Text((*env)[*preload], "value")); !system.empty()) {
      findings.Deny(Rule::kForeignPreload, EnvField(c, *preload, kPreload) + ": the library of " + std::string(system) +
                                               " shares the GPU as well; accepted: no library of another sharing "
                                               "system");
    }
  }
  // By NVIDIA's runtime the share's GPU comes as this variable, which only the device plugin knows.
  const bool by_variable = input.config.driver_access == DriverAccess::kNvidiaRuntime;
  const bool has_unseen = HasUnseenVariables(c);
  if (has_unseen && (!preload || by_variable)) {
    findings.Warn(
        Rule::kWarnEnvFrom,
        "container " + c.name + " uses envFrom" +
            (preload ? std::string()
                     : ": sluice's LD_PRELOAD replaces one that envFrom sets; set LD_PRELOAD by env to keep "
                       "both") +
            (by_variable ? (preload ? ": " : ". ") + std::string(kVisibleDevices) + " must not come by envFrom"
                         : std::string()));
  }
  if (input.config.share_by == ShareBy::kClaims && input.mode != Mode::kUpdate) return;
  const bool hides_unseen = has_unseen && !by_variable && input.mode != Mode::kUpdate &&
                            input.config.privileged != Reaction::kAllow && findings.IsEnabled(Rule::kOwnDevices);

  std::vector<std::string> added;  // JSON of each new variable
  const auto variable = [](std::string_view name, std::string_view value) {
    return "{\"name\":" + Quote(name) + ",\"value\":" + Quote(value) + "}";
  };
  if (!preload) {
    if (findings.IsEnabled(Rule::kSetPreload)) added.push_back(variable(kPreload, kShim));
  } else if (const std::string_view old = Text((*env)[*preload], "value"); !PreloadsSluice(old)) {
    const std::string pointer = c.pointer + "/env/" + std::to_string(*preload);
    if (findings.IsEnabled(Rule::kMergePreload)) {
      if (Member((*env)[*preload], "value") != nullptr) {
        patch.Replace(pointer, "value", Quote(MergePreload(old)));
      } else {
        patch.Add(pointer, "value", Quote(MergePreload(old)));
      }
    }
  }
  // After the user's own: a $(NAME) refers only to an earlier variable, and sluice's variables use none.
  const auto values = settings::Format(given);
  for (const settings::Key& k : settings::Table()) {
    const auto value = values.find(std::string(k.name));
    if (value == values.end() || k.variable.empty() || !findings.IsEnabled(Rule::kSetVariables)) continue;
    if (std::find(present.begin(), present.end(), k.variable) != present.end()) continue;
    added.push_back(variable(k.variable, value->second));
  }
  const bool has_void = env != nullptr && std::ranges::any_of(*env, [](const Json& entry) {
                          return Text(entry, "name") == kVisibleDevices && !AsksForDevices(entry);
                        });
  if (hides_unseen && !has_void) added.push_back(NoDevices());
  if (env == nullptr) {
    if (added.empty()) return;
    std::string list = "[";
    for (const std::string& entry : added) list += (list.size() > 1 ? "," : "") + entry;
    patch.Add(c.pointer, "env", list + "]");
    return;
  }
  const std::string pointer = c.pointer + "/env";
  for (const std::string& entry : added) patch.Add(pointer, "-", entry);
  if (input.mode != Mode::kUpdate && findings.IsEnabled(Rule::kOwnDevices)) {
    RemoveVisibleDevices(c, *env, hides_unseen, findings, patch);
  }
}

void InjectResource(const RequestedShare& share, uint32_t percent, Findings& findings, Patch& patch) {
  if (!findings.IsEnabled(Rule::kSetResource)) return;
  const Container& c = *share.container;
  const std::string units = Quote(std::to_string(percent));
  const Json* resources = Member(*c.json, "resources");
  if (resources == nullptr) {
    const std::string both = Pair(SLUICE_RESOURCE, units);
    patch.Add(c.pointer, "resources", R"({"limits":)" + both + R"(,"requests":)" + both + "}");
    return;
  }
  for (const auto& [list, current] : {std::pair{"limits", c.limit}, {"requests", c.request}}) {
    if (current && *current == percent) continue;
    if (Member(*resources, list) == nullptr) {
      patch.Add(c.pointer + "/resources", list, Pair(SLUICE_RESOURCE, units));
    } else if (current) {
      patch.Replace(c.pointer + "/resources/" + list, SLUICE_RESOURCE, units);
    } else {
      patch.Add(c.pointer + "/resources/" + list, SLUICE_RESOURCE, units);
    }
  }
}

}  // namespace sluice::webhook
