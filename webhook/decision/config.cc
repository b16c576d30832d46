#include "webhook/decision/config.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "webhook/decision/manifest.h"

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;
// Reads one value. Returns an empty string, the accepted values, or "!" and a nested map's own message.
using Reader = std::function<std::string(const Json&)>;
using Readers = std::map<std::string, Reader, std::less<>>;

Reader Bool(bool& out) {
  return [&out](const Json& v) -> std::string {
    if (!v.is_boolean()) return "true, false";
    out = v;
    return {};
  };
}

Reader String(std::string& out) {
  return [&out](const Json& v) -> std::string {
    if (!v.is_string() || v.get_ref<const std::string&>().empty()) return "a string";
    out = v;
    return {};
  };
}

// As String, but "" is accepted.
Reader OptionalString(std::string& out) {
  return [&out](const Json& v) -> std::string {
    if (!v.is_string()) return "a string, or \"\" for none";
    out = v;
    return {};
  };
}

Reader Strings(std::vector<std::string>& out) {
  return [&out](const Json& v) -> std::string {
    if (!v.is_array()) return "a list of strings";
    std::vector<std::string> list;
    for (const Json& item : v) {
      if (!item.is_string()) return "a list of strings";
      list.push_back(item);
    }
    out = std::move(list);
    return {};
  };
}

Reader ReactionTo(Reaction& out) {
  return [&out](const Json& v) -> std::string {
    if (v == "deny") {
      out = Reaction::kDeny;
    } else if (v == "warn") {
      out = Reaction::kWarn;
    } else if (v == "allow") {
      out = Reaction::kAllow;
    } else {
      return "deny, warn, allow";
    }
    return {};
  };
}

Reader StringMap(std::map<std::string, std::string, std::less<>>& out) {
  return [&out](const Json& v) -> std::string {
    if (!v.is_object()) return "a map of strings";
    for (const auto& [key, value] : v.items()) {
      if (!value.is_string()) return "a map of strings";
      out[key] = value;
    }
    return {};
  };
}

// Absolute paths.
Reader Paths(std::vector<std::string>& out) {
  return [&out](const Json& v) -> std::string {
    std::vector<std::string> list;
    const bool is_absolute = Strings(list)(v).empty() && std::all_of(list.begin(), list.end(), [](const auto& path) {
                               return path.starts_with('/') && path.find_first_not_of("/*") != std::string::npos;
                             });
    if (!is_absolute) return "a list of absolute paths below /";
    out = std::move(list);
    return {};
  };
}

// GROUP/RESOURCE.
Reader Workloads(std::vector<std::string>& out) {
  return [&out](const Json& v) -> std::string {
    std::vector<std::string> list;
    const bool is_valid = Strings(list)(v).empty() && std::all_of(list.begin(), list.end(), [](const auto& entry) {
                            const size_t slash = entry.find('/');
                            return slash != std::string::npos && slash > 0 && slash + 1 < entry.size() &&
                                   entry.find('/', slash + 1) == std::string::npos && !entry.starts_with('*');
                          });
    if (!is_valid) return "a list of GROUP/RESOURCE, as kubeflow.org/pytorchjobs or kubeflow.org/*";
    out = std::move(list);
    return {};
  };
}

Reader WholeNumber(uint32_t& out, uint32_t low, uint32_t high, const char* unit) {
  return [&out, low, high, unit](const Json& v) -> std::string {
    if (!v.is_number_integer() || v.get<int64_t>() < low || v.get<int64_t>() > high) {
      return "a whole number of " + std::string(unit) + " from " + std::to_string(low) + " to " + std::to_string(high);
    }
    out = v;
    return {};
  };
}

template <class T>
Reader LogChoice(T& out, std::optional<T> (*parse)(std::string_view), const char* accepted) {
  return [&out, parse, accepted](const Json& v) -> std::string {
    const auto value = v.is_string() ? parse(v.get_ref<const std::string&>()) : std::nullopt;
    if (!value) return accepted;
    out = *value;
    return {};
  };
}

