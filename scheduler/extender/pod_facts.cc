#include "scheduler/extender/pod_facts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "sluice/wire.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

const Json& Member(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string Text(const Json& object, const char* name) {
  const Json& value = Member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

struct Host {
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;
};

Host RequestsOf(const Json& resources) {
  const Json& requests = Member(resources, "requests");
  return {ReadMilli(Member(requests, "cpu")), ReadMemoryMib(Member(requests, "memory"))};
}

// Kubernetes' rule: the larger of (sidecars and regular containers together) and (an init container with the sidecars
// before it).
class HostSum {
 public:
  void Add(ContainerKind kind, const Host& host) {
    if (kind == ContainerKind::kInit) {
      peak_.cpu_milli = std::max(peak_.cpu_milli, sum_.cpu_milli + host.cpu_milli);
      peak_.memory_mib = std::max(peak_.memory_mib, sum_.memory_mib + host.memory_mib);
    } else {
      sum_.cpu_milli += host.cpu_milli;
      sum_.memory_mib += host.memory_mib;
    }
  }
  Host Total() const {
    return {std::max(peak_.cpu_milli, sum_.cpu_milli), std::max(peak_.memory_mib, sum_.memory_mib)};
  }

 private:
  Host sum_, peak_;
};

// The number of cards over which the webhook split the container's units, by its marker. 0: it did not.
int SplitOf(const Json& marker, const std::string& container, int units) {
  const Json& cards = Member(Member(Member(marker, "containers"), container.c_str()), "cards");
  if (!cards.is_number_unsigned() || cards < 2 || cards > SLUICE_MAX_GPUS) return 0;
  const int count = cards.get<int>();
  return units > 0 && units % count == 0 && units <= count * kUnitsPerCard ? count : 0;
}

bool AnyUnits(const std::vector<ContainerUnits>& containers) {
  return std::any_of(containers.begin(), containers.end(), [](const ContainerUnits& c) { return c.units != 0; });
}

}  // namespace

std::int64_t ReadMemoryMib(const Json& quantity) {
  if (quantity.is_number_unsigned()) return static_cast<std::int64_t>(quantity.get<std::uint64_t>() / kMiB);
  if (!quantity.is_string()) return 0;
  return static_cast<std::int64_t>(settings::ParseQuantity(quantity.get_ref<const std::string&>()).value_or(0) / kMiB);
}

std::int64_t ReadMilli(const Json& quantity) {
  if (quantity.is_number()) return std::llround(quantity.get<double>() * 1000);
  if (!quantity.is_string()) return 0;
  const std::string& text = quantity.get_ref<const std::string&>();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(value) || value < 0 || value > 1e12) return 0;
  const std::string suffix = end;
  if (suffix == "m") return std::llround(value);
  if (suffix == "k") return std::llround(value * 1e6);
  return suffix.empty() ? std::llround(value * 1000) : 0;
}

PodFacts ReadPod(const Json& pod) {
  const Json &metadata = Member(pod, "metadata"), &spec = Member(pod, "spec"), &status = Member(pod, "status");
  PodFacts facts;
  facts.uid = Text(metadata, "uid");
  facts.name_space = Text(metadata, "namespace");
  facts.name = Text(metadata, "name");
  facts.node = Text(spec, "nodeName");
  const std::string phase = Text(status, "phase");
  facts.ended = phase == "Succeeded" || phase == "Failed";
  // Kubelet writes the start time when it admits the pod, and also, with the phase Failed, when it refuses it.
  facts.admitted = !Text(status, "startTime").empty();

  const Json& annotations = Member(metadata, "annotations");
  Json marker;
  if (const Json& text = Member(annotations, SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED); text.is_string()) {
    marker = Json::parse(text.get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
  }
  HostSum host;
  const auto add = [&](const Json& container, ContainerKind kind) {
    const Json& resources = Member(container, "resources");
    std::int64_t milli = ReadMilli(Member(Member(resources, "limits"), SLUICE_RESOURCE));
    if (milli == 0) milli = ReadMilli(Member(Member(resources, "requests"), SLUICE_RESOURCE));
    // Caps a number that no node can satisfy, so that later sums cannot overflow.
    const int units = static_cast<int>(std::min<std::int64_t>(milli / 1000, 1'000'000));
    std::string name = Text(container, "name");
    const int cards = SplitOf(marker, name, units);
    facts.containers.push_back({std::move(name), kind, units, cards});
    host.Add(kind, RequestsOf(resources));
  };
  for (const Json& container : Member(spec, "initContainers")) {
    const bool sidecar = Text(container, "restartPolicy") == "Always";
    add(container, sidecar ? ContainerKind::kSidecar : ContainerKind::kInit);
  }
  for (const Json& container : Member(spec, "containers")) add(container, ContainerKind::kRegular);
  const Json& overhead = Member(spec, "overhead");
  facts.cpu_milli = host.Total().cpu_milli + ReadMilli(Member(overhead, "cpu"));
  facts.memory_mib = host.Total().memory_mib + ReadMemoryMib(Member(overhead, "memory"));
  if (!AnyUnits(facts.containers)) {
    facts.containers.clear();
    return facts;
  }
  const std::string placement = Text(annotations, SLUICE_DOMAIN "/" SLUICE_KEY_PLACEMENT);
  if (!placement.empty()) facts.placement = ParsePlacement(placement).value_or(ContainerCards{});
  return facts;
}

}  // namespace sluice::scheduler
