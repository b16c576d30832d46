// The table of settings, and the rules between several of them.
#include "common/settings/settings.h"

#include <array>

#include "sluice/names.h"

namespace sluice::settings {
namespace {

constexpr bool IsSettable(Change change) { return change != Change::kFixed; }

const auto& Rows() {
  static const auto& rows = *new std::array{
  // never destroyed: the hook's threads outlive exit
#define SLUICE_SETTING(id, field, key, variable, flag, kind, change, frame, fallback, meaning, good, bad) \
  Key{Id::id, key, variable, flag, kinds::kind().accepted, meaning, fallback, good, bad, IsSettable(Change::k##change)},
#include "settings.def"
  };
  return rows;
}

std::string Join(bool (*wanted)(const Key&)) {
  std::string out;
  for (const Key& k : Rows()) {
    if (!wanted(k)) continue;
    if (!out.empty()) out += ", ";
    out += k.name;
  }
  return out;
}

template <typename T>
bool Store(std::optional<T>& field, const ValueKind<T>& kind, std::string_view text) {
  const std::optional<T> value = kind.parse(text);
  if (value) field = value;
  return value.has_value();
}

bool Assign(Settings& s, Id id, std::string_view text) {
  switch (id) {
#define SLUICE_SETTING(id, field, key, variable, flag, kind, ...) \
  case Id::id:                                                    \
    return Store(s.field, kinds::kind(), text);
#include "settings.def"
  }
  return false;
}

// The default where none was given; 0 where that is words for people.
template <typename T>
T ValueOr(const std::optional<T>& given, const ValueKind<T>& kind, std::string_view fallback) {
  return given ? *given : kind.parse(fallback).value_or(T{});
}

// A value as a message shows it, on one line: long ones are cut, unprintable characters become '?'.
std::string Shown(std::string_view value) {
  std::string out;
  for (const char c : value.substr(0, 64)) out += (c >= ' ' && c < 127) ? c : '?';
  return value.size() > 64 ? out + "..." : out;
}

}  // namespace

std::span<const Key> Table() { return Rows(); }

const Key* Find(std::string_view name) {
  for (const Key& k : Rows()) {
    if (k.name == name) return &k;
  }
  return nullptr;
}

const Key& Of(Id id) { return Rows()[static_cast<size_t>(id)]; }

std::string Names() {
  return Join([](const Key&) { return true; });
}
std::string SettableNames() {
  return Join([](const Key& k) { return k.settable; });
}

std::string Set(Settings& settings, const Key& key, std::string_view value, std::string_view field) {
  if (Assign(settings, key.id, value)) return {};
  return std::string(field) + ": '" + Shown(value) + "' is not accepted; accepted: " + std::string(key.accepted);
}

std::vector<std::string> Conflicts(const Settings& s, std::string_view prefix) {
  std::vector<std::string> out;
  const auto name = [&](Id id) {
    return prefix == "--" ? std::string(Of(id).flag) : std::string(prefix) + std::string(Of(id).name);
  };
  if (s.gpu_percent && s.gpu_memory) {
    out.push_back(name(Id::kGpuMemory) + ": '" + FormatQuantity(*s.gpu_memory) + "' beside " + name(Id::kGpuFraction) +
                  " '" + FormatFraction(*s.gpu_percent) + "' is not accepted; accepted: one of the two");
  }
  if (s.gpu_count && *s.gpu_count > 1 && s.gpu_percent && *s.gpu_percent > 100) {
    out.push_back(name(Id::kGpuCount) + ": '" + std::to_string(*s.gpu_count) + "' beside " + name(Id::kGpuFraction) +
                  " '" + FormatFraction(*s.gpu_percent) + "' is not accepted; accepted: " + name(Id::kGpuFraction) +
                  " up to 1, which is of each GPU, or no " + name(Id::kGpuCount));
  }
  if (s.gpu_count && *s.gpu_count > 1 && s.priority == Priority::kOpportunistic) {
    out.push_back(name(Id::kGpuCount) + ": '" + std::to_string(*s.gpu_count) + "' beside " + name(Id::kPriority) +
                  " 'opportunistic' is not accepted; accepted: 1, as nothing holds several GPUs for an opportunistic " +
                  "container");
  }
  if (s.gpu_memory && s.memory_limit && *s.memory_limit < *s.gpu_memory) {
    out.push_back(name(Id::kMemoryLimit) + ": '" + FormatQuantity(*s.memory_limit) +
                  "' is not accepted; accepted: at least the budget, " + FormatQuantity(*s.gpu_memory));
  }
  // A request that was not given follows the fraction and the limit, whichever is smaller, and contradicts nothing.
  if (s.compute_limit && s.compute_request && *s.compute_limit < *s.compute_request) {
    out.push_back(name(Id::kComputeLimit) + ": '" + FormatShare(*s.compute_limit) +
                  "' is not accepted; accepted: at least " SLUICE_KEY_COMPUTE_REQUEST ", " +
                  FormatShare(*s.compute_request));
  }
  if (s.priority == Priority::kOpportunistic && s.compute_request) {
    out.push_back(name(Id::kComputeRequest) + ": '" + FormatShare(*s.compute_request) + "' beside " +
                  name(Id::kPriority) + " 'opportunistic' is not accepted; accepted: no such value, as nothing is " +
                  "guaranteed to an opportunistic container");
  }
  return out;
}

void Layer(Settings& to, const Settings& from) {
  if (from.gpu_percent) to.gpu_memory.reset();
  if (from.gpu_memory) to.gpu_percent.reset();
#define SLUICE_SETTING(id, field, key, variable, ...) \
  if (from.field && !std::string_view(variable).empty()) to.field = from.field;
#include "settings.def"
}

void FillBudget(const Settings& s, sluice_budget& budget) {
#define SLUICE_FRAME_Own(field, kind, fallback)
#define SLUICE_FRAME_Sent(field, kind, fallback) \
  budget.field = static_cast<decltype(budget.field)>(ValueOr(s.field, kinds::kind(), fallback));
#define SLUICE_SETTING(id, field, key, variable, flag, kind, change, frame, fallback, ...) \
  SLUICE_FRAME_##frame(field, kind, fallback)
#include "settings.def"
#undef SLUICE_FRAME_Own
#undef SLUICE_FRAME_Sent
}

Parsed ParseAll(const std::map<std::string, std::string>& values, std::string_view prefix) {
  Parsed out;
  for (const auto& [name, value] : values) {
    const std::string field = std::string(prefix) + name;
    const Key* key = Find(name);
    if (key == nullptr) {
      out.errors.push_back(field + ": this key is unknown; accepted: " + Names());
      continue;
    }
    std::string error = Set(out.settings, *key, value, field);
    if (!error.empty()) out.errors.push_back(std::move(error));
  }
  for (std::string& c : Conflicts(out.settings, prefix)) out.errors.push_back(std::move(c));
  return out;
}

std::map<std::string, std::string> Format(const Settings& s) {
  std::map<std::string, std::string> out;
#define SLUICE_SETTING(id, field, key, variable, flag, kind, ...) \
  if (s.field) out[key] = kinds::kind().format(*s.field);
#include "settings.def"
  return out;
}

}  // namespace sluice::settings
