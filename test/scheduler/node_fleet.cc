// Stands in for the kubelets, agents and device plugins of a thousand nodes, in one process, on a real API server.
// Behind every node runs the plugin's own allocation code, called by kubelet's rules. Pods are admitted in any order,
// not in that of their binding.
//
//   node_fleet make --kubeconfig F --nodes N             nodes of 8 cards, as objects (kwok keeps them alive)
//   node_fleet pods --kubeconfig F --pods N --namespace S --scheduler NAME [--seed K]     the published trace's mix
//   node_fleet run  --kubeconfig F [--extender]          until SIGTERM; prints a line of counts after each round
//
// Admitted pods get a start time (kwok then runs them). Refused ones get the phase and reason that kubelet would set.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fleet_plugin.h"
#include "kube/client.h"
#include "kube/config.h"
#include "kube/watcher.h"
#include "kubelet_model.h"
#include "scheduler/extender/pod_facts.h"
#include "scheduler/placement/random.h"
#include "scheduler/simulator/generator.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

using kube::Json;

constexpr int kCards = 8;
constexpr int kThreads = 6;

struct Options {
  std::string kubeconfig, name_space, scheduler;
  int nodes = 0, pods = 0;
  std::uint64_t seed = 7;
  bool extender = false;
};

// Does each piece of work over one of a few connections; ends the program on the first error.
void InParallel(const kube::ClientConfig& config, std::size_t count,
                const std::function<absl::Status(kube::Client&, std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      kube::Client client(config);
      for (std::size_t i = next++; i < count; i = next++) {
        if (const absl::Status status = work(client, i); !status.ok()) {
          std::fprintf(stderr, "error: node_fleet: %s\n", status.ToString().c_str());
          std::_Exit(1);
        }
      }
    });
  }
}

std::string NodeName(std::size_t i) {
  char name[16];
  std::snprintf(name, sizeof(name), "n%04zu", i);
  return name;
}

std::vector<std::string> CardsOfNode(const std::string& node) {
  std::vector<std::string> cards;
  for (int i = 0; i < kCards; ++i) cards.push_back(absl::StrCat("GPU-", node, "-", i));
  return cards;
}

// The annotation that the agent writes to its node.
std::string Annotation(const KubeletModel& kubelet) {
  const auto use = kubelet.Use();
  Json cards = Json::array();
  for (std::size_t i = 0; i < kubelet.cards().size(); ++i) {
    const std::string& uuid = kubelet.cards()[i];
    int used = 0;
    Json pods = Json::object();
    if (const auto found = use.find(uuid); found != use.end()) {
      for (const auto& [pod, units] : found->second) {
        used += units;
        for (const auto& [container, held] : kubelet.HeldBy(pod)) {
          const auto here = std::count_if(held.begin(), held.end(), [&](const Unit& u) { return u.first == uuid; });
          if (here > 0) pods[pod][container] = here;
        }
      }
    }
    cards.push_back({{"uuid", uuid},
                     {"model", "T"},
                     {"memory", std::uint64_t{80} << 30},
                     {"free", kUnitsPerCard - used},
                     {"numa", i / 4},
                     {"pods", pods}});
  }
  return cards.dump();
}

Json WithAnnotation(const std::string& text) {
  return {{"metadata", {{"annotations", {{SLUICE_NODE_ANNOTATION_GPUS, text}}}}}};
}

void MakeNodes(const kube::ClientConfig& config, const Options& options) {
  InParallel(config, options.nodes, [](kube::Client& client, std::size_t i) {
    const std::string name = NodeName(i);
    Json node = WithAnnotation(Annotation(KubeletModel(CardsOfNode(name), 0)));
    node["metadata"]["name"] = name;
    if (auto made = client.Create("/api/v1/nodes", node); !made.ok()) return made.status();
    const Json amounts = {{"cpu", "128"},
                          {"memory", "768Gi"},
                          {"pods", "110"},
                          {SLUICE_RESOURCE, std::to_string(kUnitsPerCard * kCards)}};
    return client
        .Patch(absl::StrCat("/api/v1/nodes/", name, "/status"),
               {{"status", {{"capacity", amounts}, {"allocatable", amounts}}}}, kube::PatchType::kMerge)
        .status();
  });
}

