#include "scheduler/extender/extender.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/snapshot.h"
#include "scheduler/extender/extender_args.h"
#include "scheduler/extender/node_scores.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

Reply BadRequest(const std::string& why) { return {400, Json{{"Error", why}}.dump()}; }

std::string ScoreList(const std::vector<std::string_view>& nodes, const std::vector<int>& scores) {
  std::string list = "[";
  for (std::size_t i = 0; i < scores.size(); ++i) {
    list += i == 0 ? "{\"Host\":" : ",{\"Host\":";
    AppendJsonString(nodes[i], list);
    absl::StrAppend(&list, ",\"Score\":", scores[i], "}");
  }
  return list + ']';
}

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

void Extender::Count(Call call, bool refused) {
  const MutexLock lock(counts_mutex_);
  ++calls_[call];
  refusals_[call] += refused;
}

Reply Extender::Filter(const std::string& body) {
  const auto args = ReadExtenderArgs(body);
  if (!args.ok()) return BadRequest(std::string(args.status().message()));
  // With an incomplete view a refusal would be wrong. After an error the scheduler tries again.
  if (!cluster_.Synced()) return {200, Json{{"Error", "sluice-extender has not read the cluster yet"}}.dump()};
  if (!MayBePlaced(args->pod)) {
    return {200, Json{{"Error", absl::StrCat("pod ", args->pod.FullName(), ": a binding of it is under way")}}.dump()};
  }
  const FilterResult result = cluster_.Filter(args->pod, args->nodes);
  Count(kFilter, result.fitting == 0);
  // Written by hand, like the list below: the documents have a thousand members.
  std::string fitting = "{\"NodeNames\":[", failed = "],\"FailedNodes\":{";
  fitting.reserve(body.size());
  for (std::size_t i = 0; i < args->nodes.size(); ++i) {
    const int reason = result.reason_index[i];
    std::string& out = reason == FilterResult::kFits ? fitting : failed;
    if (out.back() == '"') out += ',';
    AppendJsonString(args->nodes[i], out);
    if (reason == FilterResult::kFits) continue;
    out += ':';
    AppendJsonString(result.reasons[reason], out);
  }
  return {200, absl::StrCat(fitting, failed, "}}")};
}

// Guards against placing a pod twice. If the scheduler missed the answer to a bind and its own watch is late, it asks
// again about a pod that is being bound or is bound. A second placement would leave the pod with two reservations, or
// drop a valid one.
bool Extender::MayBePlaced(const PodFacts& pod) {
  const Binding binding = cluster_.BindingOf(pod.uid);
  if (binding == Binding::kNone) return true;
  if (binding != Binding::kUnknown && binding != Binding::kForeign) return false;
  absl::StatusOr<PodFacts> now = binder_.Get(pod.name_space, pod.name);
  if (!now.ok() && !absl::IsNotFound(now.status())) return false;
  if (now.ok() && now->uid == pod.uid && !now->node.empty()) {
    cluster_.PutPod(*std::move(now));
    return false;
  }
  cluster_.Release(pod.uid);
  return true;
}

absl::StatusOr<PodFacts> Extender::KnownPod(const std::string& name_space, const std::string& name,
                                            const std::string& uid) {
  if (std::optional<PodFacts> known = cluster_.FindPod(uid)) return *std::move(known);
  absl::StatusOr<PodFacts> fetched = binder_.Get(name_space, name);
  if (fetched.ok() && fetched->uid != uid) {
    return absl::NotFoundError(absl::StrCat("pod ", name_space, "/", name, " is another one now"));
  }
  return fetched;
}

Reply Extender::Prioritize(const std::string& body) {
  const auto args = ReadExtenderArgs(body);
  if (!args.ok()) return BadRequest(std::string(args.status().message()));
  Count(kPrioritize, false);
  return {200, ScoreList(args->nodes, cluster_.Prioritize(args->pod, args->nodes))};
}

Reply Extender::PrioritizeAny(const std::string& body) {
  const auto args = ReadExtenderArgs(body);
  if (!args.ok()) return BadRequest(std::string(args.status().message()));
  const std::vector<int> scores = ScoresForAny(*args);
  if (!scores.empty()) Count(kPrioritizeAny, false);
  return {200, ScoreList(args->nodes, scores)};
}

