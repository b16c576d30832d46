// How full the extender's own code makes a cluster, without sockets: pods of a trace arrive one by one, by claims or by
// units, and go where its scores say. kube-scheduler's part is modelled: its filter, its first card that fits, and its
// score for pods without GPUs.
//
//     build/test/extender_packing NODES.csv PODS.csv [--every N] [--by claims|units] [--others spread|extender]
//     [--seeds N]
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/command_line.h"
#include "scheduler/extender/claim_state.h"
#include "scheduler/extender/cluster_state.h"
#include "scheduler/extender/node_scores.h"
#include "scheduler/placement/choices.h"
#include "scheduler/simulator/claim_policies.h"
#include "scheduler/simulator/simulation.h"
#include "scheduler/simulator/trace_csv.h"

namespace sluice::scheduler {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Options {
  std::string nodes_file, pods_file, by = "claims", others = "spread", policy = "look-ahead";
  int every = 1, seeds = 1, pause_ms = 1;
  std::uint64_t first_seed = 42;
};

template <class T>
std::vector<T> Thinned(const std::vector<T>& from, int every) {
  std::vector<T> out;
  for (std::size_t i = 0; i < from.size(); i += every) out.push_back(from[i]);
  return out;
}

// A cluster, and the extender that watches it.
class Cluster {
 public:
  Cluster(std::vector<Node> nodes, const Options& options, const RequestMix& mix)
      : options_(options),
        nodes_(std::move(nodes)),
        spread_(*MakeClaimPolicy("claims-spread-fixed", mix, kTraceUnitsPerCard)),
        policies_(*PolicyRefresher::Make(options.policy)),
        hosts_(*policies_),
        claims_(*policies_, hosts_) {
    std::unordered_set<std::string> names, slices;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      node.cpu_milli = node.cpu_milli_free;
      node.memory_mib = node.memory_mib_free;
      names_.push_back(absl::StrCat("n", i));
      names.insert(names_.back());
      NodeFacts facts{.name = names_.back(), .cpu_milli = node.cpu_milli, .memory_mib = node.memory_mib};
      SliceFacts slice{.name = names_.back(), .node = names_.back(), .generation = 1};
      for (std::size_t card = 0; card < node.cards.size(); ++card) {
        facts.cards.push_back({.uuid = absl::StrCat("GPU-", i, "-", card), .free = kUnitsPerCard});
        const std::int64_t memory = kTraceUnitsPerCard * kMiB;
        slice.cards.push_back({.name = card, .memory = memory, .memory_default = memory, .is_shareable = true});
      }
      hosts_.PutNode(std::move(facts));
      if (!slice.cards.empty()) claims_.PutSlice(std::move(slice));
      slices.insert(names_.back());
    }
    hosts_.KeepNodes(names);
    hosts_.KeepPods({});
    claims_.PutClass({.name = "sluice.dev", .is_ours = true});
    claims_.KeepClasses({"sluice.dev"});
    claims_.KeepSlices(slices);
    claims_.KeepClaims({});
  }

