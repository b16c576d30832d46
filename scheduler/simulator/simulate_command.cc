#include "scheduler/simulator/simulate_command.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/command_line.h"
#include "scheduler/placement/placement_policy.h"
#include "scheduler/simulator/claim_policies.h"
#include "scheduler/simulator/generator.h"
#include "scheduler/simulator/simulation.h"
#include "scheduler/simulator/svg.h"
#include "scheduler/simulator/trace_csv.h"

namespace sluice::scheduler {
namespace {

constexpr const char* kWithoutFractions = "whole cards only";
constexpr const char* kClaims = "claims";

struct Options {
  std::string nodes_file;
  std::string pods_file;
  std::vector<int> generated;  // nodes, pods
  std::string policy = "all";
  double until = 1.3;
  int seeds = 1;
  std::uint64_t first_seed = 42;
  std::string svg_file;
  std::string write_folder;
};

[[noreturn]] void Fail(const std::string& message, int exit_status = 1) {
  std::fprintf(stderr, "sluice: simulate-cluster: %s\n", message.c_str());
  throw CLI::RuntimeError(exit_status);
}

template <typename T>
T Need(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(std::string(value.status().message()));
  return *std::move(value);
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) Fail(absl::StrCat(path, ": cannot be written"));
}

struct Row {
  std::string name;
  double at_full = 0, at_end = 0, used = 0, placed = 0, dropped = 0, fragment = 0, seconds = 0;
  std::vector<Point> curve;
};

class Runner {
 public:
  explicit Runner(Options options) : options_(std::move(options)) {
    if (options_.generated.empty()) {
      if (options_.nodes_file.empty() || options_.pods_file.empty()) {
        Fail("no nodes and pods are given; accepted: NODES.csv PODS.csv, or --generated NODES PODS", 2);
      }
      nodes_ = Need(ReadNodes(options_.nodes_file));
      pods_ = Need(ReadPods(options_.pods_file));
    } else {
      nodes_ = GenerateNodes(options_.generated[0]);
      pods_ = GeneratePods(options_.generated[1], options_.first_seed);
    }
  }

  void Run() {
    if (!options_.write_folder.empty()) {
      WriteFile(options_.write_folder + "/nodes.csv", NodesCsv(nodes_));
      WriteFile(options_.write_folder + "/pods.csv", PodsCsv(pods_));
    }
    std::vector<std::string> policies = {options_.policy};
    if (options_.policy == "all") policies = PolicyNames();
    if (options_.policy == kClaims) policies = ClaimPolicyNames();
    std::vector<Row> rows;
    rows.reserve(policies.size() + 1);
    for (const std::string& policy : policies) rows.push_back(RunPolicy(policy, policy, pods_));
    rows.push_back(RunPolicy(kWithoutFractions, "best-fit", WithoutFractions(pods_)));
    Print(rows);
    if (!options_.svg_file.empty()) {
      std::vector<NamedCurve> curves;
      curves.reserve(rows.size());
      for (std::size_t i = 0; i + 1 < rows.size(); ++i) curves.push_back({rows[i].name, rows[i].curve});
      WriteFile(options_.svg_file,
                Svg(absl::StrFormat("%d GPUs, arrivals of seed %d", Cards(), options_.first_seed), curves));
    }
  }

 private:
  int Cards() const {
    int cards = 0;
    for (const Node& node : nodes_) cards += static_cast<int>(node.cards.size());
    return cards;
  }