void MakePods(const kube::ClientConfig& config, const Options& options) {
  const std::vector<TracePod> pods = GeneratePods(options.pods, options.seed);
  InParallel(config, pods.size(), [&](kube::Client& client, std::size_t i) {
    const Request& request = pods[i].request;
    Json resources = {
        {"requests",
         {{"cpu", absl::StrCat(request.cpu_milli, "m")}, {"memory", absl::StrCat(request.memory_mib, "Mi")}}}};
    const int units = request.cards * request.units * kUnitsPerCard / kTraceUnitsPerCard;
    if (units > 0) {
      resources["requests"][SLUICE_RESOURCE] = resources["limits"][SLUICE_RESOURCE] = std::to_string(units);
    }
    const Json pod = {
        {"metadata", {{"name", absl::StrCat("p", i)}}},
        {"spec",
         {{"schedulerName", options.scheduler},
          {"terminationGracePeriodSeconds", 0},
          {"containers", Json::array({{{"name", "main"}, {"image", "none"}, {"resources", resources}}})}}}};
    return client.Create(absl::StrCat("/api/v1/namespaces/", options.name_space, "/pods"), pod).status();
  });
}

class Fleet {
 public:
  Fleet(const kube::ClientConfig& config, bool extender) : config_(config), extender_(extender) {}

  // Handles an object of the watch for the kubelet and the agent of the pod's node.
  void HandleChange(const Json& object) {
    PodFacts pod = ReadPod(object);
    if (pod.node.empty()) return;
    const std::lock_guard lock(mutex_);
    const auto [found, added] = nodes_.try_emplace(pod.node);
    if (added) found->second = std::make_unique<FleetNode>(CardsOfNode(pod.node), nodes_.size(), extender_);
    FleetNode& node = *found->second;
    if (pod.ended) {
      node.Forget(pod.uid);
      return;
    }
    if (!node.seen.insert(pod.uid).second) return;
    ++bound_;
    if (!pod.containers.empty()) node.plugin.PodBound(pod);
    node.waiting.push_back(std::move(pod));
  }

  void HandleDeletion(const Json& object) {
    const PodFacts pod = ReadPod(object);
    const std::lock_guard lock(mutex_);
    if (const auto found = nodes_.find(pod.node); found != nodes_.end()) found->second->Forget(pod.uid);
  }

