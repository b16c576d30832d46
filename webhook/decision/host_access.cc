#include "webhook/decision/host_access.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "webhook/decision/other_systems.h"

namespace sluice::webhook {
namespace {

// NVIDIA's runtime can also take GPUs from the names of mounts in this folder.
constexpr std::string_view kDeviceMounts = "/run/nvidia-container-devices";
// A process with one of them can give itself every device of the node.
constexpr std::string_view kNodeCapabilities[] = {"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO"};
// A process with one of them can read files of the node, other processes, or the kernel's memory.
constexpr std::string_view kReadingCapabilities[] = {"BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_PTRACE"};
// NVIDIA's runtime and plugins of the container runtime (NRI) take devices from annotations of these domains.
constexpr std::string_view kDeviceDomains[] = {"cdi.k8s.io", "cdi-devices.nri.io", "cdi-devices.noderesource.dev",
                                               "devices.nri.io", "devices.noderesource.dev"};
// The beginnings of whole keys. CRI-O takes device nodes from an annotation, where its administrator allows it, and
// runc properties of the container's systemd unit, such as DeviceAllow.
constexpr std::string_view kDeviceKeys[] = {"io.kubernetes.cri-o.Devices", "org.systemd.property."};
// Links of every node.
constexpr std::pair<std::string_view, std::string_view> kLinks[] = {{"/var/run", "/run"}, {"/dev/fd", "/proc/self/fd"}};

bool IsBelow(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() && path.starts_with(folder) && (folder == "/" || path[folder.size()] == '/');
}

// The path without empty parts, "." and "..", and with the targets of links.
std::string Normalize(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    path.remove_prefix(std::min(end + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (!parts.empty()) {
      parts.pop_back();
    }
  }
  std::string out;
  for (const std::string_view part : parts) out += "/" + std::string(part);
  for (const auto& [link, target] : kLinks) {
    if (out == link || IsBelow(out, link)) out.replace(0, link.size(), target);
  }
  return out.empty() ? "/" : out;
}

// The entry of the setting that the host's path contains, is, or lies below; empty: none.
std::string_view Protected(std::string_view path, const std::vector<std::string>& list) {
  for (const std::string& entry : list) {
    std::string normal = Normalize(entry);
    const bool any_end = normal.ends_with('*');
    if (any_end) normal.pop_back();
    if (path == normal || IsBelow(normal, path) || (any_end ? path.starts_with(normal) : IsBelow(path, normal))) {
      return entry;
    }
  }
  return {};
}

// Whether an annotation of this key asks the container runtime for devices.
bool NamesDevices(std::string_view key) {
  const std::string_view domain = key.substr(0, key.find('/'));
  const bool has_domain = std::ranges::any_of(kDeviceDomains, [&](std::string_view d) {
    return domain == d || (domain.ends_with(d) && domain[domain.size() - d.size() - 1] == '.');
  });
  return has_domain || std::ranges::any_of(kDeviceKeys, [&](std::string_view k) { return key.starts_with(k); });
}

const Json* List(const Json& object, std::string_view key) {
  const Json* list = Member(object, key);
  return list != nullptr && list->is_array() ? list : nullptr;
}

class HostAccess {
 public:
  HostAccess(const PodView& view, const Input& input, Findings& findings)
      : view_(view), input_(input), findings_(findings) {
    const Json* volumes = List(*view.spec, "volumes");
    if (volumes == nullptr) return;
    for (const Json& v : *volumes) {
      if (const Json* host = Member(v, "hostPath")) host_paths_.emplace(Text(v, "name"), Text(*host, "path"));
    }
  }

  void Run() {
    for (const Container& c : view_.containers) CheckContainer(c);
    CheckAnnotations();
    CheckNamespace("hostPID", "the pod sees the processes of all containers of the node");
    CheckNamespace("hostIPC", "the pod sees the shared memory of all containers of the node");
  }

  void CheckContainer(const Container& c) {
    if (findings_.IsFull()) return;
    CheckSecurity(c);
    CheckMounts(c);
  }

 private:
  void React(std::string text) { findings_.React(input_.config.privileged, Rule::kPrivileged, std::move(text)); }

  void CheckNamespace(const char* field, const char* what) {
    const Json* value = Member(*view_.spec, field);
    if (value == nullptr || *value != true) return;
    React("spec." + std::string(field) + ": " + what + ", beside a share of a GPU; accepted: false");
  }

  void CheckSecurity(const Container& c) {
    const Json* security = Member(*c.json, "securityContext");
    if (security == nullptr) return;
    if (const Json* privileged = Member(*security, "privileged"); privileged != nullptr && *privileged == true) {
      React(c.field + ".securityContext.privileged: container '" + c.name +
            "' reaches every GPU of the node, not only the pod's share; accepted: false");
      return;
    }
    const Json* host_users = Member(*view_.spec, "hostUsers");
    if (Text(*security, "procMount") == "Unmasked" && (host_users == nullptr || *host_users != false)) {
      React(c.field + ".securityContext.procMount: container '" + c.name +
            "' may write settings of the node's kernel; accepted: Default, or spec.hostUsers: false");
    }
    CheckCapabilities(c, *security);
  }

  void CheckCapabilities(const Container& c, const Json& security) {
    const Json* capabilities = Member(security, "capabilities");
    const Json* added = capabilities == nullptr ? nullptr : List(*capabilities, "add");
    if (added == nullptr) return;
    for (const Json& item : *added) {
      if (!item.is_string()) continue;
      std::string name = item;
      for (char& letter : name) letter = static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 32 : letter);
      if (name.starts_with("CAP_")) name.erase(0, 4);
      if (std::ranges::find(kNodeCapabilities, name) != std::end(kNodeCapabilities)) {
        React(c.field + ".securityContext.capabilities.add: with " + name + " container '" + c.name +
              "' reaches every GPU of the node, not only the pod's share; accepted: no such capability");
      } else if (std::ranges::find(kReadingCapabilities, name) != std::end(kReadingCapabilities) &&
                 input_.config.privileged != Reaction::kAllow) {
        findings_.Warn(Rule::kWarnCapability, "container " + c.name + " has the capability " + name +
                                                  ", with which a process can leave its share of a GPU");
      }
    }
  }

  // Annotations that ask the container runtime for devices.
  void CheckAnnotations() {
    if (view_.annotations == nullptr) return;
    for (const auto& [key, value] : view_.annotations->items()) {
      if (!NamesDevices(key)) continue;
      React("metadata.annotations: '" + key.substr(0, 80) +
            "' asks the container runtime for devices beside a share of a GPU; accepted: no such annotation");
    }
  }

  void CheckMounts(const Container& c) {
    const Json* mounts = List(*c.json, "volumeMounts");
    if (mounts == nullptr) return;
    size_t index = 0;
    for (const Json& mount : *mounts) {
      const std::string field = c.field + ".volumeMounts[" + std::to_string(index++) + "]";
      const std::string target = Normalize(Text(mount, "mountPath"));
      if (IsBelow(target, kDeviceMounts)) {
        React(field + ".mountPath: container '" + c.name + "' asks NVIDIA's runtime for GPUs by '" +
              target.substr(0, 80) + "'; accepted: another path");
      }
      const auto volume = host_paths_.find(Text(mount, "name"));
      if (volume == host_paths_.end() || volume->second.empty()) continue;
      const std::string_view path = volume->second;
      const std::string normal = Normalize(path);
      std::string_view entry = Protected(normal, input_.config.host_paths);
      if (entry.empty()) entry = Protected(normal, input_.config.node_paths);
      if (entry.empty()) continue;
      React(field + ": container '" + c.name + "' mounts '" + std::string(path.substr(0, 80)) +
            "' of the node, which gives access to " + std::string(entry.substr(0, 64)) + "; accepted: another volume");
      return;
    }
  }

  const PodView& view_;
  const Input& input_;
  Findings& findings_;
  std::unordered_map<std::string_view, std::string_view> host_paths_;  // by the volume's name
};

// "'all'", or how the value comes.
std::string ValueForPeople(const Json& variable) {
  if (Member(variable, "valueFrom") != nullptr) return "a value by valueFrom";
  return "'" + std::string(Text(variable, "value").substr(0, 64)) + "'";
}

template <typename F>
void ForEachVisibleDevices(const Container& c, F f) {
  const Json* env = List(*c.json, "env");
  if (env == nullptr) return;
  for (size_t i = 0; i < env->size(); ++i) {
    if (Text((*env)[i], "name") == kVisibleDevices) f(i, (*env)[i]);
  }
}

// Whether one of the setting's words is the name or a word of it.
bool HasWord(std::string_view name, const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), name) != words.end()) return true;
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of("-._"), name.size());
    const std::string_view word = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    for (const std::string& entry : words) {
      const std::string_view wanted(entry);
      if (wanted.ends_with('*') ? word.starts_with(wanted.substr(0, wanted.size() - 1)) : word == wanted) return true;
    }
  }
  return false;
}

}  // namespace

