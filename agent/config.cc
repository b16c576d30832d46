#include "agent/config.h"

#include <utility>

#include "common/config/reader.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

using config::Section;
using config::Value;

// Gemini's names of compute-request, compute-limit and gpu-memory are accepted too.
std::string FromGemini(const std::string& key) {
  if (key == "request") return SLUICE_KEY_COMPUTE_REQUEST;
  if (key == "limit") return SLUICE_KEY_COMPUTE_LIMIT;
  if (key == "memory") return SLUICE_KEY_GPU_MEMORY;
  return key;
}

void ReadClient(const Value& row, ClientRule* rule) {
  config::Table table = {{"id", config::Text(&rule->id)}};
  for (const settings::Key& k : settings::Table()) {
    if (!k.settable) continue;
    table[std::string(k.name)] = [rule, &k](const Value& value) {
      const std::string error = settings::Set(rule->settings, k, value.Scalar(std::string(k.accepted)), value.key());
      if (!error.empty()) value.Fail(error);
    };
  }
  for (const char* word : {"request", "limit", "memory"}) table[word] = table.at(FromGemini(word));
  row.Read(table);
  if (rule->id.empty()) row.Fail(row.key() + ".id: missing; accepted: an allocation id or namespace/pod/container");
  const auto conflicts = settings::Conflicts(rule->settings, row.key() + ".");
  if (!conflicts.empty()) row.Fail(conflicts.front());
}

void ReadCompute(const Value& value, Config* c) {
  value.Read({{"window_ms", config::Number(&c->window_ms, 100, 600000)},
              {"quantum_min_us", config::Number(&c->quantum_min_us, 10, 10000000)},
              {"quantum_max_us", config::Number(&c->quantum_max_us, 10, 60000000)},
              {"lease_factor", config::Number(&c->lease_factor, 1, 1000)},
              {"pressure_window_ms", config::Number(&c->pressure_window_ms, 1000, 600000)}});
  if (c->quantum_min_us <= c->quantum_max_us) return;
  value.Fail("compute.quantum_min_us: '" + std::to_string(c->quantum_min_us) +
             "' is not accepted; accepted: at most compute.quantum_max_us, " + std::to_string(c->quantum_max_us));
}

void ReadMetrics(const Value& value, Config* c) {
  value.Read({{"listen", config::AddressOrNone(&c->metrics_listen)},
              {"authentication", config::Word(&c->metrics_authentication, {"none", "kubernetes"})},
              {"certificate", config::Text(&c->metrics_certificate)},
              {"key", config::Text(&c->metrics_key)}});
  if (c->metrics_certificate.empty() == c->metrics_key.empty()) return;
  value.Fail(std::string(c->metrics_key.empty() ? "metrics.key" : "metrics.certificate") +
             ": '' is not accepted; accepted: a file, since the other one of certificate and key is given");
}

void Read(const Value& file, Config* c) {
  file.Read(
      {{"node", config::Text(&c->node)},
       {"alloc_dir", config::Text(&c->alloc_dir)},
       {"nvml", config::Text(&c->nvml)},
       {"reserve", config::QuantityOrZero(&c->reserve)},
       {"pod_resources", config::Text(&c->pod_resources)},
       {"max_processes", config::Number(&c->max_processes, 1, 100000)},
       {"max_connections", config::Number(&c->max_connections, 16, 1000000)},
       {"host_memory", Section({{"bytes", config::QuantityOrZero(&c->host_memory_bytes)},
                                {"percent", config::Number(&c->host_memory_percent, 1, 100)}})},
       {"lending",
        Section({{"mode", config::OneOf(&c->ledger.lending,
                                        {{"off", Lending::kOff}, {"idle", Lending::kIdle}, {"all", Lending::kAll}})},
                 {"floor_percent", config::Number(&c->ledger.floor_percent, 0, 100)},
                 {"step", config::Quantity(&c->ledger.step)},
                 {"opportunistic_min", config::Quantity(&c->ledger.opportunistic_min)},
                 {"idle_after_s", config::Number(&c->idle_after_s, 1, 86400)},
                 {"reclaim_late_ms", config::Number(&c->reclaim_late_ms, 1, 600000)}})},
       {"compute", [c](const Value& value) { ReadCompute(value, c); }},
       {"sizing", Section({{"startup_s", config::Number(&c->startup_s, 1, 86400)}})},
       {"link", Section({{"metered", config::Bool(&c->link_metered)},
                         {"bytes_per_s", config::QuantityOrZero(&c->link_bytes_per_s)}})},
       {"metrics", [c](const Value& value) { ReadMetrics(value, c); }},
       {"kubernetes", Section({{"enabled", config::Bool(&c->kubernetes.enabled)},
                               {"kubeconfig", config::Text(&c->kubernetes.kubeconfig)},
                               {"kubelet_dir", config::Text(&c->kubernetes.kubelet_dir)},
                               {"aliases", config::Bool(&c->kubernetes.aliases)}})},
       {"attestation", Section({{"interval_s", config::Number(&c->attest_interval_s, 0, 86400)},
                                {"driver_limits", config::Bool(&c->driver_limits)},
                                {"cgroup_root", config::Text(&c->cgroup_root)},
                                {"on_not_hooked", config::Word(&c->on_not_hooked, {"report", "evict"})},
                                {"exempt_namespaces", config::List(&c->exempt_namespaces)}})},
       {"log", Section({{"format", config::Format(&c->log_format)}, {"level", config::Level(&c->log_level)}})},
       {"clients", [c](const Value& list) {
          for (const Value& row : list.Items("a list of clients")) ReadClient(row, &c->clients.emplace_back());
        }}});
  if (c->metrics_authentication == "kubernetes" && !c->kubernetes.enabled) {
    file.Fail(
        "metrics.authentication: 'kubernetes' is not accepted; accepted: none, or kubernetes with "
        "kubernetes.enabled: true");
  }
}

}  // namespace

bool LoadConfig(const std::string& path, Config* config, std::string* error) {
  Config fresh;
  if (!path.empty() && !config::Load(path, [&](const Value& file) { Read(file, &fresh); }, error)) return false;
  *config = std::move(fresh);
  return true;
}

bool ParseConfig(const std::string& text, const std::string& name, Config* config, std::string* error) {
  Config fresh;
  if (!config::Parse(text, name, [&](const Value& file) { Read(file, &fresh); }, error)) return false;
  *config = std::move(fresh);
  return true;
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
