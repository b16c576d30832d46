#include "webhook/decision/requested_shares.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "sluice/names.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kAliasFraction = "gpu-fraction";
constexpr std::string_view kAliasMemory = "gpu-memory";
constexpr std::string_view kAliasContainer = "gpu-fraction-container-name";
constexpr std::string_view kAliasDevices = "gpu-fraction-num-devices";

bool IsSize(const settings::Key& key) {
  return key.id == settings::Id::kGpuFraction || key.id == settings::Id::kGpuMemory;
}

size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string UnknownKey(std::string_view annotation, std::string_view key) {
  std::string out = std::string(annotation.substr(0, 128)) + ": this key is unknown";
  for (const settings::Key& k : settings::Table()) {
    if (key.size() < 64 && Distance(key, k.name) <= 2) {
      out += "; did you mean " + std::string(k.name) + "?";
      break;
    }
  }
  return out + "; accepted: " + settings::Names();
}

// The annotations, sorted into what they address.
struct Sorted {
  std::vector<Written> pod;
  std::map<std::string, std::vector<Written>, std::less<>> by_name;
  std::vector<Written> alias;
  std::string alias_container;
  bool alias_used = false;
  bool marker = false;
  bool any = false;
  const Written* inject = nullptr;
};

class Resolver {
 public:
  Resolver(const PodView& view, const Input& input, Findings& findings)
      : view_(view), input_(input), findings_(findings) {}

  AskedPod Run() {
    AskedPod out;
    Sort();
    asks_ = std::any_of(view_.containers.begin(), view_.containers.end(), [](const Container& c) { return c.asks; });
    if (!sorted_.any && !sorted_.alias_used && !asks_) {
      out.left_alone = inject_false_;
      out.concerns = inject_bad_;
      if (sorted_.marker && input_.mode == Mode::kCreate) {
        out.concerns = true;
        findings_.Deny(Rule::kOwnKey, SLUICE_DOMAIN
                       "/" SLUICE_KEY_INJECTED
                       ": only sluice writes this, and the pod asks for no share of a GPU; accepted: remove it");
      }
      return out;
    }
    out.concerns = true;
    if (inject_false_) {
      findings_.Deny(Rule::kInjectContradiction, SLUICE_DOMAIN "/" SLUICE_KEY_INJECT ": 'false' contradicts " +
                                                     FirstAsk() + "; accepted: one of the two");
      if (findings_.On(Rule::kInjectContradiction)) return out;
    }
    CheckNames();
    for (const Container& c : view_.containers) out.containers.push_back(ForContainer(c));
    PodLevel(out);
    for (Asked& a : out.containers) Parse(a);
    std::erase_if(out.containers, [](const Asked& a) { return a.written.empty() && a.sized_by.empty(); });
    return out;
  }

 private:
  void Sort() {
    if (view_.annotations == nullptr) return;
    for (const auto& [annotation, json] : view_.annotations->items()) {
      const auto& value = json.get_ref<const std::string&>();
      const auto ours = OurKey(annotation);
      if (ours) Take(annotation, *ours, value);
    }
    if (input_.config.aliases && findings_.On(Rule::kAliases)) TakeAliases();
  }

  void Take(const std::string& annotation, const AnnotationKey& ours, const std::string& value) {
    if (!ours.by_name && ours.key == SLUICE_KEY_INJECTED) {
      sorted_.marker = true;
      return;
    }
    const settings::Key* key = settings::Find(ours.key);
    if (!ours.by_name && key != nullptr && key->id == settings::Id::kInject) {
      settings::Settings parsed;
      const std::string error = settings::Set(parsed, *key, value, annotation);
      inject_bad_ = !error.empty();
      if (inject_bad_) findings_.Deny(Rule::kInject, error);
      inject_false_ = parsed.inject.has_value() && !*parsed.inject;
      return;
    }
    sorted_.any = true;
    if (!ours.by_name && ours.key == SLUICE_KEY_PLACEMENT) {
      if (input_.mode != Mode::kUpdate) {
        findings_.Deny(Rule::kOwnKey, annotation + ": only sluice writes this; accepted: remove it");
      }
      return;
    }
    if (key == nullptr) {
      if (!findings_.Full()) findings_.Deny(Rule::kUnknownKey, UnknownKey(annotation, ours.key));
      return;
    }
    if (ours.by_name && key->id == settings::Id::kInject) {
      findings_.Deny(Rule::kPodKey,
                     annotation + ": inject is about the whole pod; accepted: " SLUICE_DOMAIN "/" SLUICE_KEY_INJECT);
      return;
    }
    Written w{key, value, annotation};
    if (ours.by_name) {
      sorted_.by_name[std::string(ours.container)].push_back(std::move(w));
    } else {
      sorted_.pod.push_back(std::move(w));
    }
  }

  bool HasPrefixedSize() const {
    const auto sized = [](const std::vector<Written>& list) {
      return std::any_of(list.begin(), list.end(), [](const Written& w) { return IsSize(*w.key); });
    };
    return sized(sorted_.pod) ||
           std::any_of(sorted_.by_name.begin(), sorted_.by_name.end(), [&](const auto& e) { return sized(e.second); });
  }

