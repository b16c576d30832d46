#include "agent/counters.h"

#include "common/counter_rules.h"

namespace sluice::agent {

void AddAttached(sluice_gpu_counters& sum, const sluice_gpu_counters& process) {
#define SLUICE_COUNTER(name, type, rule, scale, metric, help) \
  sum.name = Combined<CounterRule::k##rule>(sum.name, process.name);
#include "counters.def"
}

void AddEnded(sluice_gpu_counters& sum, const sluice_gpu_counters& process) {
#define SLUICE_COUNTER(name, type, rule, scale, metric, help) \
  if (OutlivesProcess(CounterRule::k##rule)) sum.name = Combined<CounterRule::k##rule>(sum.name, process.name);
#include "counters.def"
}

}  // namespace sluice::agent
