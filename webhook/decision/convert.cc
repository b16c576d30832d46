#include "webhook/decision/convert.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "sluice/wire.h"
#include "webhook/decision/findings.h"
#include "webhook/decision/patch.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kPrefix = "nvidia.com/container.";
constexpr std::string_view kRequest = ".gpu-memory.request";
constexpr std::string_view kLimit = ".gpu-memory.limit";
constexpr std::string_view kCards = "nvidia.com/gpu";  // with HAMi: the number of cards, each with its own part
constexpr std::string_view kMemory = "nvidia.com/gpumem";
constexpr std::string_view kMemoryPercent = "nvidia.com/gpumem-percentage";
constexpr std::string_view kCores = "nvidia.com/gpucores";
constexpr std::string_view kNvshare = "nvshare.com/gpu";
// nvshare's device plugin offers ten virtual devices of each card unless it is told otherwise.
constexpr int64_t kNvsharePercent = 10;
constexpr std::string_view kBare[] = {"gpu-fraction", "gpu-memory", "gpu-fraction-container-name",
                                      "gpu-fraction-num-devices"};
constexpr std::string_view kSchedulers[] = {"kai-scheduler", "runai-scheduler", "hami-scheduler"};

std::string Key(std::string_view key, std::string_view container) {
  return std::string(key) + "." SLUICE_DOMAIN "/" + std::string(container);
}

class Converter {
 public:
  Converter(const Json& pod, ConversionScope scope) : view_(ViewPod(pod)), scope_(scope), findings_(decision_, off_) {}

  Conversion Run() {
    Conversion out;
    if (!view_.error.empty()) return out;  // the decision denies it
    ReadMemoryAnnotations();
    for (const Container& c : view_.containers) {
      if (c.kind != ContainerKind::kEphemeral && !findings_.IsFull()) ReadResources(c);
    }
    if (scope_ == ConversionScope::kManifest) ReadBare();
    if (scope_ == ConversionScope::kManifest && !added_.empty()) DropScheduler();
    WriteAnnotations();
    out.denials = std::move(decision_.denials);
    out.warnings = std::move(decision_.warnings);
    const std::string list = patch_.Dump();
    if (list.empty() || !out.denials.empty()) return out;
    out.has_changes = true;
    out.patch = list.substr(1, list.size() - 2);
    out.pod = view_.pod->patch(Json::parse(list));
    return out;
  }

 private:
  bool HasAnnotation(const std::string& key) const {
    return view_.annotations != nullptr && view_.annotations->contains(key);
  }

  // Whether an annotation of sluice gives this container its size, or may do so.
  bool HasOwnSize(std::string_view container) const {
    for (const char* key : {SLUICE_KEY_GPU_FRACTION, SLUICE_KEY_GPU_MEMORY}) {
      if (HasAnnotation(SLUICE_DOMAIN "/" + std::string(key)) || HasAnnotation(Key(key, container))) return true;
    }
    return false;
  }

  void Add(std::string_view key, std::string_view container, std::string value) {
    added_.insert_or_assign(Key(key, container), std::move(value));
  }

  // The request is the budget, and the limit bounds live bytes, as with MPS. A limit alone is a request as well.
  void ReadMemoryAnnotations() {
    if (view_.annotations == nullptr) return;
    for (const auto& [annotation, value] : view_.annotations->items()) {
      MemoryAlias alias;
      if (!ParseMemoryAlias(annotation, alias)) continue;
      if (scope_ == ConversionScope::kManifest) removed_.insert(annotation);
      if (HasOwnSize(alias.container)) continue;
      const std::string partner = std::string(kPrefix) + std::string(alias.container) + std::string(kRequest);
      const std::string quantity = value;
      if (!settings::ParseQuantity(quantity)) {
        findings_.Deny(Rule::kAliasValue, annotation + ": '" + quantity.substr(0, 64) +
                                              "' is not accepted; accepted: a Kubernetes quantity of bytes, as 4Gi");
        continue;
      }
      if (!alias.is_limit || !HasAnnotation(partner)) Add(SLUICE_KEY_GPU_MEMORY, alias.container, quantity);
      if (alias.is_limit) Add(SLUICE_KEY_MEMORY_LIMIT, alias.container, quantity);
      Deprecate(annotation, alias.container);
    }
  }

