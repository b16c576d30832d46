#include "common/claims/parameters.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/names.h"

namespace sluice::claims {
namespace {

using Json = nlohmann::json;

// The container's size is the request's capacity; gpu-count is the request's `count`. `inject` is about the webhook.
constexpr std::string_view kElsewhere[] = {"gpu-fraction", "gpu-memory", "gpu-count", "compute-request", "inject"};

const Json* Member(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string_view Text(const Json& object, std::string_view name) {
  const Json* value = Member(object, name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_ref<const std::string&>())
                                                : std::string_view();
}

// Texts of people go into messages: on one line, and cut.
std::string Shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 64)) out += c >= ' ' && c < 127 ? c : '?';
  return out;
}

std::string At(std::string_view field, size_t index) { return std::string(field) + "[" + std::to_string(index) + "]"; }

std::string Elsewhere(std::string_view key) {
  if (key == "gpu-fraction" || key == "gpu-memory") return "the size is the request's capacity.requests.memory";
  if (key == "gpu-count") return "the number of cards is the request's count";
  if (key == "compute-request") return "the guaranteed share of time is the request's capacity.requests.compute";
  return "it is about pods' annotations";
}

// A subrequest ("gpu/large") is meant by its own name or by its request's.
bool Names(std::string_view reference, std::string_view request) {
  return reference == request || (request.starts_with(reference) && request[reference.size()] == '/');
}

// How many of the requests an entry of `config` is for.
size_t CountMeant(const Json& entry, const std::vector<std::string>& requests) {
  const Json* only = Member(entry, "requests");
  if (only == nullptr || !only->is_array() || only->empty()) return requests.size();
  return static_cast<size_t>(std::ranges::count_if(requests, [&](const std::string& request) {
    return std::ranges::any_of(
        *only, [&](const Json& name) { return name.is_string() && Names(name.get<std::string>(), request); });
  }));
}

const Json* Requests(const Json& spec) {
  const Json* devices = Member(spec, "devices");
  const Json* requests = devices == nullptr ? nullptr : Member(*devices, "requests");
  return requests != nullptr && requests->is_array() ? requests : nullptr;
}

struct Request {
  std::string name, field;
  const Json* exact;  // of DeviceRequest.exactly or an entry of firstAvailable
};

// The requests whose class is sluice's own, or which name no class that can be judged here.
std::vector<Request> OwnRequests(const Json& spec, std::string_view field) {
  std::vector<Request> out;
  const Json* requests = Requests(spec);
  for (size_t i = 0; requests != nullptr && i < requests->size(); ++i) {
    const Json& request = (*requests)[i];
    const std::string at = At(std::string(field) + ".devices.requests", i);
    const auto add = [&](const Json& exact, std::string name, std::string where) {
      if (Text(exact, "deviceClassName") == SLUICE_DOMAIN) out.push_back({std::move(name), std::move(where), &exact});
    };
    if (const Json* exact = Member(request, "exactly"); exact != nullptr) {
      add(*exact, std::string(Text(request, "name")), at + ".exactly");
    }
    const Json* choices = Member(request, "firstAvailable");
    for (size_t k = 0; choices != nullptr && choices->is_array() && k < choices->size(); ++k) {
      const std::string name = std::string(Text(request, "name")) + "/" + std::string(Text((*choices)[k], "name"));
      add((*choices)[k], name, At(at + ".firstAvailable", k));
    }
  }
  return out;
}

const Json* CapacityOf(const Request& request, const char* name) {
  const Json* capacity = Member(*request.exact, "capacity");
  const Json* requests = capacity == nullptr ? nullptr : Member(*capacity, "requests");
  if (requests == nullptr) return nullptr;
  const Json* value = Member(*requests, name);
  return value != nullptr ? value : Member(*requests, std::string(SLUICE_DOMAIN "/") + name);
}

// A capacity of another name is one that no card has, so that the pod would wait without end.
void CheckCapacityNames(const std::vector<Request>& requests, std::vector<std::string>& errors) {
  for (const Request& request : requests) {
    const Json* capacity = Member(*request.exact, "capacity");
    const Json* amounts = capacity == nullptr ? nullptr : Member(*capacity, "requests");
    if (amounts == nullptr || !amounts->is_object()) continue;
    for (const auto& [key, value] : amounts->items()) {
      std::string_view name = key;
      if (name.starts_with(SLUICE_DOMAIN "/")) name.remove_prefix(std::string_view(SLUICE_DOMAIN "/").size());
      if (name == kMemory || name == kCompute) continue;
      errors.push_back(request.field + ".capacity.requests." + Shown(key) +
                       ": no card has this capacity; accepted: " + kMemory + ", " + kCompute);
    }
  }
}