  // False: it fits nowhere.
  bool Place(int index, const TracePod& pod) {
    std::vector<int> fitting;
    std::vector<std::string_view> asked;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!pod.models.empty() && std::ranges::find(pod.models, nodes_[i].model) == pod.models.end()) continue;
      if (!HostFits(nodes_[i], pod.request) || Choices(nodes_[i], pod.request).empty()) continue;
      fitting.push_back(static_cast<int>(i));
      asked.push_back(names_[i]);
    }
    if (fitting.empty()) return false;
    PodFacts facts{.uid = absl::StrCat("p", index), .name_space = "d", .name = absl::StrCat("p", index)};
    facts.cpu_milli = pod.request.cpu_milli;
    facts.memory_mib = pod.request.memory_mib;
    const bool by_units = options_.by == "units" && pod.request.cards > 0;
    const int units = (pod.request.units * kUnitsPerCard + kTraceUnitsPerCard - 1) / kTraceUnitsPerCard;
    if (by_units) facts.containers = {{.name = "main", .units = pod.request.cards * units}};
    hosts_.PutPod(facts);
    std::vector<int> scores;
    if (by_units) {
      const FilterResult filtered = hosts_.Filter(facts, asked);
      for (std::size_t i = fitting.size(); i-- > 0;) {
        if (filtered.reason_index[i] == FilterResult::kFits) continue;
        fitting.erase(fitting.begin() + static_cast<long>(i));
        asked.erase(asked.begin() + static_cast<long>(i));
      }
      if (fitting.empty()) return false;
      scores = hosts_.Prioritize(facts, asked);
    } else if (pod.request.cards > 0) {
      PutClaim(facts, pod.request, {});
      scores = claims_.Prioritize(facts, {.keys = {Key(facts)}}, asked);
    }
    std::vector<int> other_scores(fitting.size(), 0);
    if (pod.request.cards == 0 && options_.others == "extender") {
      std::vector<double> raw = hosts_.RateHost(facts, asked);
      if (options_.by == "claims") claims_.RateHost(facts, asked, raw);
      other_scores = EvenScoresOf(raw);
    }
    int best = 0;
    if (!scores.empty()) {
      best = fitting[std::ranges::max_element(scores) - scores.begin()];
    } else {
      double best_score = 0;
      best = -1;
      for (std::size_t i = 0; i < fitting.size(); ++i) {
        // The chart's weight of the extender's scores, 10 at most, on kube-scheduler's scale of 100.
        const double score =
            scheduler::Place(nodes_[fitting[i]], pod.request, *spread_)->score + 100.0 * 10 * other_scores[i];
        if (best >= 0 && score <= best_score) continue;
        best = fitting[i];
        best_score = score;
      }
    }
    Bind(facts, pod.request, by_units, best);
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.pause_ms));
    return true;
  }

 private:
  static std::string Key(const PodFacts& pod) { return pod.FullName(); }

  void PutClaim(const PodFacts& pod, const Request& request, std::vector<HeldCard> held) {
    ClaimFacts claim{.key = Key(pod), .is_allocated = !held.empty(), .held = std::move(held), .pod = pod.uid};
    if (!claim.is_allocated) {
      auto requested = std::make_shared<RequestedClaim>();
      requested->classes.push_back({"sluice.dev"});
      requested->cards.requests = {{.name = "gpu", .count = request.cards, .memory = request.units * kMiB}};
      claim.requested = std::move(requested);
    }
    claims_.PutClaim(std::move(claim));
  }

  void Bind(PodFacts pod, const Request& request, bool by_units, int node) {
    CardSet cards;
    if (by_units) {
      pod.placement = *hosts_.Reserve(pod, names_[node]);
      for (const std::string& uuid : pod.placement.at("main")) {
        cards.push_back(std::stoi(uuid.substr(uuid.rfind('-') + 1)));
      }
      std::ranges::sort(cards);
    } else if (request.cards > 0) {
      // In the slice's order, as the allocator goes through the devices.
      for (int card = 0; static_cast<int>(cards.size()) < request.cards; ++card) {
        if (nodes_[node].cards[card].free >= request.units) cards.push_back(card);
      }
      std::vector<HeldCard> held;
      for (const int card : cards) {
        held.push_back({names_[node], static_cast<TextHash>(card), request.units * kMiB, 0});
      }
      PutClaim(pod, request, std::move(held));
    }
    Take(nodes_[node], request, cards);
    pod.node = names_[node];
    pod.admitted = true;
    hosts_.PutPod(std::move(pod));
  }

  const Options& options_;
  std::vector<Node> nodes_;
  std::vector<std::string> names_;
  const std::unique_ptr<PlacementPolicy> spread_;
  const std::unique_ptr<PolicyRefresher> policies_;
  ClusterState hosts_;
  ClaimState claims_;
};

int Run(const Options& options) {
  const auto nodes = ReadNodes(options.nodes_file);
  const auto pods = ReadPods(options.pods_file);
  if (!nodes.ok() || !pods.ok()) {
    std::fprintf(stderr, "%s\n", std::string((nodes.ok() ? pods.status() : nodes.status()).message()).c_str());
    return 1;
  }
  const std::vector<Node> some = Thinned(*nodes, options.every);
  const std::vector<TracePod> some_pods = Thinned(*pods, options.every);
  double capacity = 0, sum = 0;
  for (const Node& node : some) capacity += node.CapacityUnits();
  const RequestMix mix = MixOfPods(some_pods);
  for (int i = 0; i < options.seeds; ++i) {
    Cluster cluster(some, options, mix);
    double arrived = 0, allocated = 0;
    int index = 0;
    for (const TracePod& pod : Arrivals(some, some_pods, 1, options.first_seed + i)) {
      if (arrived >= capacity) break;
      arrived += pod.request.TotalUnits();
      if (cluster.Place(index++, pod)) allocated += pod.request.TotalUnits();
    }
    const std::string seed = std::to_string(options.first_seed + i);
    std::printf("seed %s: %.2f %%\n", seed.c_str(), 100 * allocated / capacity);
    std::fflush(stdout);
    sum += 100 * allocated / capacity / options.seeds;
  }
  std::printf("by %s, %zu nodes, %d orders: %.2f %% allocated when 100 %% has arrived\n", options.by.c_str(),
              some.size(), options.seeds, sum);
  return 0;
}

}  // namespace
}  // namespace sluice::scheduler

int main(int argc, char** argv) {
  CLI::App app("extender_packing: how full the extender's code makes a cluster");
  sluice::scheduler::Options options;
  app.add_option("NODES", options.nodes_file, "CSV")->required();
  app.add_option("PODS", options.pods_file, "CSV")->required();
  app.add_option("--every", options.every, "take each N-th node and pod")->check(CLI::Range(1, 1000));
  app.add_option("--by", options.by, "how pods ask")->check(CLI::IsMember({"claims", "units"}));
  app.add_option("--policy", options.policy, "the extender's policy");
  app.add_option("--others", options.others,
                 "score of nodes for pods without GPUs: kube-scheduler's own, or the extender's, too")
      ->check(CLI::IsMember({"spread", "extender"}));
  app.add_option("--seeds", options.seeds, "orders of arrival")->check(CLI::Range(1, 1000));
  app.add_option("--pause-ms", options.pause_ms, "between pods: the extender learns the mix of requests meanwhile");
  app.add_option("--first-seed", options.first_seed, "of the first order");
  if (const auto ended = sluice::ReadCommandLine(app, "extender_packing", argc, argv)) return *ended;
  return sluice::scheduler::Run(options);
}
