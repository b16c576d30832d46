#include "deviceplugin/reconciler.h"

#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/log/log.h"
#include "deviceplugin/decide/collector.h"
#include "deviceplugin/dra/claim_store.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/text.h"
#include "sluice/version.h"

namespace sluice::deviceplugin {
namespace {

// A wait for NVML's events cannot be interrupted, and the process waits for it at its end.
constexpr std::chrono::milliseconds kEventWait{250};
constexpr std::chrono::milliseconds kNotOpenPause{2000};
constexpr std::chrono::milliseconds kNoEventsPause{10'000};

// The parent of kubelet's plugin folder: /var/lib/kubelet/device-plugins -> /var/lib/kubelet.
std::string KubeletRoot(const std::string& kubelet_dir) {
  std::string dir = kubelet_dir;
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  return std::filesystem::path(dir).parent_path().string();
}

}  // namespace

std::string DefaultPodsDir(const std::string& kubelet_dir) { return KubeletRoot(kubelet_dir) + "/pods"; }

std::string HookLibrarySource(const Config& config) {
  if (!config.library_source.empty()) return config.library_source;
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "lib").string();
}

Reconciler::Reconciler(ReconcilerOptions options)
    : kubelet_dir_(std::move(options.kubelet_dir)),
      nvml_(std::move(options.nvml), options.config.nvml_timeout),
      snapshots_(std::move(options.snapshots)),
      metrics_(std::move(options.metrics)),
      config_(std::move(options.config)),
      inventory_({}),
      store_(config_.alloc_dir) {
  const std::string root = KubeletRoot(kubelet_dir_);
  if (config_.pods_dir.empty()) config_.pods_dir = DefaultPodsDir(kubelet_dir_);
  if (config_.pod_resources_socket.empty()) config_.pod_resources_socket = root + "/pod-resources/kubelet.sock";
  inventory_.SetRules(RulesFromConfig());
  pass_thread_ = std::thread([this] { RunPasses(); });
  event_thread_ = std::thread([this] { RunEvents(); });
}

Reconciler::~Reconciler() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  pass_thread_.join();
  event_thread_.join();
}

CardRules Reconciler::RulesFromConfig() const {
  CardRules rules{config_.exclude, config_.coexist == "allow", DefaultIgnoredXids(), config_.recover};
  rules.ignored_xids.insert(config_.ignored_xids.begin(), config_.ignored_xids.end());
  return rules;
}

bool Reconciler::WaitForFirstPass(std::chrono::milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!first_pass_done_ && Clock::now() < end) changed_.WaitUntil(mutex_, end);
  return first_pass_done_;
}

void Reconciler::Reconfigure(const Config& config) {
  MutexLock lock(mutex_);
  next_config_ = config;
  woken_ = true;
  changed_.NotifyAll();
}

void Reconciler::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void Reconciler::RunPasses() {
  while (true) {
    RunPass();
    last_pass_ = Clock::now();
    AwaitNextPass();
    MutexLock lock(mutex_);
    if (stopping_) return;
    woken_ = false;
    if (!next_config_) continue;
    // Paths and the other start-only settings keep their values until a restart.
    Config next = *std::move(next_config_);
    next_config_.reset();
    for (auto field : {&Config::alloc_dir, &Config::lib_dir, &Config::library_source, &Config::pods_dir,
                       &Config::pod_resources_socket, &Config::nvml_library, &Config::sys_root,
                       &Config::metrics_address, &Config::state_file, &Config::reservation_file}) {
      next.*field = config_.*field;
    }
    next.extender = config_.extender;
    next.reserve = config_.reserve;
    next.slices_removed = config_.slices_removed;
    config_ = std::move(next);
    inventory_.SetRules(RulesFromConfig());
  }
}

void Reconciler::AwaitNextPass() {
  const auto end = Clock::now() + config_.poll;
  MutexLock lock(mutex_);
  first_pass_done_ = true;
  changed_.NotifyAll();
  while (!stopping_ && !woken_ && Clock::now() < end) changed_.WaitUntil(mutex_, end);
}

void Reconciler::RunEvents() {
  while (true) {
    bool open = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      open = nvml_open_;
    }
    absl::StatusOr<std::optional<NvmlEvent>> event = absl::UnavailableError("");
    if (open) event = nvml_.WaitEvent(kEventWait);
    MutexLock lock(mutex_);
    if (event.ok() && event->has_value()) {
      events_.push_back(**event);
      woken_ = true;
      changed_.NotifyAll();
    } else if (!event.ok()) {
      const auto end = Clock::now() + (open ? kNoEventsPause : kNotOpenPause);
      while (!stopping_ && (open || !nvml_open_) && Clock::now() < end) changed_.WaitUntil(mutex_, end);
    }
  }
}

