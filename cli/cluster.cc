#include "cli/cluster.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent.pb.h"
#include "cli/agent_connection.h"
#include "cli/cluster_agents.h"
#include "cli/cluster_doctor.h"
#include "cli/cluster_reader.h"
#include "cli/json.h"
#include "cli/kubectl.h"
#include "cli/text.h"
#include "cli/views.h"
#include "common/command_line.h"
#include "common/settings/settings.h"
#include "sluice/names.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

struct Options {
  Kubectl kubectl;
  std::string context, kubeconfig, node, output = "text", space, pod, container;
  std::vector<std::string> assignments;
  bool once = false;
  double interval = 2, timeout = 30;
};

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
  ClusterReader cluster(o.kubectl);
  const std::vector<NodeAnswer> answers = AskAgents(cluster, o.node);
  if (o.output == "json") return PrintJson(answers);
  for (const NodeAnswer& a : answers) {
    std::printf("node %s\n%s\n", a.node.c_str(), a.error.empty() ? StatusText(a.status).c_str() : "");
  }
  ShowErrors(answers);
}

void Top(const Options& o) {
  const bool paint = !o.once && o.output == "text" && isatty(STDOUT_FILENO) == 1;
  v1::Status before;
  ClusterReader cluster(o.kubectl);
  for (bool first = true;; first = false) {
    const std::vector<NodeAnswer> answers = AskAgents(cluster, o.node);
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
    if (eq == std::string::npos || known == nullptr || !known->settable) {
      Fail(2, "set: '" + a + "' is not accepted; accepted: key=value with one of " + settings::SettableNames());
    }
    settings::Settings unused;
    const std::string value = a.substr(eq + 1);
    if (const std::string error = settings::Set(unused, *known, value, key); !value.empty() && !error.empty())
      Fail(2, error);
    const std::string name = o.container.empty() ? SLUICE_DOMAIN "/" + key : key + "." SLUICE_DOMAIN "/" + o.container;
    arguments.push_back(value.empty() ? name + "-" : name + "=" + value);
    // A fraction and an amount of memory exclude each other.
    const bool fraction = known->id == settings::Id::kGpuFraction;
    if (value.empty() || (!fraction && known->id != settings::Id::kGpuMemory)) continue;
    const std::string other(settings::Of(fraction ? settings::Id::kGpuMemory : settings::Id::kGpuFraction).name);
    arguments.push_back(
        (o.container.empty() ? SLUICE_DOMAIN "/" + other : other + "." SLUICE_DOMAIN "/" + o.container) + "-");
  }
  const Kubectl::Answer answer = o.kubectl.Run(std::move(arguments));
  std::fputs(answer.out.c_str(), stdout);
  std::fputs(answer.error.c_str(), stderr);
  if (!answer.ok()) throw CLI::RuntimeError(1);
}

void Doctor(const Options& o) {
  ClusterReader cluster(o.kubectl);
  throw CLI::RuntimeError(ExamineCluster(cluster, o.node) ? 0 : 1);
}

// The node's agent parks and wakes; its tool finds the allocation and waits.
void RunOnNode(const Options& o, std::vector<std::string> words) {
  std::vector<std::string> arguments = {"pod", o.pod};
  if (!o.space.empty()) arguments.insert(arguments.end(), {"-n", o.space});
  const Json pod = o.kubectl.Get(std::move(arguments));
  const std::string name = TextAt(pod, "/metadata/namespace") + "/" + TextAt(pod, "/metadata/name");
  const std::string node = TextAt(pod, "/spec/nodeName");
  if (node.empty()) Fail(1, words[0] + ": pod " + name + " is on no node yet");
  words.insert(words.begin() + 1, o.container.empty() ? name : name + "/" + o.container);
  ClusterReader cluster(o.kubectl);
  const Kubectl::Answer answer = RunAgentTool(cluster, node, words);
  std::fputs(answer.out.c_str(), stdout);
  if (answer.ok()) return;
  // The first line is the tool's, or kubectl's where it could not run: "command terminated with exit code 1" follows.
  std::fprintf(stderr, "%s\n", answer.Reason().c_str());
  throw CLI::RuntimeError(answer.status == 2 ? 2 : 1);
}

void Park(const Options& o) { RunOnNode(o, {"park", "--timeout", std::to_string(o.timeout)}); }

void Wake(const Options& o) { RunOnNode(o, {"wake"}); }

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
  CLI::App* park =
      Add(app, o, "park", "have a pod's idle container leave the GPU until its next launch: park POD", Park);
  CLI::App* wake = Add(app, o, "wake", "bring a parked container back before its next launch: wake POD", Wake);
  for (CLI::App* command : {set, park, wake}) {
    command->add_option("-n,--namespace", o->space, "the pod's");
    command->add_option("-c,--container", o->container, "this container only");
    command->add_option("POD", o->pod, "the pod's name")->required()->check([](const std::string& pod) -> std::string {
      // NAMESPACE/POD is the form of `sluice` on a node, and kubectl takes a word with - as an option.
      const bool is_name = !pod.starts_with('-') && std::ranges::all_of(pod, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
      });
      if (is_name && !pod.empty()) return {};
      return "'" + Printable(pod) + "' is not accepted; accepted: a pod's name; -n gives its namespace";
    });
  }
  park->add_option("--timeout", o->timeout, "seconds to wait")->check(Between(0.0, 3600.0))->capture_default_str();
  set->add_option("key=value", o->assignments, settings::SettableNames() + "; an empty value removes it")->required();
}

}  // namespace sluice::cli