  void TakeAliases() {
    const auto fraction = view_.annotations->find(kAliasFraction);
    const auto memory = view_.annotations->find(kAliasMemory);
    const bool has_fraction = fraction != view_.annotations->end();
    const bool has_memory = memory != view_.annotations->end();
    if (!has_fraction && !has_memory) return;
    if (HasPrefixedSize()) {
      findings_.Warn(Rule::kWarnAlias, "the annotation " + std::string(has_fraction ? kAliasFraction : kAliasMemory) +
                                           " is ignored beside those of " SLUICE_DOMAIN);
      return;
    }
    sorted_.alias_used = true;
    findings_.Warn(Rule::kWarnAlias, "the annotation " + std::string(has_fraction ? kAliasFraction : kAliasMemory) +
                                         " is deprecated here; write " SLUICE_DOMAIN "/" +
                                         std::string(has_fraction ? kAliasFraction : kAliasMemory));
    if (has_fraction) {
      sorted_.alias.push_back(
          {settings::Find(SLUICE_KEY_GPU_FRACTION), fraction->get<std::string>(), std::string(kAliasFraction)});
    }
    if (has_memory) TakeAliasMemory(memory->get_ref<const std::string&>());
    sorted_.alias_container = Text(*view_.annotations, kAliasContainer);
    const std::string_view devices = Text(*view_.annotations, kAliasDevices);
    if (!devices.empty() && devices != "1") {
      findings_.Deny(Rule::kAliasUnsupported, std::string(kAliasDevices) + ": '" + std::string(devices.substr(0, 64)) +
                                                  "' is not accepted; accepted: 1 (a share is of one GPU)");
    }
  }

  // KAI's unit is a bare number of MiB.
  void TakeAliasMemory(const std::string& text) {
    uint64_t mib = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
    if (error != std::errc{} || end != text.data() + text.size() || mib == 0 || mib > (uint64_t{1} << 40)) {
      findings_.Deny(Rule::kAliasValue, std::string(kAliasMemory) + ": '" + text.substr(0, 64) +
                                            "' is not accepted; accepted: a whole number of MiB above 0");
      return;
    }
    sorted_.alias.push_back(
        {settings::Find(SLUICE_KEY_GPU_MEMORY), std::to_string(mib) + "Mi", std::string(kAliasMemory)});
  }

  std::string FirstAsk() const {
    for (const Container& c : view_.containers) {
      if (c.asks) return "the request for " SLUICE_RESOURCE " in " + c.field;
    }
    if (!sorted_.pod.empty()) return sorted_.pod.front().field;
    if (!sorted_.by_name.empty()) return sorted_.by_name.begin()->second.front().field;
    return sorted_.alias_used ? "gpu-fraction or gpu-memory" : "the other annotations of " SLUICE_DOMAIN;
  }

  std::string Choices() const {
    std::string out;
    for (const Container& c : view_.containers) {
      if (c.kind == ContainerKind::kEphemeral) continue;
      if (!out.empty()) out += ", ";
      out += c.name;
    }
    return out;
  }

  const Container* Find(std::string_view name) const {
    for (const Container& c : view_.containers) {
      if (c.name == name) return &c;
    }
    return nullptr;
  }

  void CheckNames() {
    for (const auto& [name, list] : sorted_.by_name) {
      if (findings_.Full()) return;  // each look is one through all containers
      const Container* c = Find(name);
      if (c == nullptr) {
        findings_.Deny(Rule::kUnknownContainer,
                       list.front().field + ": the pod has no container '" + name + "'; accepted: " + Choices());
      } else if (c->kind == ContainerKind::kEphemeral) {
        findings_.Deny(Rule::kEphemeral,
                       list.front().field + ": '" + name +
                           "' is an ephemeral container, which can have no share; accepted: " + Choices());
      }
    }
    if (!sorted_.alias_container.empty() && Find(sorted_.alias_container) == nullptr) {
      findings_.Deny(Rule::kUnknownContainer, std::string(kAliasContainer) + ": the pod has no container '" +
                                                  sorted_.alias_container + "'; accepted: " + Choices());
    }
    for (const Container& c : view_.containers) {
      if (c.kind == ContainerKind::kEphemeral && c.asks) {
        findings_.Deny(Rule::kEphemeral, c.field + ".resources: an ephemeral container can have no " SLUICE_RESOURCE
                                                   "; accepted: a regular or init container");
      }
    }
  }

  Asked ForContainer(const Container& c) const {
    Asked a{&c, {}, {}, {}};
    if (c.kind == ContainerKind::kEphemeral) return a;
    if (c.asks) a.sized_by = SLUICE_RESOURCE;
    const auto it = sorted_.by_name.find(c.name);
    if (it == sorted_.by_name.end()) return a;
    a.written = it->second;
    for (const Written& w : a.written) {
      if (IsSize(*w.key)) a.sized_by = w.field;
    }
    return a;
  }

