#include "scheduler/cluster_state.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/fragmentation.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

const Json& At(const Json& object, const char* pointer) {
  static const Json kNull;
  const Json::json_pointer path(pointer);
  return object.contains(path) ? object.at(path) : kNull;
}

std::string TextAt(const Json& object, const char* pointer) {
  const Json& value = At(object, pointer);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string NameOf(const Json& node) { return TextAt(node, "/metadata/name"); }

// What no node has room for, in words that are the same for all nodes of one call: the scheduler counts equal reasons
// ("3 no single card has 60 units free, the largest has 50").
class Reasons {
 public:
  void Add(const std::string& node, const NoRoom& why) {
    Kind& kind = kinds_[{why.units, why.together}];
    kind.nodes.push_back(node);
    kind.largest = std::max(kind.largest, why.largest_free);
    kind.whole = std::max(kind.whole, why.whole_free);
  }

  void MoveTo(std::map<std::string, std::string>& failed) const {
    for (const auto& [key, kind] : kinds_) {
      const std::string text = Text(key.first, key.second, kind);
      for (const std::string& node : kind.nodes) failed[node] = text;
    }
  }

  static std::string Text(const NoRoom& why) {
    return Text(why.units, why.together, {{}, why.largest_free, why.whole_free});
  }

 private:
  struct Kind {
    std::vector<std::string> nodes;
    int largest = 0;
    int whole = 0;
  };

  static std::string Text(int units, bool together, const Kind& kind) {
    if (together) {
      return absl::StrCat("each container of the pod finds a card, but not all of them together (", units, " units)");
    }
    if (units > kUnitsPerCard) {
      return absl::StrCat("fewer than ", units / kUnitsPerCard, " whole cards are free, the most on one node is ",
                          kind.whole);
    }
    return absl::StrCat("no single card has ", units, " units free, the largest has ", kind.largest);
  }

  std::map<std::pair<int, bool>, Kind> kinds_;
};

std::string BlockedBy(const std::string& pod) {
  return absl::StrCat("waits until kubelet has admitted pod ", pod,
                      ", whose init container asks for the same number of units and whose containers for another");
}

}  // namespace

void ClusterState::Changed(NodeEntry& entry) {
  entry.answered = false;
  entry.free.reset();
}

void ClusterState::Read(NodeEntry& entry, const Json& node) {
  entry.cpu_milli = ReadMilli(At(node, "/status/allocatable/cpu"));
  entry.memory_mib = ReadMemoryMib(At(node, "/status/allocatable/memory"));
  entry.problem.clear();
  Changed(entry);
  const Json& annotation = At(node, "/metadata/annotations/sluice.dev~1gpus");
  if (!annotation.is_string()) {
    entry.problem = "no annotation " SLUICE_NODE_ANNOTATION_GPUS ": sluice's agent does not run there";
    entry.ledger.SetCards({});
    return;
  }
  auto cards = ParseNodeCards(annotation.get_ref<const std::string&>());
  if (!cards.ok()) {
    entry.problem =
        absl::StrCat("annotation " SLUICE_NODE_ANNOTATION_GPUS " cannot be read: ", cards.status().message());
    entry.ledger.SetCards({});
    return;
  }
  // Kubelet offers nothing while the plugin is away, whatever the agent says.
  if (ReadMilli(At(node, "/status/allocatable/sluice.dev~1gpu-percent")) == 0) {
    entry.problem = "offers no " SLUICE_RESOURCE ": sluice's device plugin does not run there";
  }
  entry.ledger.SetCards(*std::move(cards));
}

ClusterState::NodeEntry& ClusterState::EntryOf(const std::string& node) {
  auto [found, added] = nodes_.try_emplace(node);
  if (added) found->second.problem = "the node is not known yet";
  return found->second;
}

void ClusterState::ReplaceNodes(const std::vector<Json>& nodes) {
  const std::lock_guard lock(mutex_);
  known_nodes_.clear();
  for (const Json& node : nodes) {
    known_nodes_.insert(NameOf(node));
    Read(EntryOf(NameOf(node)), node);
  }
  nodes_synced_ = true;
}

void ClusterState::PutNode(const Json& node) {
  const std::lock_guard lock(mutex_);
  known_nodes_.insert(NameOf(node));
  Read(EntryOf(NameOf(node)), node);
}

void ClusterState::RemoveNode(const std::string& name) {
  const std::lock_guard lock(mutex_);
  known_nodes_.erase(name);
  // Its pods are still there until somebody deletes them; only its cards are gone.
  NodeEntry& entry = EntryOf(name);
  entry.ledger.SetCards({});
  entry.problem = "the node is gone";
  Changed(entry);
}

