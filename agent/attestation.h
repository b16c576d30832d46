// Finds GPU processes without a hook: every process that NVML lists is attached, or in a container of sluice without a
// hook, or external. Lives on the agent's loop.
#ifndef SLUICE_AGENT_ATTESTATION_H_
#define SLUICE_AGENT_ATTESTATION_H_

#include <cstdint>
#include <set>
#include <string>

#include "agent/node.h"
#include "agent/nvml_unsafe.h"

namespace sluice::agent {

class Attestation {
 public:
  Attestation(Node* node, std::string alloc_dir) : node_(node), alloc_dir_(std::move(alloc_dir)) {}
  // Compares NVML's processes with the attached ones, and tells the node.
  void Check(const Nvml& nvml);

 private:
  Node* const node_;
  const std::string alloc_dir_;
  std::set<int64_t> external_, reported_;  // at the last check; those of them with an event
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ATTESTATION_H_
