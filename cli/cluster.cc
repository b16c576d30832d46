#include "cli/cluster.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent.pb.h"
#include "cli/agent_connection.h"
#include "cli/installation.h"
#include "cli/json.h"
#include "cli/kubectl.h"
#include "cli/report.h"
#include "cli/views.h"
#include "common/command_line.h"
#include "common/settings/settings.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

struct Options {
  Kubectl kubectl;
  std::string context, kubeconfig, node, output = "text", space, pod, container;
  std::vector<std::string> assignments;
  bool once = false;
  double interval = 2;
};

// The answer of one node's agent, or the reason why there is none.
struct NodeAnswer {
  std::string node, pod, space, error;
  v1::Status status;
};

std::string TextAt(const Json& object, const char* pointer) {
  const Json::json_pointer path(pointer);
  return object.contains(path) && object[path].is_string() ? object[path].get<std::string>() : "";
}

int MetricsPort(const Json& pod) {
  for (const Json& c : pod["spec"]["containers"]) {
    for (const Json& p : c.value("ports", Json::array())) {
      if (p.value("name", "") == "metrics") return p.value("containerPort", 0);
    }
  }
  return 0;
}

bool ReadStatus(const std::string& text, v1::Status* status) {
  google::protobuf::util::JsonParseOptions newer;  // an agent of a later version may send more fields
  newer.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(text, status, newer).ok();
}

std::vector<NodeAnswer> Ask(const Options& o) {
  std::vector<NodeAnswer> out;
  const std::string selector = SelectorOf(o.kubectl, "node");
  const Json pods = o.kubectl.Get({"pods", "--all-namespaces", "-l", selector});
  for (const Json& pod : pods["items"]) {
    NodeAnswer a;
    a.node = TextAt(pod, "/spec/nodeName");
    a.pod = TextAt(pod, "/metadata/name");
    a.space = TextAt(pod, "/metadata/namespace");
    if (a.node.empty() || (!o.node.empty() && a.node != o.node) || pod["metadata"].contains("deletionTimestamp"))
      continue;
    const int port = MetricsPort(pod);
    const Kubectl::Answer answer = o.kubectl.Run(
        {"get", "--raw",
         "/api/v1/namespaces/" + a.space + "/pods/" + a.pod + ":" + std::to_string(port) + "/proxy/status.json"});
    if (!answer.ok()) {
      a.error = answer.Reason();
    } else if (!ReadStatus(answer.out, &a.status)) {
      a.error = "its answer is not understood: the agent has another version";
    }
    out.push_back(std::move(a));
  }
  if (out.empty()) {
    Fail(1, o.node.empty() ? "no agent runs in this cluster (pods with " + selector + "); is the chart installed?"
                           : "no agent runs on node '" + o.node + "'");
  }
  return out;
}

// All nodes in one status, for one table.
v1::Status Merged(const std::vector<NodeAnswer>& answers) {
  v1::Status all;
  for (const NodeAnswer& a : answers) {
    if (!a.error.empty()) continue;
    all.set_unix_ms(std::max(all.unix_ms(), a.status.unix_ms()));
    all.mutable_gpus()->MergeFrom(a.status.gpus());
    all.mutable_allocations()->MergeFrom(a.status.allocations());
  }
  return all;
}

void ShowErrors(const std::vector<NodeAnswer>& answers) {
  for (const NodeAnswer& a : answers) {
    if (!a.error.empty()) std::fprintf(stderr, "sluice: node %s: %s\n", a.node.c_str(), a.error.c_str());
  }
}

void PrintJson(const std::vector<NodeAnswer>& answers) {
  Json out = Json::array();
  for (const NodeAnswer& a : answers) {
    if (a.error.empty()) {
      out.push_back({{"node", a.node}, {"status", Json::parse(ToJson(a.status))}});
    } else {
      out.push_back({{"node", a.node}, {"error", a.error}});
    }
  }
  std::puts(out.dump(2).c_str());
}

void Status(const Options& o) {
  const std::vector<NodeAnswer> answers = Ask(o);
  if (o.output == "json") return PrintJson(answers);
  for (const NodeAnswer& a : answers) {
    std::printf("node %s\n%s\n", a.node.c_str(), a.error.empty() ? StatusText(a.status).c_str() : "");
  }
  ShowErrors(answers);
}