void ClusterState::Attach(const PodFacts& pod) {
  if (pod.node.empty()) return;
  NodeEntry& entry = EntryOf(pod.node);
  entry.cpu_milli_used += pod.cpu_milli;
  entry.memory_mib_used += pod.memory_mib;
  Changed(entry);
  if (pod.containers.empty()) return;
  auto live = MakeLivePod(pod.containers, pod.placement);
  // A placement that does not go with the pod (somebody wrote it by hand) counts as none.
  if (!live.ok()) live = MakeLivePod(pod.containers, {});
  if (live.ok())
    entry.ledger.Put(pod.uid, {.name = pod.FullName(), .live = *std::move(live), .admitted = pod.admitted});
}

void ClusterState::Detach(const PodFacts& pod) {
  if (pod.node.empty()) return;
  NodeEntry& entry = EntryOf(pod.node);
  entry.cpu_milli_used -= pod.cpu_milli;
  entry.memory_mib_used -= pod.memory_mib;
  Changed(entry);
  entry.ledger.Remove(pod.uid);
}

void ClusterState::PutPodLocked(PodFacts pod) {
  if (pod.uid.empty()) return;
  if (pod.ended) {
    RemovePodLocked(pod.uid);
    return;
  }
  if (!pod.node.empty()) ReleaseLocked(pod.uid);  // from now on the object itself speaks, and may say something else
  const auto old = pods_.find(pod.uid);
  if (old == pods_.end()) {
    if (!pod.containers.empty()) {
      if (const auto chains = ChainsOf(pod.containers); chains.ok()) {
        for (const Chain& chain : *chains) {
          policies_.Saw({chain.Cards(), chain.UnitsPerCard(), pod.cpu_milli, pod.memory_mib});
        }
      }
    }
  } else if (old->second.node == pod.node && !pod.node.empty()) {
    NodeEntry& entry = EntryOf(pod.node);
    entry.cpu_milli_used -= old->second.cpu_milli;
    entry.memory_mib_used -= old->second.memory_mib;
  }
  Attach(pod);
  pods_[pod.uid] = std::move(pod);
}

void ClusterState::RemovePodLocked(const std::string& uid) {
  ReleaseLocked(uid);
  const auto found = pods_.find(uid);
  if (found == pods_.end()) return;
  Detach(found->second);
  pods_.erase(found);
}

void ClusterState::ReplacePods(const std::vector<Json>& pods) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> listed;
  for (const Json& json : pods) {
    PodFacts pod = ReadPod(json);
    listed.insert(pod.uid);
    PutPodLocked(std::move(pod));
  }
  std::vector<std::string> gone;
  for (const auto& [uid, pod] : pods_) {
    if (!listed.contains(uid)) gone.push_back(uid);
  }
  for (const std::string& uid : gone) RemovePodLocked(uid);
  pods_synced_ = true;
}

void ClusterState::PutPod(const Json& pod) {
  const std::lock_guard lock(mutex_);
  PutPodLocked(ReadPod(pod));
}

void ClusterState::RemovePod(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  RemovePodLocked(uid);
}

Node ClusterState::FreeOf(const NodeEntry& entry) const {
  Node node = entry.ledger.Free();
  node.cpu_milli_free = entry.cpu_milli - entry.cpu_milli_used;
  node.memory_mib_free = entry.memory_mib - entry.memory_mib_used;
  return node;
}

const ClusterState::Answer& ClusterState::Ask(NodeEntry& entry, const std::vector<Chain>& chains, const PodFacts& pod,
                                              const Policy& policy) {
  if (entry.answered && entry.asked == chains && entry.asked_cpu == pod.cpu_milli && entry.asked_policy == &policy) {
    return entry.answer;
  }
  if (!entry.free) entry.free = FreeOf(entry);
  entry.answer = Pack(*entry.free, chains, {.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib}, policy);
  entry.asked = chains;
  entry.asked_cpu = pod.cpu_milli;
  entry.asked_policy = &policy;
  entry.answered = true;
  return entry.answer;
}

