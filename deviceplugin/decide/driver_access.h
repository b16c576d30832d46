// How containers get the driver, and which cards cannot be given with it. Pure.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_DRIVER_ACCESS_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_DRIVER_ACCESS_H_

#include <set>
#include <string>
#include <vector>

#include "deviceplugin/decide/cards.h"
#include "deviceplugin/decide/response.h"

namespace sluice::deviceplugin {

// The driver's parts that the node has.
struct AccessFacts {
  std::string setting;              // auto, nvidia-cdi, nvidia-runtime, own
  std::set<std::string> cdi_names;  // "<kind>=<device>" of every spec that is not ours
  std::string nvidia_runtime;       // the evidence that NVIDIA's runtime serves containers; empty: none
  std::string driver_root, device_root;
  bool has_libcuda = false;       // under driver_root
  bool has_control_node = false;  // nvidiactl under device_root
};

struct AccessChoice {
  DriverAccess access = DriverAccess::kOwn;
  std::string why;      // for log and state file
  std::string problem;  // why no card can be given; empty: CardAccessProblem decides for each
};

// The setting decides, unless it is auto. Then the first way that gives containers a libcuda is taken: NVIDIA's CDI
// specs that name cards by UUID, NVIDIA's runtime, our own specs.
AccessChoice ChooseAccess(const AccessFacts& facts, const std::vector<Card>& cards);

// Why a container with this card would start without the driver: a sentence with a fix. Empty: it would not.
// `own_spec_has_libcuda`: our spec of this card, as it lies in the folder.
std::string CardAccessProblem(const AccessFacts& facts, const AccessChoice& choice, const Card& card,
                              bool own_spec_has_libcuda);

// Whether NVIDIA's runtime made the container of this process: it mounts NVML file by file. `mountinfo`: the text of
// /proc/self/mountinfo. Returns the mount point; empty: it did not.
std::string NvmlMountOf(std::string_view mountinfo);

// Whether a container engine's configuration makes NVIDIA's runtime the default one: containerd's and CRI-O's TOML,
// Docker's JSON.
bool MakesNvidiaRuntimeDefault(std::string_view configuration);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_DRIVER_ACCESS_H_
