#include "scheduler/extender/claim_facts.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/settings/settings.h"
#include "scheduler/extender/pod_facts.h"
#include "scheduler/extender/selector_terms.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

constexpr char kUnhealthyTaint[] = SLUICE_DOMAIN "/unhealthy";
constexpr char kExtendedResourceClaim[] = "resource.kubernetes.io/extended-resource-claim";

const Json& Null() {
  static const Json kNull;
  return kNull;
}

const Json& Member(const Json& object, std::string_view name) {
  if (!object.is_object()) return Null();
  const auto found = object.find(name);
  return found == object.end() ? Null() : *found;
}

const Json& At(const Json& object, std::initializer_list<std::string_view> path) {
  const Json* at = &object;
  for (const std::string_view name : path) at = &Member(*at, name);
  return *at;
}

// The elements of an array; none of anything else.
const Json& List(const Json& object, std::initializer_list<std::string_view> path) {
  const Json& found = At(object, path);
  return found.is_array() ? found : Null();
}

std::string Text(const Json& object, std::string_view name) {
  const Json& value = Member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<std::int64_t> Quantity(const Json& value) {
  if (value.is_number_unsigned()) return value.get<std::int64_t>();
  if (!value.is_string()) return std::nullopt;
  const auto parsed = settings::ParseQuantity(value.get_ref<const std::string&>());
  if (!parsed || *parsed > INT64_MAX) return std::nullopt;
  return static_cast<std::int64_t>(*parsed);
}

// A name without a domain has the driver's.
std::string Qualified(const std::string& name) {
  return absl::StrContains(name, '/') ? name : absl::StrCat(SLUICE_DOMAIN "/", name);
}

// Of capacities: their names may have the driver's domain or not.
const Json& Named(const Json& object, const char* name) {
  const Json& plain = Member(object, name);
  return plain.is_null() ? Member(object, absl::StrCat(SLUICE_DOMAIN "/", name)) : plain;
}

void ReadCapacity(const Json& device, const char* name, std::int64_t& value, std::int64_t& otherwise) {
  const Json& capacity = Named(Member(device, "capacity"), name);
  value = Quantity(Member(capacity, "value")).value_or(0);
  otherwise = Quantity(At(capacity, {"requestPolicy", "default"})).value_or(value);
}

ClaimCard ReadCard(const Json& device) {
  ClaimCard card;
  card.name = HashText(Text(device, "name"));
  card.is_shareable = Member(device, "allowMultipleAllocations") == true;
  ReadCapacity(device, "memory", card.memory, card.memory_default);
  ReadCapacity(device, "compute", card.compute, card.compute_default);
  for (const Json& taint : List(device, {"taints"})) {
    const std::string effect = Text(taint, "effect");
    card.is_tainted |= effect == "NoSchedule" || effect == "NoExecute";
  }
  const Json& attributes = Member(device, "attributes");
  if (attributes.is_object()) {
    card.attributes.reserve(attributes.size());
    for (const auto& [name, value] : attributes.items()) {
      card.attributes.emplace_back(HashText(Qualified(name)), HashText(value.dump()));
    }
  }
  return card;
}

bool ToleratesUnhealthy(const Json& request) {
  return std::ranges::any_of(List(request, {"tolerations"}), [](const Json& toleration) {
    const std::string key = Text(toleration, "key");
    return key == kUnhealthyTaint || (key.empty() && Text(toleration, "operator") == "Exists");
  });
}

// Administrative access takes nothing of a card, and does not come here.
CardsRequest ReadRequest(const Json& request, const Json& exactly) {
  CardsRequest out;
  out.name = Text(request, "name");
  out.all = Text(exactly, "allocationMode") == "All";
  const Json& count = Member(exactly, "count");
  if (count.is_number_integer()) out.count = std::clamp(count.get<int>(), 1, 128);
  const Json& amounts = At(exactly, {"capacity", "requests"});
  out.memory = Quantity(Named(amounts, "memory"));
  out.compute = Quantity(Named(amounts, "compute"));
  out.tolerates_taints = ToleratesUnhealthy(exactly);
  for (const Json& selector : List(exactly, {"selectors"})) {
    std::vector<CardTerm> terms = ReadSelector(Text(Member(selector, "cel"), "expression"));
    std::ranges::move(terms, std::back_inserter(out.terms));
  }
  return out;
}

std::shared_ptr<const RequestedClaim> ReadRequested(const Json& devices) {
  auto out = std::make_shared<RequestedClaim>();
  for (const Json& request : List(devices, {"requests"})) {
    const Json& exactly = Member(request, "exactly");
    if (const Json& alternatives = List(request, {"firstAvailable"}); !alternatives.empty()) {
      CardsRequest& added = out->cards.requests.emplace_back();
      std::vector<std::string>& classes = out->classes.emplace_back();
      added.name = Text(request, "name");
      for (const Json& alternative : alternatives) {
        classes.push_back(Text(alternative, "deviceClassName"));
        added.alternatives.push_back(ReadRequest(alternative, alternative));
        added.alternatives.back().name = absl::StrCat(added.name, "/", Text(alternative, "name"));
      }
      continue;
    }
    if (!exactly.is_object() || Member(exactly, "adminAccess") == true) continue;
    out->classes.push_back({Text(exactly, "deviceClassName")});
    out->cards.requests.push_back(ReadRequest(request, exactly));
  }
  for (const Json& constraint : List(devices, {"constraints"})) {
    CardsConstraint& added = out->cards.constraints.emplace_back();
    for (const Json& name : List(constraint, {"requests"})) {
      if (name.is_string()) added.requests.push_back(name);
    }
    added.is_distinct = Member(constraint, "distinctAttribute").is_string();
    added.attribute = HashText(Text(constraint, added.is_distinct ? "distinctAttribute" : "matchAttribute"));
  }
  return out;
}

std::string PodOf(const Json& claim) {
  for (const Json& consumer : List(claim, {"status", "reservedFor"})) {
    if (Text(consumer, "resource") == "pods") return Text(consumer, "uid");
  }
  for (const Json& owner : List(claim, {"metadata", "ownerReferences"})) {
    if (Text(owner, "kind") == "Pod") return Text(owner, "uid");
  }
  return "";
}

}  // namespace