  void Deprecate(std::string_view what, std::string_view container) {
    if (scope_ == ConversionScope::kManifest) return;
    findings_.Warn(Rule::kWarnAlias, std::string(what.substr(0, 100)) + " of container '" + std::string(container) +
                                         "' is read as sluice's; use an annotation of " SLUICE_DOMAIN);
  }

  // The whole number that limits or requests hold; nullopt: absent, zero, or denied.
  std::optional<int64_t> Quantity(const Container& c, std::string_view resource) {
    const Json* resources = Member(*c.json, "resources");
    for (const char* list : {"limits", "requests"}) {
      const Json* quantities = resources == nullptr ? nullptr : Member(*resources, list);
      const Json* quantity = quantities == nullptr ? nullptr : Member(*quantities, resource);
      if (quantity == nullptr) continue;
      const auto number = WholeQuantity(*quantity);
      if (number) return *number == 0 ? std::nullopt : number;
      DenyResource(c, resource, *quantity, "a whole number");
      return std::nullopt;
    }
    return std::nullopt;
  }

  void DenyResource(const Container& c, std::string_view resource, const Json& value, const std::string& accepted) {
    findings_.Deny(Rule::kAliasValue, c.field + ".resources (" + std::string(resource) + " of container '" + c.name +
                                          "'): '" + (value.is_string() ? value.get<std::string>() : value.dump()) +
                                          "' is not accepted; accepted: " + accepted);
  }

  void RemoveResource(const Container& c, std::string_view resource) {
    for (const char* list : {"limits", "requests"}) {
      const Json* resources = Member(*c.json, "resources");
      const Json* quantities = resources == nullptr ? nullptr : Member(*resources, list);
      if (quantities == nullptr || !quantities->contains(resource)) continue;
      patch_.Remove(c.pointer + "/resources/" + list, resource);
    }
  }

  void ReadResources(const Container& c) {
    const auto memory = Quantity(c, kMemory);
    const auto percent = Quantity(c, kMemoryPercent);
    const auto cores = Quantity(c, kCores);
    std::map<std::string, std::string> wanted;
    if (memory || percent || cores) {
      const auto cards = Quantity(c, kCards).value_or(1);
      if (cards > SLUICE_MAX_GPUS) {
        DenyResource(c, kCards, cards, "1 to " + std::to_string(SLUICE_MAX_GPUS) + " beside a part of each");
      }
      if (cards > 1) wanted[SLUICE_KEY_GPU_COUNT] = std::to_string(cards);
      if (percent && *percent > 100) DenyResource(c, kMemoryPercent, *percent, "1 to 100");
      if (cores && *cores > 100) DenyResource(c, kCores, *cores, "1 to 100");
      if (memory) {
        wanted[SLUICE_KEY_GPU_MEMORY] = std::to_string(*memory) + "Mi";
      } else {
        wanted[SLUICE_KEY_GPU_FRACTION] = settings::FormatFraction(static_cast<uint32_t>(percent.value_or(100)));
      }
      if (cores && *cores < 100) {
        wanted[SLUICE_KEY_COMPUTE_LIMIT] = settings::FormatFraction(static_cast<uint32_t>(*cores));
      }
      const std::string_view first = memory ? kMemory : percent ? kMemoryPercent : kCores;
      TakeOver(c, first, wanted, {kCards, kMemory, kMemoryPercent, kCores});
    } else if (const auto devices = Quantity(c, kNvshare)) {
      if (*devices != 1) DenyResource(c, kNvshare, *devices, "1, for a share is part of one GPU");
      wanted[SLUICE_KEY_GPU_FRACTION] = settings::FormatFraction(kNvsharePercent);
      TakeOver(c, kNvshare, wanted, {kNvshare});
    }
  }

