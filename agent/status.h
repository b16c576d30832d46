// The agent's status as plain values: made on the core's thread, read by the gRPC service, metrics and tests.
#ifndef SLUICE_AGENT_STATUS_H_
#define SLUICE_AGENT_STATUS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/right_size.h"
#include "sluice/wire.h"

namespace sluice::agent {

// Bytes, except where a member says otherwise.
struct CardStatus {
  std::string uuid, model;
  uint64_t memory = 0, reserve = 0, guaranteed = 0, lent = 0, overdue = 0, used = 0;
  uint64_t cgroup_memory = 0;  // Card::cgroup_memory
  int numa = -1;
  uint32_t free_units = 100;
  bool tokens = false;     // launches need them now
  uint64_t tokens_ns = 0;  // the time in which they needed them
};

struct ShareStatus {
  std::string uuid;
  uint32_t units = 0;
  uint32_t percent = 0;  // in force: the units, or a fraction that was set since
  uint64_t guaranteed = 0, budget = 0, limit = 0, overdue = 0;
  uint32_t compute_request = 0, compute_limit = 0;  // millionths
  double compute_used = 0;                          // share of the window
  uint64_t touched_peak = 0;                        // working set of the last day; 0: not known
  double fraction = 0;                              // of the GPU's memory
  RightSize right_size;                             // empty while that is not known
  uint64_t link = 0;                                // bytes a second over the link to the host; 0: not metered
};

struct ProcessStatus {
  int64_t pid = 0;
  std::string command, version;
  std::string proof;   // idle: no use of a GPU is seen; proven; unproven
  std::string reason;  // why it is unproven
  std::vector<sluice_gpu_counters> gpus;
};

struct ParkStatus {
  std::string state, reason, woken_by, waits;  // as in proto/agent.proto
  uint64_t since_ms = 0, resident = 0, unmanaged = 0, contexts = 0, parks = 0, wakes = 0;
};

struct AllocationStatus {
  std::string id, pod, ns, container, claim, hook_state;
  std::string hook_reason;  // why the hook is not attached, or unproven; else empty
  std::string held;         // opportunistic: the reason why its launches wait; else empty
  ParkStatus park;
  std::vector<ShareStatus> gpus;
  std::vector<ProcessStatus> processes;
  std::vector<sluice_gpu_counters> ended;  // sums of the processes that ended, by GPU
  std::map<std::string, std::string> settings;
  uint64_t events_left_out = 0;                       // beyond the allocation's bucket
  uint64_t delayed_connects = 0, delayed_frames = 0;  // times that the allocation had to wait for its bucket
};

// A process on a GPU that its container was not given.
struct ForeignProcess {
  int64_t pid = 0;
  std::string gpu;
  std::string allocation;        // its container's own; empty: it has none
  std::string pod_uid, ns, pod;  // empty: not known
  bool operator==(const ForeignProcess&) const = default;
};

// The agent's CPU time for each process that attached, from accept() to its first budget. The plan that set the budget
// counts in equal parts for all processes whose budgets it set.
struct AttachTimes {
  // Upper bounds; the last count is of those beyond.
  static constexpr std::array<uint32_t, 16> kBoundsUs = {10, 20,  30,  40,  50,  60,   70,   80,
                                                         90, 100, 150, 200, 500, 1000, 2000, 10000};
  std::array<uint64_t, kBoundsUs.size() + 1> counts{};
  uint64_t sum_ns = 0;

  void Add(uint64_t ns) {
    size_t i = 0;
    while (i < kBoundsUs.size() && ns > kBoundsUs[i] * uint64_t{1000}) ++i;
    ++counts[i];
    sum_ns += ns;
  }
};

struct NodeStatus {
  int64_t unix_ms = 0;
  std::vector<CardStatus> cards;
  std::vector<AllocationStatus> allocations;
  std::vector<ForeignProcess> foreign;
  std::string config_error;
  std::string offer_problem;  // the device plugin's
  uint64_t host_bytes = 0, host_limit = 0;
  uint64_t malformed_frames = 0, late_reclaims = 0, forged_claims = 0;
  AttachTimes attach;
};

struct Event {
  uint64_t number = 0;
  int64_t unix_ms = 0;
  std::string allocation, kind, text;
  std::string pod_uid;  // of a pod that has no allocation; else empty
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_STATUS_H_