void CheckHostAccess(const PodView& view, const Input& input, Findings& findings) {
  if (input.mode == Mode::kUpdate) return;  // a running pod's spec is fixed
  HostAccess(view, input, findings).Run();
}

void CheckEphemeral(const PodView& view, const Container& c, const Input& input, Findings& findings) {
  HostAccess(view, input, findings).CheckContainer(c);
  ForEachVisibleDevices(c, [&](size_t index, const Json& variable) {
    if (!AsksForDevices(variable)) return;
    findings.React(input.config.privileged, Rule::kPrivileged,
                   c.field + ".env[" + std::to_string(index) + "]: container '" + c.name + "' asks for GPUs by " +
                       std::string(kVisibleDevices) + " = " + ValueForPeople(variable) +
                       " in a pod with a share; accepted: void");
  });
}

std::string NoDevices() { return R"({"name":")" + std::string(kVisibleDevices) + R"(","value":"void"})"; }

bool AsksForDevices(const Json& variable) {
  if (Member(variable, "valueFrom") != nullptr) return true;
  const std::string_view value = Text(variable, "value");
  return !value.empty() && value != "void" && value != "none";
}

void HideDevices(const Container& c, const Input& input, Findings& findings, Patch& patch) {
  if (input.config.privileged == Reaction::kAllow || input.mode == Mode::kUpdate) return;
  if (!findings.IsEnabled(Rule::kHideDevices)) return;
  const bool has_other = !OtherGpuOf(c).empty();  // the variable of its device plugin holds
  std::vector<size_t> removed;
  bool has_variable = false;
  ForEachVisibleDevices(c, [&](size_t index, const Json& variable) {
    has_variable = true;
    if (!AsksForDevices(variable)) return;
    findings.Warn(Rule::kHideDevices, "container " + c.name + " has no share: " + ValueForPeople(variable) + " for " +
                                          std::string(kVisibleDevices) + " is replaced, and it sees no GPU by it");
    if (has_other) {
      removed.push_back(index);
    } else {
      patch.Replace(c.pointer + "/env", std::to_string(index), NoDevices());
    }
  });
  for (auto index = removed.rbegin(); index != removed.rend(); ++index) patch.Remove(c.pointer + "/env", *index);
  if (has_variable || has_other) return;
  // The image or envFrom may set it. A variable of the pod goes before both.
  if (Member(*c.json, "env") == nullptr) {
    patch.Add(c.pointer, "env", "[" + NoDevices() + "]");
  } else {
    patch.Add(c.pointer + "/env", "-", NoDevices());
  }
}