size_t Length(const Json& object, std::string_view name) {
  const Json* list = Member(object, name);
  return list != nullptr && list->is_array() ? list->size() : 0;
}

// The Kubernetes API's limits, which it checks only after the webhook: each entry of `config` is compared with each
// request.
std::string CheckLengths(const Json& spec, std::string_view field) {
  constexpr size_t kMaxEntries = 32;
  const auto refused = [](const std::string& list, size_t length) {
    return list + ": the list has " + std::to_string(length) + " entries; accepted: at most " +
           std::to_string(kMaxEntries);
  };
  const Json* devices = Member(spec, "devices");
  if (devices == nullptr) return {};
  for (const char* name : {"requests", "config"}) {
    const std::string at = std::string(field) + ".devices." + name;
    const size_t length = Length(*devices, name);
    if (length > kMaxEntries) return refused(at, length);
    for (size_t i = 0; i < length; ++i) {
      const Json& entry = Member(*devices, name)->at(i);
      const char* inner = name == std::string_view("config") ? "requests" : "firstAvailable";
      if (Length(entry, inner) > kMaxEntries) return refused(At(at, i) + "." + inner, Length(entry, inner));
    }
  }
  return {};
}

void CheckCapacity(const std::vector<Request>& requests, const char* name, std::string_view accepted,
                   std::vector<std::string>& errors) {
  std::optional<uint64_t> first;
  std::string first_name;
  bool any = false;
  for (const Request& request : requests) {
    const Json* value = CapacityOf(request, name);
    std::optional<uint64_t> amount;
    if (value != nullptr) {
      amount = ParseCapacity(*value);
      const bool bad = !amount || (name == std::string_view(kCompute) && *amount > SLUICE_UNITS_PER_GPU);
      if (bad) {
        errors.push_back(request.field + ".capacity.requests." + name + ": '" +
                         Shown(value->is_string() ? value->get<std::string>() : value->dump()) +
                         "' is not accepted; accepted: " + std::string(accepted));
        return;
      }
    }
    // Only one of several alternatives is allocated, so that their sizes may differ. Monitoring takes no share.
    const Json* admin = Member(*request.exact, "adminAccess");
    if (request.name.find('/') != std::string::npos || (admin != nullptr && *admin == true)) continue;
    if (any && amount != first) {
      errors.push_back(request.field + ".capacity.requests." + name + ": the requests '" + Shown(first_name) +
                       "' and '" + Shown(request.name) +
                       "' of this claim ask for different amounts, and a claim is one share of the same size on each "
                       "card; accepted: the same amount in each request, or one claim for each amount");
      return;
    }
    first = amount;
    first_name = request.name;
    any = true;
  }
}

}  // namespace

bool IsAccepted(const settings::Key& key) {
  return !key.variable.empty() && std::ranges::find(kElsewhere, key.name) == std::end(kElsewhere);
}

std::string AcceptedKeys() {
  std::string out;
  for (const settings::Key& key : settings::Table()) {
    if (IsAccepted(key)) out += (out.empty() ? "" : ", ") + std::string(key.name);
  }
  return out + ", " + kPreload;
}

settings::Parsed ParseParameters(const Json& parameters, std::string_view field) {
  settings::Parsed out;
  if (!parameters.is_object()) {
    out.errors.push_back(std::string(field) + ": this is no object; accepted: an object of " + AcceptedKeys());
    return out;
  }
  for (const auto& [name, value] : parameters.items()) {
    const std::string at = std::string(field) + "." + Shown(name);
    if (name == "apiVersion" || name == "kind") {
      const std::string_view wanted = name == "kind" ? kKind : kApiVersion;
      if (value.is_string() && value.get<std::string>() == wanted) continue;
      out.errors.push_back(at + ": '" + Shown(value.is_string() ? value.get<std::string>() : value.dump()) +
                           "' is not accepted; accepted: " + std::string(wanted));
      continue;
    }
    if (name == kPreload) {
      if (value.is_string() && IsPreload(value.get_ref<const std::string&>())) continue;
      out.errors.push_back(at + ": '" + Shown(value.is_string() ? value.get<std::string>() : value.dump()) +
                           "' is not accepted; accepted: paths of libraries, separated by ':', up to " +
                           std::to_string(kMaxPreload) + " printable characters without $ and quotes");
      continue;
    }
    const settings::Key* key = settings::Find(name);
    if (std::ranges::find(kElsewhere, name) != std::end(kElsewhere)) {
      out.errors.push_back(at + ": this key is not accepted in a claim, " + Elsewhere(name) +
                           "; accepted: " + AcceptedKeys());
    } else if (key == nullptr || !IsAccepted(*key)) {
      out.errors.push_back(at + ": this key is unknown; accepted: " + AcceptedKeys());
    } else if (value.is_structured() || value.is_null()) {
      out.errors.push_back(at + ": this is no single value; accepted: " + std::string(key->accepted));
    } else {
      std::string error =
          settings::Set(out.settings, *key, value.is_string() ? value.get<std::string>() : value.dump(), at);
      if (!error.empty()) out.errors.push_back(std::move(error));
    }
  }
  return out;
}