bool Reconciler::NvmlIsOpen() {
  MutexLock lock(mutex_);
  return nvml_open_;
}

void Reconciler::SetNvmlOpen(bool open) {
  MutexLock lock(mutex_);
  nvml_open_ = open;
  changed_.NotifyAll();
}

void Reconciler::ReadNvml() {
  const auto now = Clock::now();
  {
    MutexLock lock(mutex_);
    for (const NvmlEvent& event : events_) {
      inventory_.ApplyEvent(event, now);
      Log(LogLevel::kWarn, "driver event", {{"gpu", event.uuid}, {"xid", StrCat(event.xid)}});
    }
    events_.clear();
  }
  if (!NvmlIsOpen()) {
    const absl::Status opened = nvml_.Open();
    SetNvmlOpen(opened.ok());
    if (!opened.ok()) return inventory_.ApplyReadFailure(opened, now);
  }
  CardInventory::Readings readings;
  auto version = nvml_.DriverVersion();
  auto count = version.ok() ? nvml_.Count() : absl::StatusOr<int>(version.status());
  if (!count.ok()) {
    // The driver may have been replaced: load its library again.
    SetNvmlOpen(false);
    return inventory_.ApplyReadFailure(count.status(), now);
  }
  readings.driver_version = *version;
  for (int i = 0; i < *count; ++i) {
    auto card = nvml_.Read(i);
    if (card.ok()) {
      readings.cards.push_back(*std::move(card));
    } else {
      readings.errors.push_back(StrCat("card ", i, ": ", card.status().message()));
    }
  }
  inventory_.ApplyReadings(readings, now);
}

void Reconciler::ReadPodResources() {
  pod_resources_.reset();
  struct stat st;
  if (stat(config_.pod_resources_socket.c_str(), &st) != 0) return;
  auto answer = ListPodResources(config_.pod_resources_socket);
  if (!answer.ok()) {
    Log(LogLevel::kDebug, "pod-resources did not answer", {{"why", std::string(answer.status().message())}});
    return;  // cards that other plugins offered before stay excluded
  }
  pod_resources_ = *std::move(answer);
  inventory_.SetOfferedByOthers(pod_resources_->offered_by_others);
}

// Runs once, before the registration with kubelet. Recreates allocation directories that a power cut or a crash
// destroyed.
void Reconciler::RestoreAllocations() {
  const auto checkpoint = ReadCheckpoint(kubelet_dir_);
  if (!checkpoint.ok()) return;  // CollectUnreferenced logs it
  for (const CheckpointEntry& given : *checkpoint) {
    const auto restored = store_.Restore(given.run_dir, given.device_ids);
    if (!restored.ok()) {
      Log(LogLevel::kError, "allocation", {{"why", std::string(restored.status().message())}});
    } else if (*restored) {
      Log(LogLevel::kWarn, "allocation restored from kubelet's checkpoint",
          {{"directory", given.run_dir}, {"pod", given.pod_uid}, {"container", given.container}});
    }
  }
}

void Reconciler::PrepareHookLibrary() {
  if (!lib_dir_.empty() && CheckHookLibrary(lib_dir_).ok()) {
    lib_problem_.clear();
    return;
  }
  auto installed = InstallHookLibrary(HookLibrarySource(config_), config_.lib_dir);
  if (installed.ok()) {
    lib_dir_ = *installed;
    lib_problem_.clear();
    Log(LogLevel::kInfo, "hook library", {{"path", lib_dir_}});
    return;
  }
  const std::string problem = StrCat("the hook library is not installed: ", installed.status().message());
  if (problem != lib_problem_) Log(LogLevel::kError, "hook library", {{"why", problem}});
  lib_problem_ = problem;
}

