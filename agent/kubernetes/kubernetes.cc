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

constexpr int kSoonMs = 20;
constexpr int kAgainMs = 1000;
constexpr int kLookMs = 1000;  // what inotify does not tell: a folder that came later, an allocation without a name
constexpr size_t kMaxUnnamed = 200;
constexpr const char* kPluginState =
    "plugin.json";  // the plugin's stateFile, by the chart in the agent's run directory

struct Kind {
  const char* reason;
  bool warning;
};

// Which of the agent's events people find in `kubectl describe pod`.
const std::map<std::string, Kind>& Kinds() {
  static const auto* kinds = new std::map<std::string, Kind>{
      {"attached", {"SluiceAttached", false}},
      {"not hooked", {"SluiceNotHooked", true}},
      {"thrash began", {"SluiceThrash", true}},
      {"thrash ended", {"SluiceThrashEnded", false}},
      {"limit reached", {"SluiceLimitReached", true}},
      {"engine failed", {"SluiceEngineFailed", true}},
      {"plain VMM", {"SluicePlainMemory", false}},
      {"callback late", {"SluiceCallbackLate", true}},
      {"refused", {"SluiceRefused", true}},
  };
  return *kinds;
}

// Changes when the file does; empty: not there.
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
  outbox_ = std::make_unique<Outbox>(*api, name_, [this, alive = alive_](const std::string& text) {
    loop_->Post([this, alive, text] {
      if (*alive) Trouble("writing", text);
    });
  });
  inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (inotify_ >= 0) {
    loop_->Add(inotify_, EPOLLIN, [this](uint32_t) {
      char buffer[8192];
      while (read(inotify_, buffer, sizeof(buffer)) > 0) {
      }
      Soon();
    });
  }
  kube::ListOptions mine;
  mine.field_selector = "spec.nodeName=" + name_;
  watcher_ = std::make_unique<kube::Watcher>(*api, "/api/v1/pods", mine, Handler(), "sluice-agent");
  Look();
  return true;
}

// Called from the watcher's thread: objects become records there, and only these cross over.
kube::WatchHandler Kubernetes::Handler() {
  const bool aliases = config_->kubernetes.aliases;
  kube::WatchHandler handler;
  handler.replaced = [this, aliases, alive = alive_](const std::vector<kube::Json>& items) {
    auto pods = std::make_shared<Pods>();
    for (const kube::Json& item : items) {
      PodRecord pod = ReadPodRecord(item, aliases);
      if (!pod.facts.containers.empty()) (*pods)[pod.facts.uid] = std::move(pod);
    }
    loop_->Post([this, alive, pods] {
      if (*alive) Replaced(std::move(*pods));
    });
  };
  handler.changed = [this, aliases, alive = alive_](kube::Change change, const kube::Json& object) {
    auto pod = std::make_shared<PodRecord>(ReadPodRecord(object, aliases));
    if (pod->facts.containers.empty()) return;  // asks for no units, which never changes
    loop_->Post([this, alive, change, pod] {
      if (*alive) Changed(change == kube::Change::kDeleted, std::move(*pod));
    });
  };
  handler.state = [this, alive = alive_](bool up, const std::string& why) {
    loop_->Post([this, alive, up, why] {
      if (*alive) Trouble("watching pods", up ? "" : why);
    });
  };
  return handler;
}

void Kubernetes::Replaced(Pods pods) {
  pods_ = std::move(pods);
  listed_ = true;
  std::erase_if(evicted_, [this](const std::string& uid) { return !pods_.contains(uid); });
  std::erase_if(refused_, [this](const auto& entry) { return !pods_.contains(entry.first); });
  Reconcile();
}

void Kubernetes::Changed(bool gone, PodRecord pod) {
  const std::string uid = pod.facts.uid;
  if (gone) {
    const auto old = pods_.find(uid);
    // It may never have come to be in the annotation.
    if (old != pods_.end() && !old->second.facts.placement.empty()) AnnotateAgain();
    pods_.erase(uid);
    evicted_.erase(uid);
    refused_.erase(uid);
  } else {
    pods_[uid] = std::move(pod);
  }
  Soon();
}

void Kubernetes::Trouble(const char* about, const std::string& text) {
  std::string& said = troubles_[about];
  if (said == text) return;
  said = text;
  node_->AddEvent("", "api server", std::string(about) + (text.empty() ? ": works again" : ": " + text));
}

void Kubernetes::Look() {
  Reconcile();
  loop_->After(kLookMs, [this, alive = alive_] {
    if (*alive) Look();
  });
}

void Kubernetes::Soon() {
  if (soon_) return;
  soon_ = true;
  loop_->After(kSoonMs, [this, alive = alive_] {
    if (!*alive) return;
    soon_ = false;
    Reconcile();
  });
}

void Kubernetes::Reconcile() {
  ReadCheckpoint();
  ReadPlugin();
  NameAllocations();
  if (listed_) {
    WriteReservations();
    const std::vector<CardStatus> cards = node_->Status().cards;
    // Before the cards are known the last agent's word stands.
    std::string value = cards.empty() ? annotation_ : NodeAnnotation(cards, given_, pods_, plugin_);
    if (value != annotation_) {
      annotation_ = std::move(value);
      Annotate();
      AnnotateAgain();
    }
  }
}

void Kubernetes::Annotate() { outbox_->Annotate(annotation_ + (spaced_ ? " " : "")); }

