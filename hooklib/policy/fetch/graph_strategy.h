// Which way what does not fit of a graph larger than all that may be resident comes to its kernels.
//
// Whole launches are timed, with all that the engine moves for them, and nothing is concluded from parts: on an H200 a
// graph whose weights missed a third of their room took 86 ms by faults on one machine, 134 on another, 142 with other
// chunks held and 151 with the rest used in host memory, and no rate of a part told these apart. Each way is given a
// few launches; the first in a row does not count, nor do those that still bring things into order for the way (but one
// that took three times what every other way takes is the last that is tried of its way, for now). While
// the answer is awaited (nothing waits for it) launches go the best way known. The others are tried again ever more
// rarely, and so that what all tries of a way cost stays within a 200th of the time.
//
// A launch also leaves work behind: what is sent away then may hold up whatever is launched between it and the next (a
// step of 94 ms on an H200, of which 32 were its graph's). So a way costs what its launches take and how much later
// they come, behind one that went the same way, than the soonest came, but no more than until all of that one had left:
// a host that thinks in between is nobody's cost. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_GRAPH_STRATEGY_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_GRAPH_STRATEGY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace sluice::policy {

enum class GraphStrategy : uint8_t {
  kDemandPaging,  // all that is missing is left to faults, whatever is held: as with `--prefetch off`
  kFetch,   // the hottest part is held, the rest is brought before each launch, beyond the budget, and leaves behind it
  kRemote,  // the hottest part is held, the rest is used in host memory
  kFaults,  // the hottest part is held, the rest is left to faults
};
inline constexpr size_t kGraphStrategyCount = 4;
const char* Describe(GraphStrategy strategy);

// One launch that went some way and is timed.
struct GraphProbe {
  uint64_t id = 0;  // execution id; 0: nothing to time
  GraphStrategy strategy = GraphStrategy::kDemandPaging;
  uint64_t number = 0;  // among the launches of its id
  bool counts = false;  // for what the way costs; otherwise for what it cost to try it
};

class GraphStrategies {
 public:
  using Times = std::array<uint64_t, kGraphStrategyCount>;  // ns of a launch and of what it holds up; 0: not known
  struct Launch {
    uint64_t id;          // execution id
    uint64_t bytes;       // that it names
    uint64_t capacity;    // that may be resident
    bool may_map_remote;  // host memory may be used in place
  };

  // The way of the next launch of this id.
  GraphStrategy Next(const Launch& launch);
  // The launch that Next was asked for is planned. `settled`: the plan has nothing in it that only the first launches
  // of a way need.
  GraphProbe Planned(uint64_t id, bool settled);
  // The next launch of a graph that is timed began `gap` ns after the end of this one, and what this one sent away was
  // gone after `departing`, if that was sooner. Before that launch's Measured.
  void NoteGapAfter(const GraphProbe& probe, uint64_t gap_ns, uint64_t eviction_ns);
  // How long it took, in ns of the GPU's clock. True where all ways are known with this for the first time, or the best
  // is another than before.
  bool NoteMeasured(const GraphProbe& probe, uint64_t ns);
  // A way is on trial, or its answer is awaited.
  bool IsProbing(uint64_t id) const;
  GraphStrategy Best(uint64_t id) const;
  Times TimesOf(uint64_t id) const;
  // Whether it is a graph that was larger than what may be resident.
  bool Knows(uint64_t id) const { return records_.contains(id); }

 private:
  struct Timing {
    uint64_t ns = 0;           // of a launch and of what it holds up
    uint64_t last_ns = 0;      // of the last one
    uint64_t measured_at = 0;  // number of the launch at which it was last tried
    uint64_t loss_ns = 0;      // ns: what its tries took beyond what the best way would have
    uint32_t probes = 0;
    void Update(uint64_t time);
  };
  struct Record {
    uint64_t bytes = 0, capacity = 0;
    uint64_t launches = 0;
    uint64_t question_begin = 0;  // so many of them were before the question was this one
    GraphStrategy strategy = GraphStrategy::kDemandPaging, best = GraphStrategy::kDemandPaging,
                  probing = GraphStrategy::kDemandPaging;
    uint32_t run = 0;          // launches since the way changed
    uint64_t changed_at = 0;   // number of the launch with which it did
    bool is_probing = false;   // launches go the way on trial, until one of them counts
    uint64_t await_until = 0;  // the answer is awaited, but no longer than up to this launch; 0: it is not
    bool may_map_remote = true;
    bool complete = false;  // all ways are known
    // Behind the last launch, in ns: that went this way, when the next began, when what it sent away was gone.
    GraphStrategy last_strategy = GraphStrategy::kDemandPaging;
    uint64_t gap_ns = 0, eviction_ns = 0;
    uint64_t shortest_gap_ns = UINT64_MAX;  // of all gaps
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
