#include "agent/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <utility>

#include "common/http/listen_address.h"
#include "common/read_file.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

// Thrown within this file only, as yaml-cpp's own exceptions are.
struct Refusal : std::exception {
  Refusal(int at, std::string why) : line(at), text(std::move(why)) {}
  int line;
  std::string text;
};

using Handler = std::function<void(const YAML::Node&, const std::string& key)>;
using Handlers = std::map<std::string, Handler>;

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

[[noreturn]] void Refuse(const YAML::Node& at, const std::string& key, const std::string& value,
                         const std::string& accepted) {
  throw Refusal{LineOf(at), key + ": '" + value + "' is not accepted; accepted: " + accepted};
}

std::string Scalar(const YAML::Node& node, const std::string& key) {
  if (!node.IsScalar()) throw Refusal{LineOf(node), key + ": one value is expected here"};
  return node.Scalar();
}

void Walk(const YAML::Node& map, const std::string& where, const Handlers& handlers) {
  if (map.IsNull()) return;
  if (!map.IsMap())
    throw Refusal{LineOf(map), (where.empty() ? "the file" : where) + ": a map of keys and values is expected here"};
  std::vector<std::string> seen;
  for (const auto& item : map) {
    const std::string name = item.first.Scalar();
    const std::string key = where.empty() ? name : where + "." + name;
    const auto it = handlers.find(name);
    if (it == handlers.end()) {
      std::string names;
      for (const auto& [known, unused] : handlers) names += (names.empty() ? "" : ", ") + known;
      throw Refusal{LineOf(item.first), key + ": this key is unknown; accepted: " + names};
    }
    if (std::ranges::find(seen, name) != seen.end()) throw Refusal{LineOf(item.first), key + ": given twice"};
    seen.push_back(name);
    it->second(item.second, key);
  }
}

Handler Text(std::string* to) {
  return [to](const YAML::Node& n, const std::string& key) { *to = Scalar(n, key); };
}

// Empty: none.
Handler Address(std::string* to) {
  return [to](const YAML::Node& n, const std::string& key) {
    *to = Scalar(n, key);
    if (!to->empty() && !ParseListenAddress(*to)) Refuse(n, key, *to, kListenAddressForms);
  };
}

