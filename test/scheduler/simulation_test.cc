#include "scheduler/simulator/simulation.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>

#include "scheduler/simulator/claim_policies.h"
#include "scheduler/simulator/generator.h"
#include "scheduler/simulator/svg.h"

namespace sluice::scheduler {
namespace {

double AllocatedAtFull(const std::vector<Node>& nodes, const std::vector<TracePod>& pods, const std::string& name,
                       int seeds) {
  const RequestMix mix = MixOfPods(pods);
  const auto policy = name.starts_with("claims-") ? *MakeClaimPolicy(name, mix, kTraceUnitsPerCard)
                                                  : *MakePolicy(name, mix, kTraceUnitsPerCard);
  double sum = 0;
  for (int seed = 42; seed < 42 + seeds; ++seed) {
    sum += Simulate(nodes, Arrivals(nodes, pods, 1.3, seed), *policy, mix).allocated_at_full;
  }
  return sum / seeds * 100;
}

TEST_CASE("the published trace: best fit and FGD reach the published figures, the default exceeds them") {
  const char* folder = std::getenv("SLUICE_OPENB");
  const std::filesystem::path data = folder ? folder : SLUICE_OPENB_DEFAULT;
  if (!std::filesystem::exists(data / "nodes.csv")) {
    SKIP("no trace at " << data << " (SLUICE_OPENB names another folder): the published figures were NOT checked");
  }
  const auto nodes = ReadNodes(data / "nodes.csv");
  const auto pods = ReadPods(data / "pods_default.csv");
  REQUIRE(nodes.ok());
  REQUIRE(pods.ok());
  CHECK(std::abs(AllocatedAtFull(*nodes, *pods, "best-fit", 2) - 92.86) < 0.5);
  CHECK(std::abs(AllocatedAtFull(*nodes, *pods, "fgd", 2) - 95.23) < 0.5);
  CHECK(AllocatedAtFull(*nodes, *pods, "look-ahead", 2) > 95.5);
}

TEST_CASE("generated data: the policies rank as on the published trace") {
  const auto nodes = GenerateNodes(600);
  const auto pods = GeneratePods(4000, 1);
  const double spread = AllocatedAtFull(nodes, pods, "spread", 1),
               best_fit = AllocatedAtFull(nodes, pods, "best-fit", 1), fgd = AllocatedAtFull(nodes, pods, "fgd", 1),
               look_ahead = AllocatedAtFull(nodes, pods, "look-ahead", 1);
  CHECK(spread < best_fit);
  CHECK(best_fit < fgd);
  CHECK(fgd < look_ahead);
}

TEST_CASE("claims: the first card that fits, or the first of those with least room; nodes by CPU and memory") {
  Node node{.cpu_milli_free = 60, .memory_mib_free = 60, .units_per_card = 100, .cards = {{100}, {30}, {50}}};
  node.cpu_milli = node.memory_mib = 100;
  const Request request{.cards = 1, .units = 20, .cpu_milli = 20, .memory_mib = 20};
  const auto placed = [&](const std::string& name) { return *Place(node, request, **MakeClaimPolicy(name, {}, 100)); };
  CHECK(placed("claims-spread-fixed").cards == CardSet{0});
  CHECK(placed("claims-spread-fullest").cards == CardSet{1});
  CHECK(placed("claims-look-ahead-fixed").cards == CardSet{0});
  // 60 of 100 are used then: LeastAllocated 40, MostAllocated 60, and 100 for equal shares.
  CHECK(placed("claims-spread-fixed").score == 140);
  CHECK(placed("claims-binpack-fixed").score == 160);
  node.memory_mib_free = 100;  // 60 and 20 used: the mean is 40, the deviation 20
  CHECK(placed("claims-spread-fixed").score == 60 + 80);
  CHECK_FALSE(MakeClaimPolicy("claims", {}, 100).ok());
}

TEST_CASE("claims pack by node scores first, by the order of devices second") {
  const auto nodes = GenerateNodes(600);
  const auto pods = GeneratePods(4000, 1);
  const auto at_full = [&](const std::string& name) { return AllocatedAtFull(nodes, pods, name, 1); };
  CHECK(at_full("claims-spread-fixed") < at_full("claims-spread-fullest"));
  CHECK(at_full("claims-spread-fullest") < at_full("claims-look-ahead-fixed"));
  CHECK(at_full("claims-look-ahead-fixed") < at_full("look-ahead"));
}

TEST_CASE("allocations never exceed the capacity and sum to the reported figures") {
  const auto nodes = GenerateNodes(40);
  const auto pods = GeneratePods(300, 3);
  const RequestMix mix = MixOfPods(pods);
  for (const std::string& name : PolicyNames()) {
    INFO(name);
    const auto arrivals = Arrivals(nodes, pods, 1.3, 5);
    const Outcome outcome =
        Simulate(nodes, arrivals, **MakePolicy(name, mix, kTraceUnitsPerCard), mix, {.fragment = true});
    REQUIRE(outcome.placed.size() == arrivals.size());
    double given = 0, capacity = 0;
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
      if (outcome.placed[i]) given += arrivals[i].request.TotalUnits();
    }
    for (const Node& node : nodes) capacity += node.CapacityUnits();
    CHECK(std::abs(given / capacity - outcome.allocated_at_end) < 1e-9);
    CHECK(outcome.allocated_at_end <= 1);
    CHECK(outcome.curve.back().fragment <= 1 - outcome.curve.back().allocated + 1e-9);
  }
}

TEST_CASE("a pod for a GPU model that no node has is not placed") {
  auto pods = GeneratePods(10, 1);
  for (TracePod& pod : pods) pod.models = {"no such model"};
  const auto nodes = GenerateNodes(10);
  const RequestMix mix = MixOfPods(pods);
  const Outcome outcome = Simulate(nodes, pods, **MakePolicy("best-fit", mix, kTraceUnitsPerCard), mix);
  CHECK(std::count(outcome.placed.begin(), outcome.placed.end(), true) == 0);
}

TEST_CASE("arrivals: all pods, then repeats up to the sum, equal for equal seeds") {
  const auto nodes = GenerateNodes(20);
  const auto pods = GeneratePods(50, 1);
  CHECK(Arrivals(nodes, pods, 1.3, 7) == Arrivals(nodes, pods, 1.3, 7));
  CHECK(Arrivals(nodes, pods, 1.3, 7) != Arrivals(nodes, pods, 1.3, 8));
  CHECK(Arrivals(nodes, pods, 0, 7).size() == pods.size());
  CHECK(Arrivals({}, {}, 1.3, 7).empty());
}

TEST_CASE("CSV is read by column name and survives a round trip") {
  const auto pods =
      ParsePods("gpu_milli,name,num_gpu,cpu_milli,memory_mib,gpu_spec\n470,a,1,2000,30,A|B\n1000,b,8,1,2,\n", "p");
  REQUIRE(pods.ok());
  CHECK((*pods)[0] == TracePod{{1, 470, 2000, 30}, {"A", "B"}});
  CHECK(*ParsePods(PodsCsv(*pods), "again") == *pods);
  const auto nodes = ParseNodes("sn,cpu_milli,memory_mib,gpu,model\r\nn,64000,262144,2,P100\r\n", "n");
  REQUIRE(nodes.ok());
  CHECK((*nodes)[0].model == "P100");
  CHECK(NodesCsv(*ParseNodes(NodesCsv(*nodes), "again")) == NodesCsv(*nodes));
}

TEST_CASE("errors in CSV name the place, the value and the accepted values") {
  const auto message = [](const std::string& text) {
    return std::string(ParsePods(text, "pods.csv").status().message());
  };
  const std::string head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n";
  CHECK(message("") == "pods.csv: no rows");
  CHECK(message(head) == "pods.csv: no rows");
  CHECK(message("a,b\n1,2\n") ==
        "pods.csv:1: no column \"cpu_milli\"; needed are cpu_milli, memory_mib, num_gpu, gpu_milli");
  CHECK(message(head + "a,1,2,1,500\nb,1,2,1\n") == "pods.csv:3: 4 cells, the header has 5");
  CHECK(message(head + "a,1,2,1,1001\n") == "pods.csv:2: gpu_milli is \"1001\", accepted is 0..1000");
  CHECK(message(head + "a,-1,2,1,100\n") == "pods.csv:2: cpu_milli is \"-1\", accepted is 0..1099511627776");
  CHECK(message(head + "a,1e3,2,1,100\n") == "pods.csv:2: cpu_milli is \"1e3\", accepted is 0..1099511627776");
  CHECK(message(head + "a,1,2,2,500\n") ==
        "pods.csv:2: gpu_milli is \"500\", accepted is 1000 where num_gpu is above 1: several cards are whole ones");
  CHECK(message(head + "a,1,2,1,0\n") == "pods.csv:2: gpu_milli is \"0\", accepted is 1..1000 where num_gpu is 1");
  CHECK(message(head + std::string("a,1,2,1,\0\xff\n", 11)).find("pods.csv:2: gpu_milli") == 0);
  CHECK(std::string(ReadPods("/nonexistent/pods.csv").status().message())
            .find("/nonexistent/pods.csv: No such file or directory") == 0);
  CHECK(std::string(ParseNodes("cpu_milli,memory_mib,gpu\n1,2,65\n", "n").status().message()) ==
        "n:2: gpu is \"65\", accepted is 0..64");
}

TEST_CASE("the SVG has one curve per policy and panel, and escapes names") {
  const std::string svg = Svg("a < b", {{"one & only", {{0, 0, 0}, {0.9, 0.85, 0.02}, {1.3, 0.95, 0.05}}}});
  std::size_t curves = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++curves;
  CHECK(curves == 2);
  CHECK(svg.find("a &lt; b") != std::string::npos);
  CHECK(svg.find("one &amp; only") != std::string::npos);
}

}  // namespace
}  // namespace sluice::scheduler
