// Sums of the counters of several processes on one GPU, by the rule of each row of proto/counters.def. Pure.
#ifndef SLUICE_AGENT_COUNTERS_H_
#define SLUICE_AGENT_COUNTERS_H_

#include "sluice/wire.h"

namespace sluice::agent {

// Adds a process that is attached.
void AddAttached(sluice_gpu_counters& sum, const sluice_gpu_counters& process);
// Adds a process that ended: only the counters that outlive it, so that totals never fall.
void AddEnded(sluice_gpu_counters& sum, const sluice_gpu_counters& process);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_COUNTERS_H_
