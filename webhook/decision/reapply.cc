#include "webhook/decision/reapply.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "sluice/names.h"
#include "webhook/decision/patch.h"
#include "webhook/decision/share_claim.h"

namespace sluice::webhook {
namespace {

const Json* List(const Json& pod, const char* name) {
  const Json* spec = Member(pod, "spec");
  const Json* list = spec == nullptr ? nullptr : Member(*spec, name);
  return list != nullptr && list->is_array() ? list : nullptr;
}

// Whether both lists hold the same entries. An apply may change their order.
bool AreSameEntries(const Json& a, const Json& b) {
  if (!a.is_array() || !b.is_array() || a.size() != b.size()) return false;
  const auto sorted = [](const Json& list) {
    std::vector<std::string> out;
    for (const Json& entry : list) {
      Json copy = entry;
      if (Text(copy, "value").empty()) copy.erase("value");
      out.push_back(copy.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  return sorted(a) == sorted(b);
}

bool GivesSize(const Json& variable) {
  const std::string_view name = Text(variable, "name");
  return name == SLUICE_ENV_GPU_FRACTION || name == SLUICE_ENV_GPU_MEMORY;
}

// Takes the webhook's entries about a share's size from a container's env or resources, where it is as in `runs`.
void RemoveSize(Json& part, const Json& runs) {
  if (part.is_array() && runs.is_array()) {
    for (auto entry = part.begin(); entry != part.end();) {
      const bool is_known = GivesSize(*entry) && std::find(runs.begin(), runs.end(), *entry) != runs.end();
      entry = is_known ? part.erase(entry) : entry + 1;
    }
    return;
  }
  for (const char* list : {"limits", "requests"}) {
    const Json* own = Member(part, list);
    const Json* other = Member(runs, list);
    if (own == nullptr || other == nullptr || !own->is_object()) continue;
    const Json* units = Member(*other, SLUICE_RESOURCE);
    if (units != nullptr && Member(*own, SLUICE_RESOURCE) != nullptr && own->at(SLUICE_RESOURCE) == *units) {
      part[list].erase(SLUICE_RESOURCE);
    }
  }
}

// Whether the decision gives the member as it runs, size apart. A running container keeps its units, and its variables
// those of its creation, while its annotation may give another size. A size in the manifest must be the one that runs.
bool IsAsItRuns(const Json& runs, const Json* wanted, Json given) {
  if (given == runs || AreSameEntries(given, runs)) return true;
  Json manifest = wanted == nullptr ? Json::object() : *wanted, rest = runs;
  RemoveSize(manifest, runs);
  const Json others = manifest, decided = given;
  RemoveSize(manifest, others);
  if (manifest != others) return false;
  RemoveSize(rest, runs);
  RemoveSize(given, decided);
  return given == rest || AreSameEntries(given, rest);
}

// One member of a container: as it runs, as the update has it, and as the decision about the update gives it.
void KeepMember(const std::string& pointer, const char* name, const Json& running, const Json& updated,
                const Json& decided, Patch& patch) {
  const Json* runs = Member(running, name);
  const Json* wanted = Member(updated, name);
  const Json* given = Member(decided, name);
  if (runs == nullptr || given == nullptr || (wanted != nullptr && *wanted == *runs)) return;
  if (!IsAsItRuns(*runs, wanted, *given)) return;
  const std::string value = runs->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (wanted == nullptr) {
    patch.Add(pointer, name, value);
  } else {
    patch.Replace(pointer, name, value);
  }
}

// The entries of the pod's claims. Another template for the same container counts as the same one: the cluster may have
// other cards by now.
void KeepClaims(const Json& running, const Json& updated, const Json& decided, Patch& patch) {
  const Json* runs = Member(running, "resourceClaims");
  const Json* wanted = Member(updated, "resourceClaims");
  const Json* given = Member(decided, "resourceClaims");
  if (runs == nullptr || given == nullptr || (wanted != nullptr && *wanted == *runs)) return;
  const auto names = [](Json list) {
    for (Json& entry : list) {
      if (IsOwnEntry(entry)) entry["resourceClaimTemplateName"] = "";
    }
    return list;
  };
  if (!AreSameEntries(names(*runs), names(*given))) return;
  const std::string value = runs->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (wanted == nullptr) {
    patch.Add("/spec", "resourceClaims", value);
  } else {
    patch.Replace("/spec", "resourceClaims", value);
  }
}

}  // namespace

std::string KeepInjected(const Json& running, const Input& input) {
  // A policy that was set later does not concern a pod that runs.
  Config config = input.config;
  config.privileged = config.resource_claims = Reaction::kWarn;
  // The first decision knew no node yet.
  Json created = input.pod;
  if (Member(created, "spec") != nullptr && created["spec"].is_object()) created["spec"].erase("nodeName");
  const Decision d = Decide({created, input.name_space, config, input.nodes, Mode::kCreate, input.off});
  if (d.verdict != Verdict::kPatch || d.patch.empty()) return {};
  const Json decided = created.patch(Json::parse(d.patch));
  Patch patch;
  for (const char* list : {"containers", "initContainers"}) {
    const Json* runs = List(running, list);
    const Json* wanted = List(input.pod, list);
    const Json* given = List(decided, list);
    if (runs == nullptr || wanted == nullptr || given == nullptr || runs->size() != wanted->size()) continue;
    for (size_t i = 0; i < wanted->size(); ++i) {
      if (Text((*runs)[i], "name") != Text((*wanted)[i], "name")) break;  // the API server refuses it anyway
      const std::string pointer = std::string("/spec/") + list + "/" + std::to_string(i);
      for (const char* member : {"env", "resources"}) {
        KeepMember(pointer, member, (*runs)[i], (*wanted)[i], (*given)[i], patch);
      }
    }
  }
  const Json* from = Member(running, "spec");
  const Json* to = Member(input.pod, "spec");
  if (from != nullptr && to != nullptr) {
    for (const char* member : {"schedulerName", "runtimeClassName"}) {
      KeepMember("/spec", member, *from, *to, *Member(decided, "spec"), patch);
    }
    KeepClaims(*from, *to, *Member(decided, "spec"), patch);
  }
  return patch.Dump();
}

}  // namespace sluice::webhook