settings::Parsed ParseConfig(const Json& config, const std::vector<std::string>& requests, std::string_view field) {
  settings::Parsed out;
  if (!config.is_array()) return out;
  for (size_t i = 0; i < config.size(); ++i) {
    const Json* opaque = Member(config[i], "opaque");
    if (opaque == nullptr || Text(*opaque, "driver") != SLUICE_DOMAIN) continue;
    const std::string at = At(field, i);
    const Json* parameters = Member(*opaque, "parameters");
    settings::Parsed one = ParseParameters(parameters == nullptr ? Json() : *parameters, at + ".opaque.parameters");
    const size_t meant = CountMeant(config[i], requests);
    if (meant == 0 &&
        !requests.empty()) {  // for requests that other drivers serve, or alternatives that were not taken
      for (std::string& error : one.errors) out.errors.push_back(std::move(error));
      continue;
    }
    if (meant < requests.size()) {
      one.errors.push_back(at +
                           ".requests: this entry names some of the claim's requests, and a claim is one share with " +
                           "one set of settings; accepted: no list, a list of all, or one claim for each share");
    }
    for (std::string& error : one.errors) out.errors.push_back(std::move(error));
    settings::Layer(out.settings, one.settings);
  }
  return out;
}

std::string PreloadOf(const Json& config, const std::vector<std::string>& requests) {
  std::string out;
  if (!config.is_array()) return out;
  for (const Json& entry : config) {
    if (CountMeant(entry, requests) == 0) continue;
    const Json* opaque = Member(entry, "opaque");
    const Json* parameters =
        opaque == nullptr || Text(*opaque, "driver") != SLUICE_DOMAIN ? nullptr : Member(*opaque, "parameters");
    const Json* preload = parameters == nullptr ? nullptr : Member(*parameters, kPreload);
    if (preload != nullptr && preload->is_string()) out = preload->get<std::string>();
  }
  return out;
}

bool IsPreload(std::string_view text) {
  return !text.empty() && text.size() <= kMaxPreload && std::ranges::all_of(text, [](char c) {
    return c >= ' ' && c < 127 && c != '$' && c != '"' && c != '\'' && c != '\\';
  });
}

std::string ContainerOf(std::string_view entry) {
  if (!entry.starts_with(kEntryPrefix) || entry.size() >= kMaxEntryName) return {};
  return std::string(entry.substr(kEntryPrefix.size()));
}

std::optional<uint64_t> ParseCapacity(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > 0) return value.get<uint64_t>();
  return value.is_string() ? settings::ParseQuantity(value.get<std::string>()) : std::nullopt;
}

std::vector<std::string> CheckSpec(const Json& spec, std::string_view field) {
  if (std::string error = CheckLengths(spec, field); !error.empty()) return {error};
  const std::vector<Request> requests = OwnRequests(spec, field);
  std::vector<std::string> names;
  for (const Request& request : requests) {
    // Alternatives exclude each other, and settings for one of them are no contradiction.
    if (request.name.find('/') == std::string::npos) names.push_back(request.name);
  }
  const Json* devices = Member(spec, "devices");
  const Json* config = devices == nullptr ? nullptr : Member(*devices, "config");
  settings::Parsed parsed =
      ParseConfig(config == nullptr ? Json() : *config, names, std::string(field) + ".devices.config");
  CheckCapacityNames(requests, parsed.errors);
  CheckCapacity(requests, kMemory, "a quantity of bytes, such as 20Gi", parsed.errors);
  CheckCapacity(requests, kCompute, "a whole number of percent, 1 to 100", parsed.errors);
  if (parsed.ok() && !names.empty()) {
    // The sizes that the scheduler will book decide together with the settings.
    const Request& one = *std::ranges::find(requests, names.front(), &Request::name);
    if (const Json* memory = CapacityOf(one, kMemory); memory != nullptr) {
      parsed.settings.gpu_memory = ParseCapacity(*memory);
    }
    if (const Json* compute = CapacityOf(one, kCompute); compute != nullptr) {
      parsed.settings.compute_request = static_cast<uint32_t>(ParseCapacity(*compute).value_or(1) * 10000);
    }
    parsed.errors = settings::Conflicts(parsed.settings, std::string(field) + ".devices.config: ");
  }
  return parsed.errors;
}

}  // namespace sluice::claims
