// What the agent knows, as plain values: made on the core's thread, read by the gRPC service, metrics and tests.
#ifndef SLUICE_AGENT_STATUS_H_
#define SLUICE_AGENT_STATUS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sluice/wire.h"

namespace sluice::agent {

struct CardStatus {
  std::string uuid, model;
  uint64_t memory = 0, reserve = 0, guaranteed = 0, lent = 0, debt = 0, used = 0;
  int numa = -1;
  uint32_t free_units = 100;
  bool tokens = false;  // demanded now
};

struct ShareStatus {
  std::string uuid;
  uint32_t units = 0;
  uint64_t guaranteed = 0, budget = 0, limit = 0, debt = 0;
  uint32_t compute_request = 0, compute_limit = 0;  // millionths
  double compute_used = 0;                          // share of the window
};

struct ProcessStatus {
  int64_t pid = 0;
  std::string command, version;
  std::vector<sluice_gpu_counters> gpus;
};

struct AllocationStatus {
  std::string id, pod, ns, container, hook_state;
  std::vector<ShareStatus> gpus;
  std::vector<ProcessStatus> processes;
  std::vector<sluice_gpu_counters> ended;  // sums of the processes that ended, by GPU
  std::map<std::string, std::string> settings;
};

struct NodeStatus {
  int64_t unix_ms = 0;
  std::vector<CardStatus> cards;
  std::vector<AllocationStatus> allocations;
  std::string config_error;
  uint64_t host_bytes = 0, host_limit = 0;
  uint64_t malformed_frames = 0, late_callbacks = 0;
};

struct Event {
  uint64_t number = 0;
  int64_t unix_ms = 0;
  std::string allocation, kind, text;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_STATUS_H_