  // Replaces resources by annotations. Where sluice's own give the container another size, the resources stay, and the
  // decision denies both. An earlier conversion gave the same: the manifest is applied again.
  void TakeOver(const Container& c, std::string_view what, const std::map<std::string, std::string>& wanted,
                std::initializer_list<std::string_view> resources) {
    if (HasOwnSize(c.name)) {
      for (const auto& [key, value] : wanted) {
        if (view_.annotations == nullptr || Text(*view_.annotations, Key(key, c.name)) != value) return;
      }
    } else {
      for (const auto& [key, value] : wanted) Add(key, c.name, value);
    }
    Deprecate(what, c.name);
    for (const std::string_view resource : resources) RemoveResource(c, resource);
  }

  // gpu-fraction and gpu-memory without a prefix, which the decision reads by itself. KAI means the first container.
  void ReadBare() {
    if (view_.annotations == nullptr || (!HasAnnotation("gpu-fraction") && !HasAnnotation("gpu-memory"))) return;
    for (const std::string_view name : kBare) {
      if (HasAnnotation(std::string(name))) removed_.insert(std::string(name));
    }
    std::string container(Text(*view_.annotations, "gpu-fraction-container-name"));
    for (const Container& c : view_.containers) {
      if (container.empty() && c.kind == ContainerKind::kRegular) container = c.name;
    }
    if (HasOwnSize(container)) return;
    const std::string devices(Text(*view_.annotations, "gpu-fraction-num-devices"));
    if (!devices.empty() && devices != "1") Add(SLUICE_KEY_GPU_COUNT, container, devices);
    if (HasAnnotation("gpu-fraction")) {
      Add(SLUICE_KEY_GPU_FRACTION, container, std::string(Text(*view_.annotations, "gpu-fraction")));
    }
    if (HasAnnotation("gpu-memory")) {
      Add(SLUICE_KEY_GPU_MEMORY, container, std::string(Text(*view_.annotations, "gpu-memory")) + "Mi");
    }
  }

  void DropScheduler() {
    const std::string_view name = Text(*view_.spec, "schedulerName");
    if (std::find(std::begin(kSchedulers), std::end(kSchedulers), name) == std::end(kSchedulers)) return;
    patch_.Remove("/spec", "schedulerName");
  }

  void WriteAnnotations() {
    if (added_.empty() && removed_.empty()) return;
    if (Member(*view_.pod, "metadata") == nullptr) patch_.Add("", "metadata", "{}");
    if (view_.annotations == nullptr) patch_.Add("/metadata", "annotations", "{}");
    for (const std::string& annotation : removed_) patch_.Remove("/metadata/annotations", annotation);
    for (const auto& [annotation, value] : added_) patch_.Add("/metadata/annotations", annotation, Quote(value));
  }

  const PodView view_;
  const ConversionScope scope_;
  const RuleSet off_;
  Decision decision_;
  Findings findings_;
  std::map<std::string, std::string> added_;
  std::set<std::string> removed_;
  Patch patch_;
};

}  // namespace

bool ParseMemoryAlias(std::string_view annotation, MemoryAlias& out) {
  if (!annotation.starts_with(kPrefix)) return false;
  std::string_view rest = annotation.substr(kPrefix.size());
  out.is_limit = rest.ends_with(kLimit);
  if (!out.is_limit && !rest.ends_with(kRequest)) return false;
  rest.remove_suffix(out.is_limit ? kLimit.size() : kRequest.size());
  out.container = rest;
  return !rest.empty();
}

bool IsAliasResource(std::string_view resource) {
  return resource == kMemory || resource == kMemoryPercent || resource == kCores || resource == kNvshare;
}

Conversion ConvertAliases(const Json& pod, ConversionScope scope) { return Converter(pod, scope).Run(); }

}  // namespace sluice::webhook
