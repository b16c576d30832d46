#include "scheduler/extender/cluster_state.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/placement/fragmentation.h"
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

// Longer than any list or watch lags behind a Binding.
constexpr std::chrono::minutes kUnseen{1};

const char* const kUnknown = "the node is not known yet";

std::string NameOf(const Json& node) { return TextAt(node, "/metadata/name"); }

// Why nodes are refused, in words that are the same for all nodes of one call: the scheduler counts equal reasons ("3
// no single card has 60 units free, the largest has 50").
class Reasons {
 public:
  int Say(const std::string& text) {
    const auto [found, added] = said_.try_emplace(text, static_cast<int>(texts_.size()));
    if (added) texts_.push_back(text);
    return found->second;
  }

  int NoRoomFor(const NoRoom& why) {
    const auto [found, added] = kinds_.try_emplace({why.units, why.together}, Kind{static_cast<int>(texts_.size())});
    if (added) texts_.emplace_back();
    Kind& kind = found->second;
    kind.largest = std::max(kind.largest, why.largest_free);
    kind.whole = std::max(kind.whole, why.whole_free);
    return kind.index;
  }

  std::vector<std::string> Texts() && {
    for (const auto& [key, kind] : kinds_) texts_[kind.index] = Text(key.first, key.second, kind);
    return std::move(texts_);
  }

  static std::string Text(const NoRoom& why) {
    return Text(why.units, why.together, {0, why.largest_free, why.whole_free});
  }

 private:
  struct Kind {
    int index = 0;
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

  std::vector<std::string> texts_;
  std::unordered_map<std::string, int> said_;
  std::map<std::pair<int, bool>, Kind> kinds_;
};

std::string BlockedBy(const std::string& pod) {
  return absl::StrCat("waits until kubelet has admitted pod ", pod,
                      ", whose init container asks for the same number of units and whose containers for another");
}

}  // namespace

void ClusterState::Changed(NodeEntry& entry) {
  entry.worth_by = entry.answer_by = 0;
  entry.free.reset();
}

void ClusterState::Read(NodeEntry& entry, const Json& node) {
  entry.cpu_milli = ReadMilli(At(node, "/status/allocatable/cpu"));
  entry.memory_mib = ReadMemoryMib(At(node, "/status/allocatable/memory"));
  entry.exists = true;
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
  if (added) found->second.problem = kUnknown;
  return found->second;
}

ClusterState::NodeEntry* ClusterState::Find(std::string_view node) {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : &found->second;
}

void ClusterState::Forget(const std::string& node) {
  const auto found = nodes_.find(node);
  if (found != nodes_.end() && !found->second.exists && found->second.pods == 0) nodes_.erase(found);
}

