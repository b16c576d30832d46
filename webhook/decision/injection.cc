#include "webhook/decision/injection.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/names.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kPreload = "LD_PRELOAD";
constexpr std::string_view kShim = SLUICE_CONTAINER_SHIM;
// Set by the allocation, or by nobody: with his own value a user would leave his fraction.
constexpr std::string_view kReserved[] = {SLUICE_ENV_SOCKET, SLUICE_ENV_ENGINE, SLUICE_ENV_DISABLE};
constexpr std::string_view kFree[] = {SLUICE_ENV_USERS_OWN};

const settings::Key* FindVariable(std::string_view name) {
  for (const settings::Key& k : settings::Table()) {
    if (!k.variable.empty() && k.variable == name) return &k;
  }
  return nullptr;
}

std::string EnvField(const Container& c, size_t index) { return c.field + ".env[" + std::to_string(index) + "]"; }

// True where `b` says the same about `key` as `a`.
bool SameSetting(const settings::Key& key, const settings::Settings& a, const settings::Settings& b) {
  const auto left = settings::Format(a);
  const auto right = settings::Format(b);
  const auto i = left.find(std::string(key.name));
  const auto j = right.find(std::string(key.name));
  return i != left.end() && j != right.end() && i->second == j->second;
}

// One of the user's variables against what the container was given.
void CheckVariable(const Container& c, size_t index, const Json& entry, const settings::Settings& given,
                   Findings& findings) {
  const std::string name(Text(entry, "name"));
  if (!name.starts_with("SLUICE_")) return;
  const std::string field = EnvField(c, index) + " (" + name + ")";
  if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
    findings.Deny(Rule::kReservedVariable, field + ": this variable belongs to the allocation; accepted: leave it out");
    return;
  }
  const settings::Key* key = FindVariable(name);
  if (key == nullptr) {
    if (std::find(std::begin(kFree), std::end(kFree), name) == std::end(kFree)) {
      findings.Warn(Rule::kWarnVariable, "container " + c.name + ": sluice knows no variable " + name);
    }
    return;
  }
  if (Member(entry, "valueFrom") != nullptr) {
    findings.Deny(Rule::kVariableValueFrom, field +
                                                ": valueFrom cannot be compared with the annotations; accepted: the "
                                                "annotation " SLUICE_DOMAIN "/" +
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
  const auto said = all.find(std::string(key->name));
  const bool size = key->id == settings::Id::kGpuFraction || key->id == settings::Id::kGpuMemory;
  if (said == all.end() && !size) return;  // no annotation: the variable is the user's to set; it raises nothing
  if (SameSetting(*key, own, given)) return;
  findings.Deny(Rule::kVariableContradiction,
                field + ": '" + std::string(Text(entry, "value")).substr(0, 64) + "' contradicts " +
                    (said == all.end() ? "how the container's share is given"
                                       : std::string(key->name) + " '" + said->second + "'") +
                    "; accepted: leave the variable out");
}

std::string Merged(std::string_view old) {
  return old.empty() ? std::string(kShim) : std::string(kShim) + ":" + std::string(old);
}

}  // namespace

bool PreloadsUs(std::string_view value) { return value.substr(0, value.find_first_of(": ")) == kShim; }

void InjectVariables(const Asked& asked, uint32_t percent, const Input& input, Findings& findings, Patch& patch) {
  const Container& c = *asked.container;
  settings::Settings given = asked.settings;
  given.inject.reset();
  if (!given.gpu_percent && !given.gpu_memory) given.gpu_percent = percent;  // by the resource alone

  const Json* env = Member(*c.json, "env");
  const size_t count = env == nullptr ? 0 : env->size();
  std::optional<size_t> preload;  // the last one of that name is the one in force
  std::vector<std::string> present;
  for (size_t i = 0; i < count; ++i) {
    const Json& entry = (*env)[i];
    const std::string_view name = Text(entry, "name");
    if (name == kPreload) preload = i;
    present.emplace_back(name);
    // A running pod's variables are what the annotations were at its creation.
    if (input.mode != Mode::kUpdate) CheckVariable(c, i, entry, given, findings);
  }

  if (preload && Member((*env)[*preload], "valueFrom") != nullptr) {
    findings.Deny(Rule::kPreloadValueFrom,
                  EnvField(c, *preload) +
                      " (LD_PRELOAD): valueFrom cannot be merged with sluice's library; accepted: "
                      "a plain value, or put the library's path into the image's entry point");
    return;
  }
  const Json* env_from = Member(*c.json, "envFrom");
  if (!preload && env_from != nullptr && !env_from->empty()) {
    findings.Warn(Rule::kWarnEnvFrom, "container " + c.name +
                                          " takes variables by envFrom: an LD_PRELOAD there is replaced by sluice's; "
                                          "set it by env to keep both");
  }

  std::vector<std::string> added;  // JSON of each new variable
  const auto variable = [](std::string_view name, std::string_view value) {
    return "{\"name\":" + Quote(name) + ",\"value\":" + Quote(value) + "}";
  };
  if (!preload) {
    if (findings.On(Rule::kSetPreload)) added.push_back(variable(kPreload, kShim));
  } else if (const std::string_view old = Text((*env)[*preload], "value"); !PreloadsUs(old)) {
    const std::string pointer = c.pointer + "/env/" + std::to_string(*preload);
    if (findings.On(Rule::kMergePreload)) {
      if (Member((*env)[*preload], "value") != nullptr) {
        patch.Replace(pointer, "value", Quote(Merged(old)));
      } else {
        patch.Add(pointer, "value", Quote(Merged(old)));
      }
    }
  }
  // Behind the user's own: what refers to a variable by $(NAME) needs it before, and ours refer to none.
  const auto values = settings::Format(given);
  for (const settings::Key& k : settings::Table()) {
    const auto value = values.find(std::string(k.name));
    if (value == values.end() || k.variable.empty() || !findings.On(Rule::kSetVariables)) continue;
    if (std::find(present.begin(), present.end(), k.variable) != present.end()) continue;
    added.push_back(variable(k.variable, value->second));
  }
  if (added.empty()) return;
  if (env == nullptr) {
    std::string list = "[";
    for (const std::string& entry : added) list += (list.size() > 1 ? "," : "") + entry;
    patch.Add(c.pointer, "env", list + "]");
    return;
  }
  const std::string pointer = c.pointer + "/env";
  for (const std::string& entry : added) patch.Add(pointer, "-", entry);
}

void InjectResource(const Asked& asked, uint32_t percent, Findings& findings, Patch& patch) {
  if (!findings.On(Rule::kSetResource)) return;
  const Container& c = *asked.container;
  const std::string units = Quote(std::to_string(percent));
  const Json* resources = Member(*c.json, "resources");
  if (resources == nullptr) {
    const std::string both = Pair(SLUICE_RESOURCE, units);
    patch.Add(c.pointer, "resources", R"({"limits":)" + both + R"(,"requests":)" + both + "}");
    return;
  }
  for (const auto& [list, now] : {std::pair{"limits", c.limit}, {"requests", c.request}}) {
    if (now && *now == percent) continue;
    if (Member(*resources, list) == nullptr) {
      patch.Add(c.pointer + "/resources", list, Pair(SLUICE_RESOURCE, units));
    } else if (now) {
      patch.Replace(c.pointer + "/resources/" + list, SLUICE_RESOURCE, units);
    } else {
      patch.Add(c.pointer + "/resources/" + list, SLUICE_RESOURCE, units);
    }
  }
}

}  // namespace sluice::webhook
