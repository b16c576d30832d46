#include "hooklib/policy/fetch/graph_strategy.h"

#include <algorithm>

namespace sluice::policy {

namespace {

// What settles is settled after two or three launches: what leaves behind the first is away, and mapped_remote with the
// next.
constexpr uint32_t kMaxUnsettledLaunches = 6;
constexpr uint64_t kMaxAwaitedLaunches = 64;  // launches
constexpr uint64_t kFirstRetryLaunches = 64;  // launches
constexpr uint64_t kMaxLossShare = 200;       // a way's tries may cost a 200th of the time
constexpr uint64_t kMinGainShare = 33;        // a 33th faster, or the present best stays
constexpr uint64_t kHopelessFactor = 3;       // times what each other way takes
constexpr std::array<GraphStrategy, kGraphStrategyCount> kOrder{GraphStrategy::kDemandPaging, GraphStrategy::kFetch,
                                                                GraphStrategy::kRemote, GraphStrategy::kFaults};

bool IsAnother(uint64_t now, uint64_t then) { return now > then + then / 4 || then > now + now / 4; }

}  // namespace

const char* Describe(GraphStrategy strategy) {
  switch (strategy) {
    case GraphStrategy::kDemandPaging:
      return "by faults";
    case GraphStrategy::kFetch:
      return "fetched before and dropped or sent away after each launch";
    case GraphStrategy::kRemote:
      return "in host memory";
    default:
      return "by faults beside what is used most";
  }
}

// Whether the way may be gone at all.
bool GraphStrategies::Record::IsAvailable(GraphStrategy w) const {
  if (w == GraphStrategy::kRemote) return may_map_remote;
  // Faults cost about the same whatever is held: worth a try only where they are the best.
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

// What the launch before held up. If all of it had left long before, it was the host that was late.
uint64_t GraphStrategies::Record::HeldUpNs(GraphStrategy w) const {
  if (w != last_strategy || gap_ns <= shortest_gap_ns || gap_ns - shortest_gap_ns > 2 * eviction_ns) return 0;
  return std::min(gap_ns - shortest_gap_ns, eviction_ns);
}

// What two in a row say counts whole. One slow launch may have run beside others' work, or the host waited for all that
// was under way: an eighth of the difference, of a quarter of the time at most.
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

// What only the first launches of a way need is in the time of its first, and may be several times what the fastest way
// takes. Against all others, and more than one, it says enough: with a graph of weights that are read again and again
// the first launch in host memory took 132 ms (simulated), the second 126, by faults 23 and fetched 6.
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
  // Another question: a graph that was updated or made where another was, a budget that moved.
  if (IsAnother(launch.bytes, record.bytes) || IsAnother(launch.capacity, record.capacity) ||
      launch.may_map_remote != record.may_map_remote) {
    record = {.bytes = launch.bytes,
              .capacity = launch.capacity,
              .launches = record.launches,
              .question_begin = record.launches,
              .may_map_remote = launch.may_map_remote};
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
  if (probe.number <= record.question_begin) return false;  // that was another question
  Timing& timing = record.Of(probe.strategy);
  const uint64_t best_ns = record.Of(record.best).ns;
  ns += record.HeldUpNs(probe.strategy);
  record.gap_ns = 0;  // so much for that
  // The way that was last on trial answers for the launches that lead back, too.
  if (best_ns && (!probe.counts || probe.strategy != record.best))
    record.Of(record.probing).loss_ns += ns - std::min(ns, best_ns);
  if (!probe.counts) {
    if (!record.is_probing || probe.strategy != record.probing || !record.IsHopeless(probe.strategy, ns)) return false;
    record.is_probing = false;
    record.await_until = record.launches;
  }
  // The next launch went another way before this one was over: what was brought for it helped this one. So the way is
  // no faster than that, and may be as slow as anything.
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
  // One time decided; it is seen once more before many launches go that way.
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