FilterResult ClusterState::Filter(const PodFacts& pod, const std::vector<std::string>& nodes) {
  const std::lock_guard lock(mutex_);
  FilterResult result;
  if (pod.containers.empty()) {
    result.fitting = nodes;
    return result;
  }
  // Asked again for a pod that we have reserved for: that bind's outcome was lost, and the scheduler thinks that it
  // failed.
  ReleaseLocked(pod.uid);
  const auto chains = ChainsOf(pod.containers);
  policy_ = policies_.policy();
  Reasons reasons;
  for (const std::string& name : nodes) {
    if (!chains.ok()) {
      result.failed[name] = std::string(chains.status().message());
      continue;
    }
    const auto found = nodes_.find(name);
    if (found == nodes_.end() || !found->second.problem.empty()) {
      result.failed[name] = found == nodes_.end() ? "the node is not known yet" : found->second.problem;
      continue;
    }
    if (const std::string blocker = found->second.ledger.Blocks(*chains); !blocker.empty()) {
      result.failed[name] = BlockedBy(blocker);
      continue;
    }
    const Answer& answer = Ask(found->second, *chains, pod, *policy_);
    if (std::holds_alternative<Packing>(answer)) {
      result.fitting.push_back(name);
    } else {
      reasons.Add(name, std::get<NoRoom>(answer));
    }
  }
  reasons.MoveTo(result.failed);
  return result;
}

std::vector<int> ClusterState::Prioritize(const PodFacts& pod, const std::vector<std::string>& nodes) {
  const std::lock_guard lock(mutex_);
  std::vector<int> scores(nodes.size(), 0);
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok() || chains->empty()) return scores;
  policy_ = policies_.policy();
  std::vector<double> raw(nodes.size(), -std::numeric_limits<double>::infinity());
  std::size_t best = nodes.size();
  double low = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto found = nodes_.find(nodes[i]);
    if (found == nodes_.end() || !found->second.problem.empty()) continue;
    const Answer& answer = Ask(found->second, *chains, pod, *policy_);
    if (!std::holds_alternative<Packing>(answer)) continue;
    raw[i] = std::get<Packing>(answer).score;
    low = std::min(low, raw[i]);
    if (best == nodes.size() || raw[i] > raw[best]) best = i;
  }
  if (best == nodes.size()) return scores;
  const double range = std::max(raw[best] - low, 1e-9);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (raw[i] >= low) scores[i] = static_cast<int>(9 * (raw[i] - low) / range);
  }
  scores[best] = 10;
  return scores;
}

absl::StatusOr<ContainerCards> ClusterState::Reserve(const PodFacts& pod, const std::string& node) {
  const std::lock_guard lock(mutex_);
  ReleaseLocked(pod.uid);
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok()) return chains.status();
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || !known_nodes_.contains(node)) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": the node is gone"));
  }
  NodeEntry& entry = found->second;
  if (!entry.problem.empty()) return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", entry.problem));
  if (const std::string blocker = entry.ledger.Blocks(*chains); !blocker.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", BlockedBy(blocker)));
  }
  policy_ = policies_.policy();
  const Answer& answer = Ask(entry, *chains, pod, *policy_);
  if (const auto* why = std::get_if<NoRoom>(&answer)) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", Reasons::Text(*why)));
  }
  ContainerCards placement;
  for (std::size_t c = 0; c < chains->size(); ++c) {
    std::vector<std::string> cards;
    for (int card : std::get<Packing>(answer).cards[c]) cards.push_back(entry.ledger.cards()[card].uuid);
    for (int container : (*chains)[c].containers) placement[pod.containers[container].name] = cards;
  }
  PodFacts reserved = pod;
  reserved.node = node;
  reserved.placement = placement;
  Attach(reserved);
  reserved_[pod.uid] = std::move(reserved);
  return placement;
}

void ClusterState::Release(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  ReleaseLocked(uid);
}

void ClusterState::ReleaseLocked(const std::string& uid) {
  const auto found = reserved_.find(uid);
  if (found == reserved_.end()) return;
  Detach(found->second);
  reserved_.erase(found);
}

std::optional<PodFacts> ClusterState::FindPod(const std::string& uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = pods_.find(uid);
  if (found == pods_.end()) return std::nullopt;
  return found->second;
}

ClusterFigures ClusterState::Figures() const {
  const RequestMix mix = policies_.mix();
  const std::lock_guard lock(mutex_);
  ClusterFigures figures;
  for (const auto& [name, entry] : nodes_) {
    if (!known_nodes_.contains(name)) continue;
    ++figures.nodes;
    figures.nodes_without_cards += entry.ledger.cards().empty();
    const Node node = FreeOf(entry);
    figures.cards += static_cast<int>(node.cards.size());
    figures.free_cards += node.FreeUnits() / static_cast<double>(kUnitsPerCard);
    figures.fragment_cards += ExpectedFragment(node, mix) / kUnitsPerCard;
  }
  figures.reserved_pods = static_cast<int>(reserved_.size());
  return figures;
}

bool ClusterState::Synced() const {
  const std::lock_guard lock(mutex_);
  return nodes_synced_ && pods_synced_;
}

}  // namespace sluice::scheduler
