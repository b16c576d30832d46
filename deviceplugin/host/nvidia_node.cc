#include "deviceplugin/host/nvidia_node.h"

#include "deviceplugin/decide/driver_access.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

constexpr const char* kPrograms[] = {"/usr/bin/nvidia-container-runtime",
                                     "/usr/local/nvidia/toolkit/nvidia-container-runtime"};
// Folders are read file by file: containerd's conf.d, CRI-O's crio.conf.d.
constexpr const char* kEngineConfigurations[] = {
    "/etc/containerd/config.toml",  "/etc/containerd/conf.d",
    "/etc/docker/daemon.json",      "/etc/crio/crio.conf",
    "/etc/crio/crio.conf.d",        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",     "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/run/k0s/containerd-cri.toml", "/var/snap/microk8s/current/args/containerd.toml",
};
constexpr const char* kVendor = "0x10de";
constexpr const char* kDisplayClass = "0x03";  // VGA, 3D and other display controllers

}  // namespace

std::string FindNvidiaRuntime(const std::string& root, const std::string& mountinfo) {
  if (const std::string point = NvmlMountOf(ReadFile(mountinfo).value_or("")); !point.empty())
    return StrCat("it mounted ", point, " into this pod");
  const std::string prefix = root == "/" ? "" : root;
  std::string program;
  for (const char* path : kPrograms) {
    if (IsFile(prefix + path)) program = prefix + path;
  }
  if (program.empty()) return "";
  // Without this, containerd would start users' containers by another runtime.
  for (const char* path : kEngineConfigurations) {
    std::vector<std::string> files = {prefix + path};
    if (auto names = ListDir(prefix + path); names.ok()) {
      files.clear();
      for (const std::string& name : *names) files.push_back(StrCat(prefix, path, "/", name));
    }
    for (const std::string& file : files) {
      if (MakesNvidiaRuntimeDefault(ReadFile(file, 4 << 20).value_or("")))
        return StrCat(program, ", by default in ", file);
    }
  }
  return "";
}

int CountPciGpus(const std::string& sys_root) {
  const std::string bus = sys_root + "/bus/pci/devices";
  int count = 0;
  for (const std::string& device : ListDir(bus).value_or(std::vector<std::string>())) {
    const std::string folder = StrCat(bus, "/", device);
    count += ReadFile(folder + "/vendor", 64).value_or("").starts_with(kVendor) &&
                     ReadFile(folder + "/class", 64).value_or("").starts_with(kDisplayClass)
                 ? 1
                 : 0;
  }
  return count;
}

}  // namespace sluice::deviceplugin