void ClusterState::ReplaceNodes(const std::vector<Json>& nodes) {
  const std::lock_guard lock(mutex_);
  std::unordered_set<std::string> listed;
  for (const Json& node : nodes) {
    listed.insert(NameOf(node));
    Read(EntryOf(NameOf(node)), node);
  }
  std::vector<std::string> gone;
  for (const auto& [name, entry] : nodes_) {
    if (entry.exists && !listed.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) RemoveNodeLocked(name);
  nodes_synced_ = true;
}

void ClusterState::PutNode(const Json& node) {
  const std::lock_guard lock(mutex_);
  Read(EntryOf(NameOf(node)), node);
}

void ClusterState::RemoveNode(const std::string& name) {
  const std::lock_guard lock(mutex_);
  RemoveNodeLocked(name);
}

void ClusterState::RemoveNodeLocked(const std::string& name) {
  NodeEntry* const entry = Find(name);
  if (entry == nullptr) return;
  // Its pods are still there until somebody deletes them; only its cards are gone.
  entry->exists = false;
  entry->ledger.SetCards({});
  entry->problem = "the node is gone";
  Changed(*entry);
  Forget(name);
}

void ClusterState::Count(NodeEntry& entry, const PodFacts& pod, int sign) {
  entry.pods += sign;
  entry.cpu_milli_used += sign * pod.cpu_milli;
  entry.memory_mib_used += sign * pod.memory_mib;
}

void ClusterState::Attach(const PodFacts& pod) {
  if (pod.node.empty()) return;
  NodeEntry& entry = EntryOf(pod.node);
  Count(entry, pod, 1);
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
  Count(entry, pod, -1);
  Changed(entry);
  entry.ledger.Remove(pod.uid);
  Forget(pod.node);
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
    Count(EntryOf(pod.node), old->second, -1);
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
  std::unordered_set<std::string> listed;
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
  TrimReserved();
  pods_synced_ = true;
}

void ClusterState::PutPod(const Json& pod) { PutPod(ReadPod(pod)); }

void ClusterState::PutPod(PodFacts pod) {
  const std::lock_guard lock(mutex_);
  PutPodLocked(std::move(pod));
  TrimReserved();
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

void ClusterState::TakePolicy() {
  std::shared_ptr<const Policy> policy = policies_.policy();
  if (policy == policy_) return;
  policy_ = std::move(policy);
  ++policy_number_;
}

const ClusterState::Answer& ClusterState::Ask(NodeEntry& entry, const std::vector<Chain>& chains, const PodFacts& pod) {
  if (entry.answer_by == policy_number_ && entry.asked_cpu == pod.cpu_milli && entry.asked_memory == pod.memory_mib &&
      entry.asked == chains) {
    return entry.answer;
  }
  if (!entry.free) entry.free = FreeOf(entry);
  if (entry.worth_by != policy_number_) {
    entry.worth = policy_->WorthOf(*entry.free);
    entry.worth_by = policy_number_;
  }
  entry.answer =
      Pack(*entry.free, entry.worth, chains, {.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib}, *policy_);
  entry.asked = chains;
  entry.asked_cpu = pod.cpu_milli;
  entry.asked_memory = pod.memory_mib;
  entry.answer_by = policy_number_;
  return entry.answer;
}

FilterResult ClusterState::Filter(const PodFacts& pod, std::span<const std::string_view> nodes) {
  const std::lock_guard lock(mutex_);
  FilterResult result;
  result.verdicts.assign(nodes.size(), FilterResult::kFits);
  result.fitting = static_cast<int>(nodes.size());
  if (pod.containers.empty()) return result;
  const auto chains = ChainsOf(pod.containers);
  TakePolicy();
  Reasons reasons;
  // The reason's number, or kFits.
  const auto judge = [&](std::string_view name) {
    if (!chains.ok()) return reasons.Say(std::string(chains.status().message()));
    NodeEntry* const entry = Find(name);
    if (entry == nullptr) return reasons.Say(kUnknown);
    if (!entry->problem.empty()) return reasons.Say(entry->problem);
    if (const std::string blocker = entry->ledger.Blocks(*chains); !blocker.empty()) {
      return reasons.Say(BlockedBy(blocker));
    }
    const Answer& answer = Ask(*entry, *chains, pod);
    const auto* const why = std::get_if<NoRoom>(&answer);
    return why == nullptr ? FilterResult::kFits : reasons.NoRoomFor(*why);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    result.verdicts[i] = judge(nodes[i]);
    result.fitting -= result.verdicts[i] != FilterResult::kFits;
  }
  result.reasons = std::move(reasons).Texts();
  return result;
}

std::vector<int> ClusterState::Prioritize(const PodFacts& pod, std::span<const std::string_view> nodes) {
  const std::lock_guard lock(mutex_);
  std::vector<int> scores(nodes.size(), 0);
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok() || chains->empty()) return scores;
  TakePolicy();
  std::vector<double> raw(nodes.size(), -std::numeric_limits<double>::infinity());
  std::size_t best = nodes.size();
  double low = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeEntry* const entry = Find(nodes[i]);
    if (entry == nullptr || !entry->problem.empty()) continue;
    const auto* const packing = std::get_if<Packing>(&Ask(*entry, *chains, pod));
    if (packing == nullptr) continue;
    raw[i] = packing->score;
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
  if (reserved_.contains(pod.uid)) {
    return absl::FailedPreconditionError(absl::StrCat("pod ", pod.FullName(), ": another binding of it is under way"));
  }
  const auto chains = ChainsOf(pod.containers);
  if (!chains.ok()) return chains.status();
  NodeEntry* const found = Find(node);
  if (found == nullptr || !found->exists) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": the node is gone"));
  }
  NodeEntry& entry = *found;
  if (!entry.problem.empty()) return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", entry.problem));
  if (const std::string blocker = entry.ledger.Blocks(*chains); !blocker.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, ": ", BlockedBy(blocker)));
  }
  TakePolicy();
  const Answer& answer = Ask(entry, *chains, pod);
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
  reserved_.emplace(pod.uid, Reserved{std::move(reserved), now_()});
  return placement;
}

void ClusterState::Release(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  ReleaseLocked(uid);
}

void ClusterState::Report(const std::string& uid, Binding outcome) {
  const std::lock_guard lock(mutex_);
  if (const auto found = reserved_.find(uid); found != reserved_.end()) found->second.binding = outcome;
}

Binding ClusterState::BindingOf(const std::string& uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = reserved_.find(uid);
  return found == reserved_.end() ? Binding::kNone : found->second.binding;
}

void ClusterState::ReleaseLocked(const std::string& uid) {
  const auto found = reserved_.find(uid);
  if (found == reserved_.end()) return;
  Detach(found->second.pod);
  reserved_.erase(found);
}

// A pod that we fetched for its bind and that was deleted while no watch ran: nobody will ever tell.
void ClusterState::TrimReserved() {
  std::vector<std::string> lost;
  for (const auto& [uid, reserved] : reserved_) {
    if (!pods_.contains(uid) && now_() - reserved.at >= kUnseen) lost.push_back(uid);
  }
  for (const std::string& uid : lost) ReleaseLocked(uid);
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
    if (!entry.exists) continue;
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
