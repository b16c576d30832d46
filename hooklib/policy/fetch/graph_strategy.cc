#include "hooklib/policy/fetch/graph_strategy.h"

#include <algorithm>

namespace sluice::policy {

namespace {

// A strategy settles within two or three launches: behind the first the evictions are over, and the next duplicates.
constexpr uint32_t kMaxUnsettledLaunches = 6;
constexpr uint64_t kMaxAwaitedLaunches = 64;
constexpr uint64_t kFirstRetryLaunches = 64;
constexpr uint64_t kMaxLossShare = 200;  // the probes of a strategy may cost a 200th of the time
constexpr uint64_t kMinGainShare = 33;   // a 33th faster, or the best strategy stays
constexpr uint64_t kHopelessFactor = 3;  // times as long as under each other strategy
constexpr std::array<GraphStrategy, kGraphStrategyCount> kOrder{GraphStrategy::kDemandPaging, GraphStrategy::kFetch,
                                                                GraphStrategy::kRemote, GraphStrategy::kRemoteLargest,
                                                                GraphStrategy::kFaults};

bool IsAnother(uint64_t now, uint64_t then) { return now > then + then / 4 || then > now + now / 4; }

}  // namespace

const char* Describe(GraphStrategy strategy) {
  switch (strategy) {
    case GraphStrategy::kDemandPaging:
      return "demand paging";
    case GraphStrategy::kFetch:
      return "fetched before each launch and evicted behind it";
    case GraphStrategy::kRemote:
      return "remote access to host memory";
    case GraphStrategy::kRemoteLargest:
      return "remote access to the largest operands";
    default:
      return "demand faults beside a resident hot part";
  }
}

bool GraphStrategies::Record::IsAvailable(GraphStrategy w) const {
  if (w == GraphStrategy::kRemote) return may_map_remote;
  if (w == GraphStrategy::kRemoteLargest) return may_map_remote && sizes_differ;
  // Faults cost about the same whatever is resident: worth a probe only where they are the best.
  if (w == GraphStrategy::kFaults) return best == GraphStrategy::kDemandPaging || best == w;
  return true;
}

bool GraphStrategies::Record::IsDue(GraphStrategy w) const {
  if (!IsAvailable(w)) return false;
  const Timing& timing = timings[static_cast<size_t>(w)];
  if (timing.ns == 0) return true;
  const uint64_t best_ns = std::max<uint64_t>(1, timings[static_cast<size_t>(best)].ns);
  const uint64_t pause = std::max(kFirstRetryLaunches << (2 * std::min<uint32_t>(timing.probes, 8)),
                                  timing.loss_ns / best_ns * kMaxLossShare);
  return w != best && launches >= timing.measured_at + pause;
}

// How long the launch before held up this one. If its evictions were over long before, the host was late.
uint64_t GraphStrategies::Record::HeldUpNs(GraphStrategy w) const {
  if (w != last_strategy || gap_ns <= shortest_gap_ns || gap_ns - shortest_gap_ns > 2 * eviction_ns) return 0;
  return std::min(gap_ns - shortest_gap_ns, eviction_ns);
}

// Two equal results in a row count fully. One slow launch may have run beside other work, or the host waited for all
// that was in flight: then an eighth of the difference counts, of a quarter of the time at most.
void GraphStrategies::Timing::Update(uint64_t time) {
  const auto [low, high] = std::minmax(time, last_ns);
  if (ns == 0 || low > ns) {
    ns = ns ? low : time;
  } else if (high < ns) {
    ns = high;
  } else if (time > ns) {
    ns += std::min(time - ns, ns / 4) / 8;
  } else {
    ns -= (ns - time) / 8;
  }
}

// The first launch of a strategy includes one-time work, and may take several times as long as the fastest strategy.
// Against all others, and more than one, it says enough. With a graph of weights that are read repeatedly the first
// remote launch took 132 ms (simulated), the second 126, by faults 23 and fetched 6.
bool GraphStrategies::Record::IsHopeless(GraphStrategy w, uint64_t ns) const {
  size_t others = 0;
  for (const GraphStrategy other : kOrder) {
    const uint64_t time = timings[static_cast<size_t>(other)].ns;
    if (other == w || !time) continue;
    if (ns <= kHopelessFactor * time) return false;
    ++others;
  }
  return others > 1;
}

GraphStrategy GraphStrategies::Next(const Launch& launch) {
  if (records_.size() > (1 << 14)) records_.clear();  // ids of phases that are long over
  Record& record = records_[launch.id];
  // The question changes with the graph (updated, or another one at its address) and with the budget.
  if (IsAnother(launch.bytes, record.bytes) || IsAnother(launch.capacity, record.capacity) ||
      launch.may_map_remote != record.may_map_remote || launch.sizes_differ != record.sizes_differ) {
    record = {.bytes = launch.bytes,
              .capacity = launch.capacity,
              .launches = record.launches,
              .question_begin = record.launches,
              .may_map_remote = launch.may_map_remote,
              .sizes_differ = launch.sizes_differ};
  }
  ++record.launches;
  if (record.await_until && record.launches > record.await_until) record.await_until = 0;  // it was not timed
  if (!record.is_probing && !record.await_until) {
    const auto due = std::find_if(kOrder.begin(), kOrder.end(), [&](GraphStrategy w) { return record.IsDue(w); });
    if (due != kOrder.end()) {
      record.is_probing = true;
      record.probing = *due;
    }
  }
  const GraphStrategy strategy = record.is_probing ? record.probing : record.best;
  if (strategy != record.strategy) {
    record.run = 0;
    record.changed_at = record.launches;
  }
  record.strategy = strategy;
  ++record.run;
  return strategy;
}

GraphProbe GraphStrategies::Planned(uint64_t id, bool settled) {
  Record& record = records_[id];
  const bool counts = record.run > 1 && (settled || record.run > kMaxUnsettledLaunches);
  if (record.is_probing && counts) {
    record.is_probing = false;
    record.await_until = record.launches + kMaxAwaitedLaunches;
  }
  return {id, record.strategy, record.launches, counts};
}

void GraphStrategies::NoteGapAfter(const GraphProbe& probe, uint64_t gap_ns, uint64_t eviction_ns) {
  const auto it = records_.find(probe.id);
  if (it == records_.end() || probe.number <= it->second.question_begin) return;
  Record& record = it->second;
  record.last_strategy = probe.strategy;
  record.gap_ns = gap_ns;
  record.eviction_ns = eviction_ns;
  record.shortest_gap_ns = std::min(record.shortest_gap_ns, gap_ns);
}

bool GraphStrategies::NoteMeasured(const GraphProbe& probe, uint64_t ns) {
  const auto it = records_.find(probe.id);
  if (it == records_.end()) return false;
  Record& record = it->second;
  if (probe.number <= record.question_begin) return false;  // of the question before
  Timing& timing = record.Of(probe.strategy);
  const uint64_t best_ns = record.Of(record.best).ns;
  ns += record.HeldUpNs(probe.strategy);
  record.gap_ns = 0;
  // The strategy that was last probed also pays for the launches that lead back.
  if (best_ns && (!probe.counts || probe.strategy != record.best))
    record.Of(record.probing).loss_ns += ns - std::min(ns, best_ns);
  if (!probe.counts) {
    if (!record.is_probing || probe.strategy != record.probing || !record.IsHopeless(probe.strategy, ns)) return false;
    record.is_probing = false;
    record.await_until = record.launches;
  }
  // The next launch took another strategy before this one was over, and its fetches helped this one. So the probed
  // strategy is no faster than measured, and may be far slower.
  const bool helped = record.changed_at > probe.number;
  if (record.await_until && probe.strategy == record.probing) {
    record.await_until = 0;
    timing.ns = helped ? std::max(ns, best_ns) : ns;
    timing.measured_at = record.launches;
    ++timing.probes;
  } else if (!helped) {
    timing.Update(ns);
  }
  timing.last_ns = ns;
  const auto time = [&](GraphStrategy w) {
    return record.IsAvailable(w) && record.Of(w).ns ? record.Of(w).ns : UINT64_MAX;
  };
  const GraphStrategy fastest = *std::min_element(kOrder.begin(), kOrder.end(),
                                                  [&](GraphStrategy a, GraphStrategy b) { return time(a) < time(b); });
  const bool another = time(fastest) + time(fastest) / kMinGainShare < time(record.best);
  if (another) record.best = fastest;
  const bool complete = std::all_of(kOrder.begin(), kOrder.end(),
                                    [&](GraphStrategy w) { return !record.IsAvailable(w) || record.Of(w).ns; });
  const bool first = complete && !record.complete;
  record.complete |= complete;
  if (!first && !(complete && another)) return false;
  // One measurement decided; it is repeated once before many launches take that strategy.
  record.is_probing = true;
  record.probing = record.best;
  return true;
}

bool GraphStrategies::IsProbing(uint64_t id) const {
  const auto it = records_.find(id);
  return it != records_.end() && (it->second.is_probing || it->second.await_until);
}

GraphStrategy GraphStrategies::Best(uint64_t id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? GraphStrategy::kDemandPaging : it->second.best;
}

GraphStrategies::Times GraphStrategies::TimesOf(uint64_t id) const {
  Times times{};
  const auto it = records_.find(id);
  for (size_t i = 0; it != records_.end() && i < kGraphStrategyCount; ++i) times[i] = it->second.timings[i].ns;
  return times;
}

}  // namespace sluice::policy
