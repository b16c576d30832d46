// The scheduler's whole scores from a policy's.
#ifndef SLUICE_SCHEDULER_EXTENDER_NODE_SCORES_H_
#define SLUICE_SCHEDULER_EXTENDER_NODE_SCORES_H_

#include <span>
#include <vector>

namespace sluice::scheduler {

// Scores of 0..10 from a policy's: -infinity for nodes that it cannot rate. Only the best node, the first of equals,
// gets 10, so that rounding to whole scores never hides it.
std::vector<int> ScoresOf(std::span<const double> raw);
// The same, but equal for equal nodes, among which the scheduler's own scores shall choose.
std::vector<int> EvenScoresOf(std::span<const double> raw);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_NODE_SCORES_H_