void Top(const Options& o) {
  const bool paint = !o.once && o.output == "text" && isatty(STDOUT_FILENO) == 1;
  v1::Status before;
  for (bool first = true;; first = false) {
    const std::vector<NodeAnswer> answers = Ask(o);
    const v1::Status now = Merged(answers);
    if (o.output == "json") {
      PrintJson(answers);
    } else {
      std::fputs(((paint ? "\x1b[H\x1b[2J" : "") + TopText(first ? nullptr : &before, now)).c_str(), stdout);
    }
    std::fflush(stdout);
    ShowErrors(answers);
    if (o.once) return;
    before = now;
    std::this_thread::sleep_for(std::chrono::duration<double>(o.interval));
  }
}

// Writes annotations of the pod, which the agent follows: RBAC, webhook and audit apply.
void Set(const Options& o) {
  std::vector<std::string> arguments = {"annotate", "--overwrite", "pod", o.pod};
  if (!o.space.empty()) arguments.insert(arguments.end(), {"-n", o.space});
  for (const std::string& a : o.assignments) {
    const size_t eq = a.find('=');
    const std::string key = a.substr(0, eq);
    const settings::Key* known = settings::Find(key);
    if (eq == std::string::npos || known == nullptr || !known->live) {
      Fail(2, "set: '" + a + "' is not accepted; accepted: key=value with one of " + settings::LiveNames());
    }
    settings::Settings unused;
    const std::string value = a.substr(eq + 1);
    if (const std::string error = settings::Set(unused, *known, value, key); !value.empty() && !error.empty())
      Fail(2, error);
    const std::string name = o.container.empty() ? SLUICE_DOMAIN "/" + key : key + "." SLUICE_DOMAIN "/" + o.container;
    arguments.push_back(value.empty() ? name + "-" : name + "=" + value);
  }
  const Kubectl::Answer answer = o.kubectl.Run(std::move(arguments));
  std::fputs(answer.out.c_str(), stdout);
  std::fputs(answer.error.c_str(), stderr);
  if (!answer.ok()) throw CLI::RuntimeError(1);
}

void Webhook(const Options& o, Report& report) {
  const Json found = o.kubectl.Get({"mutatingwebhookconfigurations"});
  for (const Json& c : found["items"]) {
    for (const Json& w : c.value("webhooks", Json::array())) {
      if (w.value("name", "") != "mutate.sluice.dev") continue;
      if (TextAt(w, "/clientConfig/caBundle").empty()) {
        return report.Bad("webhook: its configuration has no CA yet", "see the log of deployment sluice-webhook");
      }
      const std::string selector = SelectorOf(o.kubectl, "webhook");
      const Json pods = o.kubectl.Get({"pods", "--all-namespaces", "-l", selector});
      int ready = 0;
      for (const Json& pod : pods["items"]) {
        for (const Json& s : pod["status"].value("conditions", Json::array())) {
          ready += s.value("type", "") == "Ready" && s.value("status", "") == "True" ? 1 : 0;
        }
      }
      if (ready == 0) {
        return report.Bad("webhook: none of its pods is ready; pods that ask for a share are refused",
                          "kubectl get pods -A -l " + selector);
      }
      return report.Ok("webhook: registered, " + std::to_string(ready) + " pod(s) ready");
    }
  }
  report.Bad("webhook: not registered: annotations have no effect", "helm install, or helm status sluice");
}

