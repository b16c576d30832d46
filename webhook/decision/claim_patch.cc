#include "webhook/decision/claim_patch.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "sluice/names.h"
#include "webhook/decision/injection.h"
#include "webhook/decision/share_claim.h"

namespace sluice::webhook {
namespace {

using Names = std::set<std::string, std::less<>>;

const Json* List(const Json& object, const char* name) {
  const Json* list = Member(object, name);
  return list != nullptr && list->is_array() ? list : nullptr;
}

Names OwnEntries(const PodView& view) {
  Names out;
  const Json* entries = List(*view.spec, "resourceClaims");
  if (entries == nullptr) return out;
  for (const Json& entry : *entries) {
    if (IsOwnEntry(entry)) out.emplace(Text(entry, "name"));
  }
  return out;
}

const Json* ClaimsOf(const Container& c) {
  const Json* resources = Member(*c.json, "resources");
  return resources == nullptr ? nullptr : List(*resources, "claims");
}

void RemoveResource(const Container& c, Patch& patch) {
  const std::string pointer = c.pointer + "/resources";
  for (const char* list : {"limits", "requests"}) {
    const Json* quantities = Member(*Member(*c.json, "resources"), list);
    if (quantities == nullptr || !quantities->contains(SLUICE_RESOURCE)) continue;
    if (quantities->size() == 1) {
      patch.Remove(pointer, list);
    } else {
      patch.Remove(pointer + "/" + list, SLUICE_RESOURCE);
    }
  }
}

// `entry`: the container's; empty: it has no share.
void SetClaim(const Container& c, const std::string& entry, const Names& own, Patch& patch) {
  const Json* claims = ClaimsOf(c);
  const std::string pointer = c.pointer + "/resources";
  if (entry.empty() && claims != nullptr && !claims->empty() &&
      std::ranges::all_of(*claims, [&](const Json& claim) { return own.contains(Text(claim, "name")); })) {
    return patch.Remove(pointer, "claims");
  }
  bool has_entry = false;
  for (size_t i = claims == nullptr ? 0 : claims->size(); i > 0; --i) {
    const std::string_view name = Text((*claims)[i - 1], "name");
    if (name == entry) {
      has_entry = true;
    } else if (own.contains(name)) {
      patch.Remove(pointer + "/claims", i - 1);
    }
  }
  if (has_entry || entry.empty()) return;
  const std::string item = Pair("name", Quote(entry));
  if (Member(*c.json, "resources") == nullptr) {
    patch.Add(c.pointer, "resources", Pair("claims", "[" + item + "]"));
  } else if (claims == nullptr) {
    patch.Add(pointer, "claims", "[" + item + "]");
  } else {
    patch.Add(pointer + "/claims", "-", item);
  }
}

void SetEntries(const PodView& view, const std::vector<ClaimedContainer>& claimed, Patch& patch) {
  const Json* entries = List(*view.spec, "resourceClaims");
  constexpr char kEntries[] = "/spec/resourceClaims";
  if (claimed.empty() && entries != nullptr && std::ranges::all_of(*entries, IsOwnEntry)) {
    return patch.Remove("/spec", "resourceClaims");
  }
  Names present;
  for (size_t i = entries == nullptr ? 0 : entries->size(); i > 0; --i) {
    const Json& entry = (*entries)[i - 1];
    if (!IsOwnEntry(entry)) continue;
    const std::string_view name = Text(entry, "name");
    const auto wanted = std::ranges::find(claimed, name, &ClaimedContainer::entry);
    if (wanted == claimed.end()) {
      patch.Remove(kEntries, i - 1);
      continue;
    }
    present.emplace(name);
    if (Text(entry, "resourceClaimTemplateName") == wanted->template_name) continue;
    patch.Replace(std::string(kEntries) + "/" + std::to_string(i - 1), "resourceClaimTemplateName",
                  Quote(wanted->template_name));
  }
  std::string added;  // as a list, where the pod has none
  for (const ClaimedContainer& c : claimed) {
    if (!present.insert(c.entry).second) continue;
    const std::string entry =
        "{\"name\":" + Quote(c.entry) + ",\"resourceClaimTemplateName\":" + Quote(c.template_name) + "}";
    if (entries != nullptr) {
      patch.Add(kEntries, "-", entry);
    } else {
      added += (added.empty() ? "" : ",") + entry;
    }
  }
  if (!added.empty()) patch.Add("/spec", "resourceClaims", "[" + added + "]");
}

}  // namespace

void InjectClaims(const PodView& view, const std::vector<ClaimedContainer>& claimed, Findings& findings, Patch& patch) {
  if (!findings.IsEnabled(Rule::kSetClaim)) return;
  const Names own = OwnEntries(view);
  if (own.empty() && claimed.empty()) return;
  for (const Container& c : view.containers) {
    if (c.kind == ContainerKind::kEphemeral) continue;
    const auto found = std::ranges::find(claimed, &c, &ClaimedContainer::container);
    const bool has_share = found != claimed.end();
    if (has_share && c.requests_resource) RemoveResource(c, patch);
    SetClaim(c, has_share ? found->entry : std::string(), own, patch);
  }
  SetEntries(view, claimed, patch);
}

std::string ForeignClaim(const PodView& view, const Container& c) {
  const Json* claims = ClaimsOf(c);
  if (claims == nullptr) return {};
  const Names own = OwnEntries(view);
  for (const Json& claim : *claims) {
    if (!own.contains(Text(claim, "name"))) return std::string(Text(claim, "name"));
  }
  return {};
}

std::string OwnPreload(const Container& c) {
  const Json* env = List(*c.json, "env");
  std::string_view value;
  for (size_t i = 0; env != nullptr && i < env->size(); ++i) {
    if (Text((*env)[i], "name") == "LD_PRELOAD") value = Text((*env)[i], "value");
  }
  if (PreloadsSluice(value)) value.remove_prefix(std::min(value.find_first_of(": "), value.size()));
  while (!value.empty() && (value.front() == ':' || value.front() == ' ')) value.remove_prefix(1);
  return std::string(value);
}

}  // namespace sluice::webhook
