// What shows, from inside the plugin's container or on a host, how this node serves NVIDIA's cards.
#ifndef SLUICE_DEVICEPLUGIN_HOST_NVIDIA_NODE_H_
#define SLUICE_DEVICEPLUGIN_HOST_NVIDIA_NODE_H_

#include <string>

namespace sluice::deviceplugin {

// A sentence on the evidence that NVIDIA's container runtime serves containers: it made this process's container, or
// the host below `root` has it as the default runtime. Empty: nothing shows it.
std::string FindNvidiaRuntime(const std::string& root, const std::string& mountinfo = "/proc/self/mountinfo");

// The number of NVIDIA's GPUs on the PCI bus, driver or not. `sys_root` is /sys.
int CountPciGpus(const std::string& sys_root);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_NVIDIA_NODE_H_