void Reconciler::CollectUnreferenced() {
  if (Clock::now() < next_collect_) return;
  next_collect_ = Clock::now() + config_.collect_every;
  CollectorInput input;
  if (auto checkpoint = ReadCheckpoint(kubelet_dir_); checkpoint.ok()) {
    input.checkpoint = *std::move(checkpoint);
  } else {
    Log(absl::IsNotFound(checkpoint.status()) ? LogLevel::kDebug : LogLevel::kWarn,
        "kubelet's checkpoint cannot be read, nothing is deleted",
        {{"why", std::string(checkpoint.status().message())}});
    return;
  }
  if (auto pods = ListDir(config_.pods_dir); pods.ok()) input.pod_uids.emplace(pods->begin(), pods->end());
  if (pod_resources_) input.devices_in_use = pod_resources_->in_use;
  if (auto allocations = store_.List(); allocations.ok()) input.allocations = *std::move(allocations);
  for (const std::string& name : ListHookLibraries(config_.lib_dir))
    input.libraries.push_back(config_.lib_dir + "/" + name);
  // Claims of the DRA driver, which serves this node or served it before.
  if (auto claims = dra::ListClaimHolds(config_.alloc_dir)) {
    input.claims_libraries = std::move(claims->libraries);
    input.claims_cdi_names = std::move(claims->cdi_names);
  } else {
    input.claims_libraries.reset();
  }
  input.current_library = lib_dir_;
  input.now = std::chrono::system_clock::now();
  input.grace = config_.collect_grace;
  CollectorPlan plan = PlanCollection(input);
  for (const std::string& id : plan.allocation_ids) {
    const absl::Status s = store_.Remove(id);
    metrics_->CountCollected(s.ok() ? "allocation" : "failure", 1);
    Log(s.ok() ? LogLevel::kInfo : LogLevel::kError, "allocation removed",
        {{"allocation", id}, {"result", s.ToString()}});
  }
  for (const std::string& path : plan.libraries) {
    const absl::Status s = RemoveTree(path);
    metrics_->CountCollected(s.ok() ? "library" : "failure", 1);
    Log(s.ok() ? LogLevel::kInfo : LogLevel::kError, "library version removed",
        {{"path", path}, {"result", s.ToString()}});
  }
  cdi_in_use_ = std::move(plan.cdi_names_in_use);
  may_remove_cdi_ = plan.may_remove_cdi;
  // Returns the memory of the checkpoint's JSON tree, the largest object on the heap.
  malloc_trim(0);
}

// To the log, the metrics and the state file, from which the agent makes events.
void Reconciler::Report(const Inventory& inventory) {
  if (access_note_ != reported_access_) Log(LogLevel::kInfo, "driver access", {{"access", access_note_}});
  reported_access_ = access_note_;
  if (inventory.problem != reported_.problem && !inventory.problem.empty()) {
    Log(LogLevel::kWarn, "no GPU can be offered now", {{"why", inventory.problem}});
  }
  for (const Card& card : inventory.cards) {
    const Card* old = reported_.Find(card.uuid);
    if (old != nullptr && old->state == card.state && old->detail == card.detail) continue;
    Log(card.state == CardState::kHealthy ? LogLevel::kInfo : LogLevel::kWarn, "GPU",
        {{"gpu", card.uuid},
         {"model", card.model},
         {"memory", StrCat(card.memory_bytes)},
         {"numa", StrCat(card.numa)},
         {"state", std::string(ToString(card.state))},
         {"reason", card.reason},
         {"detail", card.detail}});
  }
  reported_ = inventory;
  metrics_->SetCards(inventory);
  metrics_->SetStuckNvmlCalls(nvml_.stuck_calls());
  nlohmann::json cards = nlohmann::json::array();
  for (const Card& card : inventory.cards) {
    cards.push_back({{"uuid", card.uuid},
                     {"model", card.model},
                     {"memory", card.memory_bytes},
                     {"numa", card.numa},
                     {"nvlink", card.nvlink},
                     {"ecc", card.ecc},
                     {"state", ToString(card.state)},
                     {"reason", card.reason},
                     {"detail", card.detail}});
  }
  const std::string state = nlohmann::json{{"version", 1},
                                           {"plugin", SLUICE_VERSION},
                                           {"driver", inventory.driver_version},
                                           {"problem", inventory.problem},
                                           {"pciGpus", pci_gpus_},
                                           {"access", access_note_},
                                           {"library", lib_dir_},
                                           {"libraryProblem", lib_problem_},
                                           {"cards", cards}}
                                .dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
                            "\n";
  if (state == reported_state_) return;
  absl::Status s = MakeDirs(std::filesystem::path(config_.state_file).parent_path().string());
  if (s.ok()) s = WriteFileAtomically(config_.state_file, state, Durable::kNo);
  if (s.ok()) {
    reported_state_ = state;
  } else {
    Log(LogLevel::kWarn, "state file", {{"why", std::string(s.message())}});
  }
}

void Reconciler::RunPass() {
  if (auto s = store_.Prepare(); !s.ok())
    Log(LogLevel::kError, "allocation folder", {{"why", std::string(s.message())}});
  if (!snapshots_->Latest()) RestoreAllocations();
  ReadNvml();
  ReadPodResources();
  PrepareHookLibrary();
  CollectUnreferenced();
  auto snapshot = std::make_shared<NodeSnapshot>();
  snapshot->inventory = inventory_.Current();
  ExplainMissingNvml(&snapshot->inventory);
  snapshot->config = config_;
  snapshot->lib_dir = lib_dir_;
  snapshot->lib_problem = lib_problem_;
  PrepareDriverAccess(snapshot.get());
  // Published before it is reported, so that readers of the log or the state file can rely on it.
  const Inventory inventory = snapshot->inventory;
  snapshots_->Publish(std::move(snapshot));
  Report(inventory);
}

}  // namespace sluice::deviceplugin
