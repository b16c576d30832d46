#include "hooklib/policy/fetch/graph_strategy.h"

#include <algorithm>

namespace sluice::policy {

namespace {

// What settles is settled after two or three launches: what leaves behind the first is away, and mapped_remote with the
// next.
constexpr uint32_t kMostUnsettled = 6;
constexpr uint64_t kPatience = 64;    // launches
constexpr uint64_t kFirstRetry = 64;  // launches
constexpr uint64_t kLossShare = 200;  // a way's tries may cost a 200th of the time
constexpr uint64_t kBetterBy = 33;    // a 33th faster, or the present best stays
constexpr uint64_t kHopeless = 3;     // times what each other way takes
constexpr std::array<GraphStrategy, kGraphStrategies> kOrder{GraphStrategy::kDemandPaging, GraphStrategy::kFetch,
                                                             GraphStrategy::kRemote, GraphStrategy::kFaults};

bool IsAnother(uint64_t now, uint64_t then) { return now > then + then / 4 || then > now + now / 4; }

}  // namespace

const char* Describe(GraphStrategy way) {
  switch (way) {
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
bool GraphStrategies::Habit::IsOpen(GraphStrategy w) const {
  if (w == GraphStrategy::kRemote) return may_map_remote;
  // Faults cost about the same whatever is held: worth a try only where they are the best.
  if (w == GraphStrategy::kFaults) return best == GraphStrategy::kDemandPaging || best == w;
  return true;
}

bool GraphStrategies::Habit::IsDue(GraphStrategy w) const {
  if (!IsOpen(w)) return false;
  const Tried& tried = ways[static_cast<size_t>(w)];
  if (tried.ns == 0) return true;
  const uint64_t best_ns = std::max<uint64_t>(1, ways[static_cast<size_t>(best)].ns);
  const uint64_t pause =
      std::max(kFirstRetry << (2 * std::min<uint32_t>(tried.tries, 8)), tried.loss / best_ns * kLossShare);
  return w != best && launches >= tried.at + pause;
}

// What the launch before held up. If all of it had left long before, it was the host that was late.
uint64_t GraphStrategies::Habit::Behind(GraphStrategy w) const {
  if (w != left || gap <= soonest || gap - soonest > 2 * departing) return 0;
  return std::min(gap - soonest, departing);
}

// What two in a row say counts whole. One slow launch may have run beside others' work, or the host waited for all that
// was under way: an eighth of the difference, of a quarter of the time at most.
void GraphStrategies::Tried::Follow(uint64_t time) {
  const auto [low, high] = std::minmax(time, last);
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
bool GraphStrategies::Habit::IsHopeless(GraphStrategy w, uint64_t ns) const {
  size_t others = 0;
  for (const GraphStrategy other : kOrder) {
    const uint64_t time = ways[static_cast<size_t>(other)].ns;
    if (other == w || !time) continue;
    if (ns <= kHopeless * time) return false;
    ++others;
  }
  return others > 1;
}

GraphStrategy GraphStrategies::Next(const Launch& launch) {
  if (habits_.size() > (1 << 14)) habits_.clear();  // ids of phases that are long over
  Habit& habit = habits_[launch.id];
  // Another question: a graph that was updated or made where another was, a budget that moved.
  if (IsAnother(launch.bytes, habit.bytes) || IsAnother(launch.capacity, habit.capacity) ||
      launch.may_map_remote != habit.may_map_remote) {
    habit = {.bytes = launch.bytes,
             .capacity = launch.capacity,
             .launches = habit.launches,
             .asked = habit.launches,
             .may_map_remote = launch.may_map_remote};
  }
  ++habit.launches;
  if (habit.awaited_to && habit.launches > habit.awaited_to) habit.awaited_to = 0;  // it was not timed
  if (!habit.trying && !habit.awaited_to) {
    const auto due = std::find_if(kOrder.begin(), kOrder.end(), [&](GraphStrategy w) { return habit.IsDue(w); });
    if (due != kOrder.end()) {
      habit.trying = true;
      habit.on_trial = *due;
    }
  }
  const GraphStrategy way = habit.trying ? habit.on_trial : habit.best;
  if (way != habit.way) {
    habit.run = 0;
    habit.changed = habit.launches;
  }
  habit.way = way;
  ++habit.run;
  return way;
}

GraphProbe GraphStrategies::Planned(uint64_t id, bool settled) {
  Habit& habit = habits_[id];
  const bool counts = habit.run > 1 && (settled || habit.run > kMostUnsettled);
  if (habit.trying && counts) {
    habit.trying = false;
    habit.awaited_to = habit.launches + kPatience;
  }
  return {id, habit.way, habit.launches, counts};
}

void GraphStrategies::Left(const GraphProbe& probe, uint64_t gap, uint64_t departing) {
  const auto it = habits_.find(probe.id);
  if (it == habits_.end() || probe.number <= it->second.asked) return;
  Habit& habit = it->second;
  habit.left = probe.way;
  habit.gap = gap;
  habit.departing = departing;
  habit.soonest = std::min(habit.soonest, gap);
}

bool GraphStrategies::Measured(const GraphProbe& probe, uint64_t ns) {
  const auto it = habits_.find(probe.id);
  if (it == habits_.end()) return false;
  Habit& habit = it->second;
  if (probe.number <= habit.asked) return false;  // that was another question
  Tried& tried = habit.Of(probe.way);
  const uint64_t best_ns = habit.Of(habit.best).ns;
  ns += habit.Behind(probe.way);
  habit.gap = 0;  // so much for that
  // The way that was last on trial answers for the launches that lead back, too.
  if (best_ns && (!probe.counts || probe.way != habit.best))
    habit.Of(habit.on_trial).loss += ns - std::min(ns, best_ns);
  if (!probe.counts) {
    if (!habit.trying || probe.way != habit.on_trial || !habit.IsHopeless(probe.way, ns)) return false;
    habit.trying = false;
    habit.awaited_to = habit.launches;
  }
  // The next launch went another way before this one was over: what was brought for it helped this one. So the way is
  // no faster than that, and may be as slow as anything.
  const bool helped = habit.changed > probe.number;
  if (habit.awaited_to && probe.way == habit.on_trial) {
    habit.awaited_to = 0;
    tried.ns = helped ? std::max(ns, best_ns) : ns;
    tried.at = habit.launches;
    ++tried.tries;
  } else if (!helped) {
    tried.Follow(ns);
  }
  tried.last = ns;
  const auto time = [&](GraphStrategy w) { return habit.IsOpen(w) && habit.Of(w).ns ? habit.Of(w).ns : UINT64_MAX; };
  const GraphStrategy fastest = *std::min_element(kOrder.begin(), kOrder.end(),
                                                  [&](GraphStrategy a, GraphStrategy b) { return time(a) < time(b); });
  const bool another = time(fastest) + time(fastest) / kBetterBy < time(habit.best);
  if (another) habit.best = fastest;
  const bool complete =
      std::all_of(kOrder.begin(), kOrder.end(), [&](GraphStrategy w) { return !habit.IsOpen(w) || habit.Of(w).ns; });
  const bool first = complete && !habit.complete;
  habit.complete |= complete;
  if (!first && !(complete && another)) return false;
  // One time decided; it is seen once more before many launches go that way.
  habit.trying = true;
  habit.on_trial = habit.best;
  return true;
}

bool GraphStrategies::IsTrying(uint64_t id) const {
  const auto it = habits_.find(id);
  return it != habits_.end() && (it->second.trying || it->second.awaited_to);
}

GraphStrategy GraphStrategies::Best(uint64_t id) const {
  const auto it = habits_.find(id);
  return it == habits_.end() ? GraphStrategy::kDemandPaging : it->second.best;
}

GraphStrategies::Times GraphStrategies::TimesOf(uint64_t id) const {
  Times times{};
  const auto it = habits_.find(id);
  for (size_t i = 0; it != habits_.end() && i < kGraphStrategies; ++i) times[i] = it->second.ways[i].ns;
  return times;
}

}  // namespace sluice::policy
