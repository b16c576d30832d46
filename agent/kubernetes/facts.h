// What the agent makes of pods, of kubelet's checkpoint and of the plugin's state: text for others. Pure functions.
#ifndef SLUICE_AGENT_KUBERNETES_FACTS_H_
#define SLUICE_AGENT_KUBERNETES_FACTS_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "agent/status.h"
#include "common/settings/settings.h"
#include "deviceplugin/host/checkpoint.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::agent {

// A pod of this node.
struct PodRecord {
  scheduler::PodFacts facts;
  std::map<std::string, settings::Settings> settings;  // by container: what the annotations say of it
  std::vector<std::string> errors;                     // annotations that cannot be taken, each with a sentence
};

// The same rules as the webhook's, since it is the webhook's code. `aliases`: also gpu-memory without prefix.
PodRecord ReadPodRecord(const nlohmann::json& pod, bool aliases);

using Pods = std::map<std::string, PodRecord>;                // by uid
using GivenOut = std::vector<deviceplugin::CheckpointEntry>;  // kubelet's checkpoint

// A card as the device plugin sees it.
struct PluginCard {
  std::string state;   // healthy, unhealthy, not-offered
  std::string detail;  // for people
};
using PluginCards = std::map<std::string, PluginCard>;  // by uuid

// The plugin's state file. Empty where it is none.
PluginCards ReadPluginState(const std::string& text);

// The value of the node annotation sluice.dev/gpus (proto/sluice/names.h). Units of pods that have ended are free, as
// they are for the scheduler, though kubelet's checkpoint still names them; a card that the plugin does not offer has
// none.
std::string NodeAnnotation(const std::vector<CardStatus>& cards, const GivenOut& given, const Pods& pods,
                           const PluginCards& plugin);

// The content of reservations.json (proto/sluice/reservation.h).
std::string Reservations(const Pods& pods);

// The name of an allocation's folder, from its path.
std::string AllocationOf(const deviceplugin::CheckpointEntry& given);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_FACTS_H_
