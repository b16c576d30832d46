#include "scheduler/placement/eventual_use.h"

#include <algorithm>
#include <map>

#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

constexpr int kSimulatedCards = 2000;     // enough that a request seen once in some hundred appears
constexpr int kLearningRounds = 20;       // the tables are stable after about five
constexpr double kPastRoundWeight = 0.5;  // weight of the previous rounds' totals, because a single round is noisy

struct RequestShape {
  double weight = 0;
  double cpu_milli = 0;
  double memory_mib = 0;
};

// The mix as one card sees it: a request for several whole cards counts as that many requests for one.
std::map<int, RequestShape> ShapesOf(const RequestMix& mix, int units_per_card) {
  std::map<int, RequestShape> shapes;
  for (const auto& [request, weight] : mix) {
    if (request.cards == 0 || request.units <= 0 || request.units > units_per_card) continue;
    RequestShape& shape = shapes[request.units];
    shape.weight += weight * request.cards;
    shape.cpu_milli += weight * static_cast<double>(request.cpu_milli);
    shape.memory_mib += weight * static_cast<double>(request.memory_mib);
  }
  for (auto& [units, shape] : shapes) {
    shape.cpu_milli /= shape.weight;
    shape.memory_mib /= shape.weight;
  }
  return shapes;
}

struct StateTotals {
  double count = 0, units = 0, cpu_milli = 0, memory_mib = 0;
};

class FillSimulation {
 public:
  FillSimulation(const RequestMix& mix, int units_per_card)
      : units_per_card_(units_per_card), shapes_(ShapesOf(mix, units_per_card)), totals_(units_per_card + 1) {
    for (const auto& [units, shape] : shapes_) weight_ += shape.weight;
    table_.units.resize(units_per_card + 1);
    table_.cpu_milli.resize(units_per_card + 1);
    table_.memory_mib.resize(units_per_card + 1);
    // The first table: the units that a single further request could use.
    double below = 0;
    for (int free = 0; free <= units_per_card; ++free) {
      if (auto shape = shapes_.find(free); shape != shapes_.end()) below += shape->second.weight;
      table_.units[free] = weight_ > 0 ? free * below / weight_ : free;
    }
  }

  EventualUse Learn() {
    if (weight_ <= 0) return table_;
    for (int round = 0; round < kLearningRounds; ++round) {
      for (StateTotals& totals : totals_) {
        totals.count *= kPastRoundWeight;
        totals.units *= kPastRoundWeight;
        totals.cpu_milli *= kPastRoundWeight;
        totals.memory_mib *= kPastRoundWeight;
      }
      FillOnce();
      UpdateTable();
    }
    return table_;
  }

 private:
  int Draw() {
    double left = random_.Unit() * weight_;
    for (const auto& [units, shape] : shapes_) {
      left -= shape.weight;
      if (left < 0) return units;
    }
    return shapes_.rbegin()->first;
  }

  // Draws requests until they sum to all units of the simulated cards, where the quality of a packing shows.
  void FillOnce() {
    std::vector<std::vector<int>> history(kSimulatedCards, std::vector<int>{units_per_card_});
    std::vector<std::vector<int>> by_free(units_per_card_ + 1);
    for (int card = 0; card < kSimulatedCards; ++card) by_free[units_per_card_].push_back(card);
    for (std::int64_t arrived = 0; arrived < static_cast<std::int64_t>(kSimulatedCards) * units_per_card_;) {
      const int units = Draw();
      arrived += units;
      int best = -1;
      double least_loss = 0;
      for (int free = units; free <= units_per_card_; ++free) {
        if (by_free[free].empty()) continue;
        const double loss = table_.units[free] - table_.units[free - units] - units;
        if (best < 0 || loss < least_loss - 1e-9) {
          best = free;
          least_loss = loss;
        }
      }
      if (best < 0) continue;
      const int card = by_free[best].back();
      by_free[best].pop_back();
      by_free[best - units].push_back(card);
      history[card].push_back(best - units);
    }
    for (const std::vector<int>& steps : history) Remember(steps);
  }

  void Remember(const std::vector<int>& steps) {
    double cpu_milli = 0, memory_mib = 0;
    for (std::size_t i = steps.size(); i-- > 0;) {
      if (i + 1 < steps.size()) {
        const RequestShape& shape = shapes_.at(steps[i] - steps[i + 1]);
        cpu_milli += shape.cpu_milli;
        memory_mib += shape.memory_mib;
      }
      StateTotals& totals = totals_[steps[i]];
      totals.count += 1;
      totals.units += steps[i] - steps.back();
      totals.cpu_milli += cpu_milli;
      totals.memory_mib += memory_mib;
    }
  }

  // A state that was not visited gets the value of the best smaller state that was.
  void UpdateTable() {
    double best_units = 0, last_cpu = 0, last_memory = 0;
    for (int free = 0; free <= units_per_card_; ++free) {
      const StateTotals& totals = totals_[free];
      if (totals.count > 1) {
        table_.units[free] = totals.units / totals.count;
        best_units = std::max(best_units, table_.units[free]);
        last_cpu = totals.cpu_milli / totals.count;
        last_memory = totals.memory_mib / totals.count;
      } else {
        table_.units[free] = std::min<double>(free, best_units);
      }
      table_.cpu_milli[free] = last_cpu;
      table_.memory_mib[free] = last_memory;
    }
  }

  int units_per_card_;
  std::map<int, RequestShape> shapes_;
  double weight_ = 0;
  std::vector<StateTotals> totals_;
  EventualUse table_;
  Random random_{7};
};

double FeedableShare(std::int64_t free, double needed) {
  if (needed <= 0) return 1;
  return std::clamp(static_cast<double>(free) / needed, 0.0, 1.0);
}

}  // namespace

EventualUse LearnEventualUse(const RequestMix& mix, int units_per_card) {
  return FillSimulation(mix, units_per_card).Learn();
}

double ExpectedUse(const Node& node, const EventualUse& table, const Request& request, const CardSet& cards) {
  double units = 0, cpu_milli = 0, memory_mib = 0;
  auto taken = cards.begin();
  for (int i = 0; i < static_cast<int>(node.cards.size()); ++i) {
    int free = node.cards[i].free;
    if (taken != cards.end() && *taken == i) {
      free -= request.units;
      ++taken;
    }
    units += table.units[free];
    cpu_milli += table.cpu_milli[free];
    memory_mib += table.memory_mib[free];
  }
  return units * std::min(FeedableShare(node.cpu_milli_free - request.cpu_milli, cpu_milli),
                          FeedableShare(node.memory_mib_free - request.memory_mib, memory_mib));
}

}  // namespace sluice::scheduler
