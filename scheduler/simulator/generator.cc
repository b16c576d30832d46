#include "scheduler/simulator/generator.h"

#include <array>

#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

struct NodeKind {
  int permille;
  int cards;
  int cpu;  // cores
  int memory_gib;
  const char* model;
};

constexpr std::array kNodeKinds = std::to_array<NodeKind>({
    {453, 8, 96, 384, "G2"},
    {319, 2, 104, 512, "T4"},
    {90, 2, 16, 120, "P100"},
    {33, 8, 128, 768, "G3"},
    {23, 4, 32, 128, "V100M16"},
    {18, 2, 64, 256, "P100"},
    {17, 8, 96, 768, "V100M32"},
    {19, 1, 8, 32, "V100M16"},
    {14, 4, 96, 384, "T4"},
    {8, 4, 48, 368, "V100M32"},
    {6, 8, 64, 256, "V100M16"},
});

// One size of GPU request: its share of all pods, the deciles of its CPU request, the thirds of its MiB per core.
struct PodKind {
  int per_10000;
  int cards;
  int units;
  std::array<int, 10> cpu_milli;
  std::array<int, 3> mib_per_core;
};

constexpr std::array kPodKinds = std::to_array<PodKind>({
    {4798, 1, 1000, {3200, 4000, 9800, 11300, 11300, 11400, 11400, 12000, 15700, 18700}, {1800, 4100, 4300}},
    {1335, 0, 0, {8000, 8000, 12500, 12500, 12500, 15400, 16500, 32000, 32000, 32000}, {1500, 3300, 4600}},
    {1322, 1, 810, {3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200}, {1800, 1800, 1800}},
    {920, 1, 470, {8000, 8000, 8000, 8000, 8000, 11900, 11900, 11900, 11900, 11900}, {3800, 3800, 4000}},
    {402, 1, 320, {1000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 8000, 8000}, {3800, 3800, 5700}},
    {310, 1, 650, {8000, 11900, 11900, 11900, 11900, 11900, 11900, 11900, 11900, 11900}, {4000, 4000, 4000}},
    {172, 1, 230, {4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 8000}, {3800, 7600, 7600}},
    {157, 1, 460, {6000, 6000, 6000, 6000, 6000, 6000, 6000, 6000, 6000, 8000}, {1000, 1400, 2000}},
    {92, 1, 590, {3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200}, {1800, 1800, 1800}},
    {91, 1, 160, {4000, 4000, 4000, 4000, 4000, 4000, 4000, 6000, 6000, 6000}, {3800, 3800, 3800}},
    {88, 1, 550, {4200, 4200, 4200, 4200, 4200, 4200, 4200, 4200, 4200, 4200}, {2600, 2600, 2600}},
    {76, 1, 220, {4000, 4000, 4000, 4000, 4000, 4000, 4000, 8000, 8000, 8000}, {3800, 3800, 5700}},
    {58, 1, 370, {4200, 4200, 4200, 4200, 4200, 4200, 4200, 4200, 4200, 4200}, {2600, 2600, 2600}},
    {54, 8, 1000, {64000, 64200, 64200, 64200, 64200, 88000, 88000, 88000, 88000, 88000}, {3700, 4100, 4100}},
    {38, 1, 110, {4000, 4000, 4000, 4000, 4000, 4000, 4000, 6000, 6000, 8000}, {3800, 3800, 5700}},
    {49, 1, 480, {4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 8000}, {5700, 5700, 5700}},
    {20, 2, 1000, {6000, 6000, 16200, 16200, 16200, 16200, 16200, 17400, 30200, 30200}, {4100, 4100, 5300}},
    {18, 4, 1000, {32000, 32000, 32200, 32200, 32200, 32200, 32200, 32200, 60200, 60200}, {4100, 4100, 4100}},
});

}  // namespace

std::vector<Node> GenerateNodes(int count) {
  // In blocks of one kind, as clusters are bought.
  std::vector<Node> nodes;
  int permille = 0;
  for (const NodeKind& kind : kNodeKinds) {
    permille += kind.permille;
    while (static_cast<int>(nodes.size()) < count * permille / 1000) {
      nodes.push_back({.cpu_milli_free = std::int64_t{kind.cpu} * 1000,
                       .memory_mib_free = std::int64_t{kind.memory_gib} * 1024,
                       .units_per_card = kTraceUnitsPerCard,
                       .cards = std::vector<Card>(static_cast<std::size_t>(kind.cards), {.free = kTraceUnitsPerCard}),
                       .model = kind.model});
    }
  }
  return nodes;
}

std::vector<TracePod> GeneratePods(int count, std::uint64_t seed) {
  Random random(seed);
  std::vector<TracePod> pods;
  while (static_cast<int>(pods.size()) < count) {
    auto ticket = static_cast<int>(random.Below(10000));
    for (const PodKind& kind : kPodKinds) {
      ticket -= kind.per_10000;
      if (ticket >= 0) continue;
      const int cpu_milli = kind.cpu_milli[random.Below(kind.cpu_milli.size())];
      const int mib_per_core = kind.mib_per_core[random.Below(kind.mib_per_core.size())];
      pods.push_back({.request = {.cards = kind.cards,
                                  .units = kind.units,
                                  .cpu_milli = cpu_milli,
                                  .memory_mib = std::int64_t{cpu_milli} * mib_per_core / 1000}});
      break;
    }
  }
  return pods;
}

}  // namespace sluice::scheduler
