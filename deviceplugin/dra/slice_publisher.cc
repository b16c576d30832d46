#include "deviceplugin/dra/slice_publisher.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "deviceplugin/dra/resource_slice.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

using kube::Json;

constexpr char kAgent[] = "sluice-dra-driver";
constexpr std::chrono::milliseconds kStep{200};
constexpr std::chrono::hours kProbeEvery{1};
constexpr std::chrono::seconds kTaintProbeRetry{10};
constexpr std::chrono::seconds kWatchDelay{2};

kube::ClientOptions ClientSettings() {
  kube::ClientOptions options;
  options.user_agent = kAgent;
  options.retries_unavailable = false;  // the thread tries again by itself, and must end when it is told to
  return options;
}

std::string NameOf(const Json& slice) {
  const auto metadata = slice.find("metadata");
  return metadata != slice.end() && metadata->is_object() ? metadata->value("name", "") : "";
}

}  // namespace

SlicePublisher::SlicePublisher(SlicePublisherOptions options)
    : options_(std::move(options)), client_(options_.api, ClientSettings()) {
  kube::ListOptions list;
  list.field_selector = StrCat("spec.driver=", SLUICE_DOMAIN, ",spec.nodeName=", options_.node);
  list.not_older_than = "0";
  kube::WatchHandler handler;
  kube::CollectLists<Json>(
      handler, [](const Json& object, std::vector<Json>& all) { all.push_back(object); },
      [this](std::vector<Json> all) {
        MutexLock lock(mutex_);
        slices_.clear();
        for (Json& slice : all) {
          const std::string name = NameOf(slice);
          slices_.insert_or_assign(name, std::move(slice));
        }
        is_listed_ = changed_ = true;
        ++events_;
      });
  handler.changed = [this](kube::Change change, const Json& object) {
    MutexLock lock(mutex_);
    if (change == kube::Change::kDeleted) {
      slices_.erase(NameOf(object));
    } else {
      slices_.insert_or_assign(NameOf(object), object);
    }
    changed_ = true;
    ++events_;
  };
  handler.state = [this](bool up, const std::string& why) {
    if (up) return;
    MutexLock lock(mutex_);
    if (!is_listed_) problem_ = StrCat("the API server's ResourceSlices cannot be read: ", why);
  };
  watcher_ = std::make_unique<kube::Watcher>(options_.api, kSlicesPath, list, std::move(handler), kAgent);
  thread_ = std::thread([this] { Run(); });
}

SlicePublisher::~SlicePublisher() {
  stopping_ = true;
  options_.snapshots->Wake();
  thread_.join();
  watcher_.reset();
  if (!options_.removes_at_exit) return;
  const absl::Status s = client_.Delete(StrCat(kSlicesPath, "/", SliceName(options_.node)));
  Log(LogLevel::kInfo, "ResourceSlice removed", {{"result", s.ToString()}});
}

std::string SlicePublisher::problem() const {
  MutexLock lock(mutex_);
  return problem_;
}

void SlicePublisher::Run() {
  uint64_t generation = 0;
  kube::Backoff backoff;
  Clock::time_point not_before{};
  bool is_due = true;
  while (!stopping_) {
    is_due |= options_.snapshots->WaitForNewer(&generation, kStep, stopping_);
    bool is_known = false;
    {
      MutexLock lock(mutex_);
      is_due |= std::exchange(changed_, false);
      // Until the watch has shown our own write, slices_ is older than the API server.
      is_known = is_listed_ && (events_ != events_at_write_ || Clock::now() > written_ + kWatchDelay);
    }
    if (!is_known || !is_due || stopping_ || Clock::now() < not_before) continue;
    is_due = false;
    const absl::Status status = PublishOnce();
    MutexLock lock(mutex_);
    if (status.ok()) {
      problem_.clear();
      backoff.Reset();
      continue;
    }
    is_due = true;
    not_before = Clock::now() + backoff.Next();
    if (absl::IsAborted(status) || absl::IsAlreadyExists(status) || absl::IsNotFound(status))
      continue;  // it was changed
    const std::string problem = StrCat("the ResourceSlice cannot be written: ", status.message());
    if (problem != problem_) Log(LogLevel::kWarn, "ResourceSlice", {{"why", problem}});
    problem_ = problem;
  }
}

