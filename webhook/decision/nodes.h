// The cluster's known GPUs, and the conversion of bytes into a percentage of one GPU. Pure.
#ifndef SLUICE_WEBHOOK_DECISION_NODES_H_
#define SLUICE_WEBHOOK_DECISION_NODES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "webhook/decision/node_labels.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

struct Gpu {
  std::string model;
  uint64_t memory = 0;  // bytes
  bool operator==(const Gpu&) const = default;
};

struct Node {
  std::string name;
  NodeLabels labels;
  std::vector<Gpu> gpus;
  std::vector<uint64_t> offered = {};  // MiB of each card that the DRA driver offers
};

// Keyed by name; immutable once published.
using Nodes = std::map<std::string, Node, std::less<>>;

// Reads a node from its object's metadata. `gpus` stays empty if the annotation is absent or malformed; `error` then
// names a malformed one.
Node ReadNode(const Json& node, std::string& error);

// Whether nodeName, nodeSelector and the required node affinity match the node, by the scheduler's rules. An unreadable
// term matches: the API server denies such a pod later.
bool PodMatchesNode(const Json& spec, const Node& node);

// The GPUs that a pod may get, each model once: a cluster can have thousands of GPUs, and a decision visits them once.
struct Candidates {
  std::map<uint64_t, std::set<std::string>> models;                                 // by bytes
  size_t nodes_with_gpus = 0;                                                       // of the whole cluster
  size_t most_on_a_node = 0;                                                        // GPUs
  uint64_t smallest() const { return models.empty() ? 0 : models.begin()->first; }  // bytes
};
// Of nodes with `at_least` GPUs.
Candidates FindGpus(const Json& spec, const Nodes& nodes, size_t at_least = 1);

struct MemoryShare {
  std::optional<uint32_t> percent;  // of the smallest GPU that the pod may get
  std::string error;                // completes "<field>: ..."
  bool is_unknown = false;          // the error is a lack of known GPUs, not a wrong value
  std::string warning;              // completes "<field>: ..."
};

// `assumed`: bytes of the smallest GPU if `gpus` is empty.
MemoryShare ShareOfMemory(uint64_t bytes, const Candidates& gpus, std::optional<uint64_t> assumed);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_NODES_H_
