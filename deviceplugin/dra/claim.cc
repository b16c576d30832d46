#include "deviceplugin/dra/claim.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "common/claims/parameters.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kMillionthsPerPercent = 10'000;

// Never throws, whatever the types are.
const Json& At(const Json& object, std::initializer_list<const char*> path) {
  static const Json null;
  const Json* at = &object;
  for (const char* name : path) {
    const auto it = at->is_object() ? at->find(name) : at->end();
    if (!at->is_object() || it == at->end()) return null;
    at = &*it;
  }
  return *at;
}

std::string Text(const Json& object, std::initializer_list<const char*> path) {
  const Json& value = At(object, path);
  return value.is_string() ? value.get<std::string>() : std::string();
}

// A consumed capacity, whose name may carry the driver's domain. 0: none.
absl::StatusOr<uint64_t> Consumed(const Json& result, const char* name) {
  const Json& all = At(result, {"consumedCapacity"});
  const Json& plain = At(all, {name});
  const std::string qualified = StrCat(SLUICE_DOMAIN, "/", name);
  const Json& value = plain.is_null() ? At(all, {qualified.c_str()}) : plain;
  if (value.is_null() || value == "0") return 0;
  const auto parsed = claims::ParseCapacity(value);
  if (parsed) return *parsed;
  return Refusal("claim-size", StrCat("the claim's allocation has consumed '", value.dump().substr(0, 64), "' of ",
                                      name, "; accepted: a quantity"));
}

// Whether the request tolerates the taint of an unhealthy card, as Kubernetes compares tolerations with taints.
bool ToleratesUnhealthy(const Json& result, const std::string& reason) {
  const Json& tolerations = At(result, {"tolerations"});
  if (!tolerations.is_array()) return false;
  return std::ranges::any_of(tolerations, [&](const Json& toleration) {
    const std::string key = Text(toleration, {"key"}), act = Text(toleration, {"operator"});
    if (!key.empty() && key != kUnhealthyTaint) return false;
    return act == "Exists" || ((act.empty() || act == "Equal") && Text(toleration, {"value"}) == reason);
  });
}

absl::StatusOr<ClaimDevice> ReadDevice(const Json& result, const std::string& pool, const Inventory& inventory,
                                       bool keeps_unhealthy) {
  ClaimDevice out;
  const std::string request = Text(result, {"request"});
  out.request = request.substr(0, request.find('/'));
  out.pool = Text(result, {"pool"});
  out.device = Text(result, {"device"});
  out.share_id = Text(result, {"shareID"});
  out.admin = At(result, {"adminAccess"}) == true;
  if (out.pool != pool) {
    return Refusal("unknown", StrCat("the claim's device ", out.device, " is of the pool '", out.pool,
                                     "', and this node's pool is '", pool, "'"));
  }
  const auto card =
      std::ranges::find_if(inventory.cards, [&](const Card& c) { return DeviceName(c.uuid) == out.device; });
  if (card == inventory.cards.end()) {
    return Refusal("unknown", StrCat("the claim's device ", out.device, " is not on this node",
                                     inventory.problem.empty() ? "" : StrCat(" (", inventory.problem, ")")));
  }
  const bool may_be_unhealthy =
      keeps_unhealthy || (card->state == CardState::kUnhealthy && ToleratesUnhealthy(result, card->reason));
  if (card->state != CardState::kHealthy && !out.admin && !may_be_unhealthy) {
    return Refusal(card->state == CardState::kUnhealthy ? "unhealthy" : "not-offered",
                   StrCat("GPU ", card->uuid, " is ", ToString(card->state), ": ", card->detail));
  }
  out.uuid = card->uuid;
  if (out.admin) return out;
  auto memory = Consumed(result, claims::kMemory), compute = Consumed(result, claims::kCompute);
  if (!memory.ok()) return memory.status();
  if (!compute.ok()) return compute.status();
  out.memory = *memory;
  out.compute = static_cast<uint32_t>(std::min<uint64_t>(*compute, SLUICE_UNITS_PER_GPU));
  return out;
}

