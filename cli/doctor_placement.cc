#include "cli/doctor_placement.h"

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/placement_room.h"
#include "sluice/names.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

constexpr long kMinWaitSeconds = 30;
constexpr std::size_t kMaxNames = 5;  // pods or nodes named in a line; the others are counted

const Json& At(const Json& object, const char* pointer) {
  static const Json kNull;
  const Json::json_pointer path(pointer);
  return object.contains(path) ? object.at(path) : kNull;
}

std::string Text(const Json& object, const char* pointer) {
  const Json& value = At(object, pointer);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string NameOf(const Json& pod) { return Text(pod, "/metadata/namespace") + "/" + Text(pod, "/metadata/name"); }

bool AsksForUnits(const Json& pod) {
  for (const char* list : {"/spec/initContainers", "/spec/containers"}) {
    for (const Json& container : At(pod, list)) {
      if (!At(container, "/resources/limits/sluice.dev~1gpu-percent").is_null()) return true;
    }
  }
  return false;
}

long AgeOf(const Json& pod, long now) {
  std::tm time{};
  const std::string made = Text(pod, "/metadata/creationTimestamp");
  return strptime(made.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time) == nullptr ? now : now - timegm(&time);
}

// The scheduler's message about a waiting pod, which contains the extender's.
std::string WhyUnscheduled(const Json& pod) {
  for (const Json& condition : At(pod, "/status/conditions")) {
    if (Text(condition, "/type") == "PodScheduled" && Text(condition, "/status") == "False") {
      return Text(condition, "/message");
    }
  }
  return "";
}

class Names {
 public:
  void Add(const std::string& name) {
    ++count_;
    if (count_ <= kMaxNames) text_ += (count_ == 1 ? "" : ", ") + name;
  }
  std::size_t count() const { return count_; }
  std::string Text() const {
    return count_ > kMaxNames ? text_ + " and " + std::to_string(count_ - kMaxNames) + " more" : text_;
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

std::string Plural(std::size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

struct PlacementCheck::Pods {
  std::map<std::string, Names> waiting, unseen, refused;  // by reason; `unseen` by scheduler
  std::size_t placed = 0;
  PlacementDemand demand;
};

struct PlacementCheck::Nodes {
  Names silent, unreadable;
  PlacementRoom room;
};

PlacementCheck::PlacementCheck(long now)
    : now_(now), pods_(std::make_unique<Pods>()), nodes_(std::make_unique<Nodes>()) {}
PlacementCheck::~PlacementCheck() = default;

void PlacementCheck::ClearNodes() { *nodes_ = {}; }
void PlacementCheck::ClearPods() { *pods_ = {}; }

void PlacementCheck::AddPod(const Json& pod) {
  if (!AsksForUnits(pod)) return;
  const std::string phase = Text(pod, "/status/phase");
  const std::string message = Text(pod, "/status/message");
  if (phase == "Failed" && message.find(SLUICE_REFUSAL) != std::string::npos) {
    pods_->refused[message.substr(message.find(SLUICE_REFUSAL))].Add(NameOf(pod));
    pods_->demand.AddUnplaced(pod);
  } else if (!Text(pod, "/spec/nodeName").empty()) {
    ++pods_->placed;
    pods_->demand.AddPlaced(pod);
  } else if (AgeOf(pod, now_) >= kMinWaitSeconds) {
    const std::string why = WhyUnscheduled(pod);
    if (why.empty()) {
      pods_->unseen[Text(pod, "/spec/schedulerName")].Add(NameOf(pod));
    } else {
      pods_->waiting[why].Add(NameOf(pod));
      pods_->demand.AddUnplaced(pod);
    }
  }
}

void PlacementCheck::AddNode(const Json& node) {
  const std::string units = Text(node, "/status/allocatable/sluice.dev~1gpu-percent");
  if (units.empty() || units == "0") return;
  const Json& cards = At(node, "/metadata/annotations/sluice.dev~1gpus");
  if (!cards.is_string()) {
    nodes_->silent.Add(Text(node, "/metadata/name"));
  } else if (!Json::parse(cards.get_ref<const std::string&>(), nullptr, false).is_array()) {
    nodes_->unreadable.Add(Text(node, "/metadata/name"));
  } else {
    nodes_->room.Add(node);
  }
}

std::vector<Finding> PlacementCheck::Findings() const {
  std::vector<Finding> out;
  if (const Names& silent = nodes_->silent; silent.count() > 0) {
    out.push_back({Finding::kWarn,
                   "placement: " + Plural(silent.count(), "node") + " offering units without the annotation " +
                       SLUICE_NODE_ANNOTATION_GPUS + " (" + silent.Text() + "): the extender places nothing there",
                   "see the log of the agent there; it writes the annotation"});
  }
  if (const Names& unreadable = nodes_->unreadable; unreadable.count() > 0) {
    out.push_back({Finding::kBad,
                   "placement: the annotation " SLUICE_NODE_ANNOTATION_GPUS " of " +
                       Plural(unreadable.count(), "node") + " (" + unreadable.Text() + ") is no list of cards",
                   "remove it; the agent writes it anew"});
  }
  for (const auto& [why, names] : pods_->waiting) {
    out.push_back({Finding::kWarn,
                   "placement: " + Plural(names.count(), "pod") + " waiting (" + names.Text() + "): " + why,
                   // The API server tolerates only a taint whose key is the requested resource.
                   why.find("untolerated taint") != std::string::npos
                       ? "give the pods a toleration of that taint (docs/operate/install.md, Taints), or free units"
                       : "free units, add a GPU, or ask for less; docs/design/placement.md explains the reasons"});
  }
  for (const auto& [scheduler, names] : pods_->unseen) {
    out.push_back({Finding::kBad,
                   "placement: no scheduler has looked at " + Plural(names.count(), "pod") + " (" + names.Text() +
                       ") whose schedulerName is \"" + scheduler + "\"",
                   "is that scheduler running? kubectl get pods -A -l app.kubernetes.io/component=scheduler"});
  }
  for (const auto& [why, names] : pods_->refused) {
    out.push_back({Finding::kBad,
                   "placement: " + Plural(names.count(), "pod") + " refused by its node (" + names.Text() + "): " + why,
                   "delete them so that they are placed anew; with the extender (scheduler.mode=own in the chart) pods "
                   "are bound only "
                   "where a card can hold them"});
  }
  for (const SplitRoom& split : FindSplitRoom(pods_->demand, nodes_->room)) {
    Names names;
    for (const std::string& pod : split.pods) names.Add(pod);
    out.push_back({Finding::kWarn,
                   "placement: the sum fits, no card fits: " + Plural(names.count(), "pod") + " (" + names.Text() +
                       ") of " + std::to_string(split.units) + " units; node " + split.node + " has " +
                       std::to_string(split.sum_free) + " units free in all, but " + split.why,
                   "queues and cluster autoscalers count sums, so none adds a node: ask for less, add a node by hand, "
                   "or end a container so that one card gets free"});
  }
  if (pods_->waiting.empty() && pods_->unseen.empty() && pods_->refused.empty()) {
    out.push_back(
        {Finding::kOk,
         "placement: " + Plural(pods_->placed, "pod") + " with a fraction placed, none waits, none was refused", ""});
  }
  return out;
}

std::vector<Finding> JudgePlacement(const std::string& pods, const std::string& nodes, long now) {
  PlacementCheck check(now);
  const Json node_list = Json::parse(nodes, nullptr, /*allow_exceptions=*/false);
  const Json pod_list = Json::parse(pods, nullptr, /*allow_exceptions=*/false);
  for (const Json& node : At(node_list, "/items")) check.AddNode(node);
  for (const Json& pod : At(pod_list, "/items")) check.AddPod(pod);
  return check.Findings();
}

}  // namespace sluice::cli
