// NVML, loaded at run time: the cards, their used memory, the processes on them. A node without the library has no
// cards.
#ifndef SLUICE_AGENT_NVML_UNSAFE_H_
#define SLUICE_AGENT_NVML_UNSAFE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/node.h"

namespace sluice::agent {

struct GpuProcess {
  int64_t pid = 0;
  uint64_t bytes = 0;  // 0 where the driver does not tell
};

class Nvml {
 public:
  // nullptr with a sentence that says what was looked for.
  static std::unique_ptr<Nvml> Load(const std::string& library, std::string* error);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<Card> Cards() const;
  uint64_t UsedBytes(const std::string& uuid) const;
  std::vector<GpuProcess> Processes(const std::string& uuid) const;
  std::string DriverVersion() const;

 private:
  Nvml() = default;
  struct Api;
  std::unique_ptr<Api> api_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NVML_UNSAFE_H_
