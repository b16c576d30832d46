// NVML, loaded at run time: the GPUs, their used memory and their processes. A node without the library has no GPUs.
// NVML is thread-safe.
#ifndef SLUICE_AGENT_NVML_UNSAFE_H_
#define SLUICE_AGENT_NVML_UNSAFE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node.h"

struct nvmlDevice_st;

namespace sluice::nvml {
struct Library;
}  // namespace sluice::nvml

namespace sluice::agent {

struct GpuProcess {
  int64_t pid = 0;
  uint64_t bytes = 0;     // 0: the driver does not report them
  int busy_percent = -1;  // of the GPU's time in the last seconds; -1: the driver does not report it
};

class Nvml {
 public:
  // nullptr with a sentence that names the library.
  static std::unique_ptr<Nvml> Load(const std::string& name, std::string* error);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<Card> Cards() const;
  uint64_t UsedBytes(const std::string& uuid) const;
  // No value: the driver lists no processes, as on vGPUs.
  std::optional<std::vector<GpuProcess>> Processes(const std::string& uuid) const;
  std::string DriverVersion() const;
  bool CanLimitMemory() const;  // NVML has the function: driver 615 and later
  // Unmanaged memory of all processes of the cgroup, the path of a folder. False where the driver cannot limit it, or
  // refuses; `*supported` tells these apart.
  bool SetMemoryLimit(const std::string& uuid, const std::string& cgroup, uint64_t bytes, bool* supported) const;

 private:
  explicit Nvml(std::unique_ptr<const nvml::Library> library);
  bool Find(const std::string& uuid, nvmlDevice_st** device) const;
  void ReadBusy(nvmlDevice_st* device, std::vector<GpuProcess>* processes) const;
  std::unique_ptr<const nvml::Library> library_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NVML_UNSAFE_H_