// Returns an empty string or the error message.
std::string ReadMap(const Json& map, const std::string& at, const Readers& readers) {
  if (!map.is_object()) return at + (at.empty() ? "the configuration" : "") + " is not a map of key: value";
  for (const auto& [key, value] : map.items()) {
    const std::string field = at.empty() ? key : at + "." + key;
    const auto reader = readers.find(key);
    if (reader == readers.end()) {
      std::string names;
      for (const auto& [name, r] : readers) names += (names.empty() ? "" : ", ") + name;
      return field + ": this key is unknown; accepted: " + names;
    }
    const std::string accepted = reader->second(value);
    if (accepted.empty()) continue;
    if (accepted.starts_with('!')) return accepted.substr(1);  // a nested map's own message
    return field + ": '" + value.dump().substr(0, 64) + "' is not accepted; accepted: " + accepted;
  }
  return {};
}

std::string ReadSelfSigned(const Json& v, File& file) {
  SelfSigned s;
  const Readers readers = {{"secretNamespace", String(s.secret_namespace)},
                           {"secretName", String(s.secret_name)},
                           {"service", String(s.service)},
                           {"mutating", Strings(s.mutating)},
                           {"validating", Strings(s.validating)},
                           {"caDays", WholeNumber(s.ca_days, 2, 3650, "days")},
                           {"leafDays", WholeNumber(s.leaf_days, 1, 825, "days")}};
  std::string error = ReadMap(v, "selfSigned", readers);
  if (error.empty() && (s.secret_namespace.empty() || s.secret_name.empty() || s.service.empty())) {
    error = "selfSigned: secretNamespace, secretName and service are all needed";
  }
  if (error.empty() && s.leaf_days > s.ca_days) {
    error = "selfSigned.leafDays: '" + std::to_string(s.leaf_days) + "' is not accepted; accepted: at most caDays, " +
            std::to_string(s.ca_days);
  }
  if (!error.empty()) return "!" + error;
  file.self_signed = std::move(s);
  return {};
}

std::string ReadRemoveRefused(const Json& v, File& file) {
  RemoveRefused r;
  const Readers readers = {{"namespace", String(r.name_space)},
                           {"lease", String(r.lease)},
                           {"afterSeconds", WholeNumber(r.after_seconds, 0, 86400, "seconds")}};
  std::string error = ReadMap(v, "removeRefused", readers);
  if (error.empty() && (r.name_space.empty() || r.lease.empty())) {
    error = "removeRefused: namespace and lease are both needed";
  }
  if (!error.empty()) return "!" + error;
  file.remove_refused = std::move(r);
  return {};
}

}  // namespace

std::vector<std::string> DefaultSidecars() {
  return {"istio-proxy", "linkerd-proxy", "envoy", "kuma-sidecar", "consul-dataplane", "envoy-sidecar",
          "consul-connect-envoy-sidecar", "daprd", "jaeger-agent", "otc-container", "aws-otel-collector", "xray-daemon",
          "vault-agent", "cloud-sql-proxy", "azwi-proxy", "kube-rbac-proxy", "oauth-proxy", "gke-gcsfuse-sidecar",
          "fluid-fuse", "jfs-mount",
          // Knative, Katib, KServe, Argo Workflows, KubeRay.
          "queue-proxy", "metrics-logger-and-collector", "agent@kserve/agent", "wait@argoexec", "autoscaler@ray"};
}

std::vector<std::string> DefaultHostPaths() {
  return {"/dev/nvidia*", "/dev/dri", "/dev/char", "/dev/mem", "/dev/vfio",
          // Another way to each file of the node, device registers, and the cgroups that hold devices and identity.
          "/proc", "/sys", "/var/lib/kubelet", "/etc/cdi", "/run/cdi", "/run/nvidia*",
          // Sockets and state of container runtimes and of the init system, and its services.
          "/run/containerd", "/run/k3s", "/run/crio", "/run/docker*", "/run/cri-dockerd.sock", "/run/podman",
          "/run/runc", "/run/nri", "/run/systemd", "/run/dbus", "/var/lib/containerd", "/var/lib/containers",
          "/var/lib/docker", "/etc/kubernetes", "/etc/containerd", "/etc/crio", "/etc/docker",
          "/etc/nvidia-container-runtime", "/etc/systemd", "/opt/nri",
          // The same of k3s and RKE2, k0s, MicroK8s, Bottlerocket and Docker's snap.
          "/var/lib/rancher", "/etc/rancher", "/var/lib/k0s", "/run/k0s", "/var/snap/microk8s", "/run/host-containerd",
          "/var/snap/docker", "/run/snap.docker"};
}

