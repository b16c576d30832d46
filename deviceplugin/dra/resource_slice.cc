#include "deviceplugin/dra/resource_slice.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/claims/parameters.h"
#include "common/settings/settings.h"
#include "deviceplugin/dra/claim.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxName = 253;
constexpr size_t kMaxAttribute = 64;  // characters of a text or a version
constexpr uint64_t kMiB = 1 << 20;

// The API counts bytes; a longer text would make it refuse the whole slice.
void AddText(Json& attributes, const char* name, std::string_view text) {
  if (!text.empty()) attributes[name] = {{"string", text.substr(0, kMaxAttribute)}};
}

Json Attributes(const Card& card, const std::string& driver, uint64_t reserve) {
  Json out = Json::object();
  // The capacity of the card less the bytes of the device plugin's containers: a fraction is a part of this.
  out[claims::kMemoryMiB] = {{"int", MemoryCapacity(card, reserve) / kMiB}};
  AddText(out, "uuid", card.uuid);
  AddText(out, "model", card.model);
  AddText(out, "architecture", card.architecture);
  AddText(out, "nvlinkClique", card.nvlink_clique);
  // Kubernetes' own name: devices of several drivers are compared by it.
  AddText(out, "resource.kubernetes.io/pcieRoot", card.pcie_root);
  if (!driver.empty()) out["driverVersion"] = {{"version", driver}};
  if (card.numa >= 0) out["numaNode"] = {{"int", card.numa}};
  return out;
}

Json Capacity(uint64_t memory, int percent) {
  const std::string all = settings::FormatQuantity(memory), time = StrCat(percent);
  Json out;
  // A request without an amount gets the whole card's memory: it is one for a whole GPU, and no other claim takes time.
  out[claims::kMemory] = {
      {"value", all},
      {"requestPolicy", {{"default", all}, {"validRange", {{"min", "1Mi"}, {"max", all}, {"step", "1Mi"}}}}}};
  out[claims::kCompute] = {
      {"value", time},
      {"requestPolicy", {{"default", "1"}, {"validRange", {{"min", "1"}, {"max", time}, {"step", "1"}}}}}};
  return out;
}

const Json* Find(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* name : path) {
    if (!at->is_object() || !at->contains(name)) return nullptr;
    at = &(*at)[name];
  }
  return at;
}

std::string NameOf(const Json& slice) {
  const Json* name = Find(slice, {"metadata", "name"});
  return name != nullptr && name->is_string() ? name->get<std::string>() : "";
}

int64_t GenerationOf(const Json& slice) {
  const Json* generation = Find(slice, {"spec", "pool", "generation"});
  return generation != nullptr && generation->is_number_integer() ? generation->get<int64_t>() : 0;
}

size_t CountOf(const Json& device, const char* member) {
  const Json* value = Find(device, {member});
  return value == nullptr ? 0 : value->size();
}

// An attribute that is no longer known must go, too, and so must a taint.
bool HaveSameNames(const Json& stored, const Json& wanted) {
  return stored.size() == wanted.size() && std::ranges::equal(stored, wanted, [](const Json& a, const Json& b) {
           return CountOf(a, "attributes") == CountOf(b, "attributes") && CountOf(a, "taints") == CountOf(b, "taints");
         });
}

Json Taint(const std::string& reason, const std::string& effect) {
  return {{"key", kUnhealthyTaint}, {"value", reason}, {"effect", effect}};
}

// Whether `stored` holds all that `wanted` says. The API server adds defaults, and writes quantities its own way.
bool Holds(const Json& stored, const Json& wanted) {
  if (wanted.is_object()) {
    return stored.is_object() && std::ranges::all_of(wanted.items(), [&](const auto& member) {
             return stored.contains(member.key()) && Holds(stored[member.key()], member.value());
           });
  }
  if (wanted.is_array()) {
    return stored.is_array() &&
           std::ranges::equal(stored, wanted, [](const Json& a, const Json& b) { return Holds(a, b); });
  }
  if (stored == wanted) return true;
  if (!stored.is_string() || !wanted.is_string()) return false;
  const auto have = settings::ParseQuantity(stored.get<std::string>()),
             want = settings::ParseQuantity(wanted.get<std::string>());
  return have && have == want;
}

// A taint counts from the time at which it was added (tolerationSeconds), whatever else of the slice changes.
void KeepTaintTimes(const Json& stored, Json* wanted) {
  const Json* before = Find(stored, {"spec", "devices"});
  if (before == nullptr || !before->is_array()) return;
  for (Json& device : (*wanted)["spec"]["devices"]) {
    const auto name = device.value("name", std::string());
    const auto old = std::ranges::find_if(*before, [&](const Json& b) { return b.value("name", "") == name; });
    if (old == before->end() || !old->contains("taints") || !device.contains("taints")) continue;
    for (Json& taint : device["taints"]) {
      const auto same = std::ranges::find_if((*old)["taints"], [&](const Json& b) { return Holds(b, taint); });
      if (same != (*old)["taints"].end()) taint = *same;
    }
  }
}

}  // namespace

std::string SliceName(std::string_view node) {
  std::string name = StrCat(node, "-", SLUICE_DOMAIN);
  if (name.size() <= kMaxName) return name;
  return StrCat(node.substr(0, kMaxName - sizeof(SLUICE_DOMAIN) - 18), "-",
                absl::StrFormat("%016x", std::hash<std::string_view>()(node)), "-", SLUICE_DOMAIN);
}