  // The pod's only regular container; those that other webhooks add do not count beside others.
  Asked* Only(std::vector<Asked>& all) const {
    Asked* only = nullptr;
    size_t regular = 0;
    size_t counted = 0;
    for (Asked& a : all) {
      if (a.container->kind != ContainerKind::kRegular) continue;
      ++regular;
      const auto& known = input_.config.sidecars;
      if (findings_.On(Rule::kSidecarNames) &&
          std::find(known.begin(), known.end(), a.container->name) != known.end()) {
        if (only == nullptr && counted == 0) only = &a;  // unless a better one follows
        continue;
      }
      ++counted;
      only = &a;
    }
    return counted == 1 || regular == 1 ? only : nullptr;
  }

  // Adds a pod's annotation to a container unless the container has its own of that kind. A size has its own kind: a
  // container's gpu-fraction also replaces the pod's gpu-memory.
  static bool Give(Asked& a, const Written& w) {
    for (const Written& own : a.written) {
      if (own.field == w.field) return false;
      const bool by_name = own.field.find('/') != std::string::npos && !own.field.starts_with(SLUICE_DOMAIN "/");
      if (by_name && (own.key == w.key || (IsSize(*own.key) && IsSize(*w.key)))) return false;
    }
    a.written.push_back(w);
    if (IsSize(*w.key)) a.sized_by = w.field;
    return true;
  }

  void PodLevel(AskedPod& out) {
    for (const Written& w : sorted_.alias) Alias(out, w);
    // Sizes first: they make askers, whom the other settings then reach.
    for (const bool sizes : {true, false}) {
      std::vector<Asked*> targets;
      if (sizes) {
        Asked* only = Only(out.containers);
        for (Asked& a : out.containers) {
          if (&a == only || a.container->asks) targets.push_back(&a);
        }
      } else {
        for (Asked& a : out.containers) {
          if (!a.sized_by.empty()) targets.push_back(&a);
        }
      }
      for (const Written& w : sorted_.pod) {
        if (IsSize(*w.key) != sizes) continue;
        if (targets.empty()) {
          NoTarget(w, sizes);
          continue;
        }
        bool given = false;
        for (Asked* a : targets) given |= Give(*a, w);
        if (!given) {
          findings_.Deny(Rule::kNoEffect,
                         w.field + ": every container that it could mean has its own; accepted: remove it");
        }
      }
    }
  }

  void NoTarget(const Written& w, bool size) {
    settings::Settings unused;
    if (std::string error = settings::Set(unused, *w.key, w.value, w.field); !error.empty()) {
      findings_.Deny(Rule::kValue, std::move(error));
    }
    if (!size) {
      findings_.Deny(Rule::kNoFraction, w.field +
                                            ": no container asks for a share of a GPU; accepted: beside gpu-fraction, "
                                            "gpu-memory or the resource " SLUICE_RESOURCE);
      return;
    }
    const Container* example = nullptr;
    for (const Container& c : view_.containers) {
      if (c.kind == ContainerKind::kRegular && example == nullptr) example = &c;
    }
    findings_.Deny(Rule::kAmbiguous, w.field + ": the pod has several containers; accepted: the container's name, as " +
                                         std::string(w.key->name) + "." SLUICE_DOMAIN "/" +
                                         (example == nullptr ? "<container>" : example->name) +
                                         ", one of: " + Choices());
  }

  // KAI gives an unnamed fraction to the first container.
  void Alias(AskedPod& out, const Written& w) {
    for (Asked& a : out.containers) {
      const bool first = sorted_.alias_container.empty() && a.container->kind == ContainerKind::kRegular;
      if (!first && a.container->name != sorted_.alias_container) continue;
      a.written.push_back(w);
      a.sized_by = w.field;
      return;
    }
  }

  void Parse(Asked& a) {
    bool good = true;
    for (const Written& w : a.written) {
      std::string error = settings::Set(a.settings, *w.key, w.value, w.field);
      good &= error.empty();
      if (!error.empty() && !findings_.Full() && std::find(said_.begin(), said_.end(), error) == said_.end()) {
        said_.push_back(error);
        findings_.Deny(Rule::kValue, std::move(error));
      }
    }
    if (a.sized_by.empty() && !a.written.empty() && a.container->kind != ContainerKind::kEphemeral) {
      findings_.Deny(Rule::kNoFraction, a.written.front().field + ": container '" + a.container->name +
                                            "' has no share of a GPU; accepted: beside gpu-fraction, gpu-memory or the "
                                            "resource " SLUICE_RESOURCE);
    }
    if (!good) return;
    for (std::string& text : settings::Conflicts(a.settings, SLUICE_DOMAIN "/")) {
      text += " (container '" + a.container->name + "')";
      findings_.Deny(Rule::kConflict, std::move(text));
    }
  }

  const PodView& view_;
  const Input& input_;
  Findings& findings_;
  Sorted sorted_;
  std::vector<std::string> said_;
  bool asks_ = false;
  bool inject_false_ = false;
  bool inject_bad_ = false;
};

}  // namespace

AskedPod Resolve(const PodView& view, const Input& input, Findings& findings) {
  return Resolver(view, input, findings).Run();
}

}  // namespace sluice::webhook