std::vector<std::string> DefaultSandboxedRuntimes() {
  return {"gvisor*", "runsc*", "kata*", "firecracker*", "wasm*", "spin", "slight", "unikernel*", "urunc"};
}

std::vector<std::string> DefaultWorkloads() {
  return {"kubeflow.org/*",      "ray.io/*",         "jobset.x-k8s.io/*",     "leaderworkerset.x-k8s.io/*",
          "batch.volcano.sh/*",  "apps.kruise.io/*", "serving.knative.dev/*", "argoproj.io/rollouts",
          "actions.github.com/*"};
}

std::vector<std::string> DefaultQueued() {
  return {"batch/jobs",         "kubeflow.org/*",          "trainer.kubeflow.org/*",
          "ray.io/*",           "jobset.x-k8s.io/*",       "leaderworkerset.x-k8s.io/*",
          "batch.volcano.sh/*", "workload.codeflare.dev/*"};
}

std::optional<File> ParseConfig(std::string_view yaml, std::string& error) {
  const auto documents = ReadManifests(yaml, error);
  if (!documents) return std::nullopt;
  File file;
  if (documents->empty()) return file;
  if (documents->size() > 1) {
    error = "the configuration has several documents; accepted: one";
    return std::nullopt;
  }
  Config& c = file.decision;
  const Readers readers = {{"aliases", Bool(c.aliases)},
                           {"shareBy",
                            [&](const Json& v) -> std::string {
                              if (v != "units" && v != "claims") return "units, claims";
                              c.share_by = v == "claims" ? ShareBy::kClaims : ShareBy::kUnits;
                              return {};
                            }},
                           {"driverAccess",
                            [&](const Json& v) -> std::string {
                              if (v == "cdi") {
                                c.driver_access = DriverAccess::kCdi;
                              } else if (v == "nvidia-runtime") {
                                c.driver_access = DriverAccess::kNvidiaRuntime;
                              } else if (v == "direct") {
                                c.driver_access = DriverAccess::kDirect;
                              } else {
                                return "cdi, nvidia-runtime, direct";
                              }
                              return {};
                            }},
                           {"runtimeClass", String(c.runtime_class)},
                           {"assumedGpuMemory",
                            [&](const Json& v) -> std::string {
                              const std::string text = v.is_string() ? v.get<std::string>() : v.dump();
                              c.assumed_gpu_memory = settings::ParseQuantity(text);
                              return c.assumed_gpu_memory ? std::string()
                                                          : "a Kubernetes quantity of bytes above 0, as 24Gi";
                            }},
                           {"excludedNamespaces", Strings(c.excluded_namespaces)},
                           {"sidecars", Strings(c.sidecars)},
                           {"workloads", Workloads(c.workloads)},
                           {"queued", Workloads(c.queued)},
                           {"privileged", ReactionTo(c.privileged)},
                           {"hostPaths", Paths(c.host_paths)},
                           {"nodePaths", Paths(c.node_paths)},
                           {"visibleDevices", ReactionTo(c.visible_devices)},
                           {"resourceClaims", ReactionTo(c.resource_claims)},
                           {"sandboxedRuntimes", Strings(c.sandboxed_runtimes)},
                           {"runtimeHandlers", StringMap(c.runtime_handlers)},
                           {"schedulerName", OptionalString(c.scheduler_name)},
                           {"removeRefused", [&](const Json& v) { return ReadRemoveRefused(v, file); }},
                           {"trusted", Strings(c.trusted)},
                           {"watchNodes", Bool(file.watch_nodes)},
                           {"logFormat", LogChoice(file.log_format, ParseLogFormat, "text, json")},
                           {"logLevel", LogChoice(file.log_level, ParseLogLevel, "error, warn, info, debug")},
                           {"selfSigned", [&](const Json& v) { return ReadSelfSigned(v, file); }}};
  error = ReadMap(documents->front(), "", readers);
  if (!error.empty()) return std::nullopt;
  return file;
}

}  // namespace sluice::webhook
