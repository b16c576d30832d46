// CUDA_VISIBLE_DEVICES as the user set it for a program of `sluice run`.
#ifndef SLUICE_CLI_VISIBLE_DEVICES_H_
#define SLUICE_CLI_VISIBLE_DEVICES_H_

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::cli {

struct VisibleDevices {
  bool hides_all = false;          // the program sees no GPU: the value is empty, or begins with a negative index
  std::vector<std::string> uuids;  // the named GPUs, in the value's order; empty: the value does not restrict
};

// Reads `value` (null: not set) for a node with the GPUs `node`, in NVML's order. As CUDA does, it reads up to the
// first negative index. Any other entry that names no GPU of the node ends this program, with the accepted values.
VisibleDevices ReadVisibleDevices(const char* value, const std::vector<std::string>& node);

// The GPUs to request so that the program gets those which the user made visible. `gpu` is --gpu, and `count` GPUs are
// requested by the flag `by`. Empty: the agent chooses. A contradiction ends this program with a message.
std::vector<std::string> RequestedGpus(const VisibleDevices& visible, const char* value, const std::string& gpu,
                                       std::size_t count, const std::string& by);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_VISIBLE_DEVICES_H_
