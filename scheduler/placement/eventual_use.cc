#include "scheduler/placement/eventual_use.h"

#include <algorithm>
#include <map>

#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

constexpr int kFleet = 2000;     // cards: enough that requests seen once in some hundred appear
constexpr int kRounds = 20;      // the tables settle after about five
constexpr double kMemory = 0.5;  // weight of a round in the next one: single rounds are noisy

struct Part {
  double weight = 0;
  double cpu_milli = 0;
  double memory_mib = 0;
};

// What one card sees of the mix: several whole cards are that many requests for one.
std::map<int, Part> PartsOf(const RequestMix& mix, int units_per_card) {
  std::map<int, Part> parts;
  for (const auto& [request, weight] : mix) {
    if (request.cards == 0 || request.units <= 0 || request.units > units_per_card) continue;
    Part& part = parts[request.units];
    part.weight += weight * request.cards;
    part.cpu_milli += weight * static_cast<double>(request.cpu_milli);
    part.memory_mib += weight * static_cast<double>(request.memory_mib);
  }
  for (auto& [units, part] : parts) {
    part.cpu_milli /= part.weight;
    part.memory_mib /= part.weight;
  }
  return parts;
}

struct Seen {
  double count = 0, units = 0, cpu_milli = 0, memory_mib = 0;
};

class Game {
 public:
  Game(const RequestMix& mix, int units_per_card)
      : units_per_card_(units_per_card), parts_(PartsOf(mix, units_per_card)), seen_(units_per_card + 1) {
    for (const auto& [units, part] : parts_) weight_ += part.weight;
    table_.units.resize(units_per_card + 1);
    table_.cpu_milli.resize(units_per_card + 1);
    table_.memory_mib.resize(units_per_card + 1);
    // The first table: what a single further request could use.
    double below = 0;
    for (int free = 0; free <= units_per_card; ++free) {
      if (auto part = parts_.find(free); part != parts_.end()) below += part->second.weight;
      table_.units[free] = weight_ > 0 ? free * below / weight_ : free;
    }
  }

  EventualUse Play() {
    if (weight_ <= 0) return table_;
    for (int round = 0; round < kRounds; ++round) {
      for (Seen& seen : seen_) {
        seen.count *= kMemory;
        seen.units *= kMemory;
        seen.cpu_milli *= kMemory;
        seen.memory_mib *= kMemory;
      }
      PlayRound();
      UpdateTable();
    }
    return table_;
  }

 private:
  int Draw() {
    double left = random_.Unit() * weight_;
    for (const auto& [units, part] : parts_) {
      left -= part.weight;
      if (left < 0) return units;
    }
    return parts_.rbegin()->first;
  }

  // Requests for as many units as the fleet has: the moment at which packing shows.
  void PlayRound() {
    std::vector<std::vector<int>> history(kFleet, std::vector<int>{units_per_card_});
    std::vector<std::vector<int>> by_free(units_per_card_ + 1);
    for (int card = 0; card < kFleet; ++card) by_free[units_per_card_].push_back(card);
    for (std::int64_t arrived = 0; arrived < static_cast<std::int64_t>(kFleet) * units_per_card_;) {
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
        const Part& part = parts_.at(steps[i] - steps[i + 1]);
        cpu_milli += part.cpu_milli;
        memory_mib += part.memory_mib;
      }
      Seen& seen = seen_[steps[i]];
      seen.count += 1;
      seen.units += steps[i] - steps.back();
      seen.cpu_milli += cpu_milli;
      seen.memory_mib += memory_mib;
    }
  }

  // States that were not visited are worth what the best smaller visited one is.
  void UpdateTable() {
    double best_units = 0, last_cpu = 0, last_memory = 0;
    for (int free = 0; free <= units_per_card_; ++free) {
      const Seen& seen = seen_[free];
      if (seen.count > 1) {
        table_.units[free] = seen.units / seen.count;
        best_units = std::max(best_units, table_.units[free]);
        last_cpu = seen.cpu_milli / seen.count;
        last_memory = seen.memory_mib / seen.count;
      } else {
        table_.units[free] = std::min<double>(free, best_units);
      }
      table_.cpu_milli[free] = last_cpu;
      table_.memory_mib[free] = last_memory;
    }
  }

  int units_per_card_;
  std::map<int, Part> parts_;
  double weight_ = 0;
  std::vector<Seen> seen_;
  EventualUse table_;
  Random random_{7};
};

double FedShare(std::int64_t free, double needed) {
  if (needed <= 0) return 1;
  return std::clamp(static_cast<double>(free) / needed, 0.0, 1.0);
}

}  // namespace

EventualUse LearnEventualUse(const RequestMix& mix, int units_per_card) { return Game(mix, units_per_card).Play(); }

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
  return units * std::min(FedShare(node.cpu_milli_free - request.cpu_milli, cpu_milli),
                          FedShare(node.memory_mib_free - request.memory_mib, memory_mib));
}

}  // namespace sluice::scheduler
