#include "cli/doctor_dra.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sluice/names.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Never throws, whatever the types are.
const Json& At(const Json& object, const char* pointer) {
  static const Json null;
  const Json::json_pointer path(pointer);
  return object.is_structured() && object.contains(path) ? object[path] : null;
}

std::string Text(const Json& object, const char* pointer) {
  const Json& value = At(object, pointer);
  return value.is_string() ? value.get<std::string>() : std::string();
}

int64_t Number(const Json& object, const char* pointer, int64_t otherwise) {
  const Json& value = At(object, pointer);
  return value.is_number_integer() ? value.get<int64_t>() : otherwise;
}

std::string List(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

bool HasUnits(const DraNode& node) { return !node.units.empty() && node.units != "0"; }

}  // namespace

void DraCheck::ClearSlices() { pools_.clear(); }
void DraCheck::ClearClaims() { claims_.clear(); }

void DraCheck::AddSlice(const Json& slice) {
  if (Text(slice, "/spec/driver") != SLUICE_DOMAIN) return;
  Pool& pool = pools_[Text(slice, "/spec/nodeName")];
  const int64_t generation = Number(slice, "/spec/pool/generation", 0);
  if (generation < pool.generation) return;  // the scheduler ignores older ones, too
  if (generation > pool.generation) pool = {generation};
  pool.expected = static_cast<size_t>(std::max<int64_t>(0, Number(slice, "/spec/pool/resourceSliceCount", 1)));
  ++pool.found;
  pool.slice = Text(slice, "/metadata/name");
  const Json& devices = At(slice, "/spec/devices");
  if (!devices.is_array()) return;
  for (const Json& device : devices) {
    Card card{Text(device, "/attributes/uuid/string"), "", At(device, "/allowMultipleAllocations") == true};
    const Json& taints = At(device, "/taints");
    if (taints.is_array() && !taints.empty()) card.taint = Text(taints[0], "/key") + "=" + Text(taints[0], "/value");
    pool.cards.push_back(std::move(card));
  }
}

void DraCheck::AddClaim(const Json& claim) {
  const Json& results = At(claim, "/status/allocation/devices/results");
  if (!results.is_array()) return;
  for (const Json& result : results) {
    if (Text(result, "/driver") != SLUICE_DOMAIN) continue;
    ++claims_[Text(result, "/pool")];
    return;
  }
}

std::vector<Finding> DraCheck::Judge(const DraNode& node) const {
  std::vector<Finding> out;
  const std::string who = "node " + node.name + ": ";
  const auto known = pools_.find(node.name);
  const Pool* pool = known == pools_.end() ? nullptr : &known->second;
  const auto held = claims_.find(node.name);
  if (!node.driver_ready && held != claims_.end()) {
    out.push_back({Finding::kBad,
                   who + std::to_string(held->second) +
                       " claim(s) of ResourceClaims are allocated here, and no DRA driver serves the node: their pods "
                       "neither start nor end",
                   "switch DRA on again (dra.enabled) until they have ended: kubectl get resourceclaims -A"});
  }
  if (pool != nullptr && !pool->cards.empty() && HasUnits(node)) {
    out.push_back({Finding::kBad,
                   who + "device plugin and DRA driver offer the same cards: " + node.units +
                       " units of " SLUICE_RESOURCE " and the ResourceSlice " + pool->slice,
                   node.driver_ready ? "wait a minute after the switch: kubelet takes the units back"
                                     : "kubectl delete resourceslice " + pool->slice + ": its driver is gone"});
  }
  if (!node.driver_ready) {
    if (pool != nullptr && !HasUnits(node)) {
      out.push_back({Finding::kBad, who + "the ResourceSlice " + pool->slice + " is stale: no DRA driver runs here",
                     "is the DaemonSet's pod there? kubectl get pods -A -o wide"});
    }
    return out;
  }
  if (!*node.driver_ready) {
    out.push_back({Finding::kBad,
                   who + "its DRA driver is not ready: it is not registered with kubelet, or cannot publish its cards",
                   node.log});
  }
  if (pool == nullptr) {
    if (!node.gpus.empty()) {
      out.push_back({Finding::kBad,
                     who + std::to_string(node.gpus.size()) +
                         " GPU(s), and no ResourceSlice of " SLUICE_DOMAIN ": the scheduler knows none of them",
                     node.log});
    }
    return out;
  }
  if (pool->found != pool->expected) {
    out.push_back({Finding::kBad,
                   who + "its pool of generation " + std::to_string(pool->generation) + " is incomplete: " +
                       std::to_string(pool->found) + " of " + std::to_string(pool->expected) + " ResourceSlices",
                   node.log});
  }
  std::vector<std::string> stale, unlisted;
  bool whole = false;
  for (const Card& card : pool->cards) {
    if (std::ranges::find(node.gpus, card.uuid) == node.gpus.end()) stale.push_back(card.uuid);
    if (!card.taint.empty()) {
      out.push_back({Finding::kWarn, who + "GPU " + card.uuid + " gets no new claim: " + card.taint,
                     "kubectl get resourceslice " + pool->slice + " -o yaml; the driver's log has the reason"});
    }
    whole |= !card.is_shared;
  }
  for (const std::string& uuid : node.gpus) {
    if (std::ranges::none_of(pool->cards, [&](const Card& card) { return card.uuid == uuid; }))
      unlisted.push_back(uuid);
  }
  if (!stale.empty()) {
    out.push_back({Finding::kBad,
                   who + "its ResourceSlice is stale: it lists " + List(stale) + ", which the agent does not see",
                   node.log});
  }
  if (!unlisted.empty()) out.push_back({Finding::kWarn, who + "not in its ResourceSlice: " + List(unlisted), node.log});
  if (whole) {
    out.push_back({Finding::kBad, who + "claims get whole cards: the API server drops allowMultipleAllocations",
                   "switch the feature gate DRAConsumableCapacity on (default since Kubernetes 1.36)"});
  }
  if (out.empty()) {
    out.push_back({Finding::kOk,
                   who + std::to_string(pool->cards.size()) + " GPU(s) in its ResourceSlice, " +
                       std::to_string(held == claims_.end() ? 0 : held->second) + " claim(s)",
                   ""});
  }
  return out;
}

std::vector<Finding> JudgeDraSockets(const std::string& kubelet_dir, bool (*listens)(const std::string&)) {
  std::string folder = kubelet_dir;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const fs::path root = fs::path(folder).parent_path();
  const std::string service = (root / "plugins" / SLUICE_DOMAIN / "dra.sock").string();
  const std::string registration = (root / "plugins_registry" / SLUICE_DOMAIN "-reg.sock").string();
  const std::string plugin = (fs::path(folder) / "sluice.sock").string();
  std::error_code ec;
  const bool serves = listens(service);
  if (!serves && !fs::exists(registration, ec)) return {};
  std::vector<Finding> out;
  if (!serves) {
    out.push_back({Finding::kBad, "DRA driver: no program serves " + service,
                   "is the DaemonSet's pod running on this node? kubectl get pods -o wide"});
  } else if (!listens(registration)) {
    out.push_back({Finding::kBad, "DRA driver: not registered: no program serves " + registration,
                   "restart the driver's container; its log says why"});
  } else {
    out.push_back({Finding::kOk, "DRA driver: its sockets are in " + root.string(), ""});
  }
  if (serves && listens(plugin)) {
    out.push_back({Finding::kBad, "device plugin and DRA driver serve this node at once: a card may be given out twice",
                   "end one of them: the chart's dra.enabled chooses for all nodes"});
  }
  return out;
}

}  // namespace sluice::cli