// Sums the devices of each card, since two requests may have got the same one.
absl::Status SetSize(const Inventory& inventory, uint64_t reserve, ClaimShare* share) {
  struct Sum {
    uint64_t memory = 0;
    uint32_t compute = 0;
    bool whole = false;
    bool operator==(const Sum&) const = default;
  };
  std::map<std::string, Sum> sums;
  for (const ClaimDevice& device : share->devices) {
    if (device.admin) continue;
    Sum& sum = sums[device.uuid];
    sum.memory += device.memory;
    sum.compute = std::min<uint32_t>(sum.compute + device.compute, SLUICE_UNITS_PER_GPU);
    sum.whole |= device.memory == 0;
  }
  for (const auto& [uuid, sum] : sums) {
    const auto& [first_uuid, first] = *sums.begin();
    if (!(sum == first)) {
      return Refusal(
          "claim-size",
          StrCat("the claim has consumed ", settings::FormatQuantity(first.memory), " and ", first.compute,
                 " percent of GPU ", first_uuid, ", but ", settings::FormatQuantity(sum.memory), " and ", sum.compute,
                 " percent of GPU ", uuid, "; accepted: the same on each card, or one claim for each size"));
    }
    const Card& card = *inventory.Find(uuid);
    const uint64_t capacity = MemoryCapacity(card, reserve);
    int units = SLUICE_UNITS_PER_GPU;
    if (!sum.whole && capacity > 0) {
      const uint64_t percent = (sum.memory * SLUICE_UNITS_PER_GPU + capacity - 1) / capacity;
      units = static_cast<int>(std::clamp<uint64_t>(percent, 1, SLUICE_UNITS_PER_GPU));
    }
    share->cards.push_back({uuid, units, card.minor});
  }
  if (sums.empty() || sums.begin()->second.whole) return absl::OkStatus();
  const Sum& sum = sums.begin()->second;
  share->memory_bytes = sum.memory;
  share->settings.gpu_memory = sum.memory;
  if (sum.compute > 0) share->settings.compute_request = sum.compute * kMillionthsPerPercent;
  return absl::OkStatus();
}

}  // namespace

std::string DeviceName(std::string_view uuid) {
  std::string out;
  for (const char c : uuid) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') return "";
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out.empty() || out.size() > 63 || out.front() == '-' || out.back() == '-' ? "" : out;
}

uint64_t MemoryCapacity(const Card& card, uint64_t reserve) {
  const uint64_t kept = card.reserved_bytes + reserve;
  return card.memory_bytes > kept ? (card.memory_bytes - kept) / kMiB * kMiB : 0;
}

absl::StatusOr<ClaimShare> ReadClaim(const Json& claim, const ClaimRef& ref, const std::string& pool,
                                     const Inventory& inventory, uint64_t reserve, bool keeps_unhealthy) {
  ClaimShare out;
  out.claim = ref;
  if (Text(claim, {"metadata", "uid"}) != ref.uid) {
    return Refusal("claim-gone", StrCat("ResourceClaim ", ref.name_space, "/", ref.name, " has the uid ",
                                        Text(claim, {"metadata", "uid"}), " now; kubelet asks for ", ref.uid));
  }
  const Json& allocation = At(claim, {"status", "allocation", "devices"});
  if (!allocation.is_object()) {
    return Refusal("claim-unallocated", StrCat("ResourceClaim ", ref.name_space, "/", ref.name, " is not allocated"));
  }
  const Json& reserved = At(claim, {"status", "reservedFor"});
  if (reserved.is_array() && reserved.size() == 1 && Text(reserved[0], {"resource"}) == "pods") {
    out.pod = Text(reserved[0], {"name"});
  }
  std::vector<std::string> requests;  // with the names of alternatives, as configuration may name them
  for (const Json& result : At(allocation, {"results"})) {
    if (Text(result, {"driver"}) != SLUICE_DOMAIN) continue;
    auto device = ReadDevice(result, pool, inventory, keeps_unhealthy);
    if (!device.ok()) return device.status();
    if (!device->admin) requests.push_back(Text(result, {"request"}));
    out.devices.push_back(*std::move(device));
  }
  if (out.devices.empty()) {
    return Refusal("claim-unallocated", StrCat("ResourceClaim ", ref.name_space, "/", ref.name,
                                               " has no device of the driver ", SLUICE_DOMAIN));
  }
  // The class's configuration comes first, so that the claim's own wins.
  Json config = Json::array();
  for (const char* source : {"FromClass", "FromClaim"}) {
    for (const Json& entry : At(allocation, {"config"})) {
      if (Text(entry, {"source"}) == source) config.push_back(entry);
    }
  }
  out.container =
      claims::ContainerOf(Text(claim, {"metadata", "annotations", "resource.kubernetes.io/pod-claim-name"}));
  settings::Parsed parsed = claims::ParseConfig(config, requests, "config");
  if (!parsed.ok()) return Refusal("claim-config", StrJoin(parsed.errors, "; also "));
  out.settings = parsed.settings;
  out.preload = claims::PreloadOf(config, requests);
  if (auto s = SetSize(inventory, reserve, &out); !s.ok()) return s;
  const auto conflicts = settings::Conflicts(out.settings, "config: ");
  if (!conflicts.empty()) return Refusal("claim-config", StrJoin(conflicts, "; also "));
  return out;
}

}  // namespace sluice::deviceplugin::dra
