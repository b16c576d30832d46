#include "cli/cluster_doctor.h"

#include <algorithm>
#include <ctime>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/agent_connection.h"
#include "cli/cluster_agents.h"
#include "cli/doctor_dra.h"
#include "cli/doctor_processes.h"
#include "cli/report.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

// A node's offer to the scheduler.
struct Offer {
  std::string units;  // empty: none
  bool is_annotated = false;
  std::optional<bool> driver_ready = {};  // of its DRA driver; nullopt: it runs none
};
using Offers = std::map<std::string, Offer>;  // by node

void ReportWebhook(ClusterReader& cluster, Report& report) {
  const auto found = FindRegistrations(cluster);
  if (!found.ok()) Fail(1, std::string(found.status().message()));
  if (found->empty()) {
    return report.Bad("webhook: not registered: annotations have no effect", "helm install, or helm status sluice");
  }
  const Json& registration = found->front();
  for (const Json& webhook : registration["webhooks"]) {
    if (webhook.value("name", "") == "mutate.sluice.dev" && TextAt(webhook, "/clientConfig/caBundle").empty()) {
      return report.Bad("webhook: its configuration has no CA yet", "see the log of deployment sluice-webhook");
    }
  }
  int ready = 0;
  const auto count = [&](const Json& pod) {
    const Json::json_pointer conditions("/status/conditions");
    if (!pod.contains(conditions)) return;
    for (const Json& condition : pod[conditions]) {
      ready += condition.value("type", "") == "Ready" && condition.value("status", "") == "True" ? 1 : 0;
    }
  };
  const absl::Status read = cluster.Read(PodList(PodsOf(NameOf(registration), "webhook")), {[&] { ready = 0; }, count});
  if (!read.ok()) Fail(1, std::string(read.message()));
  if (ready == 0) {
    return report.Bad("webhook: none of its pods is ready; pods that ask for a share are refused",
                      "kubectl get pods -A -l app.kubernetes.io/component=webhook");
  }
  report.Ok("webhook: registered, " + std::to_string(ready) + " pod(s) ready");
}

// Reports the node's offer by DRA. True: the node offers nothing else.
bool ReportDra(const NodeAnswer& a, const Offer& offer, const DraCheck& dra, Report& report) {
  DraNode node{
      a.node, {}, offer.units, offer.driver_ready, "kubectl -n " + a.space + " logs " + a.pod + " -c dra-driver"};
  for (const v1::Gpu& gpu : a.status.gpus()) node.gpus.push_back(gpu.uuid());
  const std::vector<Finding> findings = dra.Judge(node);
  report.Add(findings);
  return offer.driver_ready.has_value() && !findings.empty();
}

// Compares the node's offer to the scheduler with its agent's GPUs.
void ReportNode(const NodeAnswer& a, const std::optional<Offers>& offers, const DraCheck& dra, Report& report) {
  const std::string who = "node " + a.node + ": ";
  if (!a.error.empty()) return report.Bad(who + a.error, "kubectl -n " + a.space + " logs " + a.pod + " -c agent");
  Offer offer;
  if (offers) {
    if (const auto found = offers->find(a.node); found != offers->end()) offer = found->second;
  }
  const std::string& units = offer.units;
  const std::string plugin_log = "kubectl -n " + a.space + " logs " + a.pod + " -c " +
                                 (offer.driver_ready.has_value() ? "dra-driver" : "device-plugin");
  const std::string& problem = a.status.offer_problem();
  const bool by_claims = ReportDra(a, offer, dra, report);
  if (by_claims) {
    if (!problem.empty()) report.Warn(who + "not offered: " + problem, plugin_log);
  } else if (a.status.gpus().empty() && problem.empty()) {
    report.Ok(who + "no GPU");
  } else if (!offers) {
    report.Skip(who + "its offer to the scheduler is not checked");
  } else if (units.empty() || units == "0") {
    report.Bad(who + (a.status.gpus().empty() ? "" : std::to_string(a.status.gpus_size()) + " GPU(s), and ") +
                   "no " SLUICE_RESOURCE " is offered" + (problem.empty() ? "" : ": " + problem),
               plugin_log);
  } else {
    report.Ok(who + std::to_string(a.status.gpus_size()) + " GPU(s), " + units + " units offered, " +
              std::to_string(a.status.allocations_size()) + " container(s)");
    if (!problem.empty()) report.Warn(who + "not offered: " + problem, plugin_log);
  }
  if (offers && !offer.is_annotated) {
    report.Bad(who + "no annotation " SLUICE_NODE_ANNOTATION_GPUS ": gpu-memory and the extender do not know its GPUs",
               "kubectl -n " + a.space + " logs " + a.pod + " -c agent | grep 'api server'");
  }
  if (a.status.agent_version() != SLUICE_VERSION) {
    report.Bad(who + "agent " + a.status.agent_version() + ", this tool " SLUICE_VERSION,
               "finish the upgrade, or use the tool of that version");
  }
  if (!a.status.config_error().empty())
    report.Bad(who + "its agent refuses its configuration", "kubectl -n " + a.space + " logs " + a.pod + " -c agent");
  for (const v1::Gpu& gpu : a.status.gpus()) report.Add(JudgeCgroup(who, gpu));
  for (const v1::AllocationStatus& allocation : a.status.allocations()) {
    const std::string name = allocation.namespace_() + "/" + allocation.pod() + "/" + allocation.container();
    if (allocation.hook_state() == "not hooked") {
      report.Bad(who + name + " uses the GPU without the hook",
                 "is LD_PRELOAD kept, is the program dynamically linked? kubectl describe pod shows since when");
    }
    if (allocation.hook_state() == "unproven") {
      report.Warn(who + name + " has a hook whose counters disagree with the GPU driver",
                  "kubectl describe pod shows the reason (SluiceUnproven)");
    }
    if (allocation.hook_state() == "refused") {
      report.Bad(who + name + " has a hook that the agent refuses",
                 "restart the container after the upgrade; kubectl describe pod");
    }
    report.Add(JudgeNewerEntries(who + name, allocation));
    report.Add(JudgeSize(who + name, allocation));
  }
}