  // Some nodes' kubelets admit their waiting pods, in random order.
  void Round() {
    std::vector<Write> writes;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [name, node] : nodes_) {
        // A kubelet that skips rounds, so that several pods wait for it.
        if (!node->waiting.empty() && random_.Below(4) == 0) Admit(name, *node, writes);
        // Each change is written twice, as the agent does.
        const bool again = node->again && *node->again <= std::chrono::steady_clock::now();
        if (!node->dirty && !again) continue;
        if (!node->dirty) node->spaced = !node->spaced;
        const std::string text = Annotation(node->kubelet) + (node->spaced ? " " : "");
        writes.push_back({absl::StrCat("/api/v1/nodes/", name), WithAnnotation(text)});
        node->again.reset();
        if (node->dirty) node->again = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        node->dirty = false;
      }
    }
    random_.Shuffle(writes);
    InParallel(config_, writes.size(), [&](kube::Client& client, std::size_t i) {
      const absl::Status status = client.Patch(writes[i].path, writes[i].patch, kube::PatchType::kMerge).status();
      return absl::IsNotFound(status) ? absl::OkStatus() : status;  // deleted in between
    });
    std::printf("bound %d admitted %d refused %d nodes-out-of-order %d writes %zu\n", bound_.load(), admitted_,
                refused_, out_of_order_, writes.size());
    std::fflush(stdout);
  }

 private:
  struct FleetNode {
    FleetNode(std::vector<std::string> cards, std::uint64_t seed, bool extender)
        : kubelet(cards, seed), plugin(cards, extender) {}

    void Forget(const std::string& uid) {
      if (!seen.contains(uid)) return;
      std::erase_if(waiting, [&](const PodFacts& pod) { return pod.uid == uid; });
      kubelet.Remove(uid);
      plugin.PodRemoved(uid);
      dirty = true;
    }

    KubeletModel kubelet;
    FleetPlugin plugin;
    std::set<std::string> seen;
    std::vector<PodFacts> waiting;
    bool dirty = false;  // the node's annotation must be written
    std::optional<std::chrono::steady_clock::time_point> again;
    bool spaced = false;  // the annotation ends in a space
  };
  struct Write {
    std::string path;
    Json patch;
  };

  void Admit(const std::string& name, FleetNode& node, std::vector<Write>& writes) {
    const std::string first = node.waiting.front().uid;
    random_.Shuffle(node.waiting);
    out_of_order_ += node.waiting.front().uid != first;
    for (const PodFacts& pod : node.waiting) {
      std::string refusal;
      if (!pod.containers.empty()) {
        refusal = node.kubelet.Admit(pod.uid, pod.containers, node.plugin);
        if (refusal.empty()) node.plugin.PodAdmitted(pod.uid, node.kubelet.HeldBy(pod.uid));
      }
      char now[32];
      const std::time_t seconds = std::time(nullptr);
      std::strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&seconds));
      Json status = {{"startTime", now}};
      if (!refusal.empty()) {
        std::fprintf(stderr, "refused: %s on %s: %s\n", pod.FullName().c_str(), name.c_str(), refusal.c_str());
        status.update({{"phase", "Failed"}, {"reason", "UnexpectedAdmissionError"}, {"message", refusal}});
        node.plugin.PodRemoved(pod.uid);
      }
      ++(refusal.empty() ? admitted_ : refused_);
      writes.push_back({absl::StrCat("/api/v1/namespaces/", pod.name_space, "/pods/", pod.name, "/status"),
                        {{"metadata", {{"uid", pod.uid}}}, {"status", status}}});
    }
    node.waiting.clear();
    node.dirty = true;
  }

  const kube::ClientConfig config_;
  const bool extender_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<FleetNode>> nodes_;
  Random random_{11};
  std::atomic<int> bound_ = 0;
  int admitted_ = 0, refused_ = 0, out_of_order_ = 0;
};

void RunFleet(const kube::ClientConfig& config, const Options& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Fleet fleet(config, options.extender);
  kube::WatchHandler handler;
  handler.begin = handler.end = [] {};
  handler.item = [&fleet](const Json& pod) { fleet.HandleChange(pod); };
  handler.changed = [&fleet](kube::Change change, const Json& pod) {
    change == kube::Change::kDeleted ? fleet.HandleDeletion(pod) : fleet.HandleChange(pod);
  };
  kube::ListOptions bound;
  bound.field_selector = "spec.nodeName!=";
  kube::Watcher watcher(config, "/api/v1/pods", bound, handler, "node-fleet");
  const timespec pause{.tv_sec = 0, .tv_nsec = 100'000'000};
  while (sigtimedwait(&signals, nullptr, &pause) < 0) fleet.Round();
}

}  // namespace
}  // namespace sluice::scheduler

int main(int argc, char** argv) {
  using sluice::scheduler::Options;
  CLI::App app("a fleet of simulated nodes on a real API server");
  Options options;
  app.require_subcommand(1);
  app.add_option("--kubeconfig", options.kubeconfig)->required();
  CLI::App* const make = app.add_subcommand("make")->fallthrough();
  make->add_option("--nodes", options.nodes)->required();
  CLI::App* const pods = app.add_subcommand("pods")->fallthrough();
  pods->add_option("--pods", options.pods)->required();
  pods->add_option("--namespace", options.name_space)->required();
  pods->add_option("--scheduler", options.scheduler)->required();
  pods->add_option("--seed", options.seed);
  CLI::App* const run = app.add_subcommand("run")->fallthrough();
  run->add_flag("--extender", options.extender, "the plugins honour an extender's reservations");
  CLI11_PARSE(app, argc, argv);
  const auto config = sluice::kube::FromKubeconfig(options.kubeconfig);
  if (!config.ok()) {
    std::fprintf(stderr, "error: node_fleet: %s\n", config.status().ToString().c_str());
    return 1;
  }
  if (make->parsed()) sluice::scheduler::MakeNodes(*config, options);
  if (pods->parsed()) sluice::scheduler::MakePods(*config, options);
  if (run->parsed()) sluice::scheduler::RunFleet(*config, options);
  return 0;
}