Handler Number(uint32_t* to, uint32_t low, uint32_t high) {
  return [=](const YAML::Node& n, const std::string& key) {
    const std::string text = Scalar(n, key);
    const bool digits = !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
    const uint64_t value = digits ? std::stoull(text) : 0;
    if (!digits || value < low || value > high) {
      Refuse(n, key, text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *to = static_cast<uint32_t>(value);
  };
}

Handler Quantity(Bytes* to, bool zero) {
  return [=](const YAML::Node& n, const std::string& key) {
    const std::string text = Scalar(n, key);
    if (zero && text == "0") {
      *to = 0;
      return;
    }
    const auto value = settings::ParseQuantity(text);
    if (!value) Refuse(n, key, text, std::string("a quantity of bytes, as 512Mi") + (zero ? ", or 0" : ""));
    *to = *value;
  };
}

Handler Choice(std::string* to, const std::vector<std::string>& choices) {
  return [=](const YAML::Node& n, const std::string& key) {
    const std::string text = Scalar(n, key);
    if (std::ranges::find(choices, text) == choices.end()) {
      std::string all;
      for (const auto& c : choices) all += (all.empty() ? "" : ", ") + c;
      Refuse(n, key, text, all);
    }
    *to = text;
  };
}

Handler Flag(bool* to) {
  return [to](const YAML::Node& n, const std::string& key) {
    const std::string text = Scalar(n, key);
    if (text != "true" && text != "false") Refuse(n, key, text, "true, false");
    *to = text == "true";
  };
}

Handler Texts(std::vector<std::string>* to) {
  return [to](const YAML::Node& list, const std::string& key) {
    to->clear();
    if (list.IsNull()) return;
    if (!list.IsSequence()) throw Refusal{LineOf(list), key + ": a list is expected here"};
    for (const YAML::Node& item : list) to->push_back(Scalar(item, key));
  };
}

// Gemini's names of compute-request, compute-limit and gpu-memory are accepted too.
std::string FromGemini(const std::string& key) {
  if (key == "request") return SLUICE_KEY_COMPUTE_REQUEST;
  if (key == "limit") return SLUICE_KEY_COMPUTE_LIMIT;
  if (key == "memory") return SLUICE_KEY_GPU_MEMORY;
  return key;
}

void Client(const YAML::Node& row, const std::string& where, ClientRule* rule) {
  Handlers handlers = {{"id", Text(&rule->id)}};
  for (const settings::Key& k : settings::Table()) {
    if (!k.settable) continue;
    handlers[std::string(k.name)] = [rule, &k](const YAML::Node& n, const std::string& key) {
      const std::string error = settings::Set(rule->settings, k, Scalar(n, key), key);
      if (!error.empty()) throw Refusal{LineOf(n), error};
    };
  }
  for (const char* word : {"request", "limit", "memory"}) handlers[word] = handlers.at(FromGemini(word));
  Walk(row, where, handlers);
  if (rule->id.empty())
    throw Refusal{LineOf(row), where + ".id: missing; accepted: an allocation id or namespace/pod/container"};
  const auto conflicts = settings::Conflicts(rule->settings, where + ".");
  if (!conflicts.empty()) throw Refusal{LineOf(row), conflicts.front()};
}

void Read(const YAML::Node& root, Config* c) {
  std::string lending;
  const auto section = [](Handlers handlers) {
    return [handlers = std::move(handlers)](const YAML::Node& n, const std::string& key) { Walk(n, key, handlers); };
  };
  Walk(root, "",
       {{"node", Text(&c->node)},
        {"alloc_dir", Text(&c->alloc_dir)},
        {"nvml", Text(&c->nvml)},
        {"reserve", Quantity(&c->reserve, true)},
        {"pod_resources", Text(&c->pod_resources)},
        {"max_processes", Number(&c->max_processes, 1, 100000)},
        {"max_connections", Number(&c->max_connections, 16, 1000000)},
        {"host_memory", section({{"bytes", Quantity(&c->host_memory_bytes, true)},
                                 {"percent", Number(&c->host_memory_percent, 1, 100)}})},
        {"lending", section({{"mode", Choice(&lending, {"off", "idle", "all"})},
                             {"floor_percent", Number(&c->ledger.floor_percent, 0, 100)},
                             {"step", Quantity(&c->ledger.step, false)},
                             {"opportunistic_min", Quantity(&c->ledger.opportunistic_min, false)},
                             {"idle_after_s", Number(&c->idle_after_s, 1, 86400)},
                             {"reclaim_late_ms", Number(&c->reclaim_late_ms, 1, 600000)}})},
        {"compute", section({{"window_ms", Number(&c->window_ms, 100, 600000)},
                             {"quantum_min_us", Number(&c->quantum_min_us, 10, 10000000)},
                             {"quantum_max_us", Number(&c->quantum_max_us, 10, 60000000)},
                             {"lease_factor", Number(&c->lease_factor, 1, 1000)},
                             {"pressure_window_ms", Number(&c->pressure_window_ms, 1000, 600000)}})},
        {"sizing", section({{"startup_s", Number(&c->startup_s, 1, 86400)}})},
        {"link", section({{"metered", Flag(&c->link_metered)}, {"bytes_per_s", Quantity(&c->link_bytes_per_s, true)}})},
        {"metrics", section({{"listen", Address(&c->metrics_listen)},
                             {"authentication", Choice(&c->metrics_authentication, {"none", "kubernetes"})},
                             {"certificate", Text(&c->metrics_certificate)},
                             {"key", Text(&c->metrics_key)}})},
        {"kubernetes", section({{"enabled", Flag(&c->kubernetes.enabled)},
                                {"kubeconfig", Text(&c->kubernetes.kubeconfig)},
                                {"kubelet_dir", Text(&c->kubernetes.kubelet_dir)},
                                {"aliases", Flag(&c->kubernetes.aliases)}})},
        {"attestation", section({{"interval_s", Number(&c->attest_interval_s, 0, 86400)},
                                 {"driver_limits", Flag(&c->driver_limits)},
                                 {"cgroup_root", Text(&c->cgroup_root)},
                                 {"on_not_hooked", Choice(&c->on_not_hooked, {"report", "evict"})},
                                 {"exempt_namespaces", Texts(&c->exempt_namespaces)}})},
        {"log", section({{"format", Choice(&c->log_format, {"text", "json"})},
                         {"level", Choice(&c->log_level, {"debug", "info", "warn", "error"})}})},
        {"clients", [c](const YAML::Node& list, const std::string& key) {
           if (list.IsNull()) return;
           if (!list.IsSequence()) throw Refusal{LineOf(list), key + ": a list is expected here"};
           for (size_t i = 0; i < list.size(); ++i) {
             Client(list[i], key + "[" + std::to_string(i) + "]", &c->clients.emplace_back());
           }
         }}});
  if (lending == "off") c->ledger.lending = Lending::kOff;
  if (lending == "all") c->ledger.lending = Lending::kAll;
  const auto refuse = [&](const std::string& key, const std::string& value, const std::string& accepted) {
    throw Refusal{LineOf(root), key + ": '" + value + "' is not accepted; accepted: " + accepted};
  };
  if (c->metrics_certificate.empty() != c->metrics_key.empty()) {
    refuse(c->metrics_key.empty() ? "metrics.key" : "metrics.certificate", "",
           "a file, since the other one of certificate and key is given");
  }
  if (c->metrics_authentication == "kubernetes" && !c->kubernetes.enabled) {
    refuse("metrics.authentication", "kubernetes", "none, or kubernetes with kubernetes.enabled: true");
  }
  if (c->quantum_min_us > c->quantum_max_us) {
    throw Refusal{LineOf(root), "compute.quantum_min_us: '" + std::to_string(c->quantum_min_us) +
                                    "' is not accepted; accepted: at most compute.quantum_max_us, " +
                                    std::to_string(c->quantum_max_us)};
  }
}

}  // namespace

bool ParseConfig(const std::string& text, const std::string& name, Config* config, std::string* error) {
  Config fresh;
  try {
    Read(YAML::Load(text), &fresh);
  } catch (const Refusal& r) {
    *error = name + ":" + std::to_string(r.line) + ": " + r.text;
    return false;
  } catch (const YAML::Exception& e) {
    *error = name + ":" + std::to_string(e.mark.line + 1) + ": not YAML: " + e.msg;
    return false;
  }
  *config = std::move(fresh);
  return true;
}

bool LoadConfig(const std::string& path, Config* config, std::string* error) {
  if (path.empty()) {
    *config = Config{};
    return true;
  }
  const auto text = ReadReloadedFile(path, *error);
  return text && ParseConfig(*text, path, config, error);
}

bool Matches(const std::string& pattern, const std::string& text) {
  size_t p = 0, t = 0, star = std::string::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace sluice::agent