SliceFacts ReadSlice(const Json& slice) {
  SliceFacts facts;
  facts.name = Text(Member(slice, "metadata"), "name");
  const Json& spec = Member(slice, "spec");
  if (Text(spec, "driver") != SLUICE_DOMAIN) return facts;
  facts.node = Text(spec, "nodeName");
  const Json& generation = At(spec, {"pool", "generation"});
  if (generation.is_number_integer()) facts.generation = generation.get<std::int64_t>();
  const Json& devices = List(spec, {"devices"});
  facts.cards.reserve(devices.size());
  for (const Json& device : devices) facts.cards.push_back(ReadCard(device));
  return facts;
}

ClaimFacts ReadClaim(const Json& claim) {
  ClaimFacts facts;
  const Json& metadata = Member(claim, "metadata");
  facts.key = absl::StrCat(Text(metadata, "namespace"), "/", Text(metadata, "name"));
  facts.pod = PodOf(claim);
  facts.is_of_extended_resource = !Text(Member(metadata, "annotations"), kExtendedResourceClaim).empty();
  const Json& allocation = At(claim, {"status", "allocation"});
  facts.is_allocated = allocation.is_object();
  if (!facts.is_allocated) {
    facts.requested = ReadRequested(At(claim, {"spec", "devices"}));
    return facts;
  }
  for (const Json& result : List(allocation, {"devices", "results"})) {
    if (Text(result, "driver") != SLUICE_DOMAIN || Member(result, "adminAccess") == true) continue;
    const Json& consumed = Member(result, "consumedCapacity");
    facts.held.push_back({.pool = Text(result, "pool"),
                          .device = HashText(Text(result, "device")),
                          .memory = Quantity(Named(consumed, "memory")).value_or(0),
                          .compute = Quantity(Named(consumed, "compute")).value_or(0)});
  }
  return facts;
}

ClassFacts ReadClass(const Json& device_class) {
  ClassFacts facts;
  facts.name = Text(Member(device_class, "metadata"), "name");
  const Json& spec = Member(device_class, "spec");
  facts.extended_resource = Text(spec, "extendedResourceName");
  for (const Json& selector : List(spec, {"selectors"})) {
    const std::string expression = Text(Member(selector, "cel"), "expression");
    facts.is_ours |=
        absl::StrContains(expression, "'" SLUICE_DOMAIN "'") || absl::StrContains(expression, "\"" SLUICE_DOMAIN "\"");
  }
  return facts;
}

PodClaims ReadPodClaims(const Json& pod) {
  PodClaims out;
  const Json& spec = Member(pod, "spec");
  const std::string prefix = absl::StrCat(Text(Member(pod, "metadata"), "namespace"), "/");
  for (const Json& claim : List(spec, {"resourceClaims"})) {
    std::string name = Text(claim, "resourceClaimName");
    for (const Json& status : List(pod, {"status", "resourceClaimStatuses"})) {
      if (name.empty() && Text(status, "name") == Text(claim, "name")) name = Text(status, "resourceClaimName");
    }
    if (!name.empty()) out.keys.push_back(prefix + name);
  }
  // Kubernetes' rule for other resources: the larger of the containers together and each init container.
  std::map<std::string, int> sums;
  for (const bool is_init : {false, true}) {
    for (const Json& container : List(spec, {is_init ? "initContainers" : "containers"})) {
      const Json& limits = At(container, {"resources", "limits"});
      if (!limits.is_object()) continue;
      for (const auto& [name, value] : limits.items()) {
        if (!absl::StrContains(name, '/') || name == SLUICE_RESOURCE) continue;
        const auto amount = static_cast<int>(std::min<std::int64_t>(ReadMilli(value) / 1000, 128));
        int& sum = sums[name];
        sum = is_init ? std::max(sum, amount) : sum + amount;
      }
    }
  }
  for (const auto& [name, amount] : sums) {
    if (amount > 0) out.other_resources.emplace_back(name, amount);
  }
  return out;
}

}  // namespace sluice::scheduler
