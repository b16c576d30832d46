#include "webhook/decision/config.h"

#include "common/config/reader.h"

namespace sluice::webhook {
namespace {

using config::Value;

// Below the root, with letters beside the *.
bool IsHostPath(const std::string& path) {
  return path.starts_with('/') && path.find_first_not_of("/*") != std::string::npos;
}

bool IsWorkload(const std::string& entry) {
  const size_t slash = entry.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < entry.size() &&
         entry.find('/', slash + 1) == std::string::npos && !entry.starts_with('*');
}

config::Field Paths(std::vector<std::string>* to) {
  return config::List(to, "a list of absolute paths below /", IsHostPath);
}

config::Field Workloads(std::vector<std::string>* to) {
  return config::List(to, "a list of GROUP/RESOURCE, as kubeflow.org/pytorchjobs or kubeflow.org/*", IsWorkload);
}

config::Field ReactionTo(Reaction* to) {
  return config::OneOf(to, {{"deny", Reaction::kDeny}, {"warn", Reaction::kWarn}, {"allow", Reaction::kAllow}});
}

void ReadSelfSigned(const Value& value, SelfSigned* s) {
  value.Read({{"secretNamespace", config::Name(&s->secret_namespace)},
              {"secretName", config::Name(&s->secret_name)},
              {"service", config::Name(&s->service)},
              {"mutating", config::List(&s->mutating)},
              {"validating", config::List(&s->validating)},
              {"caDays", config::Number(&s->ca_days, 2, 3650, "days")},
              {"leafDays", config::Number(&s->leaf_days, 1, 825, "days")}});
  if (s->secret_namespace.empty() || s->secret_name.empty() || s->service.empty()) {
    value.Fail("selfSigned: secretNamespace, secretName and service are all needed");
  }
  if (s->leaf_days > s->ca_days) {
    value.Fail("selfSigned.leafDays: '" + std::to_string(s->leaf_days) +
               "' is not accepted; accepted: at most caDays, " + std::to_string(s->ca_days));
  }
}

void ReadRemoveRefused(const Value& value, RemoveRefused* r) {
  value.Read({{"namespace", config::Name(&r->name_space)},
              {"lease", config::Name(&r->lease)},
              {"afterSeconds", config::Number(&r->after_seconds, 0, 86400, "seconds")}});
  if (r->name_space.empty() || r->lease.empty()) value.Fail("removeRefused: namespace and lease are both needed");
}

void Read(const Value& value, File* file) {
  Config* c = &file->decision;
  value.Read(
      {{"aliases", config::Bool(&c->aliases)},
       {"shareBy", config::OneOf(&c->share_by, {{"units", ShareBy::kUnits}, {"claims", ShareBy::kClaims}})},
       {"driverAccess", config::OneOf(&c->driver_access, {{"cdi", DriverAccess::kCdi},
                                                          {"nvidia-runtime", DriverAccess::kNvidiaRuntime},
                                                          {"direct", DriverAccess::kDirect}})},
       {"runtimeClass", config::Name(&c->runtime_class)},
       {"assumedGpuMemory", [c](const Value& memory) { config::Quantity (&c->assumed_gpu_memory.emplace())(memory); }},
       {"excludedNamespaces", config::List(&c->excluded_namespaces)},
       {"sidecars", config::List(&c->sidecars)},
       {"workloads", Workloads(&c->workloads)},
       {"queued", Workloads(&c->queued)},
       {"privileged", ReactionTo(&c->privileged)},
       {"hostPaths", Paths(&c->host_paths)},
       {"nodePaths", Paths(&c->node_paths)},
       {"visibleDevices", ReactionTo(&c->visible_devices)},
       {"resourceClaims", ReactionTo(&c->resource_claims)},
       {"sandboxedRuntimes", config::List(&c->sandboxed_runtimes)},
       {"runtimeHandlers", config::Map(&c->runtime_handlers)},
       {"schedulerName", config::Text(&c->scheduler_name)},
       {"removeRefused", [file](const Value& v) { ReadRemoveRefused(v, &file->remove_refused.emplace()); }},
       {"trusted", config::List(&c->trusted)},
       {"watchNodes", config::Bool(&file->watch_nodes)},
       {"logFormat", config::Format(&file->log_format)},
       {"logLevel", config::Level(&file->log_level)},
       {"selfSigned", [file](const Value& v) { ReadSelfSigned(v, &file->self_signed.emplace()); }}});
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
  return {
      "/dev/nvidia*", "/dev/dri", "/dev/char", "/dev/mem", "/dev/vfio",
      // These lead to every file of the node, to device registers, and to the cgroups that hold devices and identity.
      "/proc", "/sys", "/var/lib/kubelet", "/etc/cdi", "/run/cdi", "/run/nvidia*",
      // Sockets and state of container runtimes and of the init system, and its services.
      "/run/containerd", "/run/k3s", "/run/crio", "/run/docker*", "/run/cri-dockerd.sock", "/run/podman", "/run/runc",
      "/run/nri", "/run/systemd", "/run/dbus", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker",
      "/etc/kubernetes", "/etc/containerd", "/etc/crio", "/etc/docker", "/etc/nvidia-container-runtime", "/etc/systemd",
      "/opt/nri",
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

std::optional<File> ParseConfig(const std::string& yaml, const std::string& name, std::string& error) {
  File file;
  if (!config::Parse(yaml, name, [&file](const Value& value) { Read(value, &file); }, &error)) return std::nullopt;
  return file;
}

}  // namespace sluice::webhook
