#include "deviceplugin/decide/driver_access.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

constexpr size_t kShownNames = 4;
constexpr const char* kGenerate =
    "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml on the node";

std::string NameOf(const Card& card) { return StrCat(kNvidiaCdiKind, "=", card.uuid); }

// The cards that the choice is for; the others are not given to anybody.
std::vector<const Card*> Offered(const std::vector<Card>& cards) {
  std::vector<const Card*> out;
  for (const Card& card : cards) {
    if (card.state != CardState::kNotOffered) out.push_back(&card);
  }
  return out;
}

std::string FoundNames(const AccessFacts& facts) {
  if (facts.cdi_names.empty()) return "there are none";
  std::vector<std::string> shown;
  for (const std::string& name : facts.cdi_names) {
    if (shown.size() == kShownNames) break;
    shown.push_back(name);
  }
  const size_t more = facts.cdi_names.size() - shown.size();
  return StrCat("they name ", StrJoin(shown, ", "), more > 0 ? StrCat(" and ", more, " more") : "");
}

std::string NothingWorks(const AccessFacts& facts) {
  return StrCat("containers would start without libcuda: no CDI spec of NVIDIA's toolkit names the card by its UUID (",
                FoundNames(facts), "), NVIDIA's runtime did not make this pod's containers, and ",
                facts.has_libcuda ? StrCat("no nvidiactl lies in deviceRoot, ", facts.device_root)
                                  : StrCat("no libcuda.so.1 lies under driverRoot, ", facts.driver_root),
                "; fix: ", kGenerate,
                ", or in the chart driver.runtimeClassName (often nvidia), or driver.access=own with driver.root");
}

// The word between the separator and the end of the line, without quotes.
std::string_view ValueBehind(std::string_view text, size_t at) {
  text.remove_prefix(at);
  const size_t begin = text.find_first_not_of("\"' \t:=");
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin);
  return text.substr(0, text.find_first_of("\"'\r\n,} \t"));
}

}  // namespace

AccessChoice ChooseAccess(const AccessFacts& facts, const std::vector<Card>& cards) {
  if (facts.setting == "nvidia-cdi") return {DriverAccess::kNvidiaCdi, "set", ""};
  if (facts.setting == "nvidia-runtime") return {DriverAccess::kNvidiaRuntime, "set", ""};
  if (facts.setting == "own") return {DriverAccess::kOwn, "set", ""};
  const std::vector<const Card*> offered = Offered(cards);
  const auto named = std::count_if(offered.begin(), offered.end(),
                                   [&](const Card* c) { return facts.cdi_names.contains(NameOf(*c)); });
  if (named > 0 && named == static_cast<long>(offered.size()))
    return {DriverAccess::kNvidiaCdi, "auto: NVIDIA's CDI specs name every card", ""};
  if (!facts.nvidia_runtime.empty())
    return {DriverAccess::kNvidiaRuntime, StrCat("auto: NVIDIA's runtime serves containers: ", facts.nvidia_runtime),
            ""};
  if (facts.has_libcuda && facts.has_control_node)
    return {DriverAccess::kOwn, StrCat("auto: driver libraries under ", facts.driver_root), ""};
  if (named > 0) return {DriverAccess::kNvidiaCdi, "auto: NVIDIA's CDI specs name some cards", ""};
  return {DriverAccess::kOwn, "auto: nothing on this node gives containers the driver", NothingWorks(facts)};
}

std::string CardAccessProblem(const AccessFacts& facts, const AccessChoice& choice, const Card& card,
                              bool own_spec_has_libcuda) {
  if (!choice.problem.empty()) return choice.problem;
  if (choice.access == DriverAccess::kNvidiaCdi && !facts.cdi_names.contains(NameOf(card))) {
    return StrCat("no CDI spec on this node names ", NameOf(card), " (", FoundNames(facts),
                  "), so no container with it ", "could start; fix: ", kGenerate, ", or another driverAccess");
  }
  if (choice.access == DriverAccess::kOwn && !own_spec_has_libcuda) {
    return StrCat("containers would start without libcuda: no libcuda.so.1 lies under driverRoot, ", facts.driver_root,
                  "; fix: driverRoot (the chart's driver.root), the folder that holds the driver's libraries or their "
                  "usr/lib64, usr/lib, lib64 or lib");
  }
  return "";
}

std::string NvmlMountOf(std::string_view mountinfo) {
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    // Mount id, parent, device, root, mount point.
    std::istringstream words(line);
    std::string skipped, point;
    words >> skipped >> skipped >> skipped >> skipped >> point;
    if (std::string_view(point).substr(point.rfind('/') + 1).starts_with("libnvidia-ml.so")) return point;
  }
  return "";
}

bool MakesNvidiaRuntimeDefault(std::string_view configuration) {
  for (const std::string_view key : {"default_runtime_name", "default-runtime", "default_runtime"}) {
    for (size_t at = 0; (at = configuration.find(key, at)) != std::string_view::npos; at += key.size()) {
      const size_t line = configuration.rfind('\n', at) + 1;  // npos + 1: the first line
      if (configuration.substr(line, at - line).find('#') != std::string_view::npos) continue;
      if (ValueBehind(configuration, at + key.size()).starts_with("nvidia")) return true;
    }
  }
  return false;
}

}  // namespace sluice::deviceplugin
