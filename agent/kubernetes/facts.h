// Reads pods and the plugin's state, and writes the texts that other parts read. Pure functions.
#ifndef SLUICE_AGENT_KUBERNETES_FACTS_H_
#define SLUICE_AGENT_KUBERNETES_FACTS_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/ledger.h"
#include "agent/status.h"
#include "common/settings/settings.h"
#include "deviceplugin/host/checkpoint.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::agent {

// The answer to a container whose size changed while it ran, in percent of each of its GPUs.
struct GrantedSize {
  uint32_t percent = 0, requested = 0;
};

// A container's share at the pod's admission, by the webhook's marker.
struct StartSize {
  std::optional<Bytes> bytes;  // of gpu-memory
  bool computed = false;       // the webhook chose the units for them
};

// A pod of this node.
struct PodRecord {
  scheduler::PodFacts facts;
  std::map<std::string, settings::Settings> settings;  // of the annotations, by container
  std::vector<std::string> errors;                     // a sentence for each annotation that is not accepted
  std::map<std::string, StartSize> starts;             // by container, of those that the marker names
  std::map<std::string, GrantedSize> granted;          // by container; of the annotation sluice.dev/granted
  std::string granted_text;                            // the annotation itself
  std::string created;                                 // metadata.creationTimestamp
  uint64_t order = 0;                                  // in which the watch showed the node's pods first
};

// By the webhook's own code, so that both read annotations alike. `aliases`: also gpu-memory without prefix.
PodRecord ReadPodRecord(const nlohmann::json& pod, bool aliases);

using Pods = std::map<std::string, PodRecord>;                // by uid
using GivenOut = std::vector<deviceplugin::CheckpointEntry>;  // kubelet's checkpoint

// Numbers the pods of a new list: those that `before` knew keep theirs, the others follow, the oldest first, as kubelet
// admits them after its own list. `last`: the largest number so far.
void NumberPods(const Pods& before, uint64_t* last, Pods* now);

// A GPU in the device plugin's state.
struct PluginCard {
  std::string state;   // healthy, unhealthy, not-offered
  std::string detail;  // for people
  int nvlink = -1;     // GPUs of one number reach each other by NVLink
};
using PluginCards = std::map<std::string, PluginCard>;  // by uuid

// Reads the plugin's state file. Empty: the text is none.
PluginCards ReadPluginState(const std::string& text);

// Why the plugin offers fewer GPUs than the node has, from its state file: one sentence, for doctor and Events. Empty:
// it offers all, the node has none, or the text is none.
std::string OfferProblem(const std::string& text);

// The value of the node annotation sluice.dev/gpus (proto/sluice/names.h). Units of ended pods are free, as they are
// for the scheduler, although kubelet's checkpoint still lists them. Units that a pod was granted beyond its own are
// not free. A GPU that the plugin does not offer has no free units.
struct CardUse;  // resize.h
std::string NodeAnnotation(const std::vector<CardStatus>& cards, const std::map<std::string, CardUse>& uses,
                           const PluginCards& plugin);

// The content of the reservations file (proto/sluice/reservation.h).
std::string Reservations(const Pods& pods, const std::map<std::string, CardUse>& uses);

// The name of the allocation's folder, from its path.
std::string AllocationOf(const deviceplugin::CheckpointEntry& given);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_FACTS_H_