// Reads all nodes and pods at the same time. Reports pods that wait for a share or were refused, with the reason.
// Returns the nodes' offers; nullopt: nodes may not be read.
std::optional<Offers> ReportPlacement(const ClusterReader& cluster, Report& report) {
  PlacementCheck check(std::time(nullptr));
  Offers offers;
  std::map<std::string, bool> drivers;  // whether the DRA driver of a node is ready
  const auto add_pod = [&](const Json& pod) {
    check.AddPod(pod);
    if (TextAt(pod, "/metadata/labels/app.kubernetes.io~1component") != "node") return;
    const Json::json_pointer statuses("/status/containerStatuses");
    if (!pod.contains(statuses) || !pod[statuses].is_array()) return;
    for (const Json& container : pod[statuses]) {
      if (TextAt(container, "/name") == "dra-driver")
        drivers[TextAt(pod, "/spec/nodeName")] = container.value("ready", false);
    }
  };
  const auto add_node = [&](const Json& node) {
    offers[TextAt(node, "/metadata/name")] = {TextAt(node, "/status/allocatable/sluice.dev~1gpu-percent"),
                                              !TextAt(node, "/metadata/annotations/sluice.dev~1gpus").empty()};
    check.AddNode(node);
  };
  const auto forget_nodes = [&] {
    offers.clear();
    check.ClearNodes();
  };
  auto nodes = std::async(std::launch::async, [&] { return cluster.Read(NodeList(), {forget_nodes, add_node}); });
  const absl::Status pods_read = cluster.Read(PodList(), {[&] {
                                                            check.ClearPods();
                                                            drivers.clear();
                                                          },
                                                          add_pod});
  const absl::Status nodes_read = nodes.get();
  for (const absl::Status& status : {pods_read, nodes_read}) {
    if (status.ok()) continue;
    report.Skip("placement: " + std::string(status.message()) + "; not checked");
    return nodes_read.ok() ? std::optional(offers) : std::nullopt;
  }
  report.Add(check.Findings());
  for (const auto& [node, ready] : drivers) offers[node].driver_ready = ready;
  return offers;
}

// Clusters before Kubernetes 1.34 have no such objects. Where a driver runs, they must be readable.
void ReadDra(const ClusterReader& cluster, const std::optional<Offers>& offers, DraCheck& dra, Report& report) {
  const bool has_driver =
      offers && std::ranges::any_of(*offers, [](const auto& o) { return o.second.driver_ready.has_value(); });
  bool has_slices = false;
  const auto add_slice = [&](const Json& slice) {
    has_slices |= TextAt(slice, "/spec/driver") == SLUICE_DOMAIN;
    dra.AddSlice(slice);
  };
  absl::Status read = cluster.Read(SliceList(), {[&] { dra.ClearSlices(); }, add_slice});
  if (read.ok() && (has_slices || has_driver)) {
    read = cluster.Read(ClaimList(), {[&] { dra.ClearClaims(); }, [&](const Json& claim) { dra.AddClaim(claim); }});
  }
  if (!read.ok() && has_driver) report.Skip("DRA: " + std::string(read.message()) + "; not checked");
}

}  // namespace

bool ExamineCluster(ClusterReader& cluster, const std::string& node) {
  Report report;
  ReportWebhook(cluster, report);
  const std::optional<Offers> offers = ReportPlacement(cluster, report);
  DraCheck dra;
  ReadDra(cluster, offers, dra, report);
  for (const NodeAnswer& answer : AskAgents(cluster, node)) ReportNode(answer, offers, dra, report);
  return !report.bad();
}

}  // namespace sluice::cli
