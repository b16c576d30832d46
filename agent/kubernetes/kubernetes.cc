#include "agent/kubernetes/kubernetes.h"

#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kube/config.h"
#include "sluice/names.h"
#include "sluice/reservation.h"

namespace sluice::agent {
namespace {

constexpr int kReconcileDelayMs = 20;
constexpr int kAnnotateAgainDelayMs = 1000;
constexpr int kReconcileMs = 1000;  // for changes without inotify: a folder made later, an allocation without a name
constexpr size_t kMaxUnnamed = 200;
constexpr const char* kPluginState =
    "plugin.json";  // the plugin's stateFile, by the chart in the agent's run directory

constexpr const char* kNotHooked = "SluiceNotHooked";
constexpr const char* kForeignCard = "SluiceForeignCard";

struct Reason {
  const char* name;
  bool warning;
};

// The kinds of the agent's events that become Events on pods, shown by `kubectl describe pod`.
const std::map<std::string, Reason>& Reasons() {
  static const auto* reasons = new std::map<std::string, Reason>{
      {"attached", {"SluiceAttached", false}},
      {"not hooked", {kNotHooked, true}},
      {"foreign card", {kForeignCard, true}},
      {"unproven", {"SluiceUnproven", true}},
      {"thrash began", {"SluiceThrash", true}},
      {"thrash ended", {"SluiceThrashEnded", false}},
      {"limit reached", {"SluiceLimitReached", true}},
      {"engine failed", {"SluiceEngineFailed", true}},
      {"unmanaged VMM", {"SluiceUnmanagedMemory", false}},
      {"reclaim late", {"SluiceReclaimLate", true}},
      {"refused", {"SluiceRefused", true}},
      {"held", {"SluiceHeld", false}},
      {"resumed", {"SluiceResumed", false}},
      {"parked", {"SluiceParked", false}},
      {"park put off", {"SluiceParkPutOff", true}},
      {"woken", {"SluiceWoken", false}},
      {"forged identity", {"SluiceForgedIdentity", true}},
  };
  return *reasons;
}

// Changes when the file changes. Empty: there is no file.
std::string Stamp(const std::string& path) {
  struct stat st{};
  if (stat(path.c_str(), &st) != 0) return "";
  return std::to_string(st.st_ino) + " " + std::to_string(st.st_size) + " " + std::to_string(st.st_mtim.tv_sec) + "." +
         std::to_string(st.st_mtim.tv_nsec);
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

Kubernetes::Kubernetes(EventLoop* loop, Node* node, std::string node_name, std::string run_dir,
                       const Config* configuration)
    : loop_(loop), node_(node), name_(std::move(node_name)), run_dir_(std::move(run_dir)), config_(configuration) {}

Kubernetes::~Kubernetes() {
  *alive_ = false;
  if (inotify_ < 0) return;
  loop_->Remove(inotify_);
  close(inotify_);
}

bool Kubernetes::Start(std::string* error) {
  const std::string& file = config_->kubernetes.kubeconfig;
  const auto api = file.empty() ? kube::InCluster() : kube::FromKubeconfig(file);
  if (!api.ok()) {
    *error = "kubernetes: " + std::string(api.status().message());
    return false;
  }
  api_ = *api;
  outbox_ = std::make_unique<Outbox>(*api, name_, [this, alive = alive_](const std::string& text) {
    loop_->Post([this, alive, text] {
      if (*alive) ReportState("writing", text);
    });
  });
  inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (inotify_ >= 0) {
    loop_->Add(inotify_, EPOLLIN, [this](uint32_t) {
      char buffer[8192];
      while (read(inotify_, buffer, sizeof(buffer)) > 0) {
      }
      ReconcileSoon();
    });
  }
  kube::ListOptions mine;
  mine.field_selector = "spec.nodeName=" + name_;
  mine.not_older_than = "0";  // every node's agent lists: from etcd each list would read the cluster's pods
  watcher_ = std::make_unique<kube::Watcher>(*api, "/api/v1/pods", mine, Handler(), "sluice-agent");
  ReconcilePeriodically();
  return true;
}

// Called on the watcher's thread. It turns objects into records and posts these to the loop.
kube::WatchHandler Kubernetes::Handler() {
  const bool aliases = config_->kubernetes.aliases;
  kube::WatchHandler handler;
  const auto keep = [aliases](const kube::Json& object, std::vector<PodRecord>& list) {
    PodRecord pod = ReadPodRecord(object, aliases);
    list.push_back(std::move(pod));
  };
  kube::CollectLists<PodRecord>(handler, keep, [this, alive = alive_](std::vector<PodRecord> list) {
    auto pods = std::make_shared<Pods>();
    for (PodRecord& pod : list) (*pods)[pod.facts.uid] = std::move(pod);
    loop_->Post([this, alive, pods] {
      if (*alive) Replaced(std::move(*pods));
    });
  });
  handler.changed = [this, aliases, alive = alive_](kube::Change change, const kube::Json& object) {
    auto pod = std::make_shared<PodRecord>(ReadPodRecord(object, aliases));
    loop_->Post([this, alive, change, pod] {
      if (*alive) Changed(change == kube::Change::kDeleted, std::move(*pod));
    });
  };
  handler.state = [this, alive = alive_](bool up, const std::string& why) {
    loop_->Post([this, alive, up, why] {
      if (*alive) ReportState("watching pods", up ? "" : why);
    });
  };
  return handler;
}

void Kubernetes::Replaced(Pods pods) {
  others_.clear();
  for (const auto& [uid, pod] : pods) {
    if (pod.facts.containers.empty()) others_[uid] = {pod.facts.name_space, pod.facts.name};
  }
  std::erase_if(pods, [](const auto& pod) { return pod.second.facts.containers.empty(); });
  NumberPods(pods_, &last_order_, &pods);
  pods_ = std::move(pods);
  listed_ = true;
  std::erase_if(deleted_, [this](const std::string& uid) { return NameOf(uid).name.empty(); });
  std::erase_if(refused_, [this](const auto& entry) { return !pods_.contains(entry.first); });
  Reconcile();
}

void Kubernetes::Changed(bool gone, PodRecord pod) {
  const std::string uid = pod.facts.uid;
  if (pod.facts.containers.empty()) {  // it asks for no units, and never will
    if (gone) {
      others_.erase(uid);
      deleted_.erase(uid);
    } else {
      others_[uid] = {pod.facts.name_space, pod.facts.name};
    }
    return;
  }
  if (gone) {
    const auto old = pods_.find(uid);
    // The annotation may never have shown it.
    if (old != pods_.end() && !old->second.facts.placement.empty()) AnnotateAgain();
    pods_.erase(uid);
    deleted_.erase(uid);
    refused_.erase(uid);
  } else {
    const auto known = pods_.find(uid);
    pod.order = known != pods_.end() ? known->second.order : ++last_order_;
    pods_[uid] = std::move(pod);
  }
  ReconcileSoon();
}

Attestation::PodName Kubernetes::NameOf(const std::string& uid) const {
  if (const auto pod = pods_.find(uid); pod != pods_.end())
    return {pod->second.facts.name_space, pod->second.facts.name};
  const auto other = others_.find(uid);
  return other == others_.end() ? Attestation::PodName{} : other->second;
}

void Kubernetes::ReportState(const char* about, const std::string& text) {
  std::string& reported = reported_states_[about];
  if (reported == text) return;
  reported = text;
  node_->AddEvent("", "api server", std::string(about) + (text.empty() ? ": works again" : ": " + text));
}

void Kubernetes::ReconcilePeriodically() {
  Reconcile();
  loop_->After(kReconcileMs, [this, alive = alive_] {
    if (*alive) ReconcilePeriodically();
  });
}

void Kubernetes::ReconcileSoon() {
  if (soon_) return;
  soon_ = true;
  loop_->After(kReconcileDelayMs, [this, alive = alive_] {
    if (!*alive) return;
    soon_ = false;
    Reconcile();
  });
}

// Plugin and extender learn of growth before the budget grows: they must not give the same units to a new pod.
void Kubernetes::Reconcile() {
  ReadCheckpoint();
  ReadPlugin();
  if (listed_) {
    const std::vector<CardStatus> cards = node_->Cards();
    const SizeGrants before = grants_;
    if (!cards.empty()) grants_ = GrantSizes(cards, given_, pods_, before);
    const std::map<std::string, CardUse> uses = UseOfCards(given_, pods_, grants_);
    WriteReservations(uses);
    // Until the GPUs are known, the annotation of the last agent stays.
    std::string value = cards.empty() ? annotation_ : NodeAnnotation(cards, uses, plugin_);
    if (value != annotation_) {
      annotation_ = std::move(value);
      Annotate();
      AnnotateAgain();
    }
    PublishSizes(before);
  }
  NameAllocations();
}

// Each answer to another size as the pod's annotation, and each new one as an Event.
void Kubernetes::PublishSizes(const SizeGrants& before) {
  for (const auto& [uid, containers] : grants_) {
    const auto found = pods_.find(uid);
    if (found == pods_.end()) continue;
    const PodRecord& pod = found->second;
    const std::string text = FormatGranted(containers);
    if (text != pod.granted_text) outbox_->AnnotatePod(pod.facts.name_space, pod.facts.name, uid, text);
    for (const auto& [name, grant] : containers) {
      GrantedSize shown{grant.units, grant.units};
      if (const auto old = pod.granted.find(name); old != pod.granted.end()) shown = old->second;
      const auto known = before.find(uid);
      if (known != before.end() && known->second.contains(name)) {
        shown = {known->second.at(name).percent, known->second.at(name).requested};
      }
      if (shown.percent == grant.percent && shown.requested == grant.requested) continue;
      const ResizeText answer = DescribeGrant(name, grant);
      outbox_->WriteEvent(SubjectOf(pod, name),
                          {answer.waits, answer.waits ? "SluiceResizeWaits" : "SluiceResized", answer.message});
    }
  }
}

void Kubernetes::Annotate() { outbox_->Annotate(annotation_ + (spaced_ ? " " : "")); }

// A change of the node makes the scheduler ask the extender again about waiting pods. The extender's own watch may not
// have shown the change yet, and a pod that is refused then waits for the next change, for minutes. So the same value
// is written once more.
void Kubernetes::AnnotateAgain() {
  loop_->After(kAnnotateAgainDelayMs, [this, alive = alive_, number = ++changes_] {
    if (!*alive || number != changes_ || annotation_.empty()) return;
    spaced_ = !spaced_;
    Annotate();
  });
}

void Kubernetes::ReadCheckpoint() {
  const std::string& folder = config_->kubernetes.kubelet_dir;
  // An existing watch stays as it is; a folder that was made anew gets a new one.
  if (inotify_ >= 0) inotify_add_watch(inotify_, folder.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR);
  const std::string stamp = Stamp(folder + "/" + deviceplugin::kCheckpointName);
  if (stamp == checkpoint_stamp_) return;
  checkpoint_stamp_ = stamp;
  auto given = stamp.empty() ? GivenOut{} : deviceplugin::ReadCheckpoint(folder);
  ReportState("kubelet's checkpoint", given.ok() ? "" : std::string(given.status().message()));
  if (!given.ok()) return;  // the last readable checkpoint stays in force
  given_ = *std::move(given);
  holders_.clear();
  for (const deviceplugin::CheckpointEntry& g : given_) holders_[AllocationOf(g)] = {g.pod_uid, g.container};
}

void Kubernetes::ReadPlugin() {
  const std::string path = run_dir_ + "/" + kPluginState;
  const std::string stamp = Stamp(path);
  if (stamp == plugin_stamp_) return;
  plugin_stamp_ = stamp;
  const std::string text = ReadAll(path), problem = OfferProblem(text);
  PluginCards now = ReadPluginState(text);
  // The problems of single GPUs are Events of their own, below.
  if (now.empty() && !problem.empty() && problem != offer_problem_)
    outbox_->WriteEvent({"Node", "", name_, name_, ""}, {true, "SluiceNoGpuOffered", problem});
  offer_problem_ = problem;
  node_->SetOfferProblem(problem);
  for (const auto& [uuid, card] : now) {
    const auto old = plugin_.find(uuid);
    if (card.state == "healthy" || (old != plugin_.end() && old->second.detail == card.detail)) continue;
    outbox_->WriteEvent({"Node", "", name_, name_, ""},
                        {true, card.state == "not-offered" ? "SluiceGpuNotOffered" : "SluiceGpuUnhealthy",
                         "GPU " + uuid + ": " + card.detail});
  }
  plugin_ = std::move(now);
}

void Kubernetes::NameAllocations() {
  for (const auto& [id, holder] : holders_) {
    node_->SetHolder(id, holder.pod_uid, holder.container);
    const auto pod = pods_.find(holder.pod_uid);
    if (pod == pods_.end() || !node_->HasAllocation(id)) continue;
    const scheduler::PodFacts& facts = pod->second.facts;
    PodInfo info{facts.name_space, facts.name, holder.container, {}};
    if (pod->second.errors.empty()) {
      const auto settings = pod->second.settings.find(holder.container);
      if (settings != pod->second.settings.end()) info.settings = settings->second;
    } else {
      // A wrong annotation changes nothing. The webhook denies it while it is up.
      if (const auto known = named_.find(id); known != named_.end()) info.settings = known->second.settings;
      std::string& reported = refused_[holder.pod_uid];
      if (reported != pod->second.errors.front()) {
        reported = pod->second.errors.front();
        outbox_->WriteEvent(SubjectOf(pod->second, ""),
                            {true, "SluiceSettingRefused", reported + "; the settings before stay in force"});
      }
    }
    if (const auto grants = grants_.find(holder.pod_uid); grants != grants_.end()) {
      const auto grant = grants->second.find(holder.container);
      if (grant != grants->second.end()) info.percent = grant->second.percent;
    }
    node_->SetPod(id, info);
    named_[id] = std::move(info);
  }
  std::erase_if(named_, [this](const auto& entry) { return !holders_.contains(entry.first); });
  node_->Settle();
  std::vector<std::pair<std::string, EventText>> waiting;
  waiting.swap(unnamed_);
  for (auto& [allocation, text] : waiting) WriteEvent(allocation, text);
}

void Kubernetes::WriteReservations(const std::map<std::string, CardUse>& uses) {
  std::string text = Reservations(pods_, uses);
  if (text == reservations_) return;
  const std::string path = run_dir_ + "/" SLUICE_RESERVATION_FILE, temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::trunc);
  out << text;
  out.close();
  const bool ok = out.good() && rename(temporary.c_str(), path.c_str()) == 0;
  ReportState("reservations", ok ? "" : path + " cannot be written");
  if (ok) reservations_ = std::move(text);
}

Subject Kubernetes::SubjectOf(const PodRecord& pod, const std::string& container) const {
  return {"Pod", pod.facts.name_space, pod.facts.name, pod.facts.uid, container};
}

void Kubernetes::WriteEvent(const std::string& allocation, const EventText& text) {
  const auto holder = holders_.find(allocation);
  const auto pod = holder == holders_.end() ? pods_.end() : pods_.find(holder->second.pod_uid);
  if (pod != pods_.end()) {
    const Subject subject = SubjectOf(pod->second, holder->second.container);
    outbox_->WriteEvent(subject, text);
    if (text.reason == kNotHooked) {
      DeletePod(subject, "a process of container " + holder->second.container + " uses the GPU without the hook");
    } else if (text.reason == kForeignCard) {
      DeletePod(subject, text.message);
    }
  } else if (node_->HasAllocation(allocation) && unnamed_.size() < kMaxUnnamed) {
    unnamed_.emplace_back(allocation, text);  // kubelet's checkpoint and the watch may be late
  }
}

void Kubernetes::OnEvent(const Event& event) {
  const auto reason = Reasons().find(event.kind);
  if (reason == Reasons().end() || outbox_ == nullptr) return;
  const EventText text{reason->second.warning, reason->second.name, event.text};
  if (!event.allocation.empty()) return WriteEvent(event.allocation, text);
  const Attestation::PodName name = NameOf(event.pod_uid);
  if (name.name.empty()) return;
  const Subject subject{"Pod", name.ns, name.name, event.pod_uid, ""};
  outbox_->WriteEvent(subject, text);
  DeletePod(subject, text.message);
}

// A DELETE instead of an Eviction: it shows the pod's node to the chart's policy (charts/, policy.yaml).
void Kubernetes::DeletePod(const Subject& pod, const std::string& why) {
  if (config_->on_not_hooked != "evict" || !deleted_.insert(pod.uid).second) return;
  outbox_->WriteEvent(pod, {true, "SluiceEvicted", why + " (attestation.on_not_hooked: evict); the pod is deleted"});
  outbox_->DeletePod(pod.ns, pod.name, pod.uid);
}

}  // namespace sluice::agent