std::vector<int> Extender::ScoresForAny(const ExtenderArgs& args) {
  if (claims_ != nullptr && !args.claims.empty()) {
    for (const std::string& key : claims_->UnknownOf(args.claims)) {
      if (auto claim = binder_.GetClaim(key); claim.ok()) claims_->PutUnknown(*std::move(claim));
    }
    return claims_->Prioritize(args.pod, args.claims, args.nodes);
  }
  if (!other_pods_ || !args.pod.containers.empty() || !args.claims.keys.empty() || !cluster_.Synced()) return {};
  std::vector<double> raw = cluster_.RateHost(args.pod, args.nodes);
  if (claims_ != nullptr) claims_->RateHost(args.pod, args.nodes, raw);
  return EvenScoresOf(raw);
}

Reply Extender::Bind(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadRequest("the body is no JSON object");
  const std::string name_space = TextOf(json, "PodNamespace"), name = TextOf(json, "PodName"),
                    uid = TextOf(json, "PodUID"), node = TextOf(json, "Node");
  if (name_space.empty() || name.empty() || uid.empty() || node.empty()) {
    return BadRequest("PodName, PodNamespace, PodUID and Node are needed");
  }
  const absl::Status status = BindPod(name_space, name, uid, node);
  Count(kBind, !status.ok());
  return {200, Json{{"Error", std::string(status.message())}}.dump()};
}

absl::Status Extender::BindPod(const std::string& name_space, const std::string& name, const std::string& uid,
                               const std::string& node) {
  const absl::StatusOr<PodFacts> pod = KnownPod(name_space, name, uid);
  if (!pod.ok()) return pod.status();
  if (!pod->node.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("pod ", pod->FullName(), " is bound to ", pod->node, " already"));
  }
  std::map<std::string, std::string> annotations;
  if (!pod->containers.empty()) {
    absl::StatusOr<ContainerCards> placement = cluster_.Reserve(*pod, node);
    if (!placement.ok()) return placement.status();
    annotations[SLUICE_DOMAIN "/" SLUICE_KEY_PLACEMENT] = FormatPlacement(*placement);
  }
  const absl::Status status = binder_.Bind(*pod, node, annotations);
  if (status.ok()) {
    cluster_.Report(uid, Binding::kDone);
  } else if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    // The outcome is unknown, so the cards stay reserved until the watch shows the pod or the scheduler asks again.
    cluster_.Report(uid, Binding::kUnknown);
  } else {
    cluster_.Release(uid);
  }
  return status;
}

std::string Extender::Metrics() const {
  const ClusterFigures figures = cluster_.Figures();
  metrics::Snapshot out;
  const auto gauge = [&out](const char* name, const char* help, double value) { out.Gauge(name, help, {}, value); };
  gauge("sluice_extender_nodes", "Nodes known.", figures.nodes);
  gauge("sluice_extender_nodes_without_cards", "Nodes without a readable list of cards.", figures.nodes_without_cards);
  gauge("sluice_extender_cards", "GPUs known.", figures.cards);
  gauge("sluice_extender_free_gpus", "Free GPUs, parts of GPUs summed.", figures.free_cards);
  gauge("sluice_extender_fragmented_gpus", "Free GPUs that a request of the usual mix cannot use, in expectation.",
        figures.fragment_cards);
  gauge("sluice_extender_reserved_pods", "Pods whose binding is under way.", figures.reserved_pods);
  if (claims_ != nullptr) {
    const ClaimFigures claims = claims_->Figures();
    gauge("sluice_extender_claim_cards", "GPUs that ResourceSlices offer.", claims.cards);
    gauge("sluice_extender_claim_free_gpus", "Free GPUs of these, parts of GPUs summed.", claims.free_cards);
    gauge("sluice_extender_allocated_claims", "ResourceClaims that hold a GPU.", claims.allocated_claims);
  }
  constexpr const char* kNames[kCalls] = {"filter", "prioritize",        "prioritize-any",
                                          "bind",   "volcano-predicate", "volcano-allocate"};
  const MutexLock lock(counts_mutex_);
  for (int call = 0; call < kCalls; ++call) {
    const metrics::Labels labels = {{"call", kNames[call]}};
    out.Counter("sluice_extender_calls_total", "Calls by the scheduler.", labels, static_cast<double>(calls_[call]));
    out.Counter("sluice_extender_refusals_total", "Calls that found no node, or failed.", labels,
                static_cast<double>(refusals_[call]));
  }
  return out.Text();
}

}  // namespace sluice::scheduler