// Compares the node's offer to the scheduler with its agent's GPUs.
void Node(const Options& o, const NodeAnswer& a, Report& report) {
  const std::string who = "node " + a.node + ": ";
  if (!a.error.empty()) return report.Bad(who + a.error, "kubectl -n " + a.space + " logs " + a.pod + " -c agent");
  const Json node = o.kubectl.Get({"node", a.node});
  const std::string units = TextAt(node, "/status/allocatable/sluice.dev~1gpu-percent");
  const std::string plugin_log = "kubectl -n " + a.space + " logs " + a.pod + " -c device-plugin";
  const std::string& problem = a.status.offer_problem();
  if (a.status.gpus().empty() && problem.empty()) {
    report.Ok(who + "no GPU");
  } else if (units.empty() || units == "0") {
    report.Bad(who + (a.status.gpus().empty() ? "" : std::to_string(a.status.gpus_size()) + " GPU(s), and ") +
                   "no " SLUICE_RESOURCE " is offered" + (problem.empty() ? "" : ": " + problem),
               plugin_log);
  } else {
    report.Ok(who + std::to_string(a.status.gpus_size()) + " GPU(s), " + units + " units offered, " +
              std::to_string(a.status.allocations_size()) + " container(s)");
    if (!problem.empty()) report.Warn(who + "not offered: " + problem, plugin_log);
  }
  if (TextAt(node, "/metadata/annotations/sluice.dev~1gpus").empty()) {
    report.Bad(who + "no annotation " SLUICE_NODE_ANNOTATION_GPUS ": gpu-memory and the extender do not know its GPUs",
               "kubectl -n " + a.space + " logs " + a.pod + " -c agent | grep 'api server'");
  }
  if (a.status.agent_version() != SLUICE_VERSION) {
    report.Bad(who + "agent " + a.status.agent_version() + ", this tool " SLUICE_VERSION,
               "finish the upgrade, or use the tool of that version");
  }
  if (!a.status.config_error().empty())
    report.Bad(who + "its agent refuses its configuration", "kubectl -n " + a.space + " logs " + a.pod + " -c agent");
  for (const v1::AllocationStatus& allocation : a.status.allocations()) {
    const std::string name = allocation.namespace_() + "/" + allocation.pod() + "/" + allocation.container();
    if (allocation.hook_state() == "not hooked") {
      report.Bad(who + name + " uses the GPU without the hook",
                 "is LD_PRELOAD kept, is the program dynamically linked? kubectl describe pod shows since when");
    }
    if (allocation.hook_state() == "refused") {
      report.Bad(who + name + " has a hook that the agent refuses",
                 "restart the container after the upgrade; kubectl describe pod");
    }
  }
}

// Pods that wait for a share or were refused, with the reason.
void Placement(const Options& o, Report& report) {
  const Kubectl::Answer pods = o.kubectl.Run({"get", "pods", "--all-namespaces", "-o", "json"});
  const Kubectl::Answer nodes = o.kubectl.Run({"get", "nodes", "-o", "json"});
  for (const Kubectl::Answer& a : {pods, nodes}) {
    if (!a.ok()) return report.Skip("placement: " + a.Reason() + "; not checked");
  }
  report.Add(JudgePlacement(pods.out, nodes.out, std::time(nullptr)));
}

void Doctor(const Options& o) {
  Report report;
  Webhook(o, report);
  Placement(o, report);
  for (const NodeAnswer& a : Ask(o)) Node(o, a, report);
  throw CLI::RuntimeError(report.bad() ? 1 : 0);
}

void AddOutput(CLI::App& command, Options* o) {
  command.add_option("-o,--output", o->output, "text or json")->check([](const std::string& v) -> std::string {
    return v == "text" || v == "json" ? "" : "'" + v + "' is not accepted; accepted: text, json";
  });
}

CLI::App* Add(CLI::App& app, const std::shared_ptr<Options>& o, const char* name, const char* help,
              void (*work)(const Options&)) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("--context", o->context, "kubectl's");
  command->add_option("--kubeconfig", o->kubeconfig, "kubectl's");
  command->callback([o, work] {
    if (!o->context.empty()) o->kubectl.global()->push_back("--context=" + o->context);
    if (!o->kubeconfig.empty()) o->kubectl.global()->push_back("--kubeconfig=" + o->kubeconfig);
    work(*o);
  });
  return command;
}

}  // namespace

void AddClusterCommands(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* top = Add(app, o, "top", "containers of all nodes, the most stalled first", Top);
  CLI::App* status = Add(app, o, "status", "the status of each node's agent", Status);
  CLI::App* doctor =
      Add(app, o, "doctor", "check webhook, placement, nodes and agents, and say how to fix them", Doctor);
  CLI::App* set = Add(app, o, "set", "change settings of a running pod, as its annotations: set POD key=value...", Set);
  for (CLI::App* command : {top, status, doctor}) command->add_option("--node", o->node, "this node only");
  AddOutput(*top, o.get());
  AddOutput(*status, o.get());
  top->add_flag("--once", o->once, "print one table and end");
  top->add_option("--interval", o->interval, "seconds between tables")
      ->check(Between(0.5, 60.0))
      ->capture_default_str();
  set->add_option("-n,--namespace", o->space, "the pod's");
  set->add_option("-c,--container", o->container, "this container only");
  set->add_option("POD", o->pod, "the pod")->required();
  set->add_option("key=value", o->assignments, settings::LiveNames() + "; an empty value removes it")->required();
}

}  // namespace sluice::cli