void CheckVisibleDevices(const PodView& view, const Input& input, Findings& findings) {
  if (input.mode == Mode::kUpdate) return;
  for (const Container& c : view.containers) {
    if (findings.IsFull()) return;
    ForEachVisibleDevices(c, [&](size_t index, const Json& variable) {
      if (!AsksForDevices(variable)) return;
      findings.React(input.config.visible_devices, Rule::kVisibleDevices,
                     c.field + ".env[" + std::to_string(index) + "]: container '" + c.name + "' asks for GPUs by " +
                         std::string(kVisibleDevices) + " = " + ValueForPeople(variable) +
                         ", and may get GPUs that are shared; accepted: a share (sluice.dev/gpu-fraction), or void");
    });
  }
}

void WarnSandbox(const PodView& view, const Input& input, Findings& findings) {
  const std::string_view name = Text(*view.spec, "runtimeClassName");
  if (name.empty() || input.mode == Mode::kUpdate) return;
  const auto known = input.config.runtime_handlers.find(name);
  const std::string_view handler =
      known == input.config.runtime_handlers.end() ? name : std::string_view(known->second);
  const auto& words = input.config.sandboxed_runtimes;
  // A RuntimeClass with an overhead is a sandbox as well: the API server copies it into the pod.
  const Json* overhead = Member(*view.spec, "overhead");
  const bool has_overhead = overhead != nullptr && overhead->is_object() && !overhead->empty();
  if (!HasWord(handler, words) && !HasWord(name, words) && !has_overhead) return;
  std::string text = "runtimeClassName '" + std::string(name.substr(0, 40)) +
                     "' is a sandbox, where sluice's library and socket do not work and the share is not held; use '" +
                     input.config.runtime_class.substr(0, 40) + "' or none";
  if (HasWord(handler, {"gvisor*", "runsc*"})) text += ". gVisor needs runsc --nvproxy --host-uds=open";
  if (HasWord(handler, {"kata*"})) text += ". A Kata VM gets whole GPUs only";
  findings.Warn(Rule::kWarnSandbox, std::move(text));
}

}  // namespace sluice::webhook
