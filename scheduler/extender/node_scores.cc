#include "scheduler/extender/node_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::scheduler {
namespace {

// 0..highest; 0 for nodes that are not rated.
std::vector<int> Scaled(std::span<const double> raw, int highest) {
  std::vector<int> scores(raw.size(), 0);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double score : raw) {
    if (std::isinf(score)) continue;
    low = std::min(low, score);
    high = std::max(high, score);
  }
  const double range = std::max(high - low, 1e-9);
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (!std::isinf(raw[i])) scores[i] = static_cast<int>(highest * (raw[i] - low) / range);
  }
  return scores;
}

}  // namespace

std::vector<int> ScoresOf(std::span<const double> raw) {
  std::vector<int> scores = Scaled(raw, 9);
  const auto best = std::ranges::max_element(raw);
  if (best != raw.end() && !std::isinf(*best)) scores[best - raw.begin()] = 10;
  return scores;
}

std::vector<int> EvenScoresOf(std::span<const double> raw) { return Scaled(raw, 10); }

}  // namespace sluice::scheduler
