#include "cli/placement_room.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "scheduler/extender/refusal_reasons.h"
#include "scheduler/placement/node_ledger.h"
#include "scheduler/placement/pod_packing.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;
using scheduler::Chain;

int UnitsOf(const std::vector<Chain>& chains) {
  int units = 0;
  for (const Chain& chain : chains) units += chain.Cards() * chain.UnitsPerCard();
  return units;
}

// The free units of each card, by the extender's own account.
scheduler::Node FreeOn(const scheduler::NodeFacts& facts, const std::vector<scheduler::PodFacts>& placed) {
  scheduler::NodeLedger ledger;
  ledger.SetCards(facts.cards);
  for (const scheduler::PodFacts& pod : placed) {
    auto live = scheduler::MakeLivePod(pod.containers, pod.placement);
    if (!live.ok()) live = scheduler::MakeLivePod(pod.containers, {});
    if (live.ok()) ledger.Put(pod.uid, {.name = pod.FullName(), .live = *std::move(live), .admitted = pod.admitted});
  }
  return ledger.Free();
}

bool MayUse(const PlacementDemand::Group& group, const PlacementRoom::Entry& node) {
  return webhook::PodMatchesNode(Json::parse(group.selection), node.labels);
}

}  // namespace

void PlacementRoom::Add(const Json& node) {
  const Json::json_pointer cordoned("/spec/unschedulable");
  if (node.contains(cordoned) && node[cordoned] == true) return;
  Entry entry{scheduler::ReadNode(node), {}};
  if (!entry.facts.problem.empty()) return;
  std::string ignored;
  entry.labels = webhook::ReadNode(node, ignored);
  nodes_.push_back(std::move(entry));
}

void PlacementDemand::AddPlaced(const Json& pod) {
  scheduler::PodFacts facts = scheduler::ReadPod(pod);
  if (!facts.ended && !facts.containers.empty()) placed_[facts.node].push_back(std::move(facts));
}

void PlacementDemand::AddUnplaced(const Json& pod) {
  const scheduler::PodFacts facts = scheduler::ReadPod(pod);
  auto chains = scheduler::ChainsOf(facts.containers);
  if (!chains.ok() || chains->empty()) return;
  Json selection = Json::object();
  for (const char* member : {"nodeSelector", "affinity"}) {
    const Json& spec = pod["spec"];
    if (const auto found = spec.find(member); found != spec.end()) selection[member] = *found;
  }
  std::string key = selection.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::string text = key;
  for (const Chain& chain : *chains)
    key += " " + std::to_string(chain.first) + "/" + std::to_string(chain.total) + "/" + std::to_string(chain.split);
  Group& group = unplaced_[key];
  group.chains = *std::move(chains);
  group.selection = text;
  group.pods.push_back(facts.FullName());
}

const std::vector<scheduler::PodFacts>& PlacementDemand::placed(const std::string& node) const {
  static const std::vector<scheduler::PodFacts> kNone;
  const auto found = placed_.find(node);
  return found == placed_.end() ? kNone : found->second;
}

std::vector<SplitRoom> FindSplitRoom(const PlacementDemand& demand, const PlacementRoom& room) {
  std::vector<SplitRoom> out;
  if (demand.unplaced().empty()) return out;
  const auto policy = scheduler::MakePolicy("best-fit", {}, scheduler::kUnitsPerCard);
  if (!policy.ok()) return out;
  std::vector<scheduler::Node> free;
  free.reserve(room.nodes().size());
  for (const auto& node : room.nodes()) free.push_back(FreeOn(node.facts, demand.placed(node.facts.name)));
  for (const auto& [key, group] : demand.unplaced()) {
    SplitRoom split{.pods = group.pods, .units = UnitsOf(group.chains), .node = "", .sum_free = 0, .why = ""};
    bool fits = false;
    for (std::size_t i = 0; i < free.size() && !fits; ++i) {
      if (free[i].FreeUnits() < split.units || !MayUse(group, room.nodes()[i])) continue;
      const auto packed = scheduler::PackPod(free[i], group.chains, {}, **policy);
      const auto* const failure = std::get_if<scheduler::PackingFailure>(&packed);
      fits = failure == nullptr;
      if (fits || free[i].FreeUnits() <= split.sum_free) continue;
      split.node = room.nodes()[i].facts.name;
      split.sum_free = free[i].FreeUnits();
      split.why = scheduler::RefusalReasons::Text(*failure);
    }
    if (!fits && !split.node.empty()) out.push_back(std::move(split));
  }
  return out;
}

}  // namespace sluice::cli