std::string SemanticVersion(std::string_view driver) {
  std::vector<std::string> parts = absl::StrSplit(std::string(driver), '.');
  if (parts.size() > 3) return "";
  std::string out;
  for (size_t i = 0; i < 3; ++i) {
    uint32_t number = 0;
    if (i < parts.size() && !absl::SimpleAtoi(parts[i], &number)) return "";
    out += (out.empty() ? "" : ".") + std::to_string(number);
  }
  return out;
}

uint64_t ClaimableMemory(const Card& card, uint64_t reserve, int units) {
  const uint64_t all = MemoryCapacity(card, reserve);
  const auto free = static_cast<uint64_t>(SLUICE_UNITS_PER_GPU - std::clamp(units, 0, SLUICE_UNITS_PER_GPU));
  return units <= 0 ? all : all / kMiB * free / SLUICE_UNITS_PER_GPU * kMiB;
}

Json MakeDevices(const SliceInput& input) {
  Json out = Json::array();
  const std::string driver = SemanticVersion(input.inventory.driver_version);
  for (const Card& card : input.inventory.cards) {
    const std::string name = DeviceName(card.uuid);
    const bool tainted = card.state == CardState::kUnhealthy && input.keeps_taints;
    if ((card.state != CardState::kHealthy && !tainted) || name.empty()) continue;
    const auto held = input.held_units.find(card.uuid);
    const int units = held == input.held_units.end() ? 0 : std::clamp(held->second, 0, SLUICE_UNITS_PER_GPU);
    const uint64_t memory = ClaimableMemory(card, input.reserve, units);
    if (memory < 2 * kMiB) continue;  // the API demands min + step within the value
    const int percent = SLUICE_UNITS_PER_GPU - units;
    if (percent < 2) continue;
    Json device = {{"name", name},
                   {"attributes", Attributes(card, driver, input.reserve)},
                   {"capacity", Capacity(memory, percent)}};
    device["allowMultipleAllocations"] = true;
    if (tainted) device["taints"] = Json::array({Taint(card.reason, input.taint_effect)});
    out.push_back(std::move(device));
  }
  return out;
}

Json MakeSlice(const SliceInput& input, int64_t generation) {
  Json metadata = {{"name", SliceName(input.node)}};
  if (!input.node_uid.empty()) {
    metadata["ownerReferences"] = Json::array({{{"apiVersion", "v1"},
                                                {"kind", "Node"},
                                                {"name", input.node},
                                                {"uid", input.node_uid},
                                                {"controller", true}}});
  }
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceSlice"},
          {"metadata", std::move(metadata)},
          {"spec",
           {{"driver", SLUICE_DOMAIN},
            {"nodeName", input.node},
            {"pool", {{"name", input.node}, {"generation", generation}, {"resourceSliceCount", 1}}},
            {"devices", MakeDevices(input)}}}};
}

SlicePlan PlanSlices(const SliceInput& input, const std::vector<Json>& existing) {
  SlicePlan plan;
  const std::string name = SliceName(input.node);
  const Json* own = nullptr;
  int64_t newest = 0;
  for (const Json& slice : existing) {
    newest = std::max(newest, GenerationOf(slice));
    if (NameOf(slice) == name) {
      own = &slice;
    } else {
      plan.remove.push_back(NameOf(slice));
    }
  }
  const Json* pool = own == nullptr ? nullptr : Find(*own, {"spec", "pool", "name"});
  if (pool != nullptr && *pool != input.node) {  // immutable in the API
    plan.remove.push_back(name);
    own = nullptr;
  }
  if (own != nullptr) {
    const Json* spec = Find(*own, {"spec"});
    Json wanted = MakeSlice(input, GenerationOf(*own))["spec"];
    // The API server would drop the same fields again.
    if (!MayShare(*own)) {
      for (Json& device : wanted["devices"]) {
        device.erase("allowMultipleAllocations");
        for (Json& capacity : device["capacity"]) capacity.erase("requestPolicy");
      }
    }
    const bool same = spec != nullptr && Holds(*spec, wanted) &&
                      HaveSameNames(spec->value("devices", Json::array()), wanted["devices"]);
    if (same && plan.remove.empty() && (MayShare(*own) || !input.asks_for_sharing)) return plan;
  }
  plan.slice = std::make_shared<Json>(MakeSlice(input, newest + 1));
  plan.act = own == nullptr ? SlicePlan::Act::kCreate : SlicePlan::Act::kUpdate;
  if (own != nullptr) {
    KeepTaintTimes(*own, plan.slice.get());
    if (const Json* version = Find(*own, {"metadata", "resourceVersion"}); version != nullptr) {
      (*plan.slice)["metadata"]["resourceVersion"] = *version;
    }
  }
  return plan;
}

Json TaintProbe(const std::string& node) {
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceSlice"},
          {"metadata", {{"name", SliceName(node + "-probe")}}},
          {"spec",
           {{"driver", SLUICE_DOMAIN},
            {"nodeName", node},
            {"pool", {{"name", node}, {"generation", 1}, {"resourceSliceCount", 1}}},
            {"devices", Json::array({{{"name", "probe"}, {"taints", Json::array({Taint("", "NoSchedule")})}}})}}}};
}

bool KeepsTaints(const Json& stored) {
  const Json* devices = Find(stored, {"spec", "devices"});
  return devices != nullptr && devices->is_array() &&
         std::ranges::any_of(*devices, [](const Json& device) { return CountOf(device, "taints") > 0; });
}

bool MayShare(const Json& stored) {
  const Json* devices = Find(stored, {"spec", "devices"});
  if (devices == nullptr || !devices->is_array()) return true;
  return std::ranges::all_of(*devices, [](const Json& device) {
    const Json* shared = Find(device, {"allowMultipleAllocations"});
    return shared != nullptr && *shared == true;
  });
}

}  // namespace sluice::deviceplugin::dra
