// Generates nodes and pods with the distribution of a large production cluster, from summary statistics (shares,
// deciles) of the openb trace (Weng et al., USENIX ATC 2023). Holds no row of the trace: for the published figures, use
// the real files.
#ifndef SLUICE_SCHEDULER_SIMULATOR_GENERATOR_H_
#define SLUICE_SCHEDULER_SIMULATOR_GENERATOR_H_

#include <cstdint>
#include <vector>

#include "scheduler/simulator/trace_csv.h"

namespace sluice::scheduler {

// Exact shares of each kind, so it needs no seed.
std::vector<Node> GenerateNodes(int count);
std::vector<TracePod> GeneratePods(int count, std::uint64_t seed);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_SIMULATOR_GENERATOR_H_
