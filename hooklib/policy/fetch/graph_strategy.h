// Graph strategies: how the part of a graph that exceeds the capacity reaches its kernels.
//
// Whole launches are timed, with all that the engine moves for them; nothing is concluded from parts. On an H200 a
// graph whose weights missed a third of their room took 86 ms by faults on one machine and 134 on another. It took 142
// with other chunks resident, and 151 with the rest used remotely; no rate of a part told these apart. Each strategy
// gets a few launches. The first in a row does not count, nor do launches that still prepare the strategy; but a launch
// that takes three times as long as under every other strategy ends the probe for now. Until the answer is known,
// launches take the best known strategy and do not wait. The others are probed ever more rarely, so that all probes of
// a strategy cost at most a 200th of the time (a bounded regret).
//
// A launch also leaves work behind: its evictions may hold up whatever is launched before the next one (a step of 94 ms
// on an H200, of which 32 were its graph's). So a strategy also costs the delay of the next launch beyond the shortest
// gap, behind a launch of the same strategy. That delay counts only until the evictions are over: a host that pauses in
// between is no cost of the strategy. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_GRAPH_STRATEGY_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_GRAPH_STRATEGY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace sluice::policy {

enum class GraphStrategy : uint8_t {
  kDemandPaging,  // all missing chunks are left to demand faults, as with `--prefetch off`
  // The hot part is resident. The rest is fetched before each launch, beyond the budget, and evicted behind it.
  kFetch,
  kRemote,  // the hot part is resident, the rest is used remotely
  // The small operands are resident first, whatever the nodes name. Of large ones, paged caches, less may be touched.
  kRemoteLargest,
  kFaults,  // the hot part is resident, the rest is left to demand faults
};
inline constexpr size_t kGraphStrategyCount = 5;
const char* Describe(GraphStrategy strategy);

// One timed launch of a strategy.
struct GraphProbe {
  uint64_t id = 0;  // execution id; 0: nothing to time
  GraphStrategy strategy = GraphStrategy::kDemandPaging;
  uint64_t number = 0;  // among the launches of its id
  bool counts = false;  // as the cost of the strategy; otherwise only as the cost of the probe
};

class GraphStrategies {
 public:
  using Times = std::array<uint64_t, kGraphStrategyCount>;  // ns of a launch and of its delay; 0: not known
  struct Launch {
    uint64_t id;     // execution id
    uint64_t bytes;  // of its set
    uint64_t capacity;
    bool may_map_remote;
    bool sizes_differ = false;  // enough of its bytes are operands far smaller than the largest
  };

  // The strategy of the next launch of this id.
  GraphStrategy Next(const Launch& launch);
  // The launch that Next was asked for is planned. `settled`: the plan holds nothing that only the first launches of a
  // strategy need.
  GraphProbe Planned(uint64_t id, bool settled);
  // The next timed launch of a graph began `gap_ns` after the end of this one. This launch's evictions were over
  // `eviction_ns` after its end, if that was sooner. To be called before that launch's NoteMeasured.
  void NoteGapAfter(const GraphProbe& probe, uint64_t gap_ns, uint64_t eviction_ns);
  // The launch's time on the GPU's clock. True where this is the first time that all strategies are known, or where the
  // best one changes.
  bool NoteMeasured(const GraphProbe& probe, uint64_t ns);
  // A strategy is being probed, or its answer is awaited.
  bool IsProbing(uint64_t id) const;
  GraphStrategy Best(uint64_t id) const;
  Times TimesOf(uint64_t id) const;
  // Whether it is a graph that was larger than the capacity.
  bool Knows(uint64_t id) const { return records_.contains(id); }

 private:
  struct Timing {
    uint64_t ns = 0;           // of a launch and its delay
    uint64_t last_ns = 0;      // of the newest launch
    uint64_t measured_at = 0;  // number of the launch at which it was last probed
    uint64_t loss_ns = 0;      // time that its probes took beyond the best strategy
    uint32_t probes = 0;
    void Update(uint64_t time);
  };
  struct Record {
    uint64_t bytes = 0, capacity = 0;
    uint64_t launches = 0;
    uint64_t question_begin = 0;  // launches before the question changed (size, capacity)
    GraphStrategy strategy = GraphStrategy::kDemandPaging, best = GraphStrategy::kDemandPaging,
                  probing = GraphStrategy::kDemandPaging;
    uint32_t run = 0;          // launches since the strategy changed
    uint64_t changed_at = 0;   // number of the launch at which it did
    bool is_probing = false;   // launches take the probed strategy until one of them counts
    uint64_t await_until = 0;  // the answer is awaited until this launch; 0: it is not
    bool may_map_remote = true, sizes_differ = false;
    bool complete = false;  // all strategies are known
    // Behind the newest launch: its strategy, the time until the next began, the time until its evictions were over.
    GraphStrategy last_strategy = GraphStrategy::kDemandPaging;
    uint64_t gap_ns = 0, eviction_ns = 0;
    uint64_t shortest_gap_ns = UINT64_MAX;
    std::array<Timing, kGraphStrategyCount> timings;
    Timing& Of(GraphStrategy w) { return timings[static_cast<size_t>(w)]; }
    bool IsAvailable(GraphStrategy w) const;
    bool IsDue(GraphStrategy w) const;
    uint64_t HeldUpNs(GraphStrategy w) const;
    bool IsHopeless(GraphStrategy w, uint64_t ns) const;
  };
  std::unordered_map<uint64_t, Record> records_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_GRAPH_STRATEGY_H_
