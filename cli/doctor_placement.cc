#include "cli/doctor_placement.h"

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

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

void JudgePods(const Json& pods, long now, std::vector<Finding>& out) {
  std::map<std::string, Names> waiting, unseen, refused;  // by reason; `unseen` by scheduler
  std::size_t placed = 0;
  for (const Json& pod : At(pods, "/items")) {
    if (!AsksForUnits(pod)) continue;
    const std::string phase = Text(pod, "/status/phase");
    const std::string message = Text(pod, "/status/message");
    if (phase == "Failed" && message.find(SLUICE_REFUSAL) != std::string::npos) {
      refused[message.substr(message.find(SLUICE_REFUSAL))].Add(NameOf(pod));
    } else if (!Text(pod, "/spec/nodeName").empty()) {
      ++placed;
    } else if (AgeOf(pod, now) >= kMinWaitSeconds) {
      const std::string why = WhyUnscheduled(pod);
      if (why.empty()) {
        unseen[Text(pod, "/spec/schedulerName")].Add(NameOf(pod));
      } else {
        waiting[why].Add(NameOf(pod));
      }
    }
  }
  for (const auto& [why, names] : waiting) {
    out.push_back({Finding::kWarn,
                   "placement: " + Plural(names.count(), "pod") + " waiting (" + names.Text() + "): " + why,
                   // The API server tolerates only a taint whose key is the requested resource.
                   why.find("untolerated taint") != std::string::npos
                       ? "give the pods a toleration of that taint (docs/operate/install.md, Taints), or free units"
                       : "free units, add a GPU, or ask for less; docs/design/placement.md explains the reasons"});
  }
  for (const auto& [scheduler, names] : unseen) {
    out.push_back({Finding::kBad,
                   "placement: no scheduler has looked at " + Plural(names.count(), "pod") + " (" + names.Text() +
                       ") whose schedulerName is \"" + scheduler + "\"",
                   "is that scheduler running? kubectl get pods -A -l app.kubernetes.io/component=scheduler"});
  }
  for (const auto& [why, names] : refused) {
    out.push_back({Finding::kBad,
                   "placement: " + Plural(names.count(), "pod") + " refused by its node (" + names.Text() + "): " + why,
                   "delete them so that they are placed anew; with the extender (scheduler.mode=own in the chart) pods "
                   "are bound only "
                   "where a card can hold them"});
  }
  if (waiting.empty() && unseen.empty() && refused.empty()) {
    out.push_back({Finding::kOk,
                   "placement: " + Plural(placed, "pod") + " with a fraction placed, none waits, none was refused",
                   ""});
  }
}

void JudgeNodes(const Json& nodes, std::vector<Finding>& out) {
  Names silent, unreadable;
  for (const Json& node : At(nodes, "/items")) {
    const std::string units = Text(node, "/status/allocatable/sluice.dev~1gpu-percent");
    if (units.empty() || units == "0") continue;
    const Json& cards = At(node, "/metadata/annotations/sluice.dev~1gpus");
    if (!cards.is_string()) {
      silent.Add(Text(node, "/metadata/name"));
    } else if (!Json::parse(cards.get_ref<const std::string&>(), nullptr, false).is_array()) {
      unreadable.Add(Text(node, "/metadata/name"));
    }
  }
  if (silent.count() > 0) {
    out.push_back({Finding::kWarn,
                   "placement: " + Plural(silent.count(), "node") + " offering units without the annotation " +
                       SLUICE_NODE_ANNOTATION_GPUS + " (" + silent.Text() + "): the extender places nothing there",
                   "see the log of the agent there; it writes the annotation"});
  }
  if (unreadable.count() > 0) {
    out.push_back({Finding::kBad,
                   "placement: the annotation " SLUICE_NODE_ANNOTATION_GPUS " of " +
                       Plural(unreadable.count(), "node") + " (" + unreadable.Text() + ") is no list of cards",
                   "remove it; the agent writes it anew"});
  }
}

}  // namespace

std::vector<Finding> JudgePlacement(const std::string& pods, const std::string& nodes, long now) {
  std::vector<Finding> out;
  JudgeNodes(Json::parse(nodes, nullptr, /*allow_exceptions=*/false), out);
  JudgePods(Json::parse(pods, nullptr, /*allow_exceptions=*/false), now, out);
  return out;
}

}  // namespace sluice::cli
