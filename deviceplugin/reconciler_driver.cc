// The reconciler's work on driver access: how containers get the driver, and which cards cannot be given for want of
// it.
#include <algorithm>

#include "common/log/log.h"
#include "deviceplugin/decide/driver_access.h"
#include "deviceplugin/host/cdi.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/host/nvidia_node.h"
#include "deviceplugin/reconciler.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {

void Reconciler::PrepareDriverAccess(NodeSnapshot* snapshot) {
  const DriverFiles driver = FindDriverFiles(config_.driver_root, config_.device_root);
  auto names = ListCdiNames(config_.cdi_search_dirs);
  AccessFacts facts;
  facts.setting = config_.driver_access;
  for (const std::string& name : names) {
    if (!name.starts_with(StrCat(kOwnCdiKind, "="))) facts.cdi_names.insert(name);
  }
  facts.nvidia_runtime = FindNvidiaRuntime(config_.driver_root);
  facts.driver_root = config_.driver_root;
  facts.device_root = config_.device_root;
  facts.has_libcuda = !driver.libraries.empty();
  facts.has_control_node =
      std::ranges::any_of(driver.control_nodes, [](const std::string& path) { return path.ends_with("/nvidiactl"); });
  const AccessChoice choice = ChooseAccess(facts, snapshot->inventory.cards);
  if (choice.access == DriverAccess::kOwn && choice.problem.empty()) {
    auto changed = SyncCdiSpecs(config_.cdi_dir, snapshot->inventory.cards, driver, config_.device_root, cdi_in_use_,
                                may_remove_cdi_);
    if (!changed.ok()) {
      Log(LogLevel::kError, "CDI specs", {{"why", std::string(changed.status().message())}});
    } else if (*changed > 0) {
      Log(LogLevel::kInfo, "CDI specs", {{"changed", StrCat(*changed)}, {"dir", config_.cdi_dir}});
    }
    const auto own = ListCdiNames({config_.cdi_dir});
    names.insert(names.end(), own.begin(), own.end());
  }
  for (Card& card : snapshot->inventory.cards) {
    if (card.state == CardState::kNotOffered) continue;
    const std::string spec = ReadFile(StrCat(config_.cdi_dir, "/", CdiFileName(card.uuid)), 4 << 20).value_or("");
    std::string problem = CardAccessProblem(facts, choice, card, MountsLibcuda(spec));
    if (problem.empty()) continue;
    card.state = CardState::kNotOffered;
    card.reason = "driver-access";
    card.detail = std::move(problem);
  }
  snapshot->access = choice.access;
  snapshot->cdi_names = {names.begin(), names.end()};
  access_note_ = choice.problem.empty() ? StrCat(ToString(choice.access), " (", choice.why, ")") : choice.why;
}

// A node with GPUs whose pod sees no NVML offers nothing, as a node without GPUs. Only the former needs mending.
void Reconciler::ExplainMissingNvml(Inventory* inventory) {
  pci_gpus_ = CountPciGpus(config_.sys_root);
  if (!inventory->cards.empty() || inventory->problem.empty() || pci_gpus_ == 0) return;
  inventory->problem = StrCat(
      inventory->problem, "; the node has ", pci_gpus_, " NVIDIA GPU(s) on its PCI bus: either its driver is not ",
      "installed, or this pod does not get it; fix: in the chart driver.runtimeClassName (often nvidia), or "
      "driver.access=own with driver.root and driver.nvml");
}

}  // namespace sluice::deviceplugin
