// What is known of the cluster's GPUs, and how many percent of one a number of bytes is.
#ifndef SLUICE_WEBHOOK_DECISION_NODES_H_
#define SLUICE_WEBHOOK_DECISION_NODES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "webhook/decision/pod.h"

namespace sluice::webhook {

struct Gpu {
  std::string model;
  uint64_t memory = 0;  // bytes
  bool operator==(const Gpu&) const = default;
};

struct Node {
  std::string name;
  std::map<std::string, std::string, std::less<>> labels;
  std::vector<Gpu> gpus;
};

// Keyed by name; immutable once published.
using Nodes = std::map<std::string, Node, std::less<>>;

// A node from its object's metadata; gpus is empty where the annotation is absent. `error` names a malformed
// annotation, which counts as absent.
Node ReadNode(const Json& node, std::string& error);

// Whether nodeName, nodeSelector and the required node affinity admit the node, by the scheduler's rules. Terms that
// cannot be read admit (the API server refuses them later).
bool Admits(const Json& spec, const Node& node);

// The GPUs that a pod may get, each kind once: there may be thousands of cards, and a decision looks at them once.
struct Candidates {
  std::map<uint64_t, std::set<std::string>> models;  // by bytes
  size_t nodes_with_gpus = 0;                        // whether admitted or not
  uint64_t smallest() const { return models.empty() ? 0 : models.begin()->first; }
};
Candidates FindGpus(const Json& spec, const Nodes& nodes);

struct MemoryShare {
  std::optional<uint32_t> percent;  // of the smallest GPU that the pod may get
  std::string error;                // completes "<field>: ..."
  bool unknown = false;             // the error is want of knowledge, not a wrong value
  std::string warning;
};

// `assumed`: bytes of a GPU to go by where no node is known.
MemoryShare ShareOfMemory(uint64_t bytes, const Candidates& gpus, std::optional<uint64_t> assumed);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_NODES_H_