// A change of the node makes the scheduler ask the extender about the pods that wait, perhaps before the extender's own
// watch has shown it: the refused pod would wait for the next change, for minutes. So there is one more, which says the
// same.
void Kubernetes::AnnotateAgain() {
  loop_->After(kAgainMs, [this, alive = alive_, number = ++changes_] {
    if (!*alive || number != changes_ || annotation_.empty()) return;
    spaced_ = !spaced_;
    Annotate();
  });
}

void Kubernetes::ReadCheckpoint() {
  const std::string& folder = config_->kubernetes.kubelet_dir;
  // Adding a watch that is there changes nothing; one on a folder that was made anew is a new one.
  if (inotify_ >= 0) inotify_add_watch(inotify_, folder.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR);
  const std::string stamp = Stamp(folder + "/" + deviceplugin::kCheckpointName);
  if (stamp == checkpoint_stamp_) return;
  checkpoint_stamp_ = stamp;
  auto given = stamp.empty() ? GivenOut{} : deviceplugin::ReadCheckpoint(folder);
  Trouble("kubelet's checkpoint", given.ok() ? "" : std::string(given.status().message()));
  if (!given.ok()) return;  // what was read last stands
  given_ = *std::move(given);
  holders_.clear();
  for (const deviceplugin::CheckpointEntry& g : given_) holders_[AllocationOf(g)] = {g.pod_uid, g.container};
}

void Kubernetes::ReadPlugin() {
  const std::string path = run_dir_ + "/" + kPluginState;
  const std::string stamp = Stamp(path);
  if (stamp == plugin_stamp_) return;
  plugin_stamp_ = stamp;
  PluginCards now = ReadPluginState(ReadAll(path));
  for (const auto& [uuid, card] : now) {
    const auto old = plugin_.find(uuid);
    if (card.state == "healthy" || (old != plugin_.end() && old->second.detail == card.detail)) continue;
    outbox_->Tell({"Node", "", name_, name_, ""},
                  {true, card.state == "not-offered" ? "SluiceGpuNotOffered" : "SluiceGpuUnhealthy",
                   "GPU " + uuid + ": " + card.detail});
  }
  plugin_ = std::move(now);
}

void Kubernetes::NameAllocations() {
  for (const auto& [id, holder] : holders_) {
    const auto pod = pods_.find(holder.pod_uid);
    if (pod == pods_.end() || !node_->HasAllocation(id)) continue;
    const scheduler::PodFacts& facts = pod->second.facts;
    if (!pod->second.errors.empty()) {
      // What cannot be taken changes nothing; the webhook refuses it, where it is up.
      std::string& said = refused_[holder.pod_uid];
      if (said != pod->second.errors.front()) {
        said = pod->second.errors.front();
        outbox_->Tell(AboutPod(pod->second, ""), {true, "SluiceSettingRefused", said + "; what was set before holds"});
      }
      continue;
    }
    const auto settings = pod->second.settings.find(holder.container);
    node_->SetPod(id, {facts.name_space, facts.name, holder.container,
                       settings == pod->second.settings.end() ? settings::Settings{} : settings->second});
  }
  node_->Settle();
  std::vector<std::pair<std::string, Said>> waiting;
  waiting.swap(unnamed_);
  for (auto& [allocation, said] : waiting) Speak(allocation, said);
}

void Kubernetes::WriteReservations() {
  std::string text = Reservations(pods_);
  if (text == reservations_) return;
  const std::string path = run_dir_ + "/" SLUICE_RESERVATION_FILE, temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::trunc);
  out << text;
  out.close();
  const bool ok = out.good() && rename(temporary.c_str(), path.c_str()) == 0;
  Trouble("reservations", ok ? "" : path + " cannot be written");
  if (ok) reservations_ = std::move(text);
}

About Kubernetes::AboutPod(const PodRecord& pod, const std::string& container) const {
  return {"Pod", pod.facts.name_space, pod.facts.name, pod.facts.uid, container};
}

void Kubernetes::Speak(const std::string& allocation, const Said& said) {
  const auto holder = holders_.find(allocation);
  const auto pod = holder == holders_.end() ? pods_.end() : pods_.find(holder->second.pod_uid);
  if (pod != pods_.end()) {
    outbox_->Tell(AboutPod(pod->second, holder->second.container), said);
    if (said.reason == "SluiceNotHooked") Evict(allocation);
  } else if (node_->HasAllocation(allocation) && unnamed_.size() < kMaxUnnamed) {
    unnamed_.emplace_back(allocation, said);  // kubelet's checkpoint and the watch may be behind
  }
}

void Kubernetes::Saw(const Event& event) {
  const auto kind = Kinds().find(event.kind);
  if (kind == Kinds().end() || event.allocation.empty() || outbox_ == nullptr) return;
  Speak(event.allocation, {kind->second.warning, kind->second.reason, event.text});
}

// Deleted, not evicted through the API: a DELETE shows the policy the pod's node (charts/, policy.yaml).
void Kubernetes::Evict(const std::string& allocation) {
  if (config_->on_not_hooked != "evict") return;
  const Holder& holder = holders_.at(allocation);
  const PodRecord& pod = pods_.at(holder.pod_uid);
  if (!evicted_.insert(holder.pod_uid).second) return;
  outbox_->Tell(AboutPod(pod, holder.container),
                {true, "SluiceEvicted",
                 "a process of container " + holder.container +
                     " uses the GPU without the hook (attestation.on_not_hooked: evict); the pod is deleted"});
  outbox_->Remove(pod.facts.name_space, pod.facts.name, holder.pod_uid);
}

}  // namespace sluice::agent