absl::Status SlicePublisher::PublishOnce() {
  const auto snapshot = options_.snapshots->Latest();
  SliceInput input{options_.node, NodeUid(), snapshot->inventory, options_.reserve, options_.held_units->Now()};
  input.asks_for_sharing = Clock::now() >= next_probe_;
  input.taint_effect = snapshot->config.taint_effect;
  input.keeps_taints = std::ranges::any_of(input.inventory.cards,
                                           [](const Card& card) { return card.state == CardState::kUnhealthy; }) &&
                       KeepsTaints();
  std::vector<Json> existing;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, slice] : slices_) existing.push_back(slice);
  }
  SlicePlan plan = PlanSlices(input, existing);
  for (const std::string& name : plan.remove) {
    const absl::Status s = client_.Delete(StrCat(kSlicesPath, "/", name));
    if (!s.ok() && !absl::IsNotFound(s)) return s;
  }
  if (plan.act == SlicePlan::Act::kNothing) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    events_at_write_ = events_;
  }
  const bool is_new = plan.act == SlicePlan::Act::kCreate;
  auto stored = is_new ? client_.Create(kSlicesPath, *plan.slice)
                       : client_.Update(StrCat(kSlicesPath, "/", SliceName(options_.node)), *plan.slice);
  written_ = Clock::now();
  if (!stored.ok()) return stored.status();
  if (input.asks_for_sharing) next_probe_ = Clock::now() + kProbeEvery;
  const Json& pool = (*plan.slice)["spec"]["pool"];
  Log(LogLevel::kInfo, "ResourceSlice written",
      {{"devices", StrCat((*plan.slice)["spec"]["devices"].size())}, {"generation", pool["generation"].dump()}});
  ReportSharing(*stored);
  if (dra::KeepsTaints(*plan.slice) && !dra::KeepsTaints(*stored)) {
    keeps_taints_ = false;  // the API server was replaced; until it is asked again, unhealthy cards are left out
    return absl::AbortedError("the API server dropped the taints");
  }
  return absl::OkStatus();
}

void SlicePublisher::ReportSharing(const Json& stored) {
  const int shares = MayShare(stored) ? 1 : 0;
  if (shares == shares_) return;
  shares_ = shares;
  if (shares == 0) {
    Log(LogLevel::kWarn, "claims get whole cards",
        {{"why",
          "the API server drops allowMultipleAllocations; fix: the feature gate DRAConsumableCapacity (Kubernetes "
          "1.34, "
          "on by default since 1.36) on API server, scheduler, controller manager and kubelet"}});
  }
}

bool SlicePublisher::KeepsTaints() {
  if (Clock::now() < next_taint_probe_) return keeps_taints_;
  const auto probed = client_.Create(StrCat(kSlicesPath, "?dryRun=All"), TaintProbe(options_.node));
  if (!probed.ok()) {  // an unhealthy card without a taint would get claims, so that it is left out meanwhile
    Log(LogLevel::kWarn, "unhealthy cards are left out of the ResourceSlice",
        {{"why", StrCat("the API server does not say whether it keeps taints: ", probed.status().message())}});
    next_taint_probe_ = Clock::now() + kTaintProbeRetry;
    return keeps_taints_ = false;
  }
  keeps_taints_ = dra::KeepsTaints(*probed);
  next_taint_probe_ = Clock::now() + kProbeEvery;
  Log(LogLevel::kInfo, "unhealthy cards",
      {{"are", keeps_taints_ ? "tainted" : "left out of the ResourceSlice: the feature gate DRADeviceTaints is off"}});
  return keeps_taints_;
}

std::string SlicePublisher::NodeUid() {
  if (knows_node_) return node_uid_;
  const auto node = client_.Get(StrCat("/api/v1/nodes/", options_.node));
  if (node.ok()) {
    node_uid_ = node->value("/metadata/uid"_json_pointer, "");
    knows_node_ = true;
  } else {
    Log(LogLevel::kWarn, "the ResourceSlice gets no owner", {{"why", std::string(node.status().message())}});
  }
  return node_uid_;
}

}  // namespace sluice::deviceplugin::dra