  // Every row draws its arrivals from the original requests, so that all rows place the same pods in the same order.
  Row RunPolicy(const std::string& name, const std::string& policy_name, const std::vector<TracePod>& pods) {
    const bool whole = name != policy_name;
    const RequestMix mix = MixOfPods(pods);
    const std::unique_ptr<PlacementPolicy> policy =
        Need(policy_name.starts_with(kClaims) ? MakeClaimPolicy(policy_name, mix, kTraceUnitsPerCard)
                                              : MakePolicy(policy_name, mix, kTraceUnitsPerCard));
    Row row{.name = name};
    for (int i = 0; i < options_.seeds; ++i) {
      const std::vector<TracePod> requested = Arrivals(nodes_, pods_, options_.until, options_.first_seed + i);
      const std::vector<TracePod> arrivals = whole ? WithoutFractions(requested) : requested;
      const auto start = std::chrono::steady_clock::now();
      Outcome outcome = Simulate(nodes_, arrivals, *policy, mix, {.fragment = true});
      row.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / options_.seeds;
      row.at_full += outcome.allocated_at_full * 100 / options_.seeds;
      row.at_end += outcome.allocated_at_end * 100 / options_.seeds;
      for (std::size_t pod = 0; pod < requested.size(); ++pod) {
        (outcome.placed[pod] ? row.placed : row.dropped) += 1.0 / options_.seeds;
        if (outcome.placed[pod]) row.used += requested[pod].request.TotalUnits() / (10.0 * Cards() * options_.seeds);
      }
      row.fragment += (outcome.curve.empty() ? 0 : outcome.curve.back().fragment) * 100 / options_.seeds;
      if (i == 0) row.curve = std::move(outcome.curve);
    }
    return row;
  }

  void Print(const std::vector<Row>& rows) const {
    std::printf("%zu nodes, %d GPUs, %zu pods; until %.0f %% requested, %d seed%s from %llu\n", nodes_.size(), Cards(),
                pods_.size(), options_.until * 100, options_.seeds, options_.seeds == 1 ? "" : "s",
                static_cast<unsigned long long>(options_.first_seed));
    constexpr const char* kHead = "%-25s %18s %14s %12s %12s %8s %8s %8s\n";
    std::printf(kHead, "policy", "allocated at", "allocated at", "requested by", "unusable at", "pods", "pods",
                "seconds");
    std::printf(kHead, "", "100 % requested, %", "the end, %", "placed, %", "the end, %", "placed", "dropped", "a run");
    for (const Row& row : rows) {
      std::printf("%-25s %18.2f %14.2f %12.2f %12.2f %8.0f %8.0f %8.2f\n", row.name.c_str(), row.at_full, row.at_end,
                  row.used, row.fragment, row.placed, row.dropped, row.seconds);
    }
    std::printf(
        "All figures but pods and seconds are shares of the cluster's GPUs. \"%s\": the same pods without fractions,\n"
        "best fit; each pod gets whole cards, whatever part of a card it requests.\n",
        kWithoutFractions);
  }

  Options options_;
  std::vector<Node> nodes_;
  std::vector<TracePod> pods_;
};

}  // namespace
}  // namespace sluice::scheduler

void AddSimulateCommand(CLI::App& app) {
  using sluice::scheduler::Options;
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("simulate-cluster", "simulate how many GPUs fractions save on a list of nodes and pods");
  command->add_option("NODES", options->nodes_file, "CSV with the columns cpu_milli, memory_mib, gpu, model");
  command->add_option("PODS", options->pods_file,
                      "CSV with the columns cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec");
  command
      ->add_option("--generated", options->generated, "instead of files: this many NODES and PODS of a production mix")
      ->expected(2)
      ->check(CLI::Range(1, 1'000'000));
  std::vector<std::string> policies = sluice::scheduler::PolicyNames();
  policies.insert(policies.begin(), "all");
  policies.emplace_back("claims");
  for (const std::string& name : sluice::scheduler::ClaimPolicyNames()) policies.push_back(name);
  command
      ->add_option("--policy", options->policy,
                   "one policy; all: each of the extender's (the default); claims: kube-scheduler with ResourceClaims")
      ->check(CLI::IsMember(policies));
  command
      ->add_option("--until", options->until,
                   "repeat pods until their GPU requests sum to this multiple of the cluster")
      ->check(sluice::Between(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--seeds", options->seeds, "runs to average, each with another order of arrivals")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--first-seed", options->first_seed, "seed of the first run")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 53))
      ->capture_default_str();
  command->add_option("--svg", options->svg_file, "file in which to draw the curves over arrivals");
  command->add_option("--write", options->write_folder,
                      "folder in which to write the nodes.csv and pods.csv that were used");
  command->callback([options] { sluice::scheduler::Runner(*options).Run(); });
}
